"""Arithmetic and memory traffic of kernels, counted in scheduled TIR.

A block's computation counts once for each point of its domain: what a schedule computes again, at
the border of a tile for example, is no useful work.  Arithmetic on elements counts, arithmetic on
indices does not; a function such as ``exp`` is one operation.

Every element of a tensor that is touched counts once.  A block's region of a tensor is an interval
for each dimension, in terms of the block's axes::

    for n < 1, c < 8, y < 14, x < 14:  out[n, c, y, x] = data[n, c, 2 * y, 2 * x]

touches 8 · 14 · 14 elements of ``data`` although that has 8 · 28 · 28.  The intervals are evaluated
for all values of the axes; dimensions without a common axis are evaluated separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from tvm import s_tir, tirx
from tvm.ir import Call, Range
from tvm.ir.expr import TensorLoad

from ...ir.dot_products import DOT
from ...ir.evaluate import UnknownError, evaluate, variables
from ...ir.expressions import CHOICE, nodes_in
from ...ir.scope import is_texture
from ...ir.traffic import element_bytes
from ..grouping import connected

#: Nodes that may access an element more than once in one run of a block.
_REPEATING = (tirx.For, tirx.While, s_tir.SBlock, tirx.Evaluate)
#: Operations of one ``wmma`` instruction on blocks of 16×16×16.
_MMA_FLOPS = 2 * 16**3
_ARITHMETIC = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod),
    *(tirx.Min, tirx.Max),
)
#: Calls that do no arithmetic.
_FREE = {"tirx.reinterpret", "prim.likely", "tirx.assume", "tirx.vectorlow", "tirx.vectorhigh"}
#: Limit of the combinations of axes, and of the elements of a tensor, that are enumerated.
_LIMIT = 1 << 24

#: Values of loop variables and of block axes.
_Axes = Mapping[tirx.Var, range]


class _UncountableError(UnknownError):
    """Raised where the number of runs depends on data or on a library."""


@dataclass
class Work:
    """Arithmetic and traffic of one kernel."""

    #: Operations by kind: ``fp32``, ``fp16`` or ``int8``.
    flops: Counter[str] = field(default_factory=Counter)
    #: Traffic that counts every element once.
    bytes_read: int = 0
    bytes_written: int = 0
    #: Whether most of the bytes read are in textures.
    reads_texture: bool = False

    @property
    def arithmetic(self) -> str:
        """Kind of most operations."""
        return max(self.flops, key=lambda kind: self.flops[kind]) if self.flops else "fp32"


def count_kernels(function: tirx.PrimFunc, *, on_gpu: bool) -> list[Work] | None:
    """Count each kernel of a scheduled function, in the order of their numbers.

    The function has blocks, as `tvmflow.module.functions` has it.  On a GPU each loop nest is a
    kernel; elsewhere the whole function is one.  ``None`` if a loop's length depends on data, or a
    library is called.
    """
    body = function.body
    try:
        counters = [_Counter(nest) for nest in (_nests(body) if on_gpu else [body])]
    except _UncountableError:
        return None
    parameters = {p for p in function.params if tirx.is_buffer_var(p)}
    used = Counter(b for c in counters for b in {b for b, _ in c.touched})
    # Memory that only one kernel uses stays in its registers or in a cache.
    outside = {b for b, kernels in used.items() if b in parameters or kernels > 1}
    return [c.result(outside) for c in counters]


def _nests(node: tirx.Stmt) -> list[tirx.Stmt]:
    """Return the loop nests, each of which is a kernel."""
    if isinstance(node, tirx.SeqStmt):
        return [nest for part in node.seq for nest in _nests(part)]
    if isinstance(node, s_tir.SBlockRealize) and _is_wrapper(node.block):
        return _nests(node.block.body)
    if isinstance(node, tirx.AttrStmt) and node.attr_key != "thread_extent":
        return _nests(node.body)
    return [node]


def _is_wrapper(block: s_tir.SBlock) -> bool:
    """Return whether a block only wraps other blocks, or statements without declared regions."""
    named = block.reads or block.writes
    return not block.iter_vars and (not named or bool(nodes_in(block.body, s_tir.SBlock)))


class _Counter:
    """Counter of the work of one kernel, which walks its statements."""

    def __init__(self, kernel: tirx.Stmt) -> None:
        self.flops: Counter[str] = Counter()
        #: Touched elements by tensor and direction (true for stores).
        self.touched: dict[tuple[tirx.Buffer, bool], _Touched] = {}
        #: Loops and block axes around the current statement.
        self.axes: dict[tirx.Var, range] = {}
        self.visit(kernel, 1)

    def result(self, outside: set[tirx.Buffer]) -> Work:
        """Return the arithmetic, and the traffic of the tensors outside of the kernel."""
        moved, in_images = {False: 0, True: 0}, 0
        for (tensor, is_store), touched in self.touched.items():
            if tensor in outside:
                size = touched.count * element_bytes(tensor)
                moved[is_store] += size
                in_images += size * (not is_store and is_texture(tensor.scope()))
        return Work(self.flops, moved[False], moved[True], 2 * in_images > moved[False])

    def visit(self, node: tirx.Stmt, times: int, in_block: bool = False) -> None:
        """Count a statement that runs ``times`` times."""
        if isinstance(node, s_tir.SBlockRealize):
            self._block(node, times, in_block)
        elif isinstance(node, tirx.For):
            around, self.axes = self.axes, {**self.axes, **_values(node.loop_var, node)}
            self.visit(node.body, self._runs(node.extent, times, around), in_block)
            self.axes = around
        elif isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                self.visit(part, times, in_block)
        elif isinstance(node, tirx.IfThenElse):
            held = round(times * _share_of(node.condition, self.axes))
            self.visit(node.then_case, held, in_block)
            if node.else_case is not None:
                self.visit(node.else_case, times - held, in_block)
        elif isinstance(node, tirx.While):
            raise _UncountableError
        elif isinstance(node, tirx.BufferStore):
            self._leaf(node, times, in_block)
        elif isinstance(node, (tirx.Evaluate, tirx.Bind)):
            self._expression(node.value, times)
        elif isinstance(node, tirx.AttrStmt):
            threads = node.attr_key == "thread_extent" and isinstance(node.value, tirx.IntImm)
            self.visit(node.body, times * (int(node.value) if threads else 1), in_block)
        elif hasattr(node, "body"):
            self.visit(node.body, times, in_block)

    def _runs(self, extent: tirx.Expr, times: int, axes: _Axes) -> int:
        """Return how often a loop's body runs; the extent may select one of two numbers."""
        if not isinstance(extent, tirx.Select):
            return times * _extent(extent)
        held = round(times * _share_of(extent.condition, axes))
        return held * _extent(extent.true_value) + (times - held) * _extent(extent.false_value)

    def _block(self, node: s_tir.SBlockRealize, times: int, in_block: bool) -> None:
        block = node.block
        if _is_wrapper(block):
            # Such blocks appear where loops are split at a changing condition, for example.
            self.visit(block.body, times, in_block)
            return
        axes: dict[tirx.Var, range] = {}
        for axis in block.iter_vars:
            axes |= _values(axis.var, axis.dom)
        extents = [_extent(axis.dom.extent) for axis in block.iter_vars]
        runs = round(times * _share_of(node.predicate, self.axes))
        if axes and not in_block:
            # Loops may visit the domain more than once, or be shared with other blocks.
            runs = min(runs, prod(extents))
        around, self.axes = self.axes, {**self.axes, **axes}
        if runs and not in_block:
            repeats = bool(nodes_in(block.body, *_REPEATING))
            loads = Counter(load.source for load in nodes_in(block.body, TensorLoad))
            for regions, is_store in ((block.reads, False), (block.writes, True)):
                for region in regions:
                    most = None if repeats else runs * max(1, loads[region.source])
                    self._touched(region.source, is_store).add(region.region, self.axes, most)
        self.visit(block.body, runs, True)
        self.axes = around

    def _leaf(self, store: tirx.BufferStore, times: int, in_block: bool) -> None:
        self._expression(store.value, times)
        if in_block:
            return
        loads = [(load.source, False) for load in nodes_in(store, TensorLoad)]
        # A function that came scheduled, without blocks, may touch whole tensors.
        for tensor, is_store in [(store.buffer, True), *loads]:
            whole = [Range(0, extent) for extent in tensor.ty.shape]
            self._touched(tensor, is_store).add(whole, {}, times)

    def _touched(self, tensor: tirx.Buffer, is_store: bool) -> _Touched:
        new = _Touched([_extent(extent) for extent in tensor.ty.shape])
        return self.touched.setdefault((tensor, is_store), new)

    def _expression(self, expr: tirx.Expr, times: int) -> None:
        for kind, count in operations(expr).items():
            self.flops[kind] += count * times


