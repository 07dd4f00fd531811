"""Declaration of options, and the options that several commands share.

Parameters of a command are annotated in short form, as in
``Annotated[int | None, typer.Option(min=1), "N", "How many."]``: typer's object for everything
except metavar and help, then the metavar and the help.  The object and the metavar may be missing.
A flag only gets a ``--no-`` form if it is on by default.  Missing parts come from `SHARED`, by the
parameter's name.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

import typer
from typer.models import ParameterInfo

from ..compiler.options import CompileOptions
from ..devices.choices import (
    ACCUMULATIONS,
    ALTERNATIVES,
    BACKENDS,
    CALIBRATIONS,
    EMBED_LIMIT_BYTES,
    FALLBACKS,
    FORMATS,
    MOST_CHOICES,
    PRECISIONS,
    STANDALONE,
    STORAGES,
    TARGETS,
    WEIGHTS,
)
from ..devices.gpus import GPUS
from ..devices.host import HOSTS
from ..devices.presets import PRESETS
from ..devices.target import LEVELS
from ..ir.pictures import IMAGE_FORMATS
from ..ir.results import RESULT_KINDS
from .output import state

if TYPE_CHECKING:
    import numpy as np

    from ..runtime.secret import Address

_PANEL = "Common options"
R = TypeVar("R")


def words(*choices: str) -> Any:
    """Return an option with fixed values, which are its metavar and its completions."""
    return typer.Option(metavar="|".join(choices), autocompletion=lambda: [*choices])


def _common(name: str, *names: str) -> Any:
    """Return an option that sets the field ``name`` of `state`."""

    def remember(value: bool) -> None:
        setattr(state, name, getattr(state, name) or value)

    return typer.Option(*names, f"--{name}", callback=remember, rich_help_panel=_PANEL)


#: Options of every command, which the program also accepts before the command.
COMMON = ("verbose", "quiet", "debug")
#: Options and arguments of several commands, and those for the fields of `CompileOptions`.
SHARED: dict[str, Any] = {
    "verbose": Annotated[
        bool, _common("verbose", "-v"), "Show stage times and the log of TVM and the driver."
    ],
    "quiet": Annotated[bool, _common("quiet", "-q"), "Print only results and errors."],
    "debug": Annotated[bool, _common("debug"), "Show the traceback of an error."],
    "json": Annotated[bool, _common("json"), "Print the result, or the error, as JSON."],
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
        "The file is executed.",
    ],
    "inputs": Annotated[
        Path | None,
        "IN.npz",
        "Inputs by ONNX name (or one array in an .npy file, for a single input).",
    ],
    "picture": Annotated[
        list[str] | None,
        "[NAME=]FILE",
        "A picture, such as face.jpg, for an input that was compiled with --image-input; "
        "repeatable. It needs Pillow.",
    ],
    "fresh_ceilings": Annotated[
        bool, "Measure the device's peak rates again, although they are known."
    ],
    "random_seed": Annotated[int, typer.Option(min=0), "N", "Seed of the random inputs."],
    "tracker": Annotated[
        str | None,
        "HOST:PORT",
        "Use the devices that this tracker has for --key; they run `tvmflow farm serve`.",
    ],
    "key": Annotated[str | None, "KEY", "Key of the devices at the tracker."],
    "secret_file": Annotated[
        Path | None,
        typer.Option(envvar="TVMFLOW_SECRET_FILE"),
        "FILE",
        "File with the secret that the tracker and its servers, or the agent at an address, were "
        "started with.",
    ],
    "check_weights": Annotated[
        bool,
        "Compare the weights with their checksum when the module is loaded; for several gigabytes "
        "that takes as long as a run.",
    ],
    "on": Annotated[
        str | None,
        "PLACE",
        "A phone or board: adb (the attached phone), adb:SERIAL, ssh:USER@HOST, local, "
        "tcp:HOST:PORT, or farm:HOST:PORT/KEY, lent by a tracker (docs/phones.md).",
    ],
    "device_index": Annotated[
        int,
        typer.Option(min=0),
        "Index of the target's device that runs the module (see `tvmflow devices`).",
    ],
    # -- how a network is compiled
    "target": Annotated[str, words(*TARGETS), "Target that code is generated for."],
    "device": Annotated[
        str,
        words("auto", *PRESETS, *GPUS),
        "NAME",
        f"Device that kernels are shaped for: {', '.join(PRESETS)}, or auto, this machine's "
        f"device. The name of a GPU selects its kind: {', '.join(GPUS)}.",
    ],
    "host": Annotated[
        str | None,
        "HOST",
        f"The machine that loads the module: {', '.join(HOSTS)}, or a triple. Default: this one.",
    ],
    "shape": Annotated[
        list[str] | None,
        "NAME=1,3,224,224",
        "Shape of an input whose dimensions the model leaves open; repeatable. Several shapes for "
        "one module: a range of batches, NAME=1..8,3,224,224, and ? for extents that --at lists.",
    ],
    "at": Annotated[
        list[str] | None,
        "[NAME=]224x224,320x240",
        "Values of the open extents of --shape, for the named input or the only one that has "
        "some; repeatable.",
    ],
    "of_shape": Annotated[
        list[str] | None,
        typer.Option("--shape"),
        "NAME=1,3,224,224",
        "Select the shape with this input from a module with several shapes; repeatable.",
    ],
    "of_extents": Annotated[
        str | None,
        typer.Option("--at"),
        "[NAME=]224x224",
        "Select the shape with these open extents from a module with several shapes.",
    ],
    "input": Annotated[
        list[str] | None,
        "NAME=VALUE",
        "An input that becomes a constant, which decides branches that depend on it: a number, or "
        "a list in JSON, such as sr=16000 or 'size=[320,240]'; repeatable.",
    ],
    "bound": Annotated[
        list[str] | None,
        "NAME=1000",
        "Upper bound of a size that is known only at run time, by the name of the node that "
        "computes it, or of its result, where the worst case is larger than needed; repeatable.",
    ],
    "result": Annotated[
        list[str] | None,
        "NAME=KIND",
        "Replace an output: softmax, argmax (the index of the largest element), topk:K "
        "(the K largest, in descending order, and their indices as an output NAME_indices), "
        "softmax+argmax or softmax+topk:K; indices are int32. The axis is 1 for four axes and the "
        "last one otherwise, or the one after @, as in argmax@2; repeatable. Boxes of a picture "
        "(--image-input), in its pixels: boxes:xyxy, yxyx, xywh or cxcywh, with :unit where 1 is "
        "the input's side. BOXES+SCORES=nms:iou=0.5,max=100 keeps boxes that no better one of "
        "their class overlaps, the best first, also with score=0.25 and form=cxcywh; "
        "BOXES+SCORES=topk:K those with the largest scores. Classes and indices of boxes are "
        "outputs SCORES_classes and SCORES_indices.",
    ],
    "storage": Annotated[
        str,
        words(*STORAGES),
        "Storage of tensors between kernels; auto decides for each tensor by the time that the "
        "device gains. -v shows every decision.",
    ],
    "storage_overrides": Annotated[
        Path | None,
        "FILE",
        "JSON object (or TOML table, in a file *.toml) that maps names of tensors to texture or "
        "buffer; it takes precedence over --storage.",
    ],
    "dtype": Annotated[
        str,
        words(*PRECISIONS),
        "Precision of stored weights and of tensors between kernels, for opencl and cuda. "
        "OpenCL devices need no cl_khr_fp16 for it.",
    ],
    "calibrate": Annotated[
        str | None,
        "IN.npz",
        "With --dtype fp16, measure with these inputs (or random: the inputs that verify uses) "
        "which tensors overflow in 16 bits or lose 5 %, and keep the necessary ones in 32 bits. "
        "Needs ONNX Runtime.",
    ],
    "accumulate": Annotated[
        str,
        words(*ACCUMULATIONS),
        "Precision of products and sums in convolutions, dense layers and average pooling. mixed "
        "adds up to 40 products in 16 bits and these sums in fp32; fp16 computes whole sums in 16 "
        "bits, which is less exact. Both need --dtype fp16 and a device with cl_khr_fp16. auto: "
        "mixed with --dtype fp16 on GPUs that have it, else fp32.",
    ],
    "knobs": Annotated[
        Path | None,
        "FILE",
        "JSON object that maps names of primary functions to knobs, as inspect --schedules prints "
        "them; they replace the heuristics' choices.",
    ],
    "journal": Annotated[
        list[Path] | None,
        "FILE",
        "Tuning journal whose measured knobs replace the heuristics' choices, and whose algorithms "
        "and storage replace the cost models'; repeatable, the first one with a record for a "
        "function is used. adreno640, adreno660, adreno730 and adreno740 are the names of journals "
        "that ship with tvmflow.",
    ],
    "keep_layout": Annotated[
        list[str] | None,
        "NAME=nchw4c|texture",
        "Input or output that the application has in blocks of four channels, in a buffer or "
        "an image; repeatable. The others have the layout of the ONNX model.",
    ],
    "image_input": Annotated[
        list[str] | None,
        "NAME=FORMAT,KEY=VALUE,...",
        "An input of a standalone library that takes pictures; repeatable. FORMAT: rgba8, bgra8, "
        "rgb8, grey8, nv12, nv21, yuv420, i420 or yv12. Keys: size=any or 640x480; fit=stretch, "
        "crop or letterbox; "
        "mean=, std=: one number or three, of levels up to 1 (range=255) or 255 (range=1); "
        "order=rgb or bgr of the network's channels; rotate=0, 90, 180 or 270 degrees clockwise; "
        "pad=114, the level around a letterbox; luma=full or video.",
    ],
    "algorithms": Annotated[
        Path | None,
        "FILE",
        "JSON object (or TOML table, in a file *.toml) that maps names of convolutions to direct, "
        "gemm (for cuda), winograd2 or winograd4, instead of the cheapest one. -v prints every "
        "convolution.",
    ],
    "check_indices": Annotated[
        bool,
        "For debugging: if an index from data is out of range, a run fails with the node and the "
        "index, instead of using the nearest one.",
    ],
    "cuda_graph": Annotated[
        bool,
        "Launch all kernels at once, as a CUDA graph that the first run captures. Only for the "
        "target cuda.",
    ],
    "format": Annotated[
        str,
        words(*FORMATS),
        "A module for TVM's runtime, or a library with a C interface (tvmflow.h) that needs "
        "nothing but the device's OpenCL.",
    ],
    "fallback": Annotated[
        str | None,
        words(*FALLBACKS),
        "Also add kernels for the host's processors to a standalone library for opencl, for "
        "machines without a working OpenCL.",
    ],
    "alternatives": Annotated[
        str,
        words(*ALTERNATIVES),
        "Also add plain kernels to a standalone library for opencl, which replace those that the "
        "self-test finds wrong.",
    ],
    "choices": Annotated[
        int,
        typer.Option(min=0, max=MOST_CHOICES),
        "N",
        "Also add up to N other kernels for each of the hottest functions to a standalone library "
        "for opencl, which tvmflow_tune times on the user's own device.",
    ],
    "cpu": Annotated[
        str | None,
        words(*(level for levels in LEVELS.values() for level in levels)),
        "LEVEL",
        "Oldest processor that kernels for llvm, or for --fallback cpu, must run on: "
        f"{', '.join(LEVELS['x86_64'])}; on Arm {', '.join(LEVELS['aarch64'])}. Default: this "
        "machine's, and x86-64-v3 or armv8-a for another --host.",
    ],
    "backend": Annotated[
        str,
        words(*BACKENDS),
        "Device that runs a standalone library with kernels for both; auto: the CPU if no device's "
        "OpenCL can be used.",
    ],
    "weights": Annotated[
        str | None,
        words(*WEIGHTS),
        "Store the large weights of a standalone library in 16 or 8 bits; creating a model expands "
        "them to the kernels' precision. verify and the self-test compare with weights that are "
        "rounded in the same way.",
    ],
    "embed_limit": Annotated[
        int,
        typer.Option(min=0),
        "MB",
        "Weights of more than this in total go to OUT.so.weights, next to the module.",
    ],
}


def in_panels(**panels: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Group options of a command into panels of its help: titles, and names between spaces.

    Options in no panel stay in the first one.  ``_`` in a title becomes a space.
    """
    titles = {
        name: title.replace("_", " ") for title, names in panels.items() for name in names.split()
    }

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        function.panels = titles  # type: ignore[attr-defined]
        return function

    return decorate


