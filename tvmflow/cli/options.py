"""Options that several commands have, and the formats of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .session import state

_COMMON = "Common options"


def _set_verbose(value: bool) -> None:
    state.verbose |= value


def _set_quiet(value: bool) -> None:
    state.quiet |= value


def _set_debug(value: bool) -> None:
    state.debug |= value


def _set_json(value: bool) -> bool:
    # Standard output is for the machine then; what people read goes to standard error.
    state.json |= value
    return value


Verbose = Annotated[
    bool,
    typer.Option(
        "-v",
        "--verbose",
        help="Show stage times and the log of TVM and the driver.",
        callback=_set_verbose,
        rich_help_panel=_COMMON,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "-q",
        "--quiet",
        help="Print only results and errors.",
        callback=_set_quiet,
        rich_help_panel=_COMMON,
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show the traceback of an error.",
        callback=_set_debug,
        rich_help_panel=_COMMON,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the result as JSON.",
        callback=_set_json,
        rich_help_panel=_COMMON,
    ),
]

ModuleFile = Annotated[Path, typer.Argument(metavar="OUT.so", help="A compiled module.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX model.")]
OpsFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--ops",
        metavar="FILE.py",
        help="Python file that registers custom operators (docs/custom-operators.md); repeatable. "
        "It is run.",
    ),
]
InputsFile = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="IN.npz",
        help="Inputs by ONNX name (or one array in an .npy file, for a single input).",
    ),
]
FreshCeilings = Annotated[
    bool,
    typer.Option(
        "--fresh-ceilings",
        help="Measure what the device reaches at most, although it is known.",
    ),
]
RandomSeed = Annotated[
    int, typer.Option("--random-seed", metavar="N", min=0, help="Seeds the random inputs.")
]
FarmKey = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Of the devices at the tracker.")
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        envvar="TVMFLOW_SECRET_FILE",
        help="Holds the secret that the tracker and its servers were started with.",
    ),
]

CheckWeights = Annotated[
    bool,
    typer.Option(
        "--check-weights/--no-check-weights",
        help="Compare the weights with their checksum when the module is loaded; of several "
        "gigabytes that takes as long as a run.",
    ),
]
DeviceIndex = Annotated[
    int,
    typer.Option(
        "--device-index",
        min=0,
        help="Which of the target's devices runs the module (see `tvmflow devices`).",
    ),
]


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
