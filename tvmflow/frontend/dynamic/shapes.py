"""Rules for operators that return, change or read a shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx

from ..converter import Refusal, normalized_axis
from ..graph import node_attributes
from . import sizes
from .rewriter import RunTimeSizes, rule
from .sizes import Number, Size, Unknown


@rule("Shape")
def shape_of(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Compute the shape as a vector of integers and sizes."""
    attributes = node_attributes(node)
    numbers = r.extents(node.input[0])[attributes.get("start", 0) : attributes.get("end")]
    _write_vector(r, numbers, [len(numbers)])


@rule("Size")
def size_of(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Compute the number of valid elements."""
    _write_vector(r, [sizes.total(r.extents(node.input[0]))], [])


def _write_vector(r: RunTimeSizes, numbers: Sequence[Number], shape: Sequence[int]) -> None:
    (name,) = r._node.output
    if all(isinstance(number, int) for number in numbers):
        r.graph.constants[name] = np.array(numbers, np.int64).reshape(shape)
        return
    parts = [r.emit("Reshape", [r.scalar(number), r.integers([1])]) for number in numbers]
    whole = parts[0] if len(parts) == 1 else r.emit("Concat", parts, axis=0)
    r.become("Reshape", [whole, r.integers(shape)])
    r.vectors[name] = tuple(numbers)


@rule("Identity")
def identity(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Copy a value, because the user gave a bound for the result's name."""
    here = r.bounded[node.input[0]]
    r.copy(node.input[0])
    r.mark(node.output[0], here.axis, here.size)


@rule("Transpose")
def transpose(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Keep Transpose, which moves the bounded axis."""
    here, rank = r.bounded[node.input[0]], len(r.shape(node.input[0]))
    permutation = list(node_attributes(node).get("perm") or range(rank)[::-1])
    r.keep()
    r.mark(node.output[0], permutation.index(here.axis), here.size)


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Reshape if valid elements stay the first ones of one axis."""
    name = node.input[0]
    extents = r.extents(name)
    target = _target_shape(r, node, extents)
    sized = [axis for axis, extent in enumerate(target) if isinstance(extent, Size)]
    here = r.bounded.get(name)
    if here is None and not sized:
        raise Refusal("its shape is computed at run time")
    if here is None or len(sized) > 1:
        raise r.refusal("several axes of its result have an unknown number of elements")
    before, after = prod(r.shape(name)[: here.axis]), prod(r.shape(name)[here.axis + 1 :])
    axis = sized[0] if sized else -1
    extent = r.shape(name)[here.axis]
    if sized:
        new = target[axis]
        left, right = (sizes.total(part) for part in (target[:axis], target[axis + 1 :]))
        same = new == here.size and left == before and right == after
        # An outermost bounded axis may be split or merged with the axes after it.
        outermost = before == 1 and left == 1 and isinstance(right, int) and right > 0
        fits = outermost and sizes.multiply(new, right) == sizes.multiply(here.size, after)
        if not same and fits and isinstance(right, int) and not extent * after % right:
            extent = extent * after // right
        elif not same:
            axis = -1
    if axis < 0:
        raise r.refusal("it would mix that axis with others")
    shape = [extent if a == axis else int(sizes.most(number)) for a, number in enumerate(target)]
    r.become("Reshape", [name, r.integers(shape)])
    r.mark(node.output[0], axis, target[axis])


def _target_shape(r: RunTimeSizes, node: onnx.NodeProto, extents: Sequence[Number]) -> list[Number]:
    """Return the result's shape of Reshape, Flatten, Squeeze or Unsqueeze, with sizes."""
    attributes = node_attributes(node)
    rank = len(extents)
    try:
        if node.op_type == "Flatten":
            axis = attributes.get("axis", 1)
            axis += rank if axis < 0 else 0
            return [sizes.total(extents[:axis]), sizes.total(extents[axis:])]
        if node.op_type in ("Squeeze", "Unsqueeze"):
            return _squeezed(r, node, extents)
        if r.graph.opset < 14 or not attributes.get("allowzero", 0):
            given = [
                extents[i] if number == 0 and i < rank else number
                for i, number in enumerate(r.numbers(1, "numbers of elements"))
            ]
        else:
            given = list(r.numbers(1, "numbers of elements"))
        if -1 in given:
            return _inferred(given, extents)
        return given
    except Unknown:
        raise Refusal(
            "the shape of its result is not recognised: it is computed at run time"
        ) from None


def _inferred(given: list[Number], extents: Sequence[Number]) -> list[Number]:
    """Replace -1 in a shape so that the number of elements is kept."""
    at = given.index(-1)
    known = list(extents)
    rest: list[Number] = []
    for number in given[:at] + given[at + 1 :]:
        if isinstance(number, Size) and number in known:
            known.remove(number)
        else:
            rest.append(number)
    whole, divisor = sizes.total(known), sizes.total(rest)
    if not isinstance(divisor, int) or divisor <= 0:
        raise Unknown
    if isinstance(whole, Size):
        # The number of elements is the size times the extents of the other axes.
        factor = sizes.total([n for n in known if isinstance(n, int)])
        (size,) = [n for n in known if isinstance(n, Size)]
        assert isinstance(factor, int)
        exact = factor % divisor == 0
        number = (
            sizes.multiply(size, factor // divisor)
            if exact
            else sizes.divide(size, divisor // factor)
        )
        if not exact and (divisor % factor or sizes.multiply(number, divisor // factor) != size):
            raise Unknown
    else:
        assert isinstance(whole, int)
        number = whole // divisor
    return [*given[:at], number, *given[at + 1 :]]


def _squeezed(r: RunTimeSizes, node: onnx.NodeProto, extents: Sequence[Number]) -> list[Number]:
    axes: list[int] | None = node_attributes(node).get("axes")
    if axes is None and r.has(1):
        axes = r.known(1, "axes")
    if node.op_type == "Unsqueeze":
        assert axes is not None
        rank = len(extents) + len(axes)
        new = {normalized_axis(int(axis), rank) for axis in axes}
        old = iter(extents)
        return [1 if axis in new else next(old) for axis in range(rank)]
    if axes is None:
        if any(isinstance(extent, Size) for extent in extents):
            # Whether the bounded axis is dropped would depend on its size.
            raise r.refusal("it may drop an axis, if that has one element")
        axes = [axis for axis, extent in enumerate(extents) if extent == 1]
    gone = {normalized_axis(int(axis), len(extents)) for axis in axes}
    if any(extents[axis] != 1 for axis in gone):
        raise r.refusal("it drops an axis that need not have one element")
    return [extent for axis, extent in enumerate(extents) if axis not in gone]


@rule("Expand", "Tile")
def expand(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Repeat axes of one element, whose number of repetitions may be a size."""
    name = node.input[0]
    r.only(0)
    if node.op_type == "Tile":
        extents = r.extents(name)
        repeats = r.numbers(1, "repeats")
        wanted: list[Number] = []
        for extent, times in zip(extents, repeats, strict=True):
            if times != 1 and not isinstance(extent, int):
                raise r.refusal("it repeats that axis")
            if isinstance(times, Size) and extent != 1:
                raise r.refusal("it repeats an axis of several elements")
            wanted.append(sizes.multiply(extent, times))
    else:
        given = list(r.numbers(1, "extents"))
        extents = [*[1] * (len(given) - len(r.shape(name))), *r.extents(name)]
        given = [*[1] * (len(extents) - len(given)), *given]
        wanted = []
        for extent, number in zip(extents, given, strict=True):
            if number == 1 or number == extent:
                wanted.append(extent)
            elif extent == 1:
                wanted.append(number)
            else:
                raise r.refusal("it expands an axis that need not fit")
    sized = [axis for axis, number in enumerate(wanted) if isinstance(number, Size)]
    if len(sized) != 1:
        raise r.refusal("several axes of its result have an unknown number of elements")
    shape = [sizes.most(number) for number in wanted]
    here = r.bounded.get(name)
    if here is not None:
        shape[sized[0]] = r.shape(name)[here.axis]
    if node.op_type == "Tile" and here is not None:
        r.keep()
    elif node.op_type == "Tile":
        r.become("Tile", [name, r.integers(list(map(sizes.most, repeats)))])
    else:
        r.become("Expand", [name, r.integers(shape)])
    r.mark(node.output[0], sized[0], wanted[sized[0]])


@rule("ConstantOfShape")
def constant_of_shape(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Fill a tensor of which one extent is a size."""
    numbers = r.numbers(0, "extents")
    sized = [axis for axis, number in enumerate(numbers) if isinstance(number, Size)]
    if len(sized) != 1:
        raise r.refusal("several axes of its result have an unknown number of elements")
    r.keep({0: r.integers([sizes.most(number) for number in numbers])})
    r.mark(node.output[0], sized[0], numbers[sized[0]])


@rule("Range")
def range_(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Compute a range whose limit is a size."""
    (start,), (limit,), (delta,) = (r.numbers(index, "limits") for index in range(3))
    if not isinstance(start, int) or not isinstance(delta, int) or delta <= 0:
        raise Refusal("where it begins, or its step, is known only at run time")
    size = sizes.maximum(sizes.subtract(limit, start), 0)
    if delta > 1:
        size = sizes.divide(sizes.add(size, delta - 1), delta)
    kind = r.graph.type_of(node.input[1]).dtype
    values = start + delta * np.arange(sizes.most(size))
    r.copy(r.constant(values.astype(kind)))
    r.mark(node.output[0], 0, size)