def _values(var: tirx.Var, interval: Range | tirx.For) -> dict[tirx.Var, range]:
    """Return the values of a loop or an axis; none if the first one is not a number."""
    if not isinstance(interval.min, tirx.IntImm):
        return {}
    extent = interval.extent
    sides = [extent.true_value, extent.false_value] if isinstance(extent, tirx.Select) else [extent]
    return {var: range(int(interval.min), int(interval.min) + max(map(_extent, sides)))}


def _extent(extent: tirx.Expr) -> int:
    if not isinstance(extent, tirx.IntImm):
        raise _UncountableError
    return int(extent)


class _Touched:
    """Touched elements of one tensor."""

    def __init__(self, shape: Sequence[int]):
        self.shape = tuple(shape)
        #: Indices along each dimension, as arrays that broadcast to all combinations.
        self._places: list[tuple[np.ndarray, ...]] = []
        self._most = 0

    def add(self, ranges: Sequence[Range], axes: _Axes, accesses: int | None) -> None:
        """Add a region: an interval for each dimension, in terms of axes.

        ``accesses`` is an upper bound of the touched elements, if it is known.
        """
        if any(isinstance(r.extent, tirx.IntImm) and int(r.extent) == 0 for r in ranges):
            return
        groups = connected([frozenset(_axes_in(r.min, axes)) for r in ranges])
        places: list[np.ndarray] = [np.zeros(0)] * len(ranges)
        for position, dims in enumerate(groups):
            found = self._joint([(d, ranges[d]) for d in dims], axes)
            # Each group of dimensions is one axis of the broadcast.
            shape = [-1 if axis == position else 1 for axis in range(len(groups))]
            for dim, indices in zip(dims, found, strict=True):
                places[dim] = indices.reshape(shape)
        count = prod(np.broadcast_shapes(*(p.shape for p in places))) if places else 1
        self._most += count if accesses is None else min(count, accesses)
        self._places.append(tuple(places))

    @property
    def count(self) -> int:
        """Number of different elements in the added regions."""
        size = prod(self.shape)
        most = min(self._most, size)
        if len(self._places) < 2 or size > _LIMIT or not self.shape:
            return most
        mask = np.zeros(self.shape, bool)
        for places in self._places:
            mask[places] = True
        return min(most, int(np.count_nonzero(mask)))

    def _joint(self, intervals: Sequence[tuple[int, Range]], axes: _Axes) -> list[np.ndarray]:
        """Return the distinct indices along dimensions that share axes."""
        extents = [self.shape[dim] for dim, _ in intervals]
        used = list(dict.fromkeys(v for _, r in intervals for v in _axes_in(r.min, axes)))
        try:
            widths = [_extent(r.extent) for _, r in intervals]
            if prod(len(axes[v]) for v in used) * prod(widths) > _LIMIT:
                raise UnknownError("too many combinations")
            values, offsets = _arrays(used, axes, widths)
            flat, inside = np.zeros(1, np.int64), np.ones(1, bool)
            for (_, r), offset, extent in zip(intervals, offsets, extents, strict=True):
                index = evaluate(r.min, values) + offset
                inside = inside & (index >= 0) & (index < extent)
                flat = flat * extent + index
            flat, inside = np.broadcast_arrays(flat, inside)
            return list(np.unravel_index(np.unique(flat[inside]), extents))
        except UnknownError:
            if len(intervals) == 1:
                return [np.arange(extents[0])]
            # Too many to enumerate: take every combination, which may be too many.
            alone = [self._joint([interval], axes)[0] for interval in intervals]
            return [grid.ravel() for grid in np.meshgrid(*alone, indexing="ij")]


