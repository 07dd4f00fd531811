"""Memory accesses of a lowered kernel, with the loops and conditions around them.

A conditional value is computed only if it is chosen, as in OpenCL C and CUDA C++::

    if i < 9:                         the site of x[i - 1] has the loops around it and
        y[i] = if_then_else(0 < i,    the conditions i < 9 and 0 < i
                            x[i - 1], 0)

Some CUDA instructions move memory without loads and stores of TIR.  An asynchronous copy moves up
to 16 bytes for each item from global to shared memory.  A warp's 32 items move a tile of tensor
cores together: as for ``ldmatrix``, each item gives the address of 16 bytes of a row at a time,
row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import prod
from typing import TypeAlias

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from ...codegen.half import PREFIX as HALF_PREFIX
from ...codegen.textures import LOAD, STORE, image_of
from ...ir.evaluate import CALLS, Axis, is_whole, variables
from ...ir.expressions import CHOICE, conjuncts, nodes_in
from ...ir.rewriter import op_name
from ...ir.scope import CHANNELS, is_texture
from ...ir.traffic import element_bytes
from .deadline import check_time

#: More steps than any loop with known bounds has.
_ENDLESS = 1 << 24
_EXTERN = ("tirx.call_extern", "tirx.call_pure_extern")
_COPY = "tirx.s_tir.cp_async_raw"
_TILE_STORE = "tirx.tvm_store_matrix_sync"
_TILES = ("tirx.tvm_load_matrix_sync", _TILE_STORE)
_WARP = 32
#: Bytes that an item moves at a time for a tile of tensor cores.
_MOVED = 16


@dataclass(frozen=True)
class CodeContext:
    """Loops and conditions around a piece of code."""

    #: Loops that count from 0, the outermost first.
    loops: tuple[Axis, ...] = ()
    #: Conditions that all hold when the code runs.
    conditions: tuple[tirx.Expr, ...] = ()

    @cached_property
    def variables(self) -> frozenset[tirx.Var]:
        """Variables that the conditions depend on."""
        return frozenset(variables(self.conditions))

    def where(self, *conditions: tirx.Expr) -> CodeContext:
        """Return the context with more conditions."""
        found = [c for condition in conditions for c in conjuncts(condition)]
        return replace(self, conditions=(*self.conditions, *found))


@dataclass(frozen=True)
class Site:
    """An access to memory in the code of a kernel."""

    #: Accessed memory; several tensors may share it.
    buffer: tirx.Buffer
    #: Name of the tensor in the code.
    name: str
    #: One index into flat memory, or column, row and layer of an image.
    indices: tuple[tirx.Expr, ...]
    is_store: bool
    #: Elements that one execution accesses, contiguous or with an index for each.
    lanes: int
    #: Bytes of a stored element; of a texel for images.
    element_bytes: int
    context: CodeContext
    #: Number of the statement that contains the access.
    statement: int
    #: Stored value; ``None`` for reads.
    value: tirx.Expr | None
    #: Channel of a texel, if only one is read.
    channel: tirx.Expr | None = None

    @cached_property
    def variables(self) -> frozenset[tirx.Var]:
        """Variables that the indices depend on."""
        return frozenset(variables(self.indices))

    @property
    def scope(self) -> str:
        """Memory scope: ``global``, ``shared``, ``local`` or a texture's."""
        return str(self.buffer.scope())

    @property
    def is_image(self) -> bool:
        """True for accesses to textures."""
        return is_texture(self.scope)

    @property
    def is_global(self) -> bool:
        """True for buffers in global memory."""
        return self.scope.startswith("global") and not self.is_image

    @property
    def run(self) -> int:
        """Contiguous elements that one instruction accesses."""
        stride = getattr(self.indices[0], "stride", None)
        return self.lanes if isinstance(stride, tirx.IntImm) and int(stride) == 1 else 1

    @property
    def apart(self) -> int:
        """Instructions of one execution: one for each contiguous run of elements."""
        return self.lanes // self.run

    @property
    def base(self) -> tirx.Expr:
        """Flat index of the first element of a contiguous run."""
        (index,) = self.indices
        return index.base if isinstance(index, tirx.Ramp) else index

    def is_at(self, other: Site) -> bool:
        """Return whether both access the same elements."""
        return self.buffer.same_as(other.buffer) and tvm_ffi.structural_equal(
            self.indices, other.indices, map_free_vars=False
        )

    def __str__(self) -> str:
        text = ", ".join(tirx_text(index) for index in self.indices)
        return f"{self.name}[{text}]"


