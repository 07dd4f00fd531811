"""Sizes known only at run time: symbolic arithmetic on them, and vectors of them.

A `Size` is an expression of counts that the network computes, such as the number of boxes that
NonMaxSuppression selects, with a lower and an upper limit.  Equal expressions are equal sizes:
boxes and scores that separate ``Slice(x, ends=[min(count, 200)])`` cut are known to still have the
same number of elements.

`evaluate` follows computations on shapes, as vectors of integers and sizes::

    Shape(boxes) = [count, 4]    Gather(it, 0) = count    Concat(it, [200]) = [count, 200]
    ReduceMin(it) = min(count, 200)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np
import onnx

from ..graph import node_attributes

#: Longest vector that is followed; longer ones are not shapes.
_MOST_ELEMENTS = 64


@dataclass(frozen=True)
class Size:
    """An expression, with its limits.

    Operators are Add, Sub, Mul, Div, Min and Max, and ``count`` on a scalar's name.
    """

    operator: str
    operands: tuple[Number | str, ...]
    least: int
    most: int


#: A number that is known at import or only at run time.
Number = int | Size


def count(name: str, most: int) -> Size:
    """Return the size for an int64 scalar of the network, from 0 to ``most``."""
    return Size("count", (name,), 0, most)


def counts(size: Size) -> Iterator[str]:
    """Yield the names of the scalars in a size."""
    for operand in size.operands:
        if isinstance(operand, str):
            yield operand
        elif isinstance(operand, Size):
            yield from counts(operand)


def least(number: Number) -> int:
    """Return the smallest value of a number."""
    return number.least if isinstance(number, Size) else number


def most(number: Number) -> int:
    """Return the largest value of a number."""
    return number.most if isinstance(number, Size) else number


def _terms(number: Number, factor: int = 1) -> Counter[Number]:
    """Return a number as a linear combination of 1 and sizes that are not sums."""
    if isinstance(number, int):
        return Counter({1: number * factor})
    a, b = number.operands if len(number.operands) == 2 else (number, 0)
    if isinstance(a, str) or isinstance(b, str) or number.operator not in ("Add", "Sub", "Mul"):
        return Counter({number: factor})
    if number.operator == "Mul":
        return _terms(a, factor * b) if isinstance(b, int) else Counter({number: factor})
    found = _terms(a, factor)
    found.update(_terms(b, factor if number.operator == "Add" else -factor))
    return found


def _cancelled(number: Size) -> Number:
    """Return a sum, as an integer if its sizes cancel out."""
    terms = _terms(number)
    constant = terms.pop(1, 0)
    return number if any(terms.values()) else constant


def add(a: Number, b: Number) -> Number:
    """Return a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, int):
        a, b = b, a
    if b == 0:
        return a
    if isinstance(a, Size) and a.operator == "Add" and isinstance(b, int):
        inner, constant = a.operands
        if isinstance(constant, int) and not isinstance(inner, str):
            return add(inner, constant + b)
    return _cancelled(Size("Add", (a, b), least(a) + least(b), most(a) + most(b)))


def subtract(a: Number, b: Number) -> Number:
    """Return a - b."""
    if isinstance(b, int):
        return add(a, -b)
    return _cancelled(Size("Sub", (a, b), least(a) - most(b), most(a) - least(b)))


