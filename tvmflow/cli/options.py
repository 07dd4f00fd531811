"""Options that several commands have, and the formats of their values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from .output import state

_PANEL = "Common options"
R = TypeVar("R")

Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=_PANEL)
]
ModuleFile = Annotated[Path, typer.Argument(metavar="OUT.so", help="A compiled module.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX model.")]
OpsFiles = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE.py",
        help="Python file that registers custom operators (docs/custom-operators.md); repeatable. "
        "It is run.",
    ),
]
InputsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="IN.npz",
        help="Inputs by ONNX name (or one array in an .npy file, for a single input).",
    ),
]
FreshCeilings = Annotated[
    bool,
    typer.Option(
        "--fresh-ceilings", help="Measure what the device reaches at most, although it is known."
    ),
]
RandomSeed = Annotated[int, typer.Option(metavar="N", min=0, help="Seeds the random inputs.")]
FarmKey = Annotated[str | None, typer.Option(metavar="KEY", help="Of the devices at the tracker.")]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="TVMFLOW_SECRET_FILE",
        help="Holds the secret that the tracker and its servers were started with.",
    ),
]
CheckWeights = Annotated[
    bool,
    typer.Option(
        help="Compare the weights with their checksum when the module is loaded; of several "
        "gigabytes that takes as long as a run."
    ),
]
DeviceIndex = Annotated[
    int,
    typer.Option(
        min=0, help="Which of the target's devices runs the module (see `tvmflow devices`)."
    ),
]


def option(name: str, annotation: object, default: object) -> inspect.Parameter:
    """Return the parameter of a command that typer makes an option of."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def set_parameters(
    function: Callable[..., object], parameters: Mapping[str, inspect.Parameter]
) -> None:
    """Let typer see these parameters, in this order, instead of those that a function has."""
    kind = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature([each.replace(kind=kind) for each in parameters.values()])
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {name: each.annotation for name, each in parameters.items()}


def _common_option(short: str, name: str, help_text: str) -> inspect.Parameter:
    """Return an option that sets the field of `state` with its name."""

    def remember(value: bool) -> None:
        setattr(state, name, getattr(state, name) or value)

    names = (short, f"--{name}") if short else (f"--{name}",)
    declared = typer.Option(*names, help=help_text, callback=remember, rich_help_panel=_PANEL)
    return option(name, Annotated[bool, declared], False)


#: Options of every command and of the program itself, which may have them before a command.
COMMON = {
    "verbose": _common_option(
        "-v", "verbose", "Show stage times and the log of TVM and the driver."
    ),
    "quiet": _common_option("-q", "quiet", "Print only results and errors."),
    "debug": _common_option("", "debug", "Show the traceback of an error."),
}


def with_common_options(function: Callable[..., R]) -> Callable[..., R]:
    """Give a function the options of every command, which it need not know."""

    @functools.wraps(function)
    def run(**given: object) -> R:
        return function(**{name: value for name, value in given.items() if name not in COMMON})

    own = inspect.signature(function, eval_str=True).parameters
    set_parameters(run, {**own, **COMMON})
    return run


def load_operators(files: list[Path] | None) -> None:
    """Run the files of ``--ops``."""
    if files:
        from ..ops import load

        for file in files:
            load(file)


def parse_parameters(texts: list[str]) -> dict[str, str]:
    """Read ``NAME=VALUE`` options.

    Raises
    ------
    typer.BadParameter
        If one is not of that form.
    """
    parameters = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE.")
        parameters[name] = value
    return parameters


def check_farm(tracker: str | None, key: str | None) -> None:
    """Refuse a tracker without a key of its devices, and a key without a tracker."""
    if (tracker is None) != (key is None):
        raise typer.BadParameter("--tracker and --key go together.")
