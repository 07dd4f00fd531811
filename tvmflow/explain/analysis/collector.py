"""Where a lowered kernel accesses memory: under which loops and conditions.

A conditional value is computed only where it is chosen, as OpenCL C and CUDA C++ do::

    if i < 9:                         the site of x[i - 1] has the loops around it and
        y[i] = if_then_else(0 < i,    the conditions i < 9 and 0 < i
                            x[i - 1], 0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op, Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from ...codegen.half import PREFIX as HALF_PREFIX
from ...codegen.textures import LOAD, STORE, image_of
from ...ir.scope import CHANNELS, is_half, is_texture
from .deadline import check_time
from .evaluate import CALLS, is_whole
from .sites import Branch, Place, Site
from .transfers import NAMES as TRANSFERS
from .transfers import transfers

_CHOICE = "prim.if_then_else"
#: More steps than any loop has whose bounds are not just those of numbers in memory.
_ENDLESS = 1 << 24
_EXTERN = ("tirx.call_extern", "tirx.call_pure_extern")


class Collector:
    """Finds the sites and branches of one kernel."""

    def __init__(self, device: tirx.PrimFunc):
        self.sites: list[Site] = []
        self.branches: list[Branch] = []
        self.allocated: list[Any] = []
        self.launch: dict[str, tuple[Any, int]] = {}
        #: Buffers that are written with sums of what they had.
        self.sums: set[Any] = set()
        #: Variables of loops whose iterations are spread over cores.
        self.parallel: set[Any] = set()
        self._statements = 0
        #: Other views of memory, and whose it is.
        self._views: dict[Any, Any] = {}
        self._values: dict[Any, Any] = {}
        self._analyzer = Analyzer()
        self._statement(device.body, Place())

    def _substituted(self, expr: Any) -> Any:
        """In terms of the variables of loops and work-items."""
        if not self._values or isinstance(expr, tirx.IntImm):
            return expr
        return tvm_ffi.structural_map(expr, (tirx.Var, lambda var: self._values.get(var, var)))

    def _statement(self, node: Any, place: Place) -> None:
        check_time()
        self._statements += 1
        if isinstance(node, tirx.SeqStmt):
            for statement in node.seq:
                self._statement(statement, place)
        elif isinstance(node, tirx.For):
            self._loop(node, place)
        elif isinstance(node, tirx.IfThenElse):
            self._choice(node.condition, node.then_case, node.else_case, place, self._statement)
        elif isinstance(node, tirx.AttrStmt):
            if node.attr_key == "thread_extent":
                extent = int(node.value)
                self.launch[node.node.thread_tag] = (node.node.var, extent)
                self._analyzer.bind(node.node.var, Range(0, extent))
            self._statement(node.body, place)
        elif isinstance(node, tirx.Bind):
            self._expression(node.value, place)
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
            self._expression(node.value, place)
            buffer = self._views.get(node.buffer, node.buffer)
            if any(buffer.same_as(self._views.get(b, b)) for b in _read(node.value)):
                self.sums.add(buffer)
            self._access(node.buffer, node.indices, place, node.value)
        elif isinstance(node, tirx.Evaluate):
            self._expression(node.value, place)
        elif isinstance(node, tirx.While):
            unknown = replace(place, unknown=True)
            self._expression(node.condition, unknown)
            self._statement(node.body, unknown)

    def _loop(self, node: tirx.For, place: Place) -> None:
        self._expression(node.min, place)
        self._expression(node.extent, place)
        start, extent = self._substituted(node.min), self._substituted(node.extent)
        limits: tuple[Any, ...] = ()
        if isinstance(start, tirx.IntImm) and isinstance(extent, tirx.IntImm):
            low, high = int(start), int(start) + int(extent)
        else:
            end = start + extent
            low, high = self._bounds(start)[0], self._bounds(end)[1]
            limits = (node.loop_var >= start, node.loop_var < end)
            if high - low >= _ENDLESS:
                # How often it runs depends on data: its body is counted once.
                self._statement(node.body, replace(place, unknown=True))
                return
        if high <= low:
            return
        if low:
            # Loops count from 0 here, so that a variable is known by its extent.
            counter = tirx.Var(node.loop_var.name, node.loop_var.ty)
            self._values[node.loop_var] = counter + low
            limits = tuple(self._substituted(limit) for limit in limits)
        else:
            counter = node.loop_var
        self._analyzer.bind(counter, Range(0, high - low))
        if node.kind == tirx.ForKind.PARALLEL:
            self.parallel.add(counter)
        around = replace(place, loops=(*place.loops, (counter, high - low)))
        start_site = len(self.sites)
        self._statement(node.body, around.where(*limits))
        if limits:
            self._branch(tirx.And(*limits), around, start_site, len(self.sites))

    def _bounds(self, expr: Any) -> tuple[int, int]:
        """The least and the largest value of an expression, as far as they are known."""
        found = self._analyzer.const_int_bound(self._substituted(expr))
        return int(found.min_value), int(found.max_value)

    def _choice(self, test: Any, then: Any, otherwise: Any, place: Place, visit: Any) -> None:
        self._expression(test, place)
        if _is_vector(test):
            # Both sides are computed.
            visit(then, place)
            visit(otherwise, place)
            return
        condition = self._substituted(test)
        start = len(self.sites)
        visit(then, place.where(condition))
        middle = len(self.sites)
        if otherwise is not None:
            visit(otherwise, place.where(tirx.Not(condition)))
        self._branch(condition, place, start, middle)

    def _branch(self, condition: Any, place: Place, start: int, middle: int) -> None:
        """A condition that is followed by sites from ``start``, and by others from ``middle``."""
        inside = len(place.loops)
        arms = self.sites[start:middle], self.sites[middle:]
        then, otherwise = (
            sum(prod(extent for _, extent in site.place.loops[inside:]) for site in arm)
            for arm in arms
        )
        if then or otherwise:
            sites = tuple(self.sites[start:])
            self.branches.append(Branch(condition, place, (then, otherwise), sites))

    def _expression(self, node: Any, place: Place) -> None:
        if isinstance(node, TensorLoad):
            for index in node.indices:
                self._expression(index, place)
            self._access(node.source, node.indices, place)
        elif isinstance(node, Call):
            self._call(node, place)
        elif isinstance(node, tirx.Select):
            arms = (node.true_value, node.false_value)
            self._choice(node.condition, *arms, place, self._expression)
        elif isinstance(node, tirx.And | tirx.Or):
            self._expression(node.a, place)
            first = self._substituted(node.a)
            holds = first if isinstance(node, tirx.And) else tirx.Not(first)
            self._expression(node.b, place if _is_vector(node) else place.where(holds))
        else:
            for part in _parts(node):
                self._expression(part, place)

    def _call(self, call: Call, place: Place) -> None:
        name = call.op.name if isinstance(call.op, Op) else ""
        if name == _CHOICE:
            test, then, otherwise = call.args
            self._choice(test, then, otherwise, place, self._expression)
            return
        for argument in call.args:
            self._expression(argument, place)
        if name in (LOAD, STORE):
            pointer, column, row, layer, *_ = call.args
            value = call if name == STORE else None
            self._access(image_of(pointer), (column, row, layer), place, value)
        elif name in _EXTERN and str(call.args[0].value).startswith(HALF_PREFIX):
            self._half(call, place)
        elif name in TRANSFERS:
            for moved in transfers(call, self.launch):
                where = place.where(*map(self._substituted, moved.conditions))
                value = call if moved.is_store else None
                self._access(moved.buffer, (moved.index,), where, value)

    def _half(self, call: Call, place: Place) -> None:
        """An access to a buffer of 16 bits (:mod:`tvmflow.codegen.half`)."""
        kind = call.args[0].value.removeprefix(HALF_PREFIX)
        value = call.args[1] if kind.startswith(("store", "scatter")) else None
        index, pointer = call.args[-2:]
        lanes = int(kind.lstrip("abcdefghijklmnopqrstuvwxyz"))
        if lanes > 1 and not kind.startswith(("gather", "scatter")):
            index = tirx.Ramp(index, 1, lanes)
        self._access(image_of(pointer), (index,), place, value)

    def _access(self, buffer: Any, indices: Sequence[Any], place: Place, value: Any = None) -> None:
        dtype = tvm_ffi.dtype(buffer.dtype)
        half = is_half(buffer.scope())
        element = (2 if half else (dtype.bits + 7) // 8) * dtype.lanes
        lanes = tvm_ffi.dtype(indices[0].ty.dtype).lanes
        if is_texture(buffer.scope()):
            element, lanes = element * CHANNELS, 1
        places = tuple(self._substituted(index) for index in indices)
        if lanes > 1 and not isinstance(places[0], tirx.Ramp):
            # Merging tiles of shared memory adds where they begin.
            places = (self._analyzer.simplify(places[0]),)
        memory = self._views.get(buffer, buffer)
        is_store, number = value is not None, self._statements
        name = str(buffer.name)
        self.sites.append(
            Site(memory, name, places, is_store, lanes, element, place, number, value)
        )


def _is_vector(expr: Any) -> bool:
    return bool(tvm_ffi.dtype(expr.ty.dtype).lanes > 1)


def _parts(node: Any) -> list[Any]:
    """Operands of an expression."""
    names = ("a", "b", "value", "body", "base", "stride")
    found = [getattr(node, name) for name in names if hasattr(node, name)]
    if isinstance(node, tirx.Shuffle):
        found += [*node.vectors, *node.indices]
    return [part for part in found if isinstance(part, tvm_ffi.Object)]


def _read(expr: Any) -> list[Any]:
    """Buffers that a value is made of."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (TensorLoad, lambda load: found.append(load.source)))
    return found


def _loads(expr: Any) -> bool:
    """Whether a value depends on memory, or is a number that no index is made of."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if not (isinstance(node, Call) and isinstance(node.op, Op) and node.op.name in CALLS):
            found.append(node)

    tvm_ffi.structural_walk(expr, [(TensorLoad, visit), (Call, visit)])
    return bool(found) or not is_whole(expr)
