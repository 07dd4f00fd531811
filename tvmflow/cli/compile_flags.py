"""Flags of the command line for `CompileOptions`: one for each of its fields."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ..compiler.options import CompileOptions
from ..devices.choices import FORMATS, PRECISIONS, STANDALONE, STORAGES, TARGETS
from ..devices.presets import PRESETS
from .options import option, set_parameters

R = TypeVar("R")


def _unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Flag:
    """A flag.

    Parameters
    ----------
    name
        As it is typed.
    kind
        What is typed; a list for a flag that is repeatable.
    metavar, help
        Of the help text; without a metavar it has the words.
    words
        What may be typed, for completion.
    read
        From what was typed to the field's value.
    default
        What is shown; ``...`` is the field's.
    least
        The least number.
    """

    name: str
    kind: object
    metavar: str
    help: str
    words: Sequence[str] = ()
    read: Callable[[Any], Any] = _unchanged
    default: object = ...
    least: int | None = None

    def annotated(self) -> Any:
        """Return the type of a command's parameter."""
        return Annotated[
            self.kind,
            typer.Option(
                self.name,
                metavar=self.metavar or "|".join(self.words) or None,
                min=self.least,
                help=self.help,
                autocompletion=(lambda: [*self.words]) if self.words else None,
            ),
        ]


def _read_named(texts: list[str] | None, form: str, noun: str) -> dict[str, str]:
    """Split ``NAME=VALUE`` options, whose names may have an equals sign, too."""
    values: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not of the form {form}.")
        if name in values:
            raise typer.BadParameter(f"the {noun} of {name!r} is given twice.")
        values[name] = value
    return values


