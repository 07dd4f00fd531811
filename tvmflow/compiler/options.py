"""Options of `compile`, with their checks, and the tables that some of them take."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from ..devices import target as targets
from ..devices.choices import (
    ALGORITHMS,
    ALTERNATIVES,
    CALIBRATIONS,
    EMBED_LIMIT_BYTES,
    FALLBACKS,
    FORMATS,
    KEPT_FORMS,
    MOST_CHOICES,
    SAFE,
    STANDALONE,
    TVM,
    WEIGHTS,
)
from ..devices.host import Host
from ..devices.target import TargetSpec, check_choice, with_dtype, with_storage
from ..errors import CompileError, TargetError, UnknownOptionError
from ..ir.extents import ANY_INPUT, OPEN, Extent
from ..ir.pictures import ImageInput
from ..ir.results import parse_boxes, parse_result
from ..runtime.json_types import JsonMapping, JsonObject
from ..runtime.regular_files import read_text
from ..tuning_logs import find_journal

if TYPE_CHECKING:
    import numpy as np

    from ..agent.device import RemoteDevice

#: A table, or the path of its file.
Given = JsonMapping | str | os.PathLike[str]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Table:
    """Schema of a table by name that users write, as JSON or TOML, and texts for its errors."""

    #: Subject of sentences about the table, and about a name in it (after "The").
    what: str
    entry: str
    #: An example of the table, and the remedy of errors.
    example: str
    remedy: str
    #: Values that a name may have; ``None`` if each is an object.
    values: Collection[str] | None = None

    def checked(self, given: Given | None) -> JsonObject:
        """Return the checked table, read from its file if a path is given.

        Raises `CompileError` if the file cannot be read, or the table has a value that is unknown.
        """
        if isinstance(given, str | os.PathLike):
            table, where = self.read(Path(given)), f" in {given}"
        else:
            table, where = dict(given or {}), ""
        for name, value in table.items():
            if self.values is None and not isinstance(value, Mapping):
                raise CompileError(
                    f"The {self.entry} {name}{where} should be an object, but are {value!r}.",
                    remedy=self.remedy,
                )
            if self.values is not None and value not in self.values:
                hint = " Quote names with dots in TOML." if isinstance(value, dict) else ""
                raise CompileError(
                    f"The {self.entry} {name!r} is {value!r}; expected one of "
                    f"{', '.join(self.values)}.",
                    remedy=self.remedy + hint,
                )
        return table

    def read(self, path: Path) -> JsonObject:
        """Read a JSON object, or a TOML table from a file ``*.toml``.

        Raises `CompileError` if the file cannot be read, or has another form.
        """
        try:
            text = read_text(path)
            content = _toml(path, text) if path.suffix == ".toml" else _json(text)
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or error
            if isinstance(error, RecursionError):
                reason = "it is nested too deeply"
            raise CompileError(
                f"{self.what} in {path} could not be read: {reason}.",
                remedy=f"Write a JSON object such as {self.example}, or a TOML table in a file "
                "whose name ends in .toml.",
            ) from error
        if not isinstance(content, dict):
            raise CompileError(
                f"{self.what} in {path} should be an object of names and values, but are of type "
                f"{type(content).__name__}.",
                remedy=self.remedy,
            )
        return content


STORAGE_OVERRIDES = Table(
    "The storage overrides",
    "storage override of the tensor",
    '{"conv1": "texture"}',
    'Write names of tensors, each with "texture" or "buffer".',
    ("texture", "buffer"),
)
KEPT_LAYOUTS = Table(
    "The layouts to keep",
    "layout to keep of",
    '{"image": "texture"}',
    "Write names of inputs and outputs, with nchw4c for a buffer or texture.",
    KEPT_FORMS,
)
CONVOLUTION_ALGORITHMS = Table(
    "The algorithms",
    "algorithm of the convolution",
    '{"conv1": "winograd4"}',
    f"Write names of convolutions, each with one of {', '.join(ALGORITHMS)}.",
    ALGORITHMS,
)
#: Knobs are checked when their function is scheduled.
KNOBS = Table(
    "The knobs",
    "knobs of",
    '{"pool": {"tile_h": 4, "tile_w": 8, "stage_input": true, "group_size": 1}}',
    "Write names of primary functions, each with an object of its knobs.",
)


def _json(text: str) -> object:
    def without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
        content = dict(pairs)
        if len(content) < len(pairs):
            ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise ValueError(f"the name {twice!r} comes twice")
        return content

    return json.loads(text, object_pairs_hook=without_repetition)


def _toml(path: Path, text: str) -> object:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib.loads(text)
    raise ValueError(f"reading TOML needs Python 3.11 or newer, so {path.stem}.json is needed")


#: Limit of the elements of a bound input, because the module's metadata contains them.
_MOST_BOUND = 1024


def _checked_inputs(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Convert bound inputs to JSON; raise `CompileError` if one is no array or too large."""
    if not given:
        return {}
    # Imported here, because commands that only read options do not need it.
    import numpy as np

    found = {}
    for name, value in given.items():
        try:
            array = np.asarray(value)
        except ValueError:
            array = np.array(None)
        if array.dtype.kind not in "biuf" or not 0 < array.size <= _MOST_BOUND:
            raise CompileError(
                f"The value of the input {name!r} should be a number, or nested lists of up to "
                f"{_MOST_BOUND} numbers, but is {value!r:.80}.",
                remedy="Put a larger constant into the model, as an initializer.",
            )
        found[name] = array.tolist()
    return found