@dataclass(frozen=True)
class Branch:
    """A condition in the code of a kernel."""

    condition: tirx.Expr
    context: CodeContext
    #: Accesses to memory of any scope if it holds, and if not, as a measure of time.
    accesses: tuple[int, int]
    #: Accesses of both sides.
    sites: tuple[Site, ...]


def tirx_text(expr: tirx.Expr) -> str:
    """Return an expression as TVMScript, on one line."""
    return " ".join(str(expr).split())


_Node: TypeAlias = "tirx.Stmt | tirx.Expr"


class KernelCode:
    """Accesses and conditions in the code of one kernel."""

    def __init__(self, device: tirx.PrimFunc):
        #: Accesses to memory of all scopes, in the order of the code.
        self.sites: list[Site] = []
        #: Conditions of statements and values.
        self.branches: list[Branch] = []
        #: Buffers that the kernel allocates in private and local memory.
        self.allocated: list[tirx.Buffer] = []
        #: Axes of work-groups and work-items by tag, ``threadIdx.x`` for example.
        self.launch: dict[str, Axis] = {}
        #: Buffers that accumulate: their stores add to the previous value.
        self.sums: set[tirx.Buffer] = set()
        #: Variables of work-items or parallel loops, whose values are spread over cores.
        self.parallel: set[tirx.Var] = set()
        self._statements = 0
        #: Views of memory, and the buffer that each is a view of.
        self._views: dict[tirx.Buffer, tirx.Buffer] = {}
        self._values: dict[tirx.Var, tirx.Expr] = {}
        self._analyzer = Analyzer()
        self._statement(device.body, CodeContext())

    def _substituted(self, expr: tirx.Expr) -> tirx.Expr:
        """Rewrite an expression in terms of the variables of loops and work-items."""
        if not self._values or isinstance(expr, tirx.IntImm):
            return expr
        return tvm_ffi.structural_map(expr, (tirx.Var, lambda var: self._values.get(var, var)))

    @property
    def stores(self) -> list[Site]:
        """Sites that store."""
        return [site for site in self.sites if site.is_store]

    @property
    def items(self) -> list[Axis]:
        """Axes of a work-group's items; neighbours differ along the last one, x."""
        tags = (f"threadIdx.{axis}" for axis in "zyx")
        return [self.launch[tag] for tag in tags if tag in self.launch]

    @property
    def blocks(self) -> list[Axis]:
        """Axes of work-groups."""
        return [axis for tag, axis in self.launch.items() if not tag.startswith("threadIdx")]

    def _statement(self, node: tirx.Stmt, context: CodeContext) -> None:
        check_time()
        self._statements += 1
        if isinstance(node, tirx.SeqStmt):
            for statement in node.seq:
                self._statement(statement, context)
        elif isinstance(node, tirx.For):
            self._loop(node, context)
        elif isinstance(node, tirx.IfThenElse):
            self._choice(node.condition, node.then_case, node.else_case, context, self._statement)
        elif isinstance(node, tirx.AttrStmt):
            if node.attr_key == "thread_extent":
                self.launch[node.node.thread_tag] = (node.node.var, int(node.value))
                self.parallel.add(node.node.var)
                self._analyzer.bind(node.node.var, Range(0, node.value))
            self._statement(node.body, context)
        elif isinstance(node, tirx.Bind):
            self._expression(node.value, context)
            if not _loads(node.value):
                self._values[node.var] = self._substituted(node.value)
            elif is_whole(node.value) and not _is_vector(node.value):
                low, high = self._bounds(node.value)
                if high - low < _ENDLESS:
                    self._analyzer.bind(node.var, Range(low, high + 1))
        elif isinstance(node, tirx.AllocBuffer):
            self.allocated.append(node.buffer)
        elif isinstance(node, tirx.DeclBuffer):
            memory = image_of(node.data)
            if tirx.is_buffer_var(memory):
                self._views[node.buffer] = self._views.get(memory, memory)
        elif isinstance(node, tirx.BufferStore):
            self._expression(node.value, context)
            buffer = self._views.get(node.buffer, node.buffer)
            read = [load.source for load in nodes_in(node.value, TensorLoad)]
            if any(buffer.same_as(self._views.get(b, b)) for b in read):
                self.sums.add(buffer)
            self._access(node.buffer, node.indices, context, node.value)
        elif isinstance(node, tirx.Evaluate):
            self._expression(node.value, context)
        elif isinstance(node, tirx.While):
            self._expression(node.condition, context)
            self._statement(node.body, context)

    def _loop(self, node: tirx.For, context: CodeContext) -> None:
        self._expression(node.min, context)
        self._expression(node.extent, context)
        start, extent = self._substituted(node.min), self._substituted(node.extent)
        end = start + extent
        low, high = self._bounds(start)[0], self._bounds(end)[1]
        limits: tuple[tirx.Expr, ...] = ()
        if not (isinstance(start, tirx.IntImm) and isinstance(extent, tirx.IntImm)):
            limits = (node.loop_var >= start, node.loop_var < end)
            if high - low >= _ENDLESS:
                # The number of iterations depends on data, so the body counts once.
                self._statement(node.body, context)
                return
        if high <= low:
            return
        counter = node.loop_var
        if low:
            # Loops count from 0 here, so that the extent describes the values of a variable.
            counter = tirx.Var(node.loop_var.name, node.loop_var.ty)
            self._values[node.loop_var] = counter + low
            limits = tuple(self._substituted(limit) for limit in limits)
        self._analyzer.bind(counter, Range(0, high - low))
        if node.kind == tirx.ForKind.PARALLEL:
            self.parallel.add(counter)
        around = replace(context, loops=(*context.loops, (counter, high - low)))
        start_site = len(self.sites)
        self._statement(node.body, around.where(*limits))
        if limits:
            self._branch(tirx.And(*limits), around, start_site, len(self.sites))

    def _bounds(self, expr: tirx.Expr) -> tuple[int, int]:
        """Return the least and the largest value of an expression, as far as they are known."""
        found = self._analyzer.const_int_bound(self._substituted(expr))
        return int(found.min_value), int(found.max_value)

    def _choice(
        self,
        test: tirx.Expr,
        then: _Node,
        otherwise: _Node | None,
        context: CodeContext,
        visit: Callable[[_Node, CodeContext], None],
    ) -> None:
        self._expression(test, context)
        if _is_vector(test):
            # A vector computes both sides.
            visit(then, context)
            visit(otherwise, context)
            return
        condition = self._substituted(test)
        start = len(self.sites)
        visit(then, context.where(condition))
        middle = len(self.sites)
        if otherwise is not None:
            visit(otherwise, context.where(tirx.Not(condition)))
        self._branch(condition, context, start, middle)

    def _branch(self, condition: tirx.Expr, context: CodeContext, start: int, middle: int) -> None:
        """Record a condition whose sides have the sites from ``start`` and from ``middle`` on."""
        inside = [site.context.loops[len(context.loops) :] for site in self.sites[start:]]
        times = [prod(extent for _, extent in loops) for loops in inside]
        then, otherwise = sum(times[: middle - start]), sum(times[middle - start :])
        if then or otherwise:
            sites = tuple(self.sites[start:])
            self.branches.append(Branch(condition, context, (then, otherwise), sites))

    def _expression(self, node: tirx.Expr, context: CodeContext) -> None:
        if isinstance(node, TensorLoad):
            for index in node.indices:
                self._expression(index, context)
            self._access(node.source, node.indices, context)
        elif isinstance(node, Call):
            self._call(node, context)
        elif isinstance(node, tirx.Select):
            arms = (node.true_value, node.false_value)
            self._choice(node.condition, *arms, context, self._expression)
        elif isinstance(node, tirx.And | tirx.Or):
            self._expression(node.a, context)
            first = self._substituted(node.a)
            holds = first if isinstance(node, tirx.And) else tirx.Not(first)
            self._expression(node.b, context if _is_vector(node) else context.where(holds))
        else:
            for part in _parts(node):
                self._expression(part, context)

    def _call(self, call: Call, context: CodeContext) -> None:
        name = op_name(call)
        if name == CHOICE:
            test, then, otherwise = call.args
            self._choice(test, then, otherwise, context, self._expression)
            return
        for argument in call.args:
            self._expression(argument, context)
        if name in (LOAD, STORE):
            pointer, column, row, layer, *_, last = call.args
            value = call if name == STORE else None
            channel = None if name == STORE or _is_vector(last) else self._substituted(last)
            self._access(image_of(pointer), (column, row, layer), context, value, channel)
        elif name in _EXTERN and str(call.args[0].value).startswith(HALF_PREFIX):
            self._half(call, context)
        elif name == _COPY:
            self._copy(call, context)
        elif name in _TILES:
            item = reduce(lambda number, axis: number * axis[1] + axis[0], self.items, 0)
            for buffer, index in _tile(call, item):
                self._access(buffer, (index,), context, call if name == _TILE_STORE else None)

    def _copy(self, call: Call, context: CodeContext) -> None:
        to, at, source, start, size, *conditions = call.args
        # If the condition does not hold, nothing is read and zeros are written.
        read = context.where(*map(self._substituted, conditions))
        for pointer, index, where, value in ((source, start, read, None), (to, at, context, call)):
            buffer = image_of(pointer)
            # Indices count numbers, even if TVM has made them vectors.
            lanes = tvm_ffi.dtype(buffer.dtype).lanes
            count = int(size) // _number_bytes(buffer) // lanes
            self._access(buffer, (_contiguous(index // lanes, count),), where, value)

    def _half(self, call: Call, context: CodeContext) -> None:
        """Record an access to a buffer of 16 bits (:mod:`tvmflow.codegen.half`)."""
        kind = call.args[0].value.removeprefix(HALF_PREFIX)
        value = call.args[1] if kind.startswith(("store", "scatter")) else None
        index, pointer = call.args[-2:]
        lanes = int(kind.lstrip("abcdefghijklmnopqrstuvwxyz"))
        if lanes > 1 and not kind.startswith(("gather", "scatter")):
            index = tirx.Ramp(index, 1, lanes)
        self._access(image_of(pointer), (index,), context, value)

    def _access(
        self,
        buffer: tirx.Buffer,
        indices: Sequence[tirx.Expr],
        context: CodeContext,
        value: tirx.Expr | None = None,
        channel: tirx.Expr | None = None,
    ) -> None:
        element = element_bytes(buffer)
        lanes = tvm_ffi.dtype(indices[0].ty.dtype).lanes
        if is_texture(buffer.scope()):
            element, lanes = element * CHANNELS, 1
        places = tuple(self._substituted(index) for index in indices)
        if lanes > 1 and not isinstance(places[0], tirx.Ramp):
            # Merged tiles of shared memory have an offset in the index.
            places = (self._analyzer.simplify(places[0]),)
        memory, is_store = self._views.get(buffer, buffer), value is not None
        place = memory, str(buffer.name), places, is_store, lanes, element
        self.sites.append(Site(*place, context, self._statements, value, channel))


def _tile(call: Call, item: tirx.Expr) -> Iterator[tuple[tirx.Buffer, tirx.Expr]]:
    """Yield buffer and index of each access of an item to a tile of tensor cores."""
    _, rows, columns, _, _, pointer, stride, order = call.args
    buffer = image_of(pointer.args[1])
    size = int(rows), int(columns)
    long, short = size if str(order.value) == "row_major" else reversed(size)
    count = _MOVED // _number_bytes(buffer)
    for first in range(0, long * short // count, _WARP):
        number = item % _WARP + first
        start = pointer.args[2] + number % long * stride + number // long * count
        yield buffer, _contiguous(start, count)


def _number_bytes(buffer: tirx.Buffer) -> int:
    return int(tvm_ffi.dtype(buffer.dtype).bits) // 8


def _contiguous(index: tirx.Expr, count: int) -> tirx.Expr:
    return tirx.Ramp(index, 1, count) if count > 1 else index


def _is_vector(expr: tirx.Expr) -> bool:
    return bool(tvm_ffi.dtype(expr.ty.dtype).lanes > 1)


def _parts(node: tirx.Expr) -> list[tirx.Expr]:
    """Return the operands of an expression."""
    if isinstance(node, tirx.Shuffle):
        return [*node.vectors, *node.indices]
    found = (getattr(node, n, None) for n in ("a", "b", "value", "body", "base", "stride"))
    return [part for part in found if isinstance(part, tvm_ffi.Object)]


def _loads(expr: tirx.Expr) -> bool:
    """Return whether a value depends on memory, or is no whole number or no known function."""
    if not is_whole(expr) or nodes_in(expr, TensorLoad):
        return True
    return not all(op_name(call) in CALLS for call in nodes_in(expr, Call))