def parse_shapes(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Read ``NAME=1,3,224,224`` options.

    Raises
    ------
    typer.BadParameter
        If one is not of that form, or a name comes twice.
    """
    form = "NAME=1,3,224,224 with positive whole numbers"
    shapes: dict[str, tuple[int, ...]] = {}
    for name, extents in _read_named(texts, form, "shape").items():
        try:
            shapes[name] = tuple(int(part) for part in extents.split(",")) if extents else ()
        except ValueError:
            shapes[name] = (0,)
        if min(shapes[name], default=1) < 1:
            raise typer.BadParameter(f"{f'{name}={extents}'!r} is not of the form {form}.")
    return shapes


def parse_keep_layout(texts: list[str] | None) -> dict[str, str]:
    """Read ``NAME=nchw4c`` options.

    Raises
    ------
    typer.BadParameter
        If one is not of that form, or a name comes twice.
    """
    form = "NAME=nchw4c or NAME=texture"
    layouts = _read_named(texts, form, "layout")
    for name, layout in layouts.items():
        if not layout:
            raise typer.BadParameter(f"{f'{name}='!r} is not of the form {form}.")
    return layouts


FLAGS: dict[str, Flag] = {
    "target": Flag("--target", str, "", "What code is generated for.", TARGETS),
    "device": Flag(
        "--device",
        str,
        "NAME",
        f"What kernels are shaped for: {', '.join(PRESETS)}, or auto, the device of this machine.",
        ("auto", *PRESETS),
    ),
    "host": Flag(
        "--host",
        str | None,
        "HOST",
        "The machine that loads the module: linux-x64, linux-arm64, android-arm64, or a "
        "triple. Default: this one.",
    ),
    "shapes": Flag(
        "--shape",
        list[str] | None,
        "NAME=1,3,224,224",
        "Shape of an input whose dimensions the model leaves open; repeatable.",
        read=parse_shapes,
        default=None,
    ),
    "storage": Flag(
        "--storage",
        str,
        "",
        "Where tensors between kernels are kept; auto decides for each of them by what "
        "the device gains. With -v, every decision is shown.",
        STORAGES,
    ),
    "storage_overrides": Flag(
        "--storage-overrides",
        Path | None,
        "FILE",
        "JSON object (or TOML table, in a file *.toml) of tensors' names with texture or "
        "buffer: these tensors are kept there, whatever --storage says.",
        default=None,
    ),
    "dtype": Flag(
        "--dtype",
        str,
        "",
        "Precision in which weights and tensors between kernels are stored, for "
        "opencl and cuda. OpenCL devices need no cl_khr_fp16 for it.",
        PRECISIONS,
    ),
    "accumulate": Flag(
        "--accumulate",
        str,
        "",
        "Precision of products and sums in convolutions, dense layers and average "
        "pooling. fp16 goes with --dtype fp16, needs a device with cl_khr_fp16, and is less "
        "exact.",
        PRECISIONS,
    ),
    "knobs": Flag(
        "--knobs",
        Path | None,
        "FILE",
        "JSON object of primary functions' names with their knobs, as inspect --schedules "
        "prints them, instead of those that the heuristics choose.",
        default=None,
    ),
    "journals": Flag(
        "--journal",
        list[Path] | None,
        "FILE",
        "Tuning journal whose measured knobs are used instead of the heuristics', and "
        "whose algorithms and storage instead of the cost models'; "
        "repeatable, the first one that has something for a function counts. adreno660 and "
        "adreno740 stand for those that ship with tvmflow.",
        read=lambda paths: paths or (),
        default=None,
    ),
    "keep_layout": Flag(
        "--keep-layout",
        list[str] | None,
        "NAME=nchw4c|texture",
        "An input or output that the application has in blocks of four channels, in a "
        "buffer or an image; repeatable. The others have the layout of the ONNX model.",
        read=parse_keep_layout,
        default=None,
    ),
    "algorithms": Flag(
        "--algorithms",
        Path | None,
        "FILE",
        "JSON object (or TOML table, in a file *.toml) of convolutions' names with "
        "direct, gemm (for cuda), winograd2 or winograd4, instead of what seems cheapest. -v "
        "prints every convolution.",
        default=None,
    ),
    "cuda_graph": Flag(
        "--cuda-graph",
        bool,
        "",
        "Launch all kernels at once, as a CUDA graph that the first run captures. For "
        "the target cuda.",
    ),
    "format": Flag(
        "--format",
        str,
        "",
        "A module for TVM's runtime, or a library with a C interface (tvmflow.h) that "
        "needs nothing but the device's OpenCL.",
        FORMATS,
    ),
    "embed_limit_bytes": Flag(
        "--embed-limit",
        int,
        "MB",
        "Weights of more than this in total go to OUT.so.weights, beside the module.",
        read=lambda megabytes: megabytes * 10**6,
        default=512,
        least=0,
    ),
}


#: Fields of what is tuned.
TUNED = ("target", "device", "shapes", "storage", "dtype", "accumulate")
#: For commands that have some of them, and no `CompileOptions`.
TargetName = FLAGS["target"].annotated()
DeviceName = FLAGS["device"].annotated()
InputShapes = FLAGS["shapes"].annotated()


def with_compile_flags(*names: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command the flags of these fields, or of all; it gets its `options` of them."""
    wanted = {name: FLAGS[name] for name in names or FLAGS}

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def run(**given: object) -> R:
            chosen = {name: flag.read(given.pop(name)) for name, flag in wanted.items()}
            return function(options=CompileOptions(**chosen), **given)

        own = dict(inspect.signature(function, eval_str=True).parameters)
        del own["options"]
        first = next(iter(own))
        flags = {}
        for name, flag in wanted.items():
            default = getattr(CompileOptions, name) if flag.default is ... else flag.default
            flags[name] = option(name, flag.annotated(), default)
        set_parameters(run, {first: own.pop(first), **flags, **own})
        return run

    return decorate


#: Options in messages of the library: `storage=buffer`, or a name alone.
_OPTION = re.compile(r"`(\w+)(?:=([^`]+))?`")
#: Those that commands have beside `CompileOptions`, and are not spelled like it there.
_OPTIONS = frozenset({
    "advertise", "bind", "devices", "dump_ir", "fresh_ceilings", "kernels", "ops", "port", "search",
    "secret_file", "size", "steps", "threads",
})  # fmt: skip


def with_flags(text: str) -> str:
    """Return a message of the library with its options as they are typed: ``--storage buffer``."""

    def flag(match: re.Match[str]) -> str:
        name, value = match.groups()
        if (name, value) == ("format", STANDALONE):
            return "--standalone"
        if name in FLAGS:
            typed = FLAGS[name].name
        elif name in _OPTIONS:
            typed = f"--{name.replace('_', '-')}"
        else:
            return match[0]
        return f"{typed} {value}" if value else typed

    return _OPTION.sub(flag, text)
