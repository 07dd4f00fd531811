"""Arithmetic and memory traffic of kernels, counted in scheduled TIR.

Counted is what a block computes over its domain, once: what a schedule computes again, for the
border of a tile for example, is no useful work.  Arithmetic on elements counts, on indices it
does not; a function such as ``exp`` is one operation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import tvm_ffi
from tvm import s_tir, tirx

from ...ir.scope import is_half, is_texture
from .operations import UncountableError, loads_in, operations
from .touched import Touched, share_of

#: What may access an element more than once in one run of a block.
_REPEATING = (tirx.For, tirx.While, s_tir.SBlock, tirx.Evaluate)


@dataclass
class Count:
    """What one kernel computes and moves.

    Parameters
    ----------
    flops
        Operations by kind: ``fp32``, ``fp16`` or ``int8``.
    bytes_read, bytes_written
        Every element once.
    reads_texture
        Whether most of what it reads is in images.
    """

    flops: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0
    bytes_written: int = 0
    reads_texture: bool = False

    @property
    def arithmetic(self) -> str:
        """The kind of most operations."""
        return max(self.flops, key=lambda kind: self.flops[kind]) if self.flops else "fp32"


def count_kernels(function: tirx.PrimFunc, *, on_gpu: bool) -> list[Count] | None:
    """Count each kernel of a scheduled function, in the order of their numbers.

    Parameters
    ----------
    function
        With blocks, as `tvmflow.module.functions` has it.
    on_gpu
        Whether each nest of loops is a kernel of its own; else there is one, the function.

    Returns
    -------
    list of Count or None
        ``None`` where a loop's length depends on data, or a library is called.
    """
    body = function.body
    pieces = [[nest] for nest in _nests(body)] if on_gpu else [[body]]
    try:
        counters = [_counted(piece) for piece in pieces]
    except UncountableError:
        return None
    parameters = {p for p in function.params if tirx.is_buffer_var(p)}
    used = Counter(b for c in counters for b in {*c.read, *c.written})
    # Memory that one kernel alone uses is its own, in registers or in a cache.
    outside = {b for b, kernels in used.items() if b in parameters or kernels > 1}
    return [c.result(outside) for c in counters]


def _nests(node: Any) -> list[Any]:
    """Nests of loops, each of which is a kernel."""
    if isinstance(node, tirx.SeqStmt):
        return [nest for part in node.seq for nest in _nests(part)]
    if isinstance(node, s_tir.SBlockRealize) and _is_around(node.block):
        return _nests(node.block.body)
    if isinstance(node, tirx.AttrStmt) and node.attr_key != "thread_extent":
        return _nests(node.body)
    return [node]


def _is_around(block: Any) -> bool:
    """Whether it only holds others, or statements of which it says nothing."""
    named = block.reads or block.writes
    return not block.iter_vars and (not named or _has(block.body, s_tir.SBlock))


def _counted(statements: list[Any]) -> _Counter:
    counter = _Counter()
    for statement in statements:
        counter.visit(statement, 1)
    return counter


class _Counter:
    """Walks the statements of one kernel."""

    def __init__(self) -> None:
        self.flops: Counter[str] = Counter()
        self.read: dict[Any, Touched] = {}
        self.written: dict[Any, Touched] = {}
        #: Values of loops and of axes of blocks around what is looked at.
        self.axes: dict[Any, range] = {}

    def result(self, outside: set[Any]) -> Count:
        """What was found, of the tensors outside of the kernel."""
        read = {b: t.count * element_bytes(b) for b, t in self.read.items() if b in outside}
        written = {b: t.count * element_bytes(b) for b, t in self.written.items() if b in outside}
        in_images = sum(size for b, size in read.items() if is_texture(b.scope()))
        total = sum(read.values())
        return Count(self.flops, total, sum(written.values()), 2 * in_images > total)

    def visit(self, node: Any, times: int, in_block: bool = False) -> None:
        """Count a statement that runs so often."""
        if isinstance(node, s_tir.SBlockRealize):
            self._block(node, times, in_block)
        elif isinstance(node, tirx.For):
            around, self.axes = self.axes, {**self.axes, **_values(node.loop_var, node)}
            self.visit(node.body, times * _extent(node.extent), in_block)
            self.axes = around
        elif isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                self.visit(part, times, in_block)
        elif isinstance(node, tirx.IfThenElse):
            held = round(times * share_of(node.condition, self.axes))
            self.visit(node.then_case, held, in_block)
            if node.else_case is not None:
                self.visit(node.else_case, times - held, in_block)
        elif isinstance(node, tirx.While):
            raise UncountableError
        elif isinstance(node, tirx.BufferStore):
            self._leaf(node, times, in_block)
        elif isinstance(node, (tirx.Evaluate, tirx.Bind)):
            self._expression(node.value, times)
        elif isinstance(node, tirx.AttrStmt):
            threads = node.attr_key == "thread_extent" and isinstance(node.value, tirx.IntImm)
            self.visit(node.body, times * (int(node.value) if threads else 1), in_block)
        elif hasattr(node, "body"):
            self.visit(node.body, times, in_block)

    def _block(self, node: Any, times: int, in_block: bool) -> None:
        block = node.block
        if _is_around(block):
            # What loops are cut into where a condition changes, for example.
            self.visit(block.body, times, in_block)
            return
        axes: dict[Any, range] = {}
        for axis in block.iter_vars:
            axes |= _values(axis.var, axis.dom)
        extents = [_extent(axis.dom.extent) for axis in block.iter_vars]
        runs = round(times * share_of(node.predicate, self.axes))
        if axes and not in_block:
            # Loops may visit the domain more than once, or together with those of other blocks.
            runs = min(runs, prod(extents))
        around, self.axes = self.axes, {**self.axes, **axes}
        if runs and not in_block:
            accesses = None if _has(block.body, *_REPEATING) else runs
            for regions, tensors in ((block.reads, self.read), (block.writes, self.written)):
                for region in regions:
                    loads = None if accesses is None else accesses * _loads(block.body, region)
                    self._touched(tensors, region.source).add(region.region, self.axes, loads)
        self.visit(block.body, runs, True)
        self.axes = around

    def _leaf(self, store: Any, times: int, in_block: bool) -> None:
        self._expression(store.value, times)
        if in_block:
            return
        # A function that came scheduled, without blocks: all that it names may be touched.
        self._whole(self.written, store.buffer, times)
        for load in loads_in(store):
            self._whole(self.read, load.source, times)

    def _whole(self, tensors: dict[Any, Touched], buffer: Any, times: int) -> None:
        shape = _shape(buffer)
        ranges = [_Interval(0, extent) for extent in shape]
        self._touched(tensors, buffer).add(ranges, {}, times)

    def _touched(self, tensors: dict[Any, Touched], buffer: Any) -> Touched:
        return tensors.setdefault(buffer, Touched(_shape(buffer)))

    def _expression(self, expr: Any, times: int) -> None:
        for kind, count in operations(expr).items():
            self.flops[kind] += count * times


@dataclass(frozen=True)
class _Interval:
    """What of a region's interval is looked at."""

    min: Any
    extent: int


def _loads(body: Any, region: Any) -> int:
    """Accesses of a tensor in one run of a block, at least 1."""
    return max(1, sum(load.source.same_as(region.source) for load in loads_in(body)))


def _has(body: Any, *kinds: Any) -> bool:
    found: list[Any] = []
    for kind in kinds:
        tvm_ffi.structural_walk(body, (kind, found.append))
    return bool(found)


def _values(var: Any, interval: Any) -> dict[Any, range]:
    """The values of a loop or an axis, where they begin with a number."""
    if not isinstance(interval.min, tirx.IntImm):
        return {}
    return {var: range(int(interval.min), int(interval.min) + _extent(interval.extent))}


def element_bytes(buffer: Any) -> int:
    """Bytes of an element where it is stored."""
    scope = buffer.scope()
    if is_half(scope):
        return 2
    return int(np.dtype(str(buffer.ty.dtype)).itemsize)


def _extent(extent: Any) -> int:
    if not isinstance(extent, tirx.IntImm):
        raise UncountableError
    return int(extent)


def _shape(buffer: Any) -> tuple[int, ...]:
    return tuple(_extent(extent) for extent in buffer.ty.shape)
