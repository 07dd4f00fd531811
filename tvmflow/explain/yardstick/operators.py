"""Operators of a module's primary functions, from the shapes of their schedules and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TypeAlias

from tvm import tirx

from ...runtime.json_types import JsonMapping
from .measured import Operator

#: Positive numbers and true flags of a schedule's shape.
Facts: TypeAlias = Mapping[str, int]
#: Extents of a function's tensors, the result last.
Tensors: TypeAlias = Sequence[tuple[int, ...]]


def operators_of(
    metadata: JsonMapping, functions: Mapping[str, tirx.PrimFunc]
) -> dict[str, Operator]:
    """Return the operators of a module's scheduled functions, as far as they are known, by name.

    A convolution in Winograd's three functions is the product's operator.  Dilations are known only
    for windows of one channel; other dilated convolutions are reported like those without.
    """
    found = {}
    for name, schedule in metadata.get("schedules", {}).items():
        read = _READERS.get(schedule["family"])
        if read is None or name not in functions:
            continue
        shape = schedule.get("shape") or {}
        facts = {fact: int(n) for fact, n in shape.items() if isinstance(n, int) and n > 0}
        tensors = _tensors(functions[name])
        if schedule["family"] == "winograd_product":
            # The convolution's map, which is no tensor of the product.
            readers = (functions[each] for each in _readers_of(name, metadata) if each in functions)
            tensors = next(map(_tensors, readers), [])
        try:
            operator = read(facts, tensors)
        except (KeyError, IndexError):
            # A module of another version has other facts.
            continue
        if operator is not None:
            found[name] = operator
    return found


def _readers_of(name: str, metadata: JsonMapping) -> list[str]:
    """Return the names of the functions that read a function's results."""
    tensors = metadata.get("memory", {}).get("tensors", ())
    return [each for t in tensors if t["producer"] == name for each in t["readers"]]


def _tensors(function: tirx.PrimFunc) -> Tensors:
    shapes = [buffer.shape for buffer in function.params if tirx.is_buffer_var(buffer)]
    fixed = (shape for shape in shapes if all(isinstance(n, tirx.IntImm) for n in shape))
    return [tuple(int(n) for n in shape) for shape in fixed]


def _conv2d(facts: Facts, tensors: Tensors) -> Operator | None:
    groups = facts["outputs"] // facts["group_blocks"] if "group_blocks" in facts else 1
    window = facts["kernel_h"], facts["kernel_w"]
    return _convolution(facts, tensors, window, groups, padded="padded" in facts)


def _grouped(facts: Facts, tensors: Tensors) -> Operator | None:
    window = facts["taps_h"], facts["taps_w"]
    blocks = max((each[1] for each in tensors[:-1] if len(each) == 5), default=0)
    groups = max(1, round(blocks * facts["lanes"] / facts["inputs"]))
    return _convolution(facts, tensors, window, groups, padded=True)


def _convolution(
    facts: Facts, tensors: Tensors, window: tuple[int, int], groups: int, *, padded: bool
) -> Operator | None:
    maps = [each[2:4] for each in tensors[:-1] if len(each) == 5]
    if facts["batch"] > 1 or window[0] != window[1] or not maps:
        return None
    # A residual is smaller than the input, or as large.
    data, results = max(maps, key=prod), (facts["height"], facts["width"])
    strides = {_stride(*each, window[0], padded) for each in zip(data, results, strict=True)}
    stride = strides.pop()
    if strides or stride is None:
        return None
    channels = facts["inputs"] * groups, facts["outputs"] * facts["lanes"]
    kind = "conv2d" if groups == 1 else "grouped"
    return Operator(kind, *channels, *results, window[0], stride, groups)


def _stride(size: int, results: int, window: int, padded: bool) -> int | None:
    """Return the least stride that leads from an extent to that of the results.

    With padding, a window is assumed to begin at each position.
    """
    last = size - 1 if padded else size - window
    return next((step for step in range(1, last + 2) if last // step + 1 == results), None)


def _winograd(facts: Facts, tensors: Tensors) -> Operator | None:
    """Return the operator of a product, with the tensors of the function that reads it."""
    batch, _, height, width, _ = tensors[-1] if len(tensors[-1]) == 5 else (0,) * 5
    channels = facts["inputs"], facts["outputs"] * facts["lanes"]
    return Operator("conv2d", *channels, height, width, window=3) if batch == 1 else None


def _by_channel(kind: str) -> Callable[[Facts, Tensors], Operator | None]:
    def read(facts: Facts, tensors: Tensors) -> Operator | None:
        # A dilated window spans more than its own extent.
        windows = {facts[f"{name}_{axis}"] for name in ("kernel", "span") for axis in "hw"}
        strides = {facts["stride_h"], facts["stride_w"]}
        if facts["batch"] > 1 or len(windows) > 1 or len(strides) > 1:
            return None
        channels = facts["blocks"] * facts["lanes"]
        place = facts["height"], facts["width"]
        return Operator(kind, channels, channels, *place, windows.pop(), strides.pop())

    return read


def _mean(facts: Facts, tensors: Tensors) -> Operator | None:
    """Return the operator of a reduction of whole maps, which need not be a mean."""
    batch, blocks, height, width, lanes = tensors[0] if len(tensors[0]) == 5 else (0,) * 5
    if batch != 1 or height * width != facts["reduced"] or "broadcast" in facts:
        return None
    return Operator("mean", blocks * lanes, blocks * lanes, height, width)


def _dense(facts: Facts, tensors: Tensors) -> Operator | None:
    data, result = tensors[0], tensors[-1]
    if facts["rows"] > 1 or prod(data) != data[-1] or prod(result) != result[-1]:
        return None
    return Operator("dense", data[-1], result[-1])


def _concat(facts: Facts, tensors: Tensors) -> Operator | None:
    """Return the operator of a function whose result has as many blocks as its maps together."""
    *parts, result = tensors
    if len(parts) < 2 or any(len(each) != 5 or each[0] != 1 for each in tensors):
        return None
    if {each[2:] for each in parts} != {result[2:]} or sum(p[1] for p in parts) != result[1]:
        return None
    return Operator("concat", parts[0][1] * result[4], result[1] * result[4], *result[2:4])


#: Functions that read the operator of a schedule family.
_READERS: Mapping[str, Callable[[Facts, Tensors], Operator | None]] = {
    "conv2d": _conv2d,
    "conv2d_1x1": _conv2d,
    "grouped": _grouped,
    "winograd_product": _winograd,
    "depthwise": _by_channel("depthwise"),
    "pooling": _by_channel("pooling"),
    "reduction": _mean,
    "gemv": _dense,
    "dense": _dense,
    "moving": _concat,
}
