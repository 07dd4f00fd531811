"""Options of commands: how they are declared, and those that several commands have.

Parameters of a command say in short what typer makes of them, as in
``Annotated[int | None, typer.Option(min=1), "N", "How many."]``: typer's object with what it has
beside metavar and help text, then these two.  The first two of the three may be missing.  A flag
has no opposite unless it is on.  What a parameter does not say is as in `SHARED` under its name.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

import typer
from typer.models import ParameterInfo

from ..devices.choices import FORMATS, PRECISIONS, STORAGES, TARGETS
from ..devices.presets import PRESETS
from .output import state

if TYPE_CHECKING:
    from ..farm.network import Address

_PANEL = "Common options"
R = TypeVar("R")


def words(*choices: str) -> Any:
    """Return an option whose values are known: they are its metavar, and complete it."""
    return typer.Option(metavar="|".join(choices), autocompletion=lambda: [*choices])


def _common(name: str, *names: str) -> Any:
    """Return an option that sets the field of `state` with its name."""

    def remember(value: bool) -> None:
        setattr(state, name, getattr(state, name) or value)

    return typer.Option(*names, f"--{name}", callback=remember, rich_help_panel=_PANEL)


#: Options of every command and of the program itself, which may have them before a command.
COMMON = ("verbose", "quiet", "debug")
#: Options and arguments that several commands have, and those for the fields of `CompileOptions`.
SHARED: dict[str, Any] = {
    "verbose": Annotated[
        bool, _common("verbose", "-v"), "Show stage times and the log of TVM and the driver."
    ],
    "quiet": Annotated[bool, _common("quiet", "-q"), "Print only results and errors."],
    "debug": Annotated[bool, _common("debug"), "Show the traceback of an error."],
    "json": Annotated[bool, _common("json"), "Print the result as JSON."],
    "file": Annotated[
        Path, typer.Argument(), "FILE", "A journal, or the name of one that ships with tvmflow."
    ],
    "files": Annotated[list[Path], typer.Argument(), "FILE…", "Journals."],
    "module": Annotated[Path, typer.Argument(), "OUT.so", "A compiled module."],
    "model": Annotated[Path, typer.Argument(), "MODEL.onnx", "An ONNX model."],
    "output": Annotated[Path | None, typer.Option("-o", "--output"), "The file to write."],
    "ops": Annotated[
        list[Path] | None,
        "FILE.py",
        "Python file that registers custom operators (docs/custom-operators.md); repeatable. "
        "It is run.",
    ],
    "inputs": Annotated[
        Path | None,
        "IN.npz",
        "Inputs by ONNX name (or one array in an .npy file, for a single input).",
    ],
    "fresh_ceilings": Annotated[
        bool, "Measure what the device reaches at most, although it is known."
    ],
    "random_seed": Annotated[int, typer.Option(min=0), "N", "Seeds the random inputs."],
    "tracker": Annotated[
        str | None,
        "HOST:PORT",
        "Use the devices that this tracker has for --key; they run `tvmflow farm serve`.",
    ],
    "key": Annotated[str | None, "KEY", "Of the devices at the tracker."],
    "secret_file": Annotated[
        Path | None,
        typer.Option(envvar="TVMFLOW_SECRET_FILE"),
        "FILE",
        "Holds the secret that the tracker and its servers were started with.",
    ],
    "check_weights": Annotated[
        bool,
        "Compare the weights with their checksum when the module is loaded; of several gigabytes "
        "that takes as long as a run.",
    ],
    "device_index": Annotated[
        int,
        typer.Option(min=0),
        "Which of the target's devices runs the module (see `tvmflow devices`).",
    ],
    # -- how a network is compiled
    "target": Annotated[str, words(*TARGETS), "What code is generated for."],
    "device": Annotated[
        str,
        words("auto", *PRESETS),
        "NAME",
        f"What kernels are shaped for: {', '.join(PRESETS)}, or auto, the device of this machine.",
    ],
    "host": Annotated[
        str | None,
        "HOST",
        "The machine that loads the module: linux-x64, linux-arm64, android-arm64, or a triple. "
        "Default: this one.",
    ],
    "shape": Annotated[
        list[str] | None,
        "NAME=1,3,224,224",
        "Shape of an input whose dimensions the model leaves open; repeatable.",
    ],
    "storage": Annotated[
        str,
        words(*STORAGES),
        "Where tensors between kernels are kept; auto decides for each of them by what the device "
        "gains. With -v, every decision is shown.",
    ],
    "storage_overrides": Annotated[
        Path | None,
        "FILE",
        "JSON object (or TOML table, in a file *.toml) of tensors' names with texture or buffer: "
        "these tensors are kept there, whatever --storage says.",
    ],
    "dtype": Annotated[
        str,
        words(*PRECISIONS),
        "Precision in which weights and tensors between kernels are stored, for opencl and cuda. "
        "OpenCL devices need no cl_khr_fp16 for it.",
    ],
    "accumulate": Annotated[
        str,
        words(*PRECISIONS),
        "Precision of products and sums in convolutions, dense layers and average pooling. fp16 "
        "goes with --dtype fp16, needs a device with cl_khr_fp16, and is less exact.",
    ],
    "knobs": Annotated[
        Path | None,
        "FILE",
        "JSON object of primary functions' names with their knobs, as inspect --schedules prints "
        "them, instead of those that the heuristics choose.",
    ],
    "journal": Annotated[
        list[Path] | None,
        "FILE",
        "Tuning journal whose measured knobs are used instead of the heuristics', and whose "
        "algorithms and storage instead of the cost models'; repeatable, the first one that has "
        "something for a function counts. adreno660 and adreno740 stand for those that ship with "
        "tvmflow.",
    ],
    "keep_layout": Annotated[
        list[str] | None,
        "NAME=nchw4c|texture",
        "An input or output that the application has in blocks of four channels, in a buffer or "
        "an image; repeatable. The others have the layout of the ONNX model.",
    ],
    "algorithms": Annotated[
        Path | None,
        "FILE",
        "JSON object (or TOML table, in a file *.toml) of convolutions' names with direct, gemm "
        "(for cuda), winograd2 or winograd4, instead of what seems cheapest. -v prints every "
        "convolution.",
    ],
    "cuda_graph": Annotated[
        bool,
        "Launch all kernels at once, as a CUDA graph that the first run captures. For the target "
        "cuda.",
    ],
    "format": Annotated[
        str,
        words(*FORMATS),
        "A module for TVM's runtime, or a library with a C interface (tvmflow.h) that needs "
        "nothing but the device's OpenCL.",
    ],
    "embed_limit": Annotated[
        int,
        typer.Option(min=0),
        "MB",
        "Weights of more than this in total go to OUT.so.weights, beside the module.",
    ],
}


def declared(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a command's parameter with an annotation that typer understands."""
    own, shared = parameter.annotation, get_args(SHARED.get(parameter.name))
    if said := get_args(own) if get_origin(own) is Annotated else shared:
        kind, *metavar, help_text = (said[0], *(each for each in said[1:] if isinstance(each, str)))
        objects = [each for each in (*said, *shared) if isinstance(each, ParameterInfo)]
        made = copy.copy(objects[0]) if objects else typer.Option()
        made.help = help_text
        made.metavar = metavar[0] if metavar else made.metavar
        # The first of its names stands there where it has some.
        if kind is bool and not parameter.default and made.default is ...:
            made.param_decls = (f"--{parameter.name.replace('_', '-')}",)
        parameter = parameter.replace(annotation=Annotated[kind, made])
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def option(name: str, default: object) -> inspect.Parameter:
    """Return the parameter of a command that typer makes an option of."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


def with_common_options(
    function: Callable[..., R], names: Sequence[str] = COMMON
) -> Callable[..., R]:
    """Give a function the options of these names, which it need not know."""

    @functools.wraps(function)
    def run(**given: object) -> R:
        return function(**{name: value for name, value in given.items() if name not in names})

    own = inspect.signature(function, eval_str=True).parameters.values()
    made = [declared(each) for each in (*own, *(option(name, False) for name in names))]
    run.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in made}
    return run


def load_operators(files: list[Path] | None) -> None:
    """Run the files of ``--ops``."""
    if files:
        from ..ops import load

        for file in files:
            load(file)


def parse_parameters(texts: list[str]) -> dict[str, str]:
    """Read ``NAME=VALUE`` options.

    Raises `typer.BadParameter` if one is not of that form.
    """
    parameters = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE.")
        parameters[name] = value
    return parameters


def farm_of(
    tracker: str | None, key: str | None, secret_file: Path | None
) -> tuple[Address, str] | None:
    """Return the tracker's address and the key of its devices, or ``None`` if neither is given."""
    if tracker is None and key is None:
        return None
    if tracker is None or key is None:
        raise typer.BadParameter("--tracker and --key go together.")
    from ..farm.network import Address

    return Address.parse(tracker, secret_file), key
