"""Bounded values of a graph, and the interface through which rules query and rewrite them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ...errors import ShapeError
from ...ir.tensors import TensorType
from ..converter import Refusal
from ..graph import Graph, Limit, lists_of, node_name
from . import sizes
from .sizes import Number, Size, Unknown, Vector

#: Operators whose results have a new size.
MAKERS = ("NonZero", "Compress", "NonMaxSuppression")
#: Operators that read sizes, with the index of the first input that may be one.
OF_SIZES = {
    "ConstantOfShape": 0, "Range": 0,
    **dict.fromkeys(("Expand", "Pad", "Reshape", "Slice", "Tile", "TopK"), 1),
}  # fmt: skip

#: Function that adds a node without applying rules to it; its result types are given or inferred.
Emit = Callable[[onnx.NodeProto, "Sequence[TensorType] | None"], None]


@dataclass(frozen=True)
class Bounded:
    """A bounded axis, its size, and a description of the node that produced the size."""

    axis: int
    size: Size
    maker: str
    #: The size before the user's bound, if the producing node already applied the bound.
    whole: Size | None = None


@dataclass
class RunTimeSizes:
    """Bounded values of a graph, and its vectors of sizes."""

    graph: Graph
    emit_node: Emit
    #: The user's bounds, by node or value.
    limits: Mapping[str, int] = field(default_factory=dict)
    bounded: dict[str, Bounded] = field(default_factory=dict)
    vectors: dict[str, Vector] = field(default_factory=dict)
    #: Descriptions of the nodes that computed the scalars of sizes, by the scalars' names.
    makers: dict[str, str] = field(default_factory=dict)
    _scalars: dict[Size, str] = field(default_factory=dict)
    _shared: dict[object, str] = field(default_factory=dict)
    #: Results of `MAKERS`, by operator, inputs and attributes.
    _made: dict[tuple[str | bytes, ...], str] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _node: onnx.NodeProto = field(default_factory=onnx.NodeProto)

    # -- the walk -------------------------------------------------------------------------

    def visit(self, node: onnx.NodeProto) -> bool:
        """Rewrite a node if it reads or produces a run-time size; return whether it does.

        Raises `Refusal` if there is no rule for the node, or the rule does not apply.
        """
        self._node = node
        names = [name for name in node.input if name]
        reads = [self.bounded[name] for name in names if name in self.bounded]
        if not reads and any(name in self.vectors for name in names) and self._follow(node):
            return True
        rule = RULES.get(node.op_type) if not node.domain else None
        makes = node.op_type in MAKERS and any(n not in self.graph.constants for n in names)
        sized = node.op_type in OF_SIZES and any(
            n in self.vectors for n in names[OF_SIZES[node.op_type] :]
        )
        if not reads and not makes and not sized:
            return False
        if rule is None:
            raise self.refusal("there is no rule for it")
        if not makes or self.is_limited(node) or not self._is_made(node):
            rule(self, node)
        return True

    def _is_made(self, node: onnx.NodeProto) -> bool:
        """Reuse the result of an earlier equal node, so that both have the same size."""
        attributes = (a.SerializeToString() for a in sorted(node.attribute, key=lambda a: a.name))
        key = node.op_type, *node.input, *attributes
        name = node.output[0]
        before = self._made.setdefault(key, name)
        if before == name:
            return False
        self.copy(before)
        self.bounded[name] = self.bounded[before]
        return True

    def _follow(self, node: onnx.NodeProto) -> bool:
        """Evaluate a node on vectors of sizes and record the result; return whether that worked."""
        operands = [self.vector(name) if name else None for name in node.input]
        shapes = [self.shape(name) for name in node.input if name]
        if any(o is None and n for o, n in zip(operands, node.input, strict=True)):
            return False
        try:
            found = sizes.evaluate(node, operands, shapes)
        except Unknown:
            return False
        name = node.output[0]
        self.emit_node(node, None)
        kind = self.graph.type_of(name)
        if kind.elements != len(found):
            return True
        if all(isinstance(number, int) for number in found):
            self.graph.constants[name] = np.array(found, kind.dtype).reshape(kind.shape)
        elif sizes.is_vector(kind.shape):
            self.vectors[name] = found
        return True

    def is_limited(self, node: onnx.NodeProto) -> bool:
        """Return whether the user gave a bound for a node or one of its results."""
        return any(name in self.limits for name in (node_name(node), *node.output))

    def _limited(self, node: onnx.NodeProto, output: str) -> str | None:
        """Return the name for which the user gave a bound: the node's, the result's or neither."""
        return next((n for n in (node_name(node), output) if n in self.limits), None)

    def within_bound(self, extent: int) -> int:
        """Return the extent that the node's new result needs: at most the user's bound."""
        name = self._limited(self._node, self._node.output[0])
        return extent if name is None else min(extent, self.limits[name])

    def cut(self, node: onnx.NodeProto) -> dict[str, str]:
        """Cut a node's results at the user's bounds; return the new names by the old."""
        cut: dict[str, str] = {}
        for name in filter(None, node.output):
            wanted = self._limited(node, name)
            here = self.bounded.get(name)
            if wanted is None or here is None:
                continue
            bound = self.limits[wanted]
            if not any(limit.name == wanted for limit in self.graph.limits):
                count = self.scalar(here.whole or here.size)
                self.graph.limits.append(Limit(wanted, node_name(node), bound, count))
            size = sizes.minimum(here.size, bound)
            extent = min(self.shape(name)[here.axis], bound)
            cut[name] = self.front(name, here.axis, extent)
            self.mark(cut[name], here.axis, size)
        return cut

    def bound_of(self, node: onnx.NodeProto) -> tuple[str, int] | None:
        """Return the user's bound for a node or one of its results, and the name it is for."""
        names = (node_name(node), *node.output)
        return next(((name, self.limits[name]) for name in names if name in self.limits), None)

    def mark_rows(
        self, node: onnx.NodeProto, name: str, axis: int, iterations: str, most: int,
        limit: tuple[str, int] | None,
    ) -> None:  # fmt: skip
        """Record that a value has one row for each iteration of a loop along an axis.

        ``iterations`` is their number, an int64 scalar; beyond the user's bound only the first rows
        are stored.
        """
        self._node = node
        size = self.made(iterations, most)
        self.mark(name, axis, sizes.minimum(size, self.shape(name)[axis]))
        if limit is not None and not any(known.name == limit[0] for known in self.graph.limits):
            count = self.scalar(size)
            self.graph.limits.append(Limit(limit[0], node_name(node), limit[1], count))

    def finish(self) -> None:
        """Replace invalid elements of outputs with zeros, and record the counts in the graph.

        Raises `ShapeError` for a bound that matches no size.
        """
        for name in self.limits:
            if not any(limit.name == name for limit in self.graph.limits):
                makers = sorted({here.maker for here in self.bounded.values()})
                raise ShapeError(
                    f"A bound is given for {name!r}, but no node or value of that name has a size "
                    f"that is known only at run time; those of {', '.join(makers) or 'none'} have.",
                    remedy="Give the name of a node, or of a value that it computes.",
                )
        outputs = []
        for name in self.graph.outputs:
            here = self.bounded.get(name)
            if here is not None:
                self._node = onnx.NodeProto(name=name)
                filled = self._memo(("filled", name), partial(self.masked, name, 0))
                self.graph.counts[filled] = (here.axis, self.scalar(here.size))
                name = filled
            outputs.append(name)
        self.graph.outputs = outputs

    def selected(
        self, node: onnx.NodeProto, condition: str, then: str, otherwise: str
    ) -> str | None:
        """Select one of two values that differ in one axis's extent, by a condition.

        ::

            before  y = c ? a : float[0, 4] : b : float[9, 4]
            after   y = Where(c, Concat(a, zeros), b) : float[9, 4], of size Where(c, 0, 9)

        Returns ``None`` if they differ in more.
        """
        self._node = node
        kinds = [self.graph.type_of(name) for name in (then, otherwise)]
        shapes = [kind.shape for kind in kinds]
        if kinds[0].dtype != kinds[1].dtype or len(shapes[0]) != len(shapes[1]):
            return None
        pairs = enumerate(zip(*shapes, strict=True))
        axes = {self.bounded[n].axis for n in (then, otherwise) if n in self.bounded}
        axes |= {axis for axis, (one, other) in pairs if one != other}
        if len(axes) != 1:
            return None
        (axis,) = axes
        extent = max(shape[axis] for shape in shapes)
        parts = [self._extended(name, axis, extent) for name in (then, otherwise)]
        value = self.emit("Where", [condition, *parts])
        extents = [self.extents(name)[axis] for name in (then, otherwise)]
        # Several results of one node with equal sizes get one size, so that they stay equal.
        key = "selected", condition, *extents
        numbers = [condition, *map(self.scalar, extents)]
        number = self._memo(key, lambda: self.emit("Where", numbers))
        self.makers[number] = self.maker()
        self.mark(value, axis, sizes.count(number, extent))
        return value

    def _extended(self, name: str, axis: int, extent: int) -> str:
        """Append zeros to a value along an axis, up to an extent."""
        kind = self.graph.type_of(name)
        missing = [extent - n if a == axis else n for a, n in enumerate(kind.shape)]
        if not missing[axis]:
            return name
        zeros = self.constant(np.zeros(missing, kind.dtype))
        return self.emit("Concat", [name, zeros], axis=axis) if kind.elements else zeros

    # -- queries for rules ----------------------------------------------------------------

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the static shape of a value."""
        return self.graph.type_of(name).shape

    def extents(self, name: str) -> list[Number]:
        """Return the shape of a value, with the size for its bounded axis."""
        shape: list[Number] = list(self.shape(name))
        if (here := self.bounded.get(name)) is not None:
            shape[here.axis] = here.size
        return shape

    def vector(self, name: str) -> Vector | None:
        """Return a value as a vector of integers and sizes, ``None`` if it is not known as one."""
        if name in self.vectors:
            return self.vectors[name]
        array = self.graph.constants.get(name)
        return None if array is None or name in self.bounded else sizes.vector_of(array)

    def numbers(self, index: int, what: str) -> Vector:
        """Return an input as integers and sizes; refuse the node if they are not known."""
        found = self.vector(self._node.input[index])
        if found is None:
            raise Refusal(
                f"its {what} are computed at run time, in a way that is not recognised as a number "
                "of elements"
            )
        return found

    def known(self, index: int, what: str) -> list[int]:
        """Return an input's constant integers; refuse the node if some depend on sizes."""
        found = [number for number in self.numbers(index, what) if isinstance(number, int)]
        if len(found) < len(self.numbers(index, what)):
            raise self.refusal(f"its {what} depend on that")
        return found

    def has(self, index: int) -> bool:
        """Return whether an optional input is given."""
        return index < len(self._node.input) and bool(self._node.input[index])

    def maker(self) -> str:
        """Describe the node that produced the size that the current node reads."""
        for name in self._node.input:
            if name in self.bounded:
                return self.bounded[name].maker
            for number in self.vectors.get(name, ()):
                if isinstance(number, Size):
                    return self.makers[next(sizes.counts(number))]
        return f"node {node_name(self._node)!r} ({self._node.op_type})"

    def refusal(self, what: str) -> Refusal:
        """Return a refusal of the current node, which also describes the origin of the size."""
        return Refusal(
            f"{what}, and the number of elements from {self.maker()} is known only at run time; "
            "cut the model before it"
        )

    def mark(self, name: str, axis: int, size: Number) -> None:
        """Record that a value is bounded, unless the size is static."""
        if isinstance(size, Size) and name:
            assert size.most <= self.shape(name)[axis], (name, size, self.shape(name))
            self.bounded[name] = Bounded(axis, size, self.maker())
        assert isinstance(size, Size) or size == self.shape(name)[axis], (name, size)

    def only(self, *indices: int) -> None:
        """Refuse the node if inputs other than these are bounded."""
        for index, name in enumerate(self._node.input):
            if name in self.bounded and index not in indices:
                raise self.refusal(f"its input {name!r} has an unknown number of elements")

    # -- output of rules ------------------------------------------------------------------

    def emit(
        self, op_type: str, inputs: Sequence[str], types: Sequence[TensorType] | None = None,
        **attributes: Any,
    ) -> str:  # fmt: skip
        """Add a node, and return the name of its first result.

        ``types`` are the types of its results, required for operators that ONNX does not have.
        """
        base = f"{node_name(self._node)}:{op_type}{next(self._numbers)}"
        names = [base, *(f"{base}.{index}" for index in range(1, len(types or ())))]
        self.emit_node(helper.make_node(op_type, inputs, names, name=base, **attributes), types)
        return base

    def keep(self, inputs: Mapping[int, str] | None = None) -> None:
        """Keep the current node, with some of its inputs replaced."""
        kept = onnx.NodeProto()
        kept.CopyFrom(self._node)
        for index, name in (inputs or {}).items():
            kept.input[index] = name
        self.emit_node(kept, None)

    def become(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> None:
        """Replace the current node with one that defines its results."""
        names, name = self._node.output, node_name(self._node)
        self.emit_node(helper.make_node(op_type, inputs, names, name=name, **attributes), None)

    def copy(self, name: str) -> None:
        """Copy another value to the node's result, which may then get a different size."""
        (output,) = self._node.output
        if name in self.graph.constants:
            self.graph.constants[output] = self.graph.constants[name]
        else:
            self.become("Reshape", [name, self.integers(self.shape(name))])

    def constant(self, array: np.ndarray) -> str:
        """Return the name of a constant; equal arrays share one."""
        key = "constant", array.dtype.str, array.shape, array.tobytes()

        def make() -> str:
            name = f":constant{len(self._shared)}"
            self.graph.constants[name] = array
            return name

        return self._memo(key, make)

    def integers(self, values: object) -> str:
        """Add an int64 constant and return its name."""
        return self.constant(np.asarray(values, np.int64))

    def _memo(self, key: object, make: Callable[[], str]) -> str:
        if key not in self._shared:
            made = make()
            self._shared[key] = made
        return self._shared[key]

    def scalar(self, number: Number) -> str:
        """Return the name of an int64 scalar with the value of a number; compute each only once."""
        if isinstance(number, int):
            return self.integers(number)
        if number not in self._scalars:
            if number.operator == "count":
                (name,) = number.operands
                self._scalars[number] = str(name)
            else:
                operands = [self.scalar(o) for o in number.operands if not isinstance(o, str)]
                self._scalars[number] = self._computed(number.operator, *operands)
        return self._scalars[number]

    def _computed(self, operator: str, a: str, b: str) -> str:
        if operator not in ("Min", "Max"):
            return self.emit(operator, [a, b])
        # Before operator set 12 Min and Max accept only floats.
        chosen = self.emit("Less" if operator == "Min" else "Greater", [a, b])
        return self.emit("Where", [chosen, a, b])

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        """Reshape a value to another static shape."""
        if tuple(shape) == self.shape(name):
            return name
        return self.emit("Reshape", [name, self.integers(shape)])

    def cast(self, name: str, dtype: str) -> str:
        """Cast a value to another element type."""
        if self.graph.type_of(name).dtype == dtype:
            return name
        return self.emit("Cast", [name], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def front(self, name: str, axis: int, extent: int) -> str:
        """Slice the first elements of an axis."""
        if self.shape(name)[axis] == extent:
            return name
        limits, older = lists_of(
            "Slice", self.graph.opset, self.constant, starts=[0], ends=[extent], axes=[axis]
        )
        return self.emit("Slice", [name, *limits], **older)

    def mask(self, size: Number, shape: Sequence[int], axis: int) -> str:
        """Compute a mask that is true for valid elements, in a shape that broadcasts."""
        extent = shape[axis]
        form = [extent if a == axis else 1 for a in range(len(shape))]

        def make() -> str:
            places = self.integers(np.arange(extent).reshape(form))
            return self.emit("Less", [places, self.scalar(size)])

        return self._memo(("mask", size, tuple(form)), make)

    def masked(self, name: str, fill: float | bool) -> str:
        """Replace the invalid elements of a value, if it is bounded."""
        here = self.bounded.get(name)
        if here is None:
            return name
        kind = self.graph.type_of(name)
        mask = self.mask(here.size, kind.shape, here.axis)
        return self.emit("Where", [mask, name, self.constant(np.array(fill, kind.dtype))])

    def compaction(self, marks: str, most: int | None = None) -> tuple[str, Size]:
        """Compute int32 positions of the first ``most`` true elements, and how many are true."""
        (extent,) = self.shape(marks)
        most = extent if most is None else most
        whole = self.cast(marks, "int32")
        types = [TensorType((most,), "int32"), TensorType((), "int64")]
        positions = self.emit("Compaction", [whole], types, most=most)
        return positions, self.made(f"{positions}.1", extent)

    def made(self, number: str, most: int) -> Size:
        """Return a new size for an int64 scalar that the current node computes."""
        self.makers[number] = f"node {node_name(self._node)!r} ({self._node.op_type})"
        return sizes.count(number, most)

    def from_front(self, name: str, size: Number) -> str:
        """Convert negative indices, which count from the end of an axis, to positive ones."""
        array = self.graph.constants.get(name)
        if array is not None and array.size and array.min() >= 0:
            return name
        wide = self.cast(name, "int64")
        wrapped = self.emit("Add", [wide, self.scalar(size)])
        return self.emit("Where", [self.emit("Less", [wide, self.integers(0)]), wrapped, wide])


#: Function that rewrites a node.
Rule = Callable[[RunTimeSizes, onnx.NodeProto], None]

#: Rules by operator.
RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of ONNX operators."""

    def register(function: Rule) -> Rule:
        for op_type in op_types:
            assert op_type not in RULES, op_type
            RULES[op_type] = function
        return function

    return register


def lowest(dtype: str) -> float | bool:
    """Return the least number of an element type."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return -np.inf
    return False if kind.kind == "b" else int(np.iinfo(kind).min)


def highest(dtype: str) -> float | bool:
    """Return the largest number of an element type."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return np.inf
    return True if kind.kind == "b" else int(np.iinfo(kind).max)