def multiply(a: Number, b: Number) -> Number:
    """Return a · b; sizes and their factors must not be negative."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if isinstance(a, int):
        a, b = b, a
    if b == 0:
        return 0
    if b == 1:
        return a
    if least(a) < 0 or least(b) < 0:
        raise Unknown
    if isinstance(a, Size) and a.operator == "Mul" and isinstance(b, int):
        inner, factor = a.operands
        if isinstance(factor, int) and not isinstance(inner, str):
            return multiply(inner, factor * b)
    return Size("Mul", (a, b), least(a) * least(b), most(a) * most(b))


def divide(a: Number, b: Number) -> Number:
    """Return a / b rounded down, for numbers that are not negative."""
    if not isinstance(b, int) or b <= 0 or least(a) < 0:
        raise Unknown
    if isinstance(a, int):
        return a // b
    if b == 1:
        return a
    if a.operator == "Mul":
        inner, factor = a.operands
        if isinstance(inner, Size) and isinstance(factor, int) and not factor % b:
            return multiply(inner, factor // b)
    return Size("Div", (a, b), a.least // b, a.most // b)


def minimum(a: Number, b: Number) -> Number:
    """Return the smaller number."""
    if most(a) <= least(b) or a == b:
        return a
    if most(b) <= least(a):
        return b
    if isinstance(a, int):
        a, b = b, a
    assert isinstance(a, Size)
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Size) and one.operator == "Min" and other in one.operands:
            return one
    if a.operator == "Min" and isinstance(b, int):
        inner, limit = a.operands
        if isinstance(inner, Size) and isinstance(limit, int):
            return minimum(inner, min(limit, b))
    return Size("Min", (a, b), min(least(a), least(b)), min(most(a), most(b)))


def maximum(a: Number, b: Number) -> Number:
    """Return the larger number."""
    if least(a) >= most(b) or a == b:
        return a
    if least(b) >= most(a):
        return b
    if isinstance(a, int):
        a, b = b, a
    return Size("Max", (a, b), max(least(a), least(b)), max(most(a), most(b)))


def total(numbers: Sequence[Number]) -> Number:
    """Return the product of numbers."""
    result: Number = 1
    for number in numbers:
        result = multiply(result, number)
    return result


class Unknown(Exception):  # noqa: N818 (not an error: the node's result is not followed)
    """Raised if a result cannot be expressed as a vector of integers and sizes."""


#: The numbers of a small tensor, in row-major order.
Vector = tuple[Number, ...]

_ARITHMETIC: dict[str, Callable[[Number, Number], Number]] = {
    "Add": add, "Sub": subtract, "Mul": multiply, "Div": divide, "Min": minimum, "Max": maximum,
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[[Number, Number], Number]] = {
    "ReduceMin": minimum, "ReduceMax": maximum, "ReduceSum": add, "ReduceProd": multiply,
}  # fmt: skip
_MOVES = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")


def evaluate(
    node: onnx.NodeProto, operands: Sequence[Vector | None], shapes: Sequence[tuple[int, ...]]
) -> Vector:
    """Evaluate a node on vectors of integers and sizes.

    ``shapes`` has the shapes of the operands that are not ``None``, which means omitted.  Raises
    `Unknown` if the result cannot be expressed.
    """
    left = iter(shapes)
    arrays = [None if o is None else _array(o, next(left)) for o in operands]
    if not arrays or arrays[0] is None:
        raise Unknown
    try:
        found = _evaluated(node, arrays[0], arrays[1:], node_attributes(node))
    except (IndexError, ValueError) as error:  # raised by NumPy for an invalid node
        raise Unknown from error
    return tuple(np.asarray(found, object).flat)


def _array(numbers: Vector, shape: Sequence[int]) -> np.ndarray:
    found = np.empty(len(numbers), object)
    found[:] = numbers
    return found.reshape(shape)


def _evaluated(
    node: onnx.NodeProto,
    first: np.ndarray,
    others: Sequence[np.ndarray | None],
    attributes: dict[str, Any],
) -> np.ndarray | Number:
    """Evaluate a node on arrays for `evaluate`; the result's shape may differ from the node's."""
    kind = node.op_type
    if kind in _MOVES:
        return first
    if kind == "Cast":
        if attributes.get("to") not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
            raise Unknown
        return first
    if kind == "Transpose":
        return np.transpose(first, attributes.get("perm"))
    if kind == "Concat":
        return np.concatenate([first, *_given(others)], attributes["axis"])
    if kind in _REDUCTIONS and first.size:
        if others and attributes.get("noop_with_empty_axes", 0) and not _given(others)[0].size:
            raise Unknown
        # Reduce to one number; if the node's result has more, the caller discards this one.
        return reduce(_REDUCTIONS[kind], first.flat)
    if kind == "Gather":
        return first.take(_known(others[0]), attributes.get("axis", 0))
    if kind == "Slice":
        return _sliced(first, others, attributes)
    if kind == "Where" and len(others) == 2:
        return np.where(_known(first) != 0, *_given(others))
    if kind == "Equal":
        return _each(_equal, first, *_given(others))
    if kind in _ARITHMETIC:
        return _each(_ARITHMETIC[kind], first, *_given(others))
    raise Unknown


def is_vector(shape: Sequence[int]) -> bool:
    """Return whether tensors of this shape are followed."""
    return prod(shape) <= _MOST_ELEMENTS


def vector_of(array: np.ndarray) -> Vector | None:
    """Return a constant as a vector, ``None`` if it is not of integers or too long."""
    if array.dtype.kind not in "iub" or not is_vector(array.shape):
        return None
    return tuple(int(number) for number in array.reshape(-1))


def _known(numbers: np.ndarray | None) -> np.ndarray:
    if numbers is None or not all(isinstance(number, int) for number in numbers.flat):
        raise Unknown
    return numbers.astype(np.int64)


def _given(operands: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    if any(operand is None for operand in operands):
        raise Unknown
    return [operand for operand in operands if operand is not None]


def _each(function: Callable[[Number, Number], Number], *operands: np.ndarray) -> np.ndarray:
    """Apply a function to each pair of numbers of two arrays, which broadcast."""
    if len(operands) != 2:
        raise Unknown
    pairs = np.broadcast(*operands)
    return _array(tuple(function(a, b) for a, b in pairs), pairs.shape)


def _equal(a: Number, b: Number) -> int:
    if a == b:
        return 1
    if most(a) < least(b) or most(b) < least(a):
        return 0
    raise Unknown


def _sliced(
    first: np.ndarray, operands: Sequence[np.ndarray | None], attributes: dict[str, list[int]]
) -> np.ndarray:
    """Slice an array by inputs, or by attributes in older operator sets."""
    given = [None if operand is None else _known(operand).tolist() for operand in operands]
    if not given:
        given = [attributes.get("starts"), attributes.get("ends"), attributes.get("axes")]
    starts, ends = given[:2]
    if starts is None or ends is None:
        raise Unknown
    axes = given[2] if len(given) > 2 and given[2] is not None else list(range(len(starts)))
    steps = given[3] if len(given) > 3 and given[3] is not None else [1] * len(starts)
    parts = [slice(None)] * first.ndim
    for axis, *part in zip(axes, starts, ends, steps, strict=True):
        parts[axis] = slice(*part)
    return first[tuple(parts)]
