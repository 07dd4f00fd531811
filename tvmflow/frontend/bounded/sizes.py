"""Numbers of elements that are known only at run time: arithmetic with them, and vectors of them.

A `Size` is an expression of counts that the network computes, such as the number of boxes that
NonMaxSuppression takes, and has limits.  Equal expressions are equal sizes: so it is known that
boxes and scores which were cut by ``Slice(x, ends=[min(count, 200)])``, each by its own, still have
the same number of elements.

`evaluate` follows what models compute of shapes, in vectors of integers and sizes::

    Shape(boxes) = [count, 4]    Gather(it, 0) = count    Concat(it, [200]) = [count, 200]
    ReduceMin(it) = min(count, 200)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx

from ..graph import node_attributes

#: Longer vectors are no shapes.
_MOST_ELEMENTS = 64


@dataclass(frozen=True)
class Size:
    """An operator (``count`` of a scalar's name, Add, Sub, Mul, Div, Min, Max) and limits."""

    operator: str
    operands: tuple[Number | str, ...]
    least: int
    most: int


#: A number that is known now, or at run time.
Number = int | Size


def count(name: str, most: int) -> Size:
    """The size that an int64 scalar of the network is, from 0 to ``most``."""
    return Size("count", (name,), 0, most)


def counts(size: Size) -> Iterator[str]:
    """The names of the scalars that a size is computed of."""
    for operand in size.operands:
        if isinstance(operand, str):
            yield operand
        elif isinstance(operand, Size):
            yield from counts(operand)


def least(number: Number) -> int:
    """The smallest value of a number."""
    return number.least if isinstance(number, Size) else number


def most(number: Number) -> int:
    """The largest value of a number."""
    return number.most if isinstance(number, Size) else number


def add(a: Number, b: Number) -> Number:
    """a + b."""
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
    return Size("Add", (a, b), least(a) + least(b), most(a) + most(b))


def subtract(a: Number, b: Number) -> Number:
    """a - b."""
    if isinstance(b, int):
        return add(a, -b)
    if a == b:
        return 0
    return Size("Sub", (a, b), least(a) - most(b), most(a) - least(b))


def multiply(a: Number, b: Number) -> Number:
    """a · b, of numbers that are not negative unless both are known now."""
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
    """a / b rounded down, of numbers that are not negative."""
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
    """The smaller number."""
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
    """The larger number."""
    if least(a) >= most(b) or a == b:
        return a
    if least(b) >= most(a):
        return b
    if isinstance(a, int):
        a, b = b, a
    return Size("Max", (a, b), max(least(a), least(b)), max(most(a), most(b)))


def total(numbers: Sequence[Number]) -> Number:
    """Their product."""
    result: Number = 1
    for number in numbers:
        result = multiply(result, number)
    return result


class Unknown(Exception):  # noqa: N818 (no error: what a node computes is followed no further)
    """A result is no vector of integers and sizes that is understood."""


#: A vector, or a scalar as one number, and its shape.
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
    """Return the vector that a node computes of vectors.

    ``shapes`` are those of the operands: scalars and vectors of one number broadcast, and only one
    axis has more than one.  ``None`` is an operand that is left out.  Raises `Unknown` if that is
    not one of these vectors.
    """
    attributes = node_attributes(node)
    if not operands or operands[0] is None or sum(extent > 1 for s in shapes for extent in s) > 9:
        raise Unknown
    first = operands[0]
    if node.op_type in _MOVES:
        return first
    if node.op_type == "Cast":
        if attributes.get("to") not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
            raise Unknown
        return first
    if node.op_type == "Concat":
        parts = [part for part in operands if part is not None]
        return tuple(number for part in parts for number in part)
    if node.op_type in _REDUCTIONS and first:
        if len(operands) > 1 and not operands[1] and attributes.get("noop_with_empty_axes", 0):
            raise Unknown
        result = first[0]
        for number in first[1:]:
            result = _REDUCTIONS[node.op_type](result, number)
        return (result,)
    if node.op_type == "Gather":
        places = _known(operands[1])
        if any(not -len(first) <= place < len(first) for place in places):
            raise Unknown
        return tuple(first[place] for place in places)
    if node.op_type == "Slice":
        return _sliced(first, operands[1:], attributes)
    if node.op_type == "Where" and len(operands) == 3:
        return tuple(
            yes if wanted else no
            for wanted, yes, no in _broadcast([_known_vector(first), operands[1], operands[2]])
        )
    if node.op_type == "Equal":
        return tuple(_equal(a, b) for a, b in _broadcast(operands))
    if node.op_type in _ARITHMETIC:
        function = _ARITHMETIC[node.op_type]
        pairs = list(_broadcast(operands))
        if any(len(pair) != 2 for pair in pairs):
            raise Unknown
        return tuple(function(a, b) for a, b in pairs)
    raise Unknown


def is_vector(shape: Sequence[int]) -> bool:
    """Tell whether numbers of this shape are followed."""
    return len(shape) <= 1 and prod(shape) <= _MOST_ELEMENTS


def vector_of(array: np.ndarray) -> Vector | None:
    """A constant as a vector, ``None`` if it is none of integers."""
    if array.dtype.kind not in "iub" or not is_vector(array.shape):
        return None
    return tuple(int(number) for number in array.reshape(-1))


def _known(vector: Vector | None) -> list[int]:
    if vector is None or not all(isinstance(number, int) for number in vector):
        raise Unknown
    return [number for number in vector if isinstance(number, int)]


def _known_vector(vector: Vector | None) -> Vector:
    return tuple(_known(vector))


def _broadcast(operands: Sequence[Vector | None]) -> list[tuple[Number, ...]]:
    given = [operand for operand in operands if operand is not None]
    extent = max(map(len, given), default=0)
    if len(given) < len(operands) or any(len(operand) not in (1, extent) for operand in given):
        raise Unknown
    return list(zip(*(v * extent if len(v) == 1 else v for v in given), strict=True))


def _equal(a: Number, b: Number) -> int:
    if a == b:
        return 1
    if most(a) < least(b) or most(b) < least(a):
        return 0
    raise Unknown


def _sliced(
    vector: Vector, operands: Sequence[Vector | None], attributes: dict[str, list[int]]
) -> Vector:
    """Part of a vector, by inputs, or by attributes in older operator sets."""
    given = [None if operand is None else _known(operand) for operand in operands]
    if not given:
        given = [attributes.get("starts"), attributes.get("ends")]
    starts, ends = given[:2]
    steps = given[3] if len(given) > 3 and given[3] is not None else [1]
    if starts is None or ends is None or not len(starts) == len(ends) == len(steps) == 1:
        raise Unknown
    return vector[slice(starts[0], ends[0], steps[0])]
