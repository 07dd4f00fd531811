"""Sizes known at run time: rewrites nodes to nodes on tensors of a static extent.

A *bounded* value has an axis of which only the first elements count.  Their number is computed in
the network, an int64 scalar; the extent, which kernels and memory have, is its bound.  Elements
behind are anything, so that most operators take them along unseen.  Where an operator would mix
them in, they are replaced by what changes nothing, or the node is refused::

    before  NonZero(mask) = p : int64[1, ?]            ReduceMax(Gather(x, p))
    after   Compaction(mask) = p : int32[n], count     ReduceMax(Where(i < count, Gather(x, p), -∞))

`RULES` has what becomes of each operator that reads such a value, or makes one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

import numpy as np
import onnx
from onnx import helper

from ..errors import ShapeError
from ..ir.limits import MOST_ELEMENTS
from ..ir.tensors import TensorType
from . import sizes
from .converter import Refusal, normalized_axis
from .graph import Graph, Limit, node_attributes, node_name
from .sizes import Number, Size, Unknown, Vector

#: Emits a node whose result types follow, or are given, and which no rule is asked about.
Emit = Callable[[onnx.NodeProto, "Sequence[TensorType] | None"], None]


@dataclass(frozen=True)
class Bounded:
    """An axis whose first elements count, and what made it, in words."""

    axis: int
    size: Size
    maker: str


@dataclass
class RunTimeSizes:
    """The bounded values of a graph, and what is known of vectors of sizes."""

    graph: Graph
    emit_node: Emit
    #: Bounds smaller than the largest possible ones, by node or value.
    limits: Mapping[str, int] = field(default_factory=dict)
    bounded: dict[str, Bounded] = field(default_factory=dict)
    vectors: dict[str, Vector] = field(default_factory=dict)
    _scalars: dict[Size, str] = field(default_factory=dict)
    _shared: dict[object, str] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _node: onnx.NodeProto = field(default_factory=onnx.NodeProto)

    # -- the walk -------------------------------------------------------------------------

    def visit(self, node: onnx.NodeProto) -> bool:
        """Take a node over, if it reads or makes a size that is known only at run time.

        Raises `Refusal` where that cannot be done.
        """
        self._node = node
        names = [name for name in node.input if name]
        reads = [self.bounded[name] for name in names if name in self.bounded]
        if not reads and any(name in self.vectors for name in names) and self._follow(node):
            return True
        rule = RULES.get(node.op_type) if not node.domain else None
        makes = node.op_type in MAKERS and any(n not in self.graph.constants for n in names)
        sized = node.op_type in OF_SIZES and any(n in self.vectors for n in names[OF_SIZES[node.op_type]:])
        if not reads and not makes and not sized:
            return False
        if rule is None:
            raise Refusal(
                f"it reads a value whose number of elements is known only at run time, from "
                f"{reads[0].maker}, which it has no rule for; cut the model before it"
            )
        rule(self, node)
        return True

    def _follow(self, node: onnx.NodeProto) -> bool:
        """Note what a node computes of vectors of sizes."""
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

    def cut(self, node: onnx.NodeProto) -> dict[str, str]:
        """Cut a node's results at bounds that were asked for; returns the new names by the old."""
        cut: dict[str, str] = {}
        for name in filter(None, node.output):
            wanted = next((n for n in (node_name(node), name) if n in self.limits), None)
            here = self.bounded.get(name)
            if wanted is None or here is None:
                continue
            bound = self.limits[wanted]
            if not any(limit.name == wanted for limit in self.graph.limits):
                count = self.scalar(here.size)
                self.graph.limits.append(Limit(wanted, node_name(node), bound, count))
            size = sizes.minimum(here.size, bound)
            extent = min(self.shape(name)[here.axis], bound)
            cut[name] = self.front(name, here.axis, extent)
            assert isinstance(size, Size)
            self.mark(cut[name], here.axis, size)
        return cut

    def finish(self) -> None:
        """Fill outputs with zeros behind what counts, and note the counts in the graph.

        Raises `ShapeError` for a bound of something that has none.
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

    # -- what rules ask -------------------------------------------------------------------

    def shape(self, name: str) -> tuple[int, ...]:
        """The static shape of a value."""
        return self.graph.type_of(name).shape

    def vector(self, name: str) -> Vector | None:
        """A value as a vector of numbers, if it is one that is known."""
        if name in self.vectors:
            return self.vectors[name]
        array = self.graph.constants.get(name)
        return None if array is None or name in self.bounded else sizes.vector_of(array)

    def numbers(self, index: int, what: str) -> Vector:
        """An input's numbers; refuses the node if they are not known."""
        found = self.vector(self._node.input[index])
        if found is None:
            raise Refusal(f"its {what} are computed at run time, and not recognised as a size")
        return found

    def has(self, index: int) -> bool:
        """Tell whether an optional input is given."""
        return index < len(self._node.input) and bool(self._node.input[index])

    def maker(self) -> str:
        """What makes the results of the node, in words."""
        for name in self._node.input:
            if name in self.bounded:
                return self.bounded[name].maker
        return f"node {node_name(self._node)!r} ({self._node.op_type})"

    def mark(self, name: str, axis: int, size: Number) -> None:
        """Note that a value is bounded."""
        if isinstance(size, Size) and name:
            assert size.most <= self.shape(name)[axis], (name, size, self.shape(name))
            self.bounded[name] = Bounded(axis, size, self.maker())

    def only(self, *indices: int) -> None:
        """Refuse the node if other inputs than these are bounded."""
        for index, name in enumerate(self._node.input):
            if name in self.bounded and index not in indices:
                raise Refusal(
                    f"the number of elements of its input {name!r}, from "
                    f"{self.bounded[name].maker}, is known only at run time; cut the model before "
                    "it"
                )

    # -- what rules write -----------------------------------------------------------------

    def emit(
        self, op_type: str, inputs: Sequence[str], types: Sequence[TensorType] = (),
        outputs: Sequence[str] | None = None, **attributes: object,
    ) -> str:  # fmt: skip
        """Write a node, and return the name of its first result.

        ``types`` are those of its results, if it is none of ONNX's.
        """
        base = node_name(self._node)
        if outputs is None:
            number = next(self._numbers)
            names = [f"{base}:{op_type}{number}.{i}" for i in range(max(1, len(types)))]
        else:
            names = list(outputs)
        made = helper.make_node(op_type, list(inputs), names, name=names[0], **attributes)
        if outputs is not None:
            made.name = base
        self.emit_node(made, types or None)
        return names[0]

    def keep(self, inputs: Mapping[int, str] | None = None) -> None:
        """Write the node as it is, with other inputs in some places."""
        kept = onnx.NodeProto()
        kept.CopyFrom(self._node)
        for index, name in (inputs or {}).items():
            kept.input[index] = name
        self.emit_node(kept, None)

    def become(self, op_type: str, inputs: Sequence[str], **attributes: object) -> str:
        """Write a node that has the results of the one at hand."""
        return self.emit(op_type, inputs, outputs=self._node.output, **attributes)

    def copy(self, name: str) -> None:
        """Give the node's result the elements of another value, but sizes of its own."""
        (output,) = self._node.output
        if name in self.graph.constants:
            self.graph.constants[output] = self.graph.constants[name]
        else:
            self.become("Reshape", [name, self.integers(self.shape(name))])

    def constant(self, array: np.ndarray) -> str:
        """Name a constant."""
        key = "constant", array.dtype.str, array.shape, array.tobytes()

        def make() -> str:
            name = f":constant{len(self._shared)}"
            self.graph.constants[name] = array
            return name

        return self._memo(key, make)

    def integers(self, values: object) -> str:
        """Name a constant of int64."""
        return self.constant(np.asarray(values, np.int64))

    def _memo(self, key: object, make: Callable[[], str]) -> str:
        if key not in self._shared:
            made = make()
            self._shared[key] = made
        return self._shared[key]

    def scalar(self, number: Number) -> str:
        """The int64 scalar of a number."""
        if isinstance(number, int):
            return self.integers(number)
        if number not in self._scalars:
            if number.operator == "count":
                (name,) = number.operands
                self._scalars[number] = str(name)
            else:
                operands = [self.scalar(o) for o in number.operands if not isinstance(o, str)]
                self._scalars[number] = self.emit(number.operator, operands)
        return self._scalars[number]

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        """A value in another static shape."""
        if tuple(shape) == self.shape(name):
            return name
        return self.emit("Reshape", [name, self.integers(shape)])

    def cast(self, name: str, dtype: str) -> str:
        """A value in another element type."""
        if self.graph.type_of(name).dtype == dtype:
            return name
        return self.emit("Cast", [name], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def front(self, name: str, axis: int, extent: int) -> str:
        """The first elements of an axis."""
        if self.shape(name)[axis] == extent:
            return name
        if self.graph.opset < 10:
            return self.emit("Slice", [name], starts=[0], ends=[extent], axes=[axis])
        return self.emit("Slice", [name, *map(self.integers, ([0], [extent], [axis]))])

    def mask(self, size: Number, shape: Sequence[int], axis: int) -> str:
        """True for elements that count, in a shape that broadcasts."""
        extent = shape[axis]
        form = [extent if a == axis else 1 for a in range(len(shape))]

        def make() -> str:
            places = self.integers(np.arange(extent).reshape(form))
            return self.emit("Less", [places, self.scalar(size)])

        return self._memo(("mask", size, tuple(form)), make)

    def masked(self, name: str, fill: float | bool) -> str:
        """A value, if it is bounded with other elements behind those that count."""
        here = self.bounded.get(name)
        if here is None:
            return name
        kind = self.graph.type_of(name)
        mask = self.mask(here.size, kind.shape, here.axis)
        return self.emit("Where", [mask, name, self.constant(np.array(fill, kind.dtype))])

    def compaction(self, marks: str) -> tuple[str, Size]:
        """The positions, int32, of true elements of a list, and their number."""
        (extent,) = self.shape(marks)
        whole = self.cast(marks, "int32")
        types = [TensorType((extent,), "int32"), TensorType((), "int64")]
        positions = self.emit("Compaction", [whole], types, most=extent)
        return positions, sizes.count(positions.removesuffix(".0") + ".1", extent)

    def from_front(self, name: str, size: Number) -> str:
        """Indices with those below zero, which count from the end of an axis, made positive."""
        array = self.graph.constants.get(name)
        if array is not None and array.size and array.min() >= 0:
            return name
        wide = self.cast(name, "int64")
        behind = self.emit("Add", [wide, self.scalar(size)])
        return self.emit("Where", [self.emit("Less", [wide, self.integers(0)]), behind, wide])


Rule = Callable[[RunTimeSizes, onnx.NodeProto], None]


def _lowest(dtype: str) -> float | bool:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return -np.inf
    return False if kind.kind == "b" else int(np.iinfo(kind).min)


def _highest(dtype: str) -> float | bool:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return np.inf
    return True if kind.kind == "b" else int(np.iinfo(kind).max)


# -- element by element ------------------------------------------------------------------------


def _common(r: RunTimeSizes, names: Sequence[str]) -> tuple[int, Size]:
    """The axis, counted from the end, and the size that operands share that broadcast."""
    found = [(r.bounded[n].axis - len(r.shape(n)), r.bounded[n].size) for n in names if n in r.bounded]
    if len(set(found)) > 1:
        raise Refusal(
            "its inputs have numbers of elements that are known only at run time and need not be "
            f"the same, from {' and '.join(sorted({r.bounded[n].maker for n in names if n in r.bounded}))}"
        )
    axis, size = found[0]
    for name in names:
        shape = r.shape(name)
        if name not in r.bounded and len(shape) >= -axis and shape[axis] != 1:
            raise Refusal(
                f"its input {name!r} has {shape[axis]} elements where another one's number is "
                f"known only at run time, from {r.maker()}"
            )
    return axis, size


def elementwise(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Operators whose operands broadcast: what is behind stays behind."""
    names = [name for name in node.input if name]
    axis, size = _common(r, names)
    places = {}
    extent = min(r.shape(n)[axis] for n in names if n in r.bounded)
    for index, name in enumerate(node.input):
        if name in r.bounded:
            places[index] = r.front(name, len(r.shape(name)) + axis, extent)
    if node.op_type in ("Div", "Mod") and node.input[1] in r.bounded:
        # A division of integers by zero ends the process.
        kind = r.graph.type_of(node.input[1])
        if np.dtype(kind.dtype).kind in "iu":
            r.mark(places[1], r.bounded[node.input[1]].axis, size)
            places[1] = r.masked(places[1], 1)
    r.keep(places)
    (output,) = node.output
    r.mark(output, len(r.shape(output)) + axis, size)


def cast_like(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Of the second operand only the type counts."""
    r.keep()
    here = r.bounded.get(node.input[0])
    if here is not None:
        r.mark(node.output[0], here.axis, here.size)


def by_sample(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Operators that compute each sample of the batch by itself."""
    r.only(0)
    here = r.bounded[node.input[0]]
    if here.axis != 0:
        raise Refusal(f"along its axis {here.axis} the number of elements, from {here.maker}, is known only at run time")
    r.keep()
    for name in filter(None, node.output):
        r.mark(name, 0, here.size)


def one_hot(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """A new axis beside those of the indices."""
    r.only(0)
    here = r.bounded[node.input[0]]
    rank = len(r.shape(node.input[0])) + 1
    axis = normalized_axis(node_attributes(node).get("axis", -1), rank)
    r.keep()
    r.mark(node.output[0], here.axis + (here.axis >= axis), here.size)


# -- shapes ------------------------------------------------------------------------------------


def _extents(r: RunTimeSizes, name: str) -> list[Number]:
    """The shape of a value, with its size."""
    shape: list[Number] = list(r.shape(name))
    if (here := r.bounded.get(name)) is not None:
        shape[here.axis] = here.size
    return shape


def shape_of(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """A vector of numbers that are known now, and one at run time."""
    attributes = node_attributes(node)
    numbers = _extents(r, node.input[0])[attributes.get("start", 0) : attributes.get("end")]
    _write_vector(r, numbers, [len(numbers)])


def size_of(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """The number of all elements."""
    _write_vector(r, [sizes.total(_extents(r, node.input[0]))], [])


def _write_vector(r: RunTimeSizes, numbers: Sequence[Number], shape: Sequence[int]) -> None:
    (name,) = r._node.output
    if all(isinstance(number, int) for number in numbers):
        r.graph.constants[name] = np.array(numbers, np.int64).reshape(shape)
        return
    parts = [r.emit("Reshape", [r.scalar(number), r.integers([1])]) for number in numbers]
    whole = parts[0] if len(parts) == 1 else r.emit("Concat", parts, axis=0)
    r.become("Reshape", [whole, r.integers(shape)])
    r.vectors[name] = tuple(numbers)


def transpose(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """The axis moves."""
    here, rank = r.bounded[node.input[0]], len(r.shape(node.input[0]))
    permutation = list(node_attributes(node).get("perm") or range(rank)[::-1])
    r.keep()
    r.mark(node.output[0], permutation.index(here.axis), here.size)


def reshape(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Elements that count stay in front: of an axis of its own, or of all."""
    name = node.input[0]
    extents = _extents(r, name)
    target = _target_shape(r, node, extents)
    sized = [axis for axis, extent in enumerate(target) if isinstance(extent, Size)]
    here = r.bounded.get(name)
    if here is None and not sized:
        raise Refusal("its shape is computed at run time")
    if here is None or len(sized) > 1:
        raise Refusal("the shape of its result depends on several numbers that are known only at run time")
    before, after = prod(r.shape(name)[: here.axis]), prod(r.shape(name)[here.axis + 1 :])
    axis = sized[0] if sized else -1
    extent = r.shape(name)[here.axis]
    if sized:
        new = target[axis]
        left, right = (sizes.total(part) for part in (target[:axis], target[axis + 1 :]))
        same = new == here.size and left == before and right == after
        # Rows before all others may be cut or joined.
        outermost = before == 1 and left == 1 and isinstance(right, int) and right > 0
        fits = outermost and sizes.multiply(new, right) == sizes.multiply(here.size, after)
        if not same and fits and isinstance(right, int) and not extent * after % right:
            extent = extent * after // right
        elif not same:
            axis = -1
    if axis < 0:
        raise Refusal(
            f"it would mix the axis whose number of elements, from {here.maker}, is known only at "
            "run time with others"
        )
    shape = [extent if a == axis else int(sizes.most(number)) for a, number in enumerate(target)]
    r.become("Reshape", [name, r.integers(shape)])
    r.mark(node.output[0], axis, target[axis])


def _target_shape(
    r: RunTimeSizes, node: onnx.NodeProto, extents: Sequence[Number]
) -> list[Number]:
    """The shape that Reshape, Flatten, Squeeze or Unsqueeze gives, in numbers."""
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
        raise Refusal("the shape of its result is not recognised: it is computed at run time") from None


def _inferred(given: list[Number], extents: Sequence[Number]) -> list[Number]:
    """A shape with the number in place of -1 that keeps the number of elements."""
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
        # One axis is the size, times what the others have.
        factor = sizes.total([n for n in known if isinstance(n, int)])
        (size,) = [n for n in known if isinstance(n, Size)]
        assert isinstance(factor, int)
        exact = factor % divisor == 0
        number = sizes.multiply(size, factor // divisor) if exact else sizes.divide(size, divisor // factor)
        if not exact and (divisor % factor or sizes.multiply(number, divisor // factor) != size):
            raise Unknown
    else:
        assert isinstance(whole, int)
        number = whole // divisor
    return [*given[:at], number, *given[at + 1 :]]


def _squeezed(
    r: RunTimeSizes, node: onnx.NodeProto, extents: Sequence[Number]
) -> list[Number]:
    axes = node_attributes(node).get("axes")
    if axes is None and r.has(1):
        axes = r.numbers(1, "axes")
    if node.op_type == "Unsqueeze":
        rank = len(extents) + len(axes)
        new = {normalized_axis(int(axis), rank) for axis in axes}
        old = iter(extents)
        return [1 if axis in new else next(old) for axis in range(rank)]
    if axes is None:
        if any(isinstance(extent, Size) for extent in extents):
            # Whether its axis goes depends on the count.
            raise Refusal("it has no axes, and would drop an axis only if it has one element at run time")
        axes = [axis for axis, extent in enumerate(extents) if extent == 1]
    gone = {normalized_axis(int(axis), len(extents)) for axis in axes}
    if any(extents[axis] != 1 for axis in gone):
        raise Refusal("it drops an axis that need not have one element at run time")
    return [extent for axis, extent in enumerate(extents) if axis not in gone]


def expand(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Repeat axes of one element, also as often as is known at run time only."""
    name = node.input[0]
    r.only(0)
    if node.op_type == "Tile":
        extents = _extents(r, name)
        repeats = r.numbers(1, "repeats")
        wanted: list[Number] = []
        for extent, times in zip(extents, repeats, strict=True):
            if times != 1 and not isinstance(extent, int):
                raise Refusal("it repeats the axis whose number of elements is known only at run time")
            if isinstance(times, Size) and extent != 1:
                raise Refusal("it repeats an axis of more than one element as often as is known only at run time")
            wanted.append(sizes.multiply(extent, times))
    else:
        given = list(r.numbers(1, "extents"))
        extents = [*[1] * (len(given) - len(r.shape(name))), *_extents(r, name)]
        given = [*[1] * (len(extents) - len(given)), *given]
        wanted = []
        for extent, number in zip(extents, given, strict=True):
            if number == 1 or number == extent:
                wanted.append(extent)
            elif extent == 1:
                wanted.append(number)
            else:
                raise Refusal(f"it expands an axis to a number of elements, from {r.maker()}, that need not fit at run time")
    sized = [axis for axis, number in enumerate(wanted) if isinstance(number, Size)]
    if len(sized) != 1:
        raise Refusal("the shape of its result depends on several numbers that are known only at run time")
    shape = [sizes.most(number) for number in wanted]
    here = r.bounded.get(name)
    if here is not None:
        shape[sized[0]] = r.shape(name)[here.axis]
    if node.op_type == "Tile" and here is not None:
        r.keep()
    elif node.op_type == "Tile":
        times = [1 if isinstance(w, int) else w.most for w in wanted]
        static = [t if isinstance(t, int) else s for t, s in zip(repeats, times, strict=True)]
        r.become("Tile", [name, r.integers(static)])
    else:
        r.become("Expand", [name, r.integers(shape)])
    r.mark(node.output[0], sized[0], wanted[sized[0]])


def constant_of_shape(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Equal elements, as many as is known at run time."""
    numbers = r.numbers(0, "extents")
    sized = [axis for axis, number in enumerate(numbers) if isinstance(number, Size)]
    if len(sized) != 1:
        raise Refusal("the shape of its result depends on several numbers that are known only at run time")
    r.keep({0: r.integers([sizes.most(number) for number in numbers])})
    r.mark(node.output[0], sized[0], numbers[sized[0]])


def range_(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Numbers up to one that is known at run time."""
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


# -- parts and joins ---------------------------------------------------------------------------


def slice_(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """A stretch of the axis, or of another one up to a size: elements move to the front."""
    name, attributes = node.input[0], node_attributes(node)
    extents = _extents(r, name)
    if r.graph.opset < 10:
        starts, ends = attributes["starts"], attributes["ends"]
        axes = attributes.get("axes", range(len(starts)))
        steps = [1] * len(starts)
    else:
        r.only(0)
        starts, ends = r.numbers(1, "begins"), r.numbers(2, "ends")
        axes = list(r.numbers(3, "axes")) if r.has(3) else range(len(starts))
        steps = list(r.numbers(4, "steps")) if r.has(4) else [1] * len(starts)
    fixed: list[tuple[int, int, int, int]] = []
    moved: list[tuple[int, Number, Number, int]] = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not isinstance(axis, int) or not isinstance(step, int) or step == 0:
            raise Refusal("its axes or steps are known only at run time")
        axis = normalized_axis(axis, len(extents))
        if isinstance(extents[axis], int) and isinstance(start, int) and isinstance(end, int):
            fixed.append((axis, start, end, step))
        else:
            moved.append((axis, start, end, step))
    if fixed:
        columns = [list(column) for column in zip(*fixed, strict=True)]
        axes_, starts_, ends_, steps_ = map(r.integers, columns)
        if r.graph.opset < 10:
            name = r.emit("Slice", [name], starts=columns[1], ends=columns[2], axes=columns[0])
        else:
            name = r.emit("Slice", [name, starts_, ends_, axes_, steps_])
    if len(moved) > 1 or (moved and any(
        isinstance(extent, Size) for axis, extent in enumerate(extents) if axis != moved[0][0]
    )):
        raise Refusal("several axes of its result have numbers of elements that are known only at run time")
    if not moved:
        (axis,) = (a for a, extent in enumerate(extents) if isinstance(extent, Size))
        r.copy(name)
        r.mark(node.output[0], axis, extents[axis])
        return
    axis, start, end, step = moved[0]
    extent = extents[axis]
    if step < 0:
        if step != -1 or not isinstance(start, int) or not isinstance(end, int) or not (
            (start == -1 or start >= sizes.most(extent)) and end <= -sizes.most(extent) - 1
        ):
            raise Refusal("it goes backwards along the axis whose number of elements is known only at run time")
        last = sizes.subtract(extent, 1)
        size = extent
        places = r.emit("Sub", [r.scalar(last), r.integers(np.arange(r.shape(name)[axis]))])
        places = r.emit("Max", [places, r.integers(0)])
    else:
        first, behind = (_clamped(number, extent) for number in (start, end))
        size = sizes.maximum(sizes.subtract(behind, first), 0)
        if step > 1:
            size = sizes.divide(sizes.add(size, step - 1), step)
        bound = min(sizes.most(size), r.shape(name)[axis])
        if isinstance(first, int) and first == 0 and step == 1:
            r.copy(r.front(name, axis, bound))
            r.mark(node.output[0], axis, size)
            return
        places = r.emit("Add", [r.integers(step * np.arange(bound)), r.scalar(first)])
    r.become("Gather", [name, places], axis=axis)
    r.mark(node.output[0], axis, size)


def _clamped(number: Number, extent: Number) -> Number:
    """Where a slice begins or ends: from the end if it is below zero, within the axis."""
    if sizes.least(number) < 0 <= sizes.most(number) and not isinstance(number, int):
        raise Refusal("where it begins or ends is computed at run time, and may count from the end")
    if sizes.most(number) < 0:
        number = sizes.add(extent, number) if isinstance(number, int) and number > -MOST_ELEMENTS else 0
    return sizes.minimum(sizes.maximum(number, 0), extent)


def split(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Parts of another axis."""
    r.only(0)
    here = r.bounded[node.input[0]]
    axis = normalized_axis(node_attributes(node).get("axis", 0), len(r.shape(node.input[0])))
    if axis == here.axis:
        raise Refusal(f"it splits the axis whose number of elements, from {here.maker}, is known only at run time")
    r.keep()
    for name in filter(None, node.output):
        r.mark(name, here.axis, here.size)


def concat(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Along another axis as it is; along the axis elements that count move together."""
    names = [n for n in node.input if 0 not in r.shape(n)]
    rank = len(r.shape(names[0]))
    axis = normalized_axis(node_attributes(node)["axis"], rank)
    found = {r.bounded[n].axis for n in names if n in r.bounded}
    if found != {axis}:
        same = {(r.bounded[n].axis, r.bounded[n].size) if n in r.bounded else None for n in names}
        if len(same) > 1:
            raise Refusal(f"its inputs have numbers of elements that need not be the same at run time, from {r.maker()}")
        extent = min(r.shape(n)[min(found)] for n in names)
        r.become("Concat", [r.front(n, min(found), extent) for n in names], axis=axis)
        r.mark(node.output[0], min(found), r.bounded[names[0]].size)
        return
    size: Number = 0
    for name in names:
        size = sizes.add(size, _extents(r, name)[axis])
    if not any(name in r.bounded for name in names[:-1]):
        r.keep()
    else:
        parts = tuple((_extents(r, n)[axis], r.shape(n)[axis]) for n in names)
        positions = r._memo(("join", parts), lambda: _joined(r, parts))
        whole = r.emit("Concat", names, axis=axis)
        r.become("Gather", [whole, positions], axis=axis)
    r.mark(node.output[0], axis, size)


def _joined(r: RunTimeSizes, parts: Sequence[tuple[Number, int]]) -> str:
    """The positions of elements that count, in parts that stand one behind the other."""
    masks = [
        r.mask(size, [extent], 0) if isinstance(size, Size) else r.constant(np.ones(extent, bool))
        for size, extent in parts
    ]
    return r.compaction(r.emit("Concat", masks, axis=0))[0]


# -- indices -----------------------------------------------------------------------------------


def gather(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Elements by indices: those behind read anything, within the data."""
    data, indices = node.input
    there, here = r.bounded.get(data), r.bounded.get(indices)
    axis = normalized_axis(node_attributes(node).get("axis", 0), len(r.shape(data)))
    if there is not None and there.axis == axis:
        indices = r.from_front(indices, there.size)
        there = None
    if here is not None and there is not None:
        raise Refusal("both its data and its indices have numbers of elements that are known only at run time")
    r.keep({1: indices})
    if here is not None:
        r.mark(node.output[0], axis + here.axis, here.size)
    elif there is not None:
        further = len(r.shape(indices)) - 1 if there.axis > axis else 0
        r.mark(node.output[0], there.axis + further, there.size)


def gather_nd(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Slices by index tuples; those behind are the first one."""
    data, indices = node.input
    if node_attributes(node).get("batch_dims", 0):
        raise Refusal("of several batches their number of elements must be known")
    there, here = r.bounded.get(data), r.bounded.get(indices)
    depth, rank = r.shape(indices)[-1], len(r.shape(indices))
    if here is not None and here.axis == rank - 1:
        raise Refusal("the length of its index tuples is known only at run time")
    indices = r.masked(indices, 0)
    if there is not None and there.axis < depth:
        indices = _wrapped(r, indices, data, depth)
        there = None
    if here is not None and there is not None:
        raise Refusal("both its data and its indices have numbers of elements that are known only at run time")
    r.keep({1: indices})
    if here is not None:
        r.mark(node.output[0], here.axis, here.size)
    elif there is not None:
        r.mark(node.output[0], rank - 1 + there.axis - depth, there.size)


def _wrapped(r: RunTimeSizes, indices: str, data: str, depth: int) -> str:
    """Index tuples counted from the front."""
    parts = [r.emit("Reshape", [r.scalar(e), r.integers([1])]) for e in _extents(r, data)[:depth]]
    extents = parts[0] if depth == 1 else r.emit("Concat", parts, axis=0)
    wide = r.cast(indices, "int64")
    below = r.emit("Less", [wide, r.integers(0)])
    return r.emit("Where", [below, r.emit("Add", [wide, extents]), wide])


def gather_elements(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Elements by indices along an axis; other axes are those of the data."""
    data, indices = node.input
    there, here = r.bounded.get(data), r.bounded.get(indices)
    axis = normalized_axis(node_attributes(node).get("axis", 0), len(r.shape(data)))
    if there is not None and there.axis != axis and there != here:
        raise Refusal(f"its indices need not fit the number of elements of its data, from {there.maker}, at run time")
    if here is not None and here.axis != axis and there is None and r.shape(data)[here.axis] < here.size.most:
        raise Refusal(f"its data need not have as many elements as its indices, from {here.maker}")
    indices = r.masked(indices, 0)
    if there is not None and there.axis == axis:
        indices = r.from_front(indices, there.size)
    r.keep({1: indices})
    if here is not None:
        r.mark(node.output[0], here.axis, here.size)


def scatter(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Write by indices: those behind write to a place behind the data, which is cut off."""
    data, indices, updates = node.input
    there, here = r.bounded.get(data), r.bounded.get(indices)
    late = r.bounded.get(updates)
    nd = node.op_type == "ScatterND"
    shape, rank = r.shape(data), len(r.shape(indices))
    axis = 0 if nd else normalized_axis(node_attributes(node).get("axis", 0), len(shape))
    if (here is None) != (late is None) or (here and late and (here.axis, here.size) != (late.axis, late.size)):
        raise Refusal(f"its indices and updates need not have the same number of elements at run time, from {r.maker()}")
    if nd and here is not None and here.axis == rank - 1:
        raise Refusal("the length of its index tuples is known only at run time")
    if there is not None and there.axis != axis and (nd and there.axis >= r.shape(indices)[-1] or not nd):
        raise Refusal(f"its updates need not fit the number of elements of its data, from {there.maker}, at run time")
    if nd:
        indices = _wrapped(r, indices, data, r.shape(indices)[-1])
    else:
        indices = r.from_front(indices, _extents(r, data)[axis])
    if here is None:
        r.keep({1: indices})
    else:
        kind = r.graph.type_of(data)
        one = [1 if a == axis else extent for a, extent in enumerate(shape)]
        longer = r.emit("Concat", [data, r.constant(np.zeros(one, kind.dtype))], axis=axis)
        mask = r.mask(here.size, r.shape(indices), here.axis)
        away = np.zeros(r.shape(indices)[-1] if nd else (), np.int64)
        away[(0,) if nd else ()] = shape[axis]
        indices = r.emit("Where", [mask, r.cast(indices, "int64"), r.integers(away)])
        attributes = node_attributes(node)
        written = r.emit(node.op_type, [longer, indices, updates], **attributes)
        r.copy(r.front(written, axis, shape[axis]))
    if there is not None:
        r.mark(node.output[0], there.axis, there.size)


# -- sums, extremes, order ---------------------------------------------------------------------

#: What changes nothing in a reduction, by its operator.
_NEUTRAL: dict[str, Callable[[str], float | bool]] = {
    **dict.fromkeys(
        ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceMean"),
        lambda dtype: 0,
    ),
    "ReduceProd": lambda dtype: 1,
    "ReduceMax": _lowest,
    "ReduceMin": _highest,
    "ReduceLogSumExp": _lowest,
}


def reduction(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Over the axis, elements behind change nothing; over others, they stay behind."""
    r.only(0)
    name, attributes = node.input[0], node_attributes(node)
    here, kind = r.bounded[name], r.graph.type_of(name)
    rank, keepdims = len(kind.shape), attributes.get("keepdims", 1)
    axes = attributes.get("axes")
    if axes is None and r.has(1):
        axes = r.numbers(1, "axes")
    if not axes and attributes.get("noop_with_empty_axes", 0):
        r.keep()
        r.mark(node.output[0], here.axis, here.size)
        return
    reduced = {normalized_axis(int(a), rank) for a in axes} if axes else set(range(rank))
    if here.axis not in reduced:
        r.keep()
        before = 0 if keepdims else sum(axis < here.axis for axis in reduced)
        r.mark(node.output[0], here.axis - before, here.size)
        return
    masked = r.masked(name, _NEUTRAL[node.op_type](kind.dtype))
    if node.op_type != "ReduceMean":
        r.keep({0: masked})
        return
    # The sum divided by the number of elements that count.
    if np.dtype(kind.dtype).kind != "f":
        raise Refusal("a mean of integers over a number known only at run time is not supported")
    order = sorted(reduced)
    if r.graph.opset < 13:
        summed = r.emit("ReduceSum", [masked], axes=order, keepdims=keepdims)
    else:
        summed = r.emit("ReduceSum", [masked, r.integers(order)], keepdims=keepdims)
    others = prod(kind.shape[axis] for axis in reduced if axis != here.axis)
    number = r.cast(r.scalar(sizes.multiply(here.size, others)), kind.dtype)
    r.become("Div", [summed, number])


def position(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """The place of an extreme: what is behind comes last, and is never more extreme."""
    name, attributes = node.input[0], node_attributes(node)
    here, kind = r.bounded[name], r.graph.type_of(name)
    axis = normalized_axis(attributes.get("axis", 0), len(kind.shape))
    if axis != here.axis:
        r.keep()
        gone = not attributes.get("keepdims", 1) and axis < here.axis
        r.mark(node.output[0], here.axis - gone, here.size)
        return
    if attributes.get("select_last_index", 0):
        raise Refusal("the last of equal elements among a number known only at run time is not supported")
    fill = _lowest if node.op_type == "ArgMax" else _highest
    r.keep({0: r.masked(name, fill(kind.dtype))})


def softmax(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Over the axis, what is behind has no share."""
    name = node.input[0]
    here, rank = r.bounded[name], len(r.shape(name))
    old = r.graph.opset < 13
    axis = normalized_axis(node_attributes(node).get("axis", 1 if old else -1), rank)
    over = here.axis >= axis if old else here.axis == axis
    r.keep({0: r.masked(name, -np.inf)} if over else None)
    r.mark(node.output[0], here.axis, here.size)


def cumulative_sum(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """From the front what is behind does not matter; from the end it is zero."""
    r.only(0)
    name = node.input[0]
    here = r.bounded[name]
    backwards = node_attributes(node).get("reverse", 0)
    r.keep({0: r.masked(name, 0)} if backwards else None)
    r.mark(node.output[0], here.axis, here.size)


def top_k(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """The first of a sorted axis, as many as is known at run time, if there are as many."""
    name, attributes = node.input[0], node_attributes(node)
    r.only(0)
    kind = r.graph.type_of(name)
    axis = normalized_axis(attributes.get("axis", -1), len(kind.shape))
    (k,) = r.numbers(1, "number of elements") if r.has(1) else (attributes["k"],)
    here = r.bounded.get(name)
    if here is not None and here.axis != axis and isinstance(k, Size):
        raise Refusal("both its data and its number of elements are known only at run time")
    extent = _extents(r, name)[axis]
    if sizes.minimum(k, extent) != k:
        raise Refusal(
            f"it takes {k if isinstance(k, int) else 'a number'} of elements whose number, from "
            f"{r.maker()}, is known only at run time and may be smaller; take min(k, that number)"
        )
    if here is not None and here.axis == axis:
        largest = attributes.get("largest", 1)
        whole = np.dtype(kind.dtype).kind != "f"
        # NaN is the largest of numbers, and of equal ones the first comes first.
        last = (_highest(kind.dtype) if whole else np.nan) if not largest else _lowest(kind.dtype)
        name = r.masked(name, last)
    most = min(sizes.most(k), kind.shape[axis])
    r.keep({0: name, **({1: r.integers([most])} if r.has(1) else {})})
    for output in filter(None, node.output):
        if here is not None and here.axis != axis:
            r.mark(output, here.axis, here.size)
        else:
            r.mark(output, axis, k)


# -- products ----------------------------------------------------------------------------------


def product(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Rows or columns by themselves; sums over the axis with zeros behind."""
    a, b = node.input[:2]
    r.only(0, 1, *([2] if node.op_type == "Gemm" else []))
    left, right = r.bounded.get(a), r.bounded.get(b)
    attributes = node_attributes(node)
    ranks = len(r.shape(a)), len(r.shape(b))
    if node.op_type == "Gemm":
        inner = 0 if attributes.get("transA", 0) else 1, 1 if attributes.get("transB", 0) else 0
    else:
        inner = ranks[0] - 1, max(0, ranks[1] - 2)
    summed = [here is not None and here.axis == i for here, i in zip((left, right), inner, strict=True)]
    if any(summed):
        if not all(summed) or left is None or right is None or left.size != right.size:
            raise Refusal(f"it sums over a number of elements, from {r.maker()}, that need not be the same in both inputs")
        extent = min(r.shape(a)[inner[0]], r.shape(b)[inner[1]])
        fronts = {
            i: r.front(r.masked(name, 0), at, extent)
            for i, (name, at) in enumerate(zip((a, b), inner, strict=True))
        }
        if node.op_type == "Gemm" and r.has(2) and node.input[2] in r.bounded:
            raise Refusal("the number of elements of its addend is known only at run time")
        r.keep(fronts)
        return
    addend = r.bounded.get(node.input[2]) if node.op_type == "Gemm" and r.has(2) else None
    if left is not None and right is not None or (left is None and right is None):
        raise Refusal(f"several axes of its result have numbers of elements, from {r.maker()}, that are known only at run time")
    r.keep()
    rank = len(r.shape(node.output[0]))
    if node.op_type == "Gemm":
        axis = 0 if left is not None else 1
    elif left is not None:
        # A vector on the right takes its column away.
        axis = rank - (ranks[0] - left.axis) + (ranks[1] == 1)
        if ranks[0] - left.axis > 2 and ranks[1] >= ranks[0] - left.axis and r.shape(b)[left.axis - ranks[0]] != 1:
            raise Refusal("batches of its inputs need not be as many at run time")
    else:
        assert right is not None
        axis = rank - (ranks[1] - right.axis) + (ranks[0] == 1 and right.axis < ranks[1] - 2)
        if ranks[1] - right.axis > 2 and ranks[0] >= ranks[1] - right.axis and r.shape(a)[right.axis - ranks[1]] != 1:
            raise Refusal("batches of its inputs need not be as many at run time")
    here = left if left is not None else right
    assert here is not None
    if node.op_type == "Gemm" and r.has(2):
        shape = r.shape(node.input[2])
        place = axis - 2
        if addend is not None and (addend.axis - len(shape), addend.size) != (place, here.size):
            raise Refusal("the number of elements of its addend need not fit at run time")
        if addend is None and len(shape) >= -place and shape[place] != 1:
            raise Refusal("the number of elements of its addend need not fit at run time")
    r.mark(node.output[0], axis, here.size)


def roi_align(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """A map for each box; those behind are empty boxes of the first image."""
    r.only(1, 2)
    boxes, images = node.input[1:3]
    _, size = _same_rows(r, [boxes, images])
    r.keep({1: r.masked(boxes, 0), 2: r.masked(images, 0)})
    r.mark(node.output[0], 0, size)


def _same_rows(r: RunTimeSizes, names: Sequence[str]) -> tuple[int, Size]:
    found = {(r.bounded[n].axis, r.bounded[n].size) if n in r.bounded else None for n in names}
    if len(found) != 1 or None in found:
        raise Refusal(f"its inputs need not have as many elements as there are from {r.maker()}")
    return next(pair for pair in found if pair is not None)


# -- what makes sizes --------------------------------------------------------------------------


def non_zero(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """The indices of elements other than zero, in the order of rows; NaN is one."""
    name, shape = node.input[0], r.shape(node.input[0])
    if not shape:
        raise Refusal("the place of a scalar has no axes")
    marks = _marked(r, name)
    positions, size = r.compaction(r.reshaped(marks, [prod(shape)]))
    if len(shape) == 1:
        places = r.reshaped(positions, [1, *shape])
    else:
        steps = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        row = r.reshaped(positions, [1, prod(shape)])
        column = np.array(steps, np.int32)[:, None]
        extents = np.array(shape, np.int32)[:, None]
        places = r.emit("Mod", [r.emit("Div", [row, r.constant(column)]), r.constant(extents)])
    r.become("Cast", [places], to=onnx.TensorProto.INT64)
    _new(r, node, 1, size)


def _new(r: RunTimeSizes, node: onnx.NodeProto, axis: int, size: Size) -> None:
    """Mark a result whose size this node makes."""
    name = node.output[0]
    r.bounded[name] = Bounded(axis, size, f"node {node_name(node)!r} ({node.op_type})")


def _marked(r: RunTimeSizes, name: str) -> str:
    """A value as true and false, false behind the elements that count."""
    here = r.bounded.get(name)
    marks = r.cast(name, "bool")
    if here is None:
        return marks
    return r.emit("And", [marks, r.mask(here.size, r.shape(name), here.axis)])


def compress(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """The elements of an axis, or of all, that a condition marks."""
    data, condition = node.input
    axis = node_attributes(node).get("axis")
    shape, there = r.shape(data), r.bounded.get(data)
    if axis is None:
        if there is not None and prod(shape[: there.axis]) != 1:
            raise Refusal(f"elements behind the number from {there.maker} would come between others")
        inner = 1 if there is None else prod(shape[there.axis + 1 :])
        flat = r.reshaped(data, [prod(shape)])
        limit = None if there is None else sizes.multiply(there.size, inner)
        axis, data, shape, there = 0, flat, (prod(shape),), None
    else:
        axis = normalized_axis(axis, len(shape))
        limit = None if there is None or there.axis != axis else there.size
        there = None if limit is not None else there
    extent = min(r.shape(condition)[0], shape[axis])
    marks = r.front(_marked(r, condition), 0, extent)
    if limit is not None:
        marks = r.emit("And", [marks, r.mask(limit, [extent], 0)])
    if there is not None:
        raise Refusal(f"along another axis the number of elements, from {there.maker}, is known only at run time")
    positions, size = r.compaction(marks)
    r.become("Gather", [data, positions], axis=axis)
    _new(r, node, axis, size)


def non_max_suppression(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Boxes of each image and class that do not overlap: image, class and box of each."""
    boxes, scores = node.input[:2]
    images, classes, count = r.shape(scores)
    here = r.bounded.get(scores)
    if (there := r.bounded.get(boxes)) is not None or here is not None:
        if there is None or here is None or (there.axis, here.axis, there.size) != (1, 2, here.size):
            raise Refusal("its boxes and scores need not have the same number of elements at run time")
        # What is NaN is taken by no means.
        scores = r.masked(scores, np.nan)
    r.only(0, 1)
    if not r.has(2):
        most = 0
        limit = r.integers(0)
    else:
        known = r.graph.constants.get(node.input[2])
        most = count if known is None else max(0, min(count, int(known.reshape(-1)[0])))
        limit = r.reshaped(r.cast(node.input[2], "int64"), [])
    rows = images * classes
    if rows * most == 0:
        r.copy(r.integers(np.zeros((0, 3))))
        return
    thresholds = [
        r.reshaped(node.input[index], []) if r.has(index) else r.constant(np.array(0, np.float32))
        for index in (3, 4)
    ]
    shapes = (rows, most), (rows,), (rows, count)
    types = [TensorType(shape, "int32") for shape in shapes]
    kept = r.emit(
        "BoxSelection", [boxes, scores, limit, *thresholds], types, most=most,
        centered=node_attributes(node).get("center_point_box", 0), has_threshold=int(r.has(4)),
    )  # fmt: skip
    counts = kept.removesuffix(".0") + ".1"
    places = r.constant(np.arange(most, dtype=np.int32)[None])
    marks = r.emit("Less", [places, r.reshaped(counts, [rows, 1])])
    positions, size = r.compaction(r.reshaped(marks, [rows * most]))
    box = r.emit("Gather", [r.reshaped(kept, [rows * most]), positions], axis=0)
    column = r.reshaped(positions, [rows * most, 1])
    steps = np.array([[classes * most, most]], np.int32)
    pair = r.emit("Div", [column, r.constant(steps)])
    pair = r.emit("Mod", [pair, r.constant(np.array([[images, classes]], np.int32))])
    triple = r.emit("Concat", [pair, r.reshaped(box, [rows * most, 1])], axis=1)
    r.become("Cast", [triple], to=onnx.TensorProto.INT64)
    _new(r, node, 0, size)


#: Operators whose results have sizes of their own.
MAKERS = ("NonZero", "Compress", "NonMaxSuppression")
#: Operators that take numbers of elements, from which of their inputs on.
OF_SIZES = {
    "ConstantOfShape": 0, "Range": 0, **dict.fromkeys(("Expand", "Reshape", "Slice", "Tile", "TopK"), 1),
}  # fmt: skip

#: What becomes of operators.
RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift",
            "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip",
            "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater",
            "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Less",
            "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or",
            "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign",
            "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh",
            "ThresholdedRelu", "Where", "Xor",
        ),
        elementwise,
    ),
    "CastLike": cast_like,
    **dict.fromkeys(
        (
            "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace",
            "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization", "LRN", "MaxPool",
            "Resize", "SpaceToDepth",
        ),
        by_sample,
    ),
    "OneHot": one_hot,
    "Shape": shape_of,
    "Size": size_of,
    "Transpose": transpose,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), reshape),
    **dict.fromkeys(("Expand", "Tile"), expand),
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
    "Slice": slice_,
    "Split": split,
    "Concat": concat,
    "Gather": gather,
    "GatherND": gather_nd,
    "GatherElements": gather_elements,
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), scatter),
    **dict.fromkeys(_NEUTRAL, reduction),
    **dict.fromkeys(("ArgMax", "ArgMin"), position),
    **dict.fromkeys(("Softmax", "LogSoftmax"), softmax),
    "CumSum": cumulative_sum,
    "TopK": top_k,
    **dict.fromkeys(("MatMul", "Gemm"), product),
    "RoiAlign": roi_align,
    "NonZero": non_zero,
    "Compress": compress,
    "NonMaxSuppression": non_max_suppression,
}  # fmt: skip