def joined_lines(text: str | None) -> str:
    """Join the lines of each paragraph of a docstring, as help is folded for the terminal.

    Indented lines and list items stay separate lines.
    """
    return re.sub(r"(?<=\S)\n(?!\s|- )", " ", inspect.cleandoc(text or ""))


def declared(parameter: inspect.Parameter, panel: str | None = None) -> inspect.Parameter:
    """Return a command's parameter with an annotation for typer."""
    own, shared = parameter.annotation, get_args(SHARED.get(parameter.name))
    if said := get_args(own) if get_origin(own) is Annotated else shared:
        kind, *metavar, help_text = (said[0], *(each for each in said[1:] if isinstance(each, str)))
        objects = [each for each in (*said, *shared) if isinstance(each, ParameterInfo)]
        made = copy.copy(objects[0]) if objects else typer.Option()
        made.help = help_text
        made.metavar = metavar[0] if metavar else made.metavar
        made.rich_help_panel = made.rich_help_panel or panel
        # Without explicit names, a flag that is off by default would also get a --no- form.
        if kind is bool and not parameter.default and made.default is ...:
            made.param_decls = (f"--{parameter.name.replace('_', '-')}",)
        parameter = parameter.replace(annotation=Annotated[kind, made])
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def option(name: str, default: object) -> inspect.Parameter:
    """Return a keyword parameter of a command, which becomes an option."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


def with_common_options(
    function: Callable[..., R], names: Sequence[str] = COMMON
) -> Callable[..., R]:
    """Add the options ``names`` to a command; the function itself does not receive them."""

    @functools.wraps(function)
    def run(**given: object) -> R:
        return function(**{name: value for name, value in given.items() if name not in names})

    own: Iterable[inspect.Parameter] = inspect.signature(
        function, eval_str=True
    ).parameters.values()
    panels: dict[str, str] = getattr(function, "panels", {})
    # Panels are shown in the order of their first options.
    order = ["", *dict.fromkeys(panels.values())]
    own = sorted(own, key=lambda each: order.index(panels.get(each.name, "")))
    made = [
        declared(each, panels.get(each.name))
        for each in (*own, *(option(name, False) for name in names))
    ]
    run.__doc__ = joined_lines(function.__doc__)
    run.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in made}
    return run


def load_operators(files: list[Path] | None) -> None:
    """Execute the files of ``--ops``."""
    if files:
        from ..ops import load

        for file in files:
            load(file)


def parse_parameters(texts: list[str]) -> dict[str, str]:
    """Parse ``NAME=VALUE`` options.

    Raises `typer.BadParameter` if one has another form.
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
    from ..runtime.secret import Address

    return Address.parse(tracker, secret_file), key