def _arrays(
    used: Sequence[tirx.Var], axes: _Axes, widths: Sequence[int] = ()
) -> tuple[dict[tirx.Var, np.ndarray], Sequence[np.ndarray]]:
    """Return values of axes and offsets within widths, each along its own array dimension."""
    ranges = [*(axes[var] for var in used), *map(range, widths)]
    arrays = np.ix_(*(np.arange(r.start, r.stop) for r in ranges))
    values = {v: np.asarray(r.start) for v, r in axes.items()}
    return values | dict(zip(used, arrays, strict=False)), arrays[len(used) :]


def _axes_in(expr: tirx.Expr, axes: _Axes) -> list[tirx.Var]:
    """Return the axes with more than one value in an expression."""
    return [var for var in variables([expr]) if len(axes.get(var, ())) > 1]


def _share_of(condition: tirx.Expr, axes: _Axes) -> float:
    """Return the share of the axes' values for which a condition holds; 1 if it is unknown."""
    used = sorted(_axes_in(condition, axes), key=lambda var: str(var.name))
    extents = [len(axes[v]) for v in used]
    if prod(extents) > _LIMIT:
        return 1.0
    try:
        held = np.broadcast_to(evaluate(condition, _arrays(used, axes)[0]), extents)
    except UnknownError:
        return 1.0
    return float(np.count_nonzero(held) / held.size)