def _checked_bounds(given: Mapping[str, int] | None) -> dict[str, int]:
    """Return bounds by name; raise `CompileError` if one is no positive integer."""
    for name, bound in (given or {}).items():
        if not isinstance(bound, int) or isinstance(bound, bool) or bound < 1:
            raise CompileError(
                f"The bound of {name!r} should be a positive whole number, but is {bound!r}.",
                remedy="Give the largest number of elements that there may be at run time.",
            )
    return dict(given or {})


def _listed(
    given: Mapping[str, Sequence[Sequence[int]]] | Sequence[Sequence[int]] | None,
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return extents by input name; unnamed ones belong to the only input with open extents.

    Raises `CompileError` if they are no positive integers.
    """
    named = given if isinstance(given, Mapping) else {ANY_INPUT: given} if given else {}
    for name, choices in named.items():
        for extents in choices:
            if not all(isinstance(extent, int) and extent > 0 for extent in extents):
                raise CompileError(
                    f"The extents listed for {name or 'the open input'} are {extents!r}, expected "
                    "positive whole numbers.",
                    remedy="`at=image=224x224,320x240`, for example",
                )
    return {name: tuple(map(tuple, choices)) for name, choices in named.items()}


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of a compilation: the keywords of `tvmflow.compile`.

    Tables (`storage_overrides`, `algorithms`, `knobs`, `keep_layout`) may be paths of files: JSON
    objects, or TOML tables in files ``*.toml``.  Raises `CompileError` if one cannot be read, or
    has an unknown value.

    Parameters
    ----------
    target
        ``opencl``, ``cuda`` or ``llvm``.
    device
        Preset of the device that the kernels are for: ``auto`` (the one of this machine), ``cpu``,
        ``adreno``, ``mali`` or ``nvidia``; the name of a GPU, such as ``adreno-740``, stands for
        its preset (`tvmflow.devices.gpus.GPUS` has the names), and ``FILE.json`` is a device file
        of ``tvmflow probe``.
    host
        LLVM triple of the machine that will load the module, default this one.
    shapes
        Shapes of inputs whose dimensions the model leaves open, by input name.  For several shapes
        in one module, write a range of batches as the first extent, such as ``"1..8"``, and
        ``"?"`` for extents that ``at`` lists (docs/shapes.md).
    at
        Values of the open extents of ``shapes``, by input: ``{"image": [(224, 224), (320, 240)]}``.
        If only one input has open extents, its name may be left out.
    inputs
        Inputs that become constants, by name: ``{"sr": 16000}``.  A number fills a shape that the
        model states; other values are nested lists.  The module does not have these inputs.  For
        conditions that only depend on them, the branch is chosen when the model is compiled.
    bounds
        Bounds of sizes that are known only at run time, for sizes whose worst case is larger than
        needed, by the names of the nodes whose results have such a size, or of these results.  A
        run that needs more raises an error.
    results
        Functions whose results replace outputs, by the outputs' names: ``softmax``; ``argmax``, the
        int32 index of the largest element; ``topk:5``, the five largest in falling order, with
        their int32 indices in a further output ``NAME_indices``; or a softmax and one of these,
        ``softmax+topk:5``.  They act along the axis of classes: the second of four, otherwise the
        last; ``argmax@2`` names another.  Or boxes in pixels of the picture, for a network that
        takes a picture: ``boxes:`` with the form in which the network returns them, ``xyxy``,
        ``yxyx``, ``xywh`` or ``cxcywh``, followed by ``:unit`` if 1 is the input's width or
        height, not a pixel.
    storage
        Storage of tensors between primary functions: ``texture``, ``buffer`` or ``auto``, which
        chooses for each tensor the one that is estimated to be faster on the device.
    storage_overrides
        ``texture`` or ``buffer`` for single tensors, which precedes all other choices, by the names
        that ``tvmflow compile -v`` prints, or those of the ONNX model.
    dtype
        Precision in which tensors between primary functions and weights are stored: ``fp32``, or
        ``fp16``, which halves their memory.
    calibrate
        Inputs by ONNX name with which ONNX Runtime measures the effect of ``dtype="fp16"`` on
        tensors between primary functions, or ``random`` for the random inputs of `verify`.
        Tensors that overflow, and those from which a tensor is computed that loses 5 % of its
        magnitude, stay in 32 bits.
    accumulate
        Precision of products and sums in convolutions, dense layers and average pooling: ``fp32``,
        or for tensors that are stored in ``fp16``, on devices with ``cl_khr_fp16``, ``mixed``
        (products in 16 bits, and sums of up to 40 of them, which are added in fp32) or ``fp16``
        (whole sums).  ``auto`` is ``mixed`` for such tensors on GPUs that have it, else ``fp32``.
    algorithms
        ``direct``, ``gemm`` (for ``cuda``), ``winograd2`` or ``winograd4`` for single convolutions,
        by the names of their nodes or of the tensors that these write, instead of the algorithm
        with the lowest estimated cost.
    knobs
        Knobs of schedules by the name of the primary function, as ``tvmflow inspect --schedules``
        prints them.  Knobs that do not fit are ignored with a warning.
    journals
        Tuning journals, or names of those that ship with tvmflow.  Their measurements replace the
        heuristic for a primary function, and the cost models for a convolution's algorithm or the
        network's storage (``auto``).  If several journals have a measurement, the first one counts.
    keep_layout
        ``nchw4c`` or ``texture`` for inputs and outputs, by the ONNX model's names, that the
        application has in the blocked layout ``[N, C', H, W, 4]``: in a buffer or an image.
    image_inputs
        Inputs of a standalone library that take pictures of 8 bits a channel, by the ONNX model's
        names: ``FORMAT,KEY=VALUE,...`` with a format of `IMAGE_FORMATS` and the fields of
        `ImageInput` (:mod:`tvmflow.ir.pictures`).
    check_indices
        For debugging: if an index from data is out of range, a run raises `InputError` with the
        node and the index, instead of using the nearest valid one (docs/design.md).
    cuda_graph
        Launch all kernels at once, as a CUDA graph captured in the first run; for ``cuda``.
    format
        ``tvm``, a module for TVM's runtime, or ``standalone``, a library with a C interface
        (`tvmflow.h`) that needs no other and opens the device's OpenCL; for ``opencl``, and for
        ``llvm``, where it runs on the host's processors.
    fallback
        ``cpu``: a standalone library for ``opencl`` has kernels for the host's processors, too, and
        uses them if there is no working OpenCL.
    alternatives
        ``safe``: a standalone library for ``opencl`` has plain kernels for all functions, too, and
        expected values of the tensors between them.  Its self-test finds the functions that a
        driver computes wrongly, and uses the plain kernels for them.
    choices
        A standalone library for ``opencl`` has up to this many other kernels, 0 to 8, for each of
        its hottest functions, which `tvmflow_tune` times on the device that it meets; and parts
        compiled with other options (:mod:`tvmflow.compiler.standalone.other_options`).
    cpu
        Minimum processor for kernels for ``llvm`` or the fallback: a level of the host's
        architecture, from `tvmflow.devices.target.LEVELS`.  The default is this machine's, and
        x86-64-v3 or armv8-a for another host.
    weights
        ``fp16`` or ``int8``: a standalone library stores its large weights in 16 or 8 bits, rounded
        to that precision (by output channel for ``int8``), and converts them to the kernels' form
        at creation (docs/standalone.md).  Convolutions are then direct unless `algorithms` says
        otherwise.
    embed_limit_bytes
        Weights of more bytes than this in total are written to a sidecar file next to the module.
    """

    target: str = "opencl"
    device: str = "auto"
    host: str | None = None
    shapes: Mapping[str, tuple[Extent, ...]] = field(default_factory=dict)
    at: Mapping[str, Sequence[tuple[int, ...]]] | Sequence[tuple[int, ...]] = field(
        default_factory=dict
    )
    inputs: JsonMapping = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    results: Mapping[str, str] = field(default_factory=dict)
    storage: str = "auto"
    storage_overrides: JsonMapping = field(default_factory=dict)
    dtype: str = "fp32"
    calibrate: Mapping[str, np.ndarray] | str | None = None
    accumulate: str = "auto"
    algorithms: JsonMapping = field(default_factory=dict)
    knobs: JsonMapping = field(default_factory=dict)
    journals: Sequence[str | os.PathLike[str]] = ()
    keep_layout: JsonMapping = field(default_factory=dict)
    image_inputs: Mapping[str, str] = field(default_factory=dict)
    check_indices: bool = False
    cuda_graph: bool = False
    format: str = TVM
    fallback: str | None = None
    alternatives: str = "none"
    choices: int = 0
    cpu: str | None = None
    weights: str | None = None
    embed_limit_bytes: int = EMBED_LIMIT_BYTES

    def __post_init__(self) -> None:
        checked = {
            "shapes": {
                name: tuple(OPEN if extent is None else extent for extent in shape)
                for name, shape in (self.shapes or {}).items()
            },
            "at": _listed(self.at),
            "inputs": _checked_inputs(self.inputs),
            "bounds": _checked_bounds(self.bounds),
            "results": dict(self.results or {}),
            "storage_overrides": STORAGE_OVERRIDES.checked(self.storage_overrides),
            "algorithms": CONVOLUTION_ALGORITHMS.checked(self.algorithms),
            "knobs": KNOBS.checked(self.knobs),
            "keep_layout": KEPT_LAYOUTS.checked(self.keep_layout),
            "image_inputs": dict(self.image_inputs or {}),
            "journals": tuple(find_journal(Path(path)) for path in self.journals or ()),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not isinstance(self.calibrate, Mapping | str | None):
            raise CompileError(
                f"`calibrate` is of type {type(self.calibrate).__name__}; expected arrays by the "
                "names of inputs, or random.",
                remedy="`calibrate=dict(numpy.load(file))`, for example.",
            )
        for name, text in self.image_inputs.items():
            ImageInput.parse(name, text)
            if name in self.keep_layout:
                raise CompileError(
                    f"The layout of input {name!r}, which takes pictures, was to be kept as "
                    f"{self.keep_layout[name]}; its kernel writes what the network reads.",
                    remedy="Leave the input out of `keep_layout`.",
                )
        for name, what in self.results.items():
            parse_result(name, what)

    def resolve(self) -> TargetSpec:
        """Return the target to compile for; ``auto`` looks for a device of this machine.

        Raises `TargetError` if a value is unknown, a combination impossible, or ``auto`` finds no
        device.
        """
        spec = targets.resolve(self.target, self.device, self.host)
        spec = with_storage(spec, self.storage, self.storage_overrides, self.keep_layout)
        targets.check_dtype(spec, self.dtype)
        targets.check_accumulate(spec, self.accumulate, self.dtype, self.device)
        if self.cuda_graph and spec.kind != "cuda":
            raise TargetError(
                f"A CUDA graph was asked for the target {spec.kind}; only cuda has them.",
                remedy="Use `target=cuda`, or leave `cuda_graph` out.",
            )
        if isinstance(self.calibrate, str):
            check_choice("calibrate", self.calibrate, CALIBRATIONS)
        if self.calibrate is not None and self.dtype != "fp16":
            raise TargetError(
                f"Calibration was asked for with tensors in {self.dtype}; it measures which need "
                "more than 16 bits.",
                remedy="Use `dtype=fp16`, or leave `calibrate` out.",
            )
        check_choice("format", self.format, FORMATS)
        if self.format == STANDALONE and spec.kind not in ("opencl", "llvm"):
            raise TargetError(
                f"A standalone module was asked for the target {spec.kind}; its runtime is for "
                "opencl and llvm.",
                remedy="Use `target=opencl`, or `format=tvm`.",
            )
        boxes = [name for name, what in self.results.items() if parse_boxes(what)]
        if boxes and len(self.image_inputs) != 1:
            raise TargetError(
                f"Boxes in pixels of the picture were asked for of the output {boxes[0]!r}, but "
                f"the network takes {len(self.image_inputs)} pictures.",
                remedy="Give `image_inputs` for the one input that is the picture.",
            )
        if self.image_inputs and self.format != STANDALONE:
            raise TargetError(
                f"Inputs that take pictures were asked for in the format {self.format}; standalone "
                "libraries have them.",
                remedy="Use `format=standalone`, or leave `image_inputs` out.",
            )
        if self.weights is not None:
            check_choice("weights", self.weights, WEIGHTS)
            if self.format != STANDALONE:
                raise TargetError(
                    f"Weights stored as {self.weights} were asked for in the format {self.format}; "
                    "standalone libraries can store them so.",
                    remedy="Use `format=standalone`, or leave `weights` out; "
                    "`dtype=fp16` stores them in 16 bits in every format.",
                )
        if self.fallback is not None:
            check_choice("fallback", self.fallback, FALLBACKS)
            if self.format != STANDALONE or spec.kind != "opencl":
                raise TargetError(
                    f"A fallback was asked for the target {spec.kind} in the format "
                    f"{self.format}; a standalone library for opencl can have one.",
                    remedy="Use `target=opencl` with `format=standalone`, or leave `fallback` out.",
                )
        check_choice("alternatives", self.alternatives, ALTERNATIVES)
        if self.alternatives == SAFE and (self.format != STANDALONE or spec.kind != "opencl"):
            raise TargetError(
                f"Alternatives were asked for the target {spec.kind} in the format {self.format}; "
                "a standalone library for opencl can have them.",
                remedy="Use `target=opencl` with `format=standalone`, or leave `alternatives` out.",
            )
        if type(self.choices) is not int or not 0 <= self.choices <= MOST_CHOICES:
            raise TargetError(
                f"Choices: expected a number from 0 to {MOST_CHOICES}, got {self.choices!r}.",
                remedy="Use `choices=4`, or leave it out.",
            )
        if self.choices and (self.format != STANDALONE or spec.kind != "opencl"):
            raise TargetError(
                f"Choices were asked for the target {spec.kind} in the format {self.format}; "
                "a standalone library for opencl can have them.",
                remedy="Use `target=opencl` with `format=standalone`, or leave `choices` out.",
            )
        on_cpu = self.format == STANDALONE and (spec.kind == "llvm" or self.fallback is not None)
        if on_cpu and spec.host is not None and Host.parse(spec.host).is_32_bit:
            raise TargetError(
                f"A library with machine code was asked for the host {spec.host}; they are for "
                "processors of 64 bits.",
                remedy="Use `target=opencl` without `fallback`, or another host.",
            )
        if self.cpu is not None and spec.kind != "llvm" and self.fallback is None:
            raise TargetError(
                f"The processor {self.cpu!r} was named for the target {spec.kind}, which has no "
                "kernels for processors.",
                remedy="Use `target=llvm` or a fallback, or leave `cpu` out.",
            )
        if self.cpu is not None or (self.format == STANDALONE and spec.kind == "llvm"):
            for_cpu = targets.with_level(spec, self.cpu)
            spec = for_cpu if spec.kind == "llvm" else spec
        return with_dtype(spec, self.dtype)

    @property
    def extents_by_input(self) -> Mapping[str, Sequence[tuple[int, ...]]]:
        """Return the extents of `at`, by input; unnamed ones have an empty name."""
        return self.at  # type: ignore[return-value]

    @property
    def static_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes by input, for a compilation of one shape."""
        return dict(self.shapes)  # type: ignore[arg-type]

    def to_json(self) -> JsonObject:
        """Return the options that differ from their defaults, and always storage and precisions."""
        default, always = CompileOptions(), ("storage", "dtype", "accumulate")
        values = vars(self).items()
        kept = {n: value for n, value in values if n in always or value != getattr(default, n)}
        if isinstance(self.calibrate, Mapping):
            # Arrays are left out; the module's placements have the result of the calibration.
            kept.pop("calibrate")
        return kept | ({"journals": list(map(str, self.journals))} if self.journals else {})

    @classmethod
    def from_json(cls, entries: JsonMapping) -> CompileOptions:
        """Return options from the result of `to_json`; ignore names unknown to this version."""
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in entries.items() if name in known})


class CompileKeywords(TypedDict, total=False):
    """Types of the keywords that `CompileOptions` takes, for type checkers and editors.

    A field has the type of its checked value; a keyword accepts everything that can be converted.
    """

    target: str
    device: str | RemoteDevice
    host: str | None
    shapes: Mapping[str, Sequence[Extent | None]] | None
    at: Mapping[str, Sequence[Sequence[int]]] | Sequence[Sequence[int]] | None
    inputs: Mapping[str, Any] | None
    bounds: Mapping[str, int] | None
    results: Mapping[str, str] | None
    storage: str
    storage_overrides: JsonMapping | str | os.PathLike[str] | None
    dtype: str
    calibrate: Mapping[str, np.ndarray] | str | None
    accumulate: str
    algorithms: JsonMapping | str | os.PathLike[str] | None
    knobs: JsonMapping | str | os.PathLike[str] | None
    journals: Sequence[str | os.PathLike[str]] | None
    keep_layout: JsonMapping | str | os.PathLike[str] | None
    image_inputs: Mapping[str, str] | None
    check_indices: bool
    cuda_graph: bool
    format: str
    fallback: str | None
    alternatives: str
    choices: int
    cpu: str | None
    weights: str | None
    embed_limit_bytes: int


def with_keywords(
    options: CompileOptions | None, given: Mapping[str, Any], function: str = "compile"
) -> CompileOptions:
    """Return options in which the keywords of a call have replaced fields.

    Raises `UnknownOptionError`, with the nearest field, for a keyword that is no field.
    """
    known = [each.name for each in fields(CompileOptions)]
    for name in given:
        if name in known:
            continue
        near = get_close_matches(name, known, 1)
        # `--standalone` is the only flag of `tvmflow compile` that stands for an option's value.
        meant = f"`format={STANDALONE}`" if name == STANDALONE else f"`{near[0]}`" if near else ""
        raise UnknownOptionError(
            f"{function}() got the keyword {name!r}, which is no option.",
            remedy=f"Did you mean {meant}?" if meant else f"The options are {', '.join(known)}.",
        )
    return replace(options or CompileOptions(), **given)


def takes_options(function: Callable[P, R]) -> Callable[P, R]:
    """List the fields of `CompileOptions` in a function's signature and docstring.

    Use it for functions whose last parameter is ``**`` of `CompileKeywords`: people, `help` and
    notebooks then see each option with its default and meaning.
    """
    own = inspect.signature(function)
    defaults = {
        item.name: item.default if item.default_factory is MISSING else item.default_factory()
        for item in fields(CompileOptions)
    }
    types = CompileKeywords.__annotations__
    keyword = inspect.Parameter.KEYWORD_ONLY
    made = [
        inspect.Parameter(name, keyword, default=default, annotation=_written(types[name]))
        for name, default in defaults.items()
    ]
    *others, _ = own.parameters.values()
    first = [each for each in others if each.kind is not keyword]
    signature = own.replace(parameters=[*first, *made, *others[len(first) :]])
    function.__signature__ = signature  # type: ignore[attr-defined]
    if function.__doc__ and CompileOptions.__doc__:  # Python drops docstrings with -OO.
        _, _, meanings = inspect.cleandoc(CompileOptions.__doc__).partition("----------\n")
        for name, default in defaults.items():
            title = f"{name} : {_written(types[name])}, default {default!r}"
            meanings = re.sub(rf"^{name}$", title, meanings, flags=re.MULTILINE)
        # Insert the meanings before the section that follows the parameters.
        doc = inspect.cleandoc(function.__doc__)
        end = re.search(r"\n\n\w+\n-+\n", doc[doc.index("----------") + 10 :])
        at = len(doc) if end is None else end.start() + doc.index("----------") + 10
        function.__doc__ = f"{doc[:at]}\n{meanings.rstrip()}{doc[at:]}"
    return function


def _written(annotation: object) -> str:
    """Return an annotation as written; in a typed dictionary annotations are `ForwardRef`."""
    return str(getattr(annotation, "__forward_arg__", annotation))