# -- flags for `CompileOptions`, one for each field ----------------------------------------------


def _named(
    form: str,
    noun: str,
    convert: Callable[[str], Any] = str,
    known: Sequence[str] = (),
    *,
    first: bool = False,
) -> Callable[[list[str] | None], dict[str, Any]]:
    """Return a parser of ``NAME=VALUE`` options, whose names may contain an equals sign.

    A value that contains one begins with one of the words in ``known``, or follows the ``first``
    one.  ``convert`` raises a `ValueError` for a value of another form.  The parser raises
    `typer.BadParameter` for an option of another form, or a name that occurs twice.
    """

    def parse(texts: list[str] | None) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for text in texts or []:
            ends = [text.find(f"={start}") for start in known]
            only = text.find("=") if first else text.rfind("=")
            end = min((at for at in ends if at > 0), default=only)
            name = text[: max(end, 0)]
            if name in values:
                verb = "are" if noun.endswith("s") else "is"
                raise typer.BadParameter(f"the {noun} of {name!r} {verb} given twice.")
            try:
                if not name:
                    raise ValueError
                values[name] = convert(text[end + 1 :])
            except ValueError:
                raise typer.BadParameter(f"{text!r} is not of the form {form}.") from None
        return values

    return parse


def _extents(text: str) -> tuple[int, ...]:
    extents = tuple(int(part) for part in text.split(",")) if text else ()
    if min(extents, default=1) < 1:
        raise ValueError
    return extents