def operations(expr: tirx.Expr) -> Counter[str]:
    """Count the operations on elements in an expression, by kind."""
    found: Counter[str] = Counter()
    if isinstance(expr, _ARITHMETIC):
        found = operations(expr.a) + operations(expr.b)
        if _is_float(expr) or nodes_in(expr, TensorLoad):
            found[_kind(expr)] += _lanes(expr)
    elif isinstance(expr, (tirx.Cast, tirx.Broadcast)):
        found = operations(expr.value)
    elif isinstance(expr, tirx.Select):
        found = operations(expr.true_value) | operations(expr.false_value)
    elif isinstance(expr, tirx.Let):
        found = operations(expr.value) + operations(expr.body)
    elif isinstance(expr, Call):
        found = _of_call(expr)
    return found


def _of_call(call: Call) -> Counter[str]:
    name = getattr(call.op, "name", "")
    if name == CHOICE:
        return operations(call.args[1]) | operations(call.args[2])
    if name == "tirx.tvm_call_packed":
        raise _UncountableError
    if name == "tirx.tvm_mma_sync":
        return Counter({"fp16": _MMA_FLOPS})
    found = sum((operations(argument) for argument in call.args), Counter())
    if name == DOT:
        found["int8"] += 8 * _lanes(call)
    elif name not in _FREE and _is_float(call):
        found[_kind(call)] += _lanes(call)
    return found


def _is_float(expr: tirx.Expr) -> bool:
    return _dtype(expr).startswith(("float", "bfloat"))


def _kind(expr: tirx.Expr) -> str:
    if _dtype(expr).startswith("float16"):
        return "fp16"
    return "fp32" if _is_float(expr) else "int8"


def _dtype(expr: tirx.Expr) -> str:
    return str(getattr(expr.ty, "dtype", ""))


def _lanes(expr: tirx.Expr) -> int:
    return int(expr.ty.dtype.lanes)