def _open_extents(text: str) -> tuple[int | str, ...]:
    parts = text.split(",") if text else []
    if not all(re.fullmatch(r"[1-9]\d*|\?|-?\d+\.\.-?\d+", part) for part in parts):
        raise ValueError
    return tuple(int(part) if part.isdigit() else part for part in parts)


def _bound(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError
    return int(text)


def _layout(text: str) -> str:
    if not text:
        raise ValueError
    return text


parse_shapes = _named("NAME=1,3,224,224 with positive whole numbers", "shape", _extents)
#: Also for ``?`` and ranges of numbers.
parse_open_shapes = _named(
    "NAME=1,3,224,224 with positive whole numbers, ? or ranges such as 1..8", "shape", _open_extents
)
parse_bounds = _named("NAME=1000 with a positive whole number", "bound", _bound)
parse_inputs = _named("NAME=NUMBER or NAME=[NUMBER,...]", "value", json.loads)
parse_results = _named("NAME=KIND, such as scores=softmax", "result", known=RESULT_KINDS)
parse_keep_layout = _named("NAME=nchw4c or NAME=texture", "layout", _layout)
#: The compiler checks the part after the name.
parse_image_inputs = _named(
    "NAME=FORMAT,KEY=VALUE,...", "pictures", known=IMAGE_FORMATS, first=True
)


def parse_at(texts: list[str] | None) -> dict[str, list[tuple[int, ...]]]:
    """Parse ``NAME=224x224,320x240`` options; without a name, the key is ``""``.

    Raises `typer.BadParameter` if one has another form, or a name occurs twice.
    """
    found: dict[str, list[tuple[int, ...]]] = {}
    for text in texts or []:
        name, _, listed = text.rpartition("=")
        choices = listed.split(",")
        if not all(re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", choice) for choice in choices):
            raise typer.BadParameter(f"{text!r} is not of the form [NAME=]224x224,320x240.")
        if name in found:
            raise typer.BadParameter(f"the extents of {name or 'the input'!r} are listed twice.")
        found[name] = [tuple(map(int, choice.split("x"))) for choice in choices]
    return found


def read_calibration(text: str | None) -> dict[str, np.ndarray] | str | None:
    """Read the inputs ``IN.npz`` for calibration; return a `CALIBRATIONS` word or ``None`` as is.

    Raises `InputError` if the file cannot be read, or is not an archive.
    """
    if text is None or text in CALIBRATIONS:
        return text
    from ..errors import InputError
    from ..ir.limits import MOST_ELEMENTS
    from .arrays import read_inputs

    path = Path(text)
    if not path.is_file() or path.suffix == ".npy":
        found = "it holds one array without a name" if path.is_file() else "there is no such file"
        raise InputError(
            f"Reading the inputs {path} to calibrate with failed: {found}.",
            remedy="Write them by name with numpy.savez, or use `calibrate=random`.",
        )
    return read_inputs(path, (), MOST_ELEMENTS)


#: Options that are spelt differently from their field.
_SPELT = {
    "image_inputs": "image_input",
    "shapes": "shape",
    "inputs": "input",
    "bounds": "bound",
    "results": "result",
    "journals": "journal",
    "embed_limit_bytes": "embed_limit",
}
#: Names of the options by field.
FLAGS = {each.name: _SPELT.get(each.name, each.name) for each in fields(CompileOptions)}
#: Conversions of typed values to values of fields.
_READ: dict[str, Callable[[Any], Any]] = {
    "shapes": parse_open_shapes,
    "at": parse_at,
    "inputs": parse_inputs,
    "bounds": parse_bounds,
    "results": parse_results,
    "keep_layout": parse_keep_layout,
    "calibrate": read_calibration,
    "image_inputs": parse_image_inputs,
    "embed_limit_bytes": lambda megabytes: megabytes * 10**6,
}
#: Default values in the help, where they differ from the field's or the field's is an empty table.
_DEFAULTS = {"journals": None, "embed_limit_bytes": EMBED_LIMIT_BYTES // 10**6}
#: Fields of `CompileOptions` that tuning uses.
TUNED = ("target", "device", "shapes", "inputs", "bounds", "storage", "dtype", "accumulate")


def with_compile_flags(*names: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Add the flags of these fields, or of all, to a command, which gets them as ``options``."""
    wanted = names or tuple(FLAGS)

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def run(**given: Any) -> R:
            typed = {name: given.pop(FLAGS[name]) for name in wanted}
            # Tuning takes a single shape.
            read = _READ if "at" in wanted else {**_READ, "shapes": parse_shapes}
            typed |= {name: read[name](typed[name]) for name in wanted if name in read}
            return function(options=CompileOptions(**typed), **given)

        kind = inspect.Parameter.KEYWORD_ONLY
        given = inspect.signature(function, eval_str=True).parameters.values()
        first, *own = (each.replace(kind=kind) for each in given if each.name != "options")
        flags = [
            option(FLAGS[name], _DEFAULTS.get(name, getattr(CompileOptions, name, None)))
            for name in wanted
        ]
        run.__signature__ = inspect.Signature([first, *flags, *own])  # type: ignore[attr-defined]
        return run

    return decorate


#: An option in a message of the library: `storage=buffer`, or only a name.
_OPTION = re.compile(r"`(\w+)(?:=([^`]+))?`")
#: Options of commands that are not fields of `CompileOptions`, as spelt in messages.
_OPTIONS = frozenset({
    "aar", "advertise", "backend", "batches", "bind", "build_on", "busy", "devices", "dump_ir",
    "fresh_ceilings", "kernels", "on", "ops", "overwrite", "port", "search", "secret_file", "size",
    "steps", "suite", "tar", "threads",
})  # fmt: skip


def with_flags(text: str) -> str:
    """Return a message of the library with its options as they are typed: ``--storage buffer``."""

    def flag(match: re.Match[str]) -> str:
        name, value = match.groups()
        if (name, value) == ("format", STANDALONE):
            return "--standalone"
        if name not in FLAGS and name not in _OPTIONS:
            return match[0]
        typed = f"--{FLAGS.get(name, name).replace('_', '-')}"
        if name == "embed_limit_bytes" and value:
            value = str(int(value) // 10**6)
        if value == "True":
            return typed
        return f"{typed} {value}" if value else typed

    return _OPTION.sub(flag, text)
