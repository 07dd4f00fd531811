"""Data-parallel blocks: how their loops step through memory, and their mapping to a device.

Every element that a block writes or reads has an address, in elements from the beginning of
its tensor.  If that is a sum of loop variables times constants, the constants are *steps*::

    for c, y, x: out[c, y, x] = a[y, c, x] + b[c]       with c < 3, y < 4, x < 5

               c   y   x
    out       20   5   1
    a          5  15   1
    b          1   0   0

Neighbouring loops whose steps fit each other in all accesses can be fused: :func:`nest_of` does
so.  The index arithmetic of a fused loop disappears if TVM can simplify addresses: if the factors
of later splits divide the extents, or are multiples of them.

:func:`distribute` then binds the loops.  A CPU's work-item is a stretch of the result: its index
arithmetic is done once, and the loops inside run over neighbours.  A GPU's work-item is one vector,
or a few that are far apart, so that neighbouring work-items access neighbouring memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer, detect_linear_equation
from tvm.tirx import IterVar

from ..devices.target import Device
from ..ir.expressions import nodes_in, substitute_vars, uses
from ..ir.scope import is_texture
from .common import Block, Loop, Workload, gathers_bytes, gathers_channels, is_vector
from .sizes import LANES, largest_divisor, tile_of

#: Elements that one CPU work-item computes: enough to hide the launch of a work-group.
CPU_ELEMENTS = 4096
#: Least work-groups on a CPU, so that all of its cores are busy to the end.
CPU_GROUPS = 16
#: Least elements of a result that are worth a second core.
CPU_LEAST = 1024
#: Most parts into which a loop is split so that none tests its position.
MOST_PARTS = 7
#: Least length of a stretch of the innermost loop that is worth its own index arithmetic.
_SHORTEST = 64

Steps = tuple[int | None, ...]


@dataclass
class Nest:
    """The loops of a block, outermost first, after fusion, and the steps of its accesses."""

    loops: list[Loop]
    extents: list[int]
    #: Steps of the write, then of the reads; ``None`` if an address is no sum of constant
    #: multiples.
    accesses: list[Steps]
    #: Whether a loop's variable occurs outside of addresses, in a condition for example.
    tested: list[bool]
    #: The tensor of each access.
    tensors: list[tirx.Var]
    #: Whether each access is inside of its tensor even if tests are ignored.
    inside: list[bool]


def nest_of(workload: Workload, block: Block, digits: bool = False) -> Nest | None:
    """Analyse a block, and fuse its axes that fit each other.

    With ``digits``, axes whose variables occur as quotient and remainder are split in two, as in
    ``x[c // 16, y, c % 16]``.  Returns ``None`` for a block that is not one store with a loop
    for each axis.
    """
    sch = workload.sch
    found = sch.get(block)
    kinds = {v.iter_type for v in found.iter_vars}
    plain = isinstance(found.body, tirx.BufferStore) and kinds == {IterVar.DataPar}
    if not plain or len(sch.get_loops(block)) != len(found.iter_vars):
        return None
    bases = _bases(found) if digits else {}
    places: dict[tirx.Var, tirx.Expr] = {}
    axes: list[Axis] = []
    for position, axis in enumerate(found.iter_vars):
        var, extent = axis.var, int(axis.dom.extent)
        base = bases.get(var, 1)
        if base == 1 or extent % base or extent == base:
            axes.append(Axis(var, extent, position))
            continue
        high, low = (tirx.Var(f"{var.name}_{part}", var.ty.dtype) for part in ("high", "low"))
        places[var] = high * base + low
        axes += [Axis(high, extent // base, position, base, False)]
        axes += [Axis(low, base, position, base, True)]
    accesses, tested, tensors, inside = _steps(found.body, axes, places)
    groups = [[axis] for axis in range(len(axes))]
    if not any(is_texture(r.source.scope()) for r in [*found.reads, *found.writes]):
        groups = _groups([axis.extent for axis in axes], accesses, tested)
    regroup(sch, block, axes, groups)
    # Axes of extent 1 have no steps: the last longer axis represents its group.
    last = [max(g, key=lambda i: (axes[i].extent > 1, i)) for g in groups]
    return Nest(
        list(sch.get_loops(block)),
        [prod(axes[i].extent for i in group) for group in groups],
        [tuple(steps[i] for i in last) for steps in accesses],
        [tested[i] for i in last],
        tensors,
        inside,
    )


@dataclass(frozen=True)
class Axis:
    """An axis of a block, or the quotient or remainder of one."""

    var: tirx.Var
    extent: int
    #: Position of the block's axis.
    position: int
    base: int = 1
    is_remainder: bool = False


def regroup(
    sch: s_tir.Schedule, block: Block, axes: Sequence[Axis], groups: Sequence[Sequence[int]]
) -> None:
    """Give a block one axis, and one loop, for each group of axes, and simplify its indices.

    Indices are simplified even if nothing is regrouped: whether all lanes of a vector read one
    texel is only visible as long as axes are not split.

    TVM's `transform_block_layout` is not used, because its simplification of indices loses
    carries.  It turns ``(x % m + c) // d`` into ``(x + c) % m // d``, which differs if
    ``x % m + c`` is ``m`` or more (`arith::IterMapSimplify` of TVM 0.27).

    Each axis of the block must have one loop, which contains nothing else.  ``axes`` are these, or
    digits of them; ``groups`` hold positions in ``axes``, the slowest first.
    """
    old = sch.get(block)
    dtype = str(old.iter_vars[0].var.ty.dtype)
    values: dict[int, tirx.Expr] = {}
    analyzer = Analyzer()
    iter_vars, bindings, loops = [], [], []
    for number, group in enumerate(groups):
        extent = tirx.IntImm(dtype, prod(axes[i].extent for i in group))
        var, loop = tirx.Var(f"v{number}", dtype), tirx.Var(f"ax{number}", dtype)
        if int(extent) > 1:
            # An axis of extent 1 stays in the indices: `reindex` counts those that occur there.
            analyzer.bind(var, Range(0, extent))
        iter_vars.append(IterVar(Range(tirx.IntImm(dtype, 0), extent), var, IterVar.DataPar))
        bindings.append(loop)
        loops.append((loop, extent))
        rest: tirx.Expr = var
        for i in reversed(group[1:]):
            values[i] = tirx.floormod(rest, tirx.IntImm(dtype, axes[i].extent))
            rest = tirx.floordiv(rest, tirx.IntImm(dtype, axes[i].extent))
        values[group[0]] = rest
    replaced: dict[tirx.Var, tirx.Expr] = {}
    for i, axis in enumerate(axes):
        var = old.iter_vars[axis.position].var
        replaced[var] = replaced.get(var, 0) + values[i] * (1 if axis.is_remainder else axis.base)

    def simplified(indices: Sequence[tirx.Expr]) -> list[tirx.Expr]:
        return [analyzer.simplify(substitute_vars(index, replaced)) for index in indices]

    def load(node: TensorLoad) -> tirx.Expr:
        return tirx.BufferLoad(node.source, [analyzer.simplify(index) for index in node.indices])

    def region(found: tirx.BufferRegion) -> tirx.BufferRegion:
        ranges = [Range.from_min_extent(*simplified([r.min, r.extent])) for r in found.region]
        return tirx.BufferRegion(found.source, ranges)

    store = old.body
    value = tvm_ffi.structural_map(substitute_vars(store.value, replaced), (TensorLoad, load))
    new = s_tir.SBlock(
        iter_vars,
        [region(r) for r in old.reads],
        [region(r) for r in old.writes],
        old.name_hint,
        tirx.BufferStore(store.buffer, value, simplified(store.indices)),
        annotations=old.annotations,
    )
    nest: tirx.Stmt = s_tir.SBlockRealize(bindings, True, new)
    for loop, extent in reversed(loops):
        nest = tirx.For(loop, tirx.IntImm(dtype, 0), extent, tirx.ForKind.SERIAL, nest)
    outermost = [*sch.get_loops(block), block][0]
    sch.state.replace(sch.get_sref(outermost), nest, {old: new})


def _bases(block: s_tir.SBlock) -> dict[tirx.Var, int]:
    """Return the divisors of variables that occur as remainders."""
    analyzer = Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    indices = [index for load in nodes_in(block.body, TensorLoad) for index in load.indices]
    return {
        node.a: int(node.b)
        for index in indices
        for node in nodes_in(analyzer.simplify(index), tirx.FloorMod)
        if isinstance(node.b, tirx.IntImm) and any(node.a.same_as(v.var) for v in block.iter_vars)
    }


def _steps(
    store: tirx.BufferStore, axes: Sequence[Axis], places: Mapping[tirx.Var, tirx.Expr]
) -> tuple[list[Steps], list[bool], list[tirx.Var], list[bool]]:
    analyzer = Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, Range(0, axis.extent))
    loads = [(load.source, load.indices) for load in nodes_in(store, TensorLoad)]
    found = [(store.buffer, store.indices), *loads]

    accesses: list[Steps] = []
    inside = []
    for tensor, indices in found:
        indices = [substitute_vars(index, places) for index in indices]
        address = analyzer.simplify(_address(tensor, indices))
        accesses.append(tuple(_step(address, axis.var, analyzer) for axis in axes))
        bounds = zip(map(analyzer.const_int_bound, indices), tensor.shape, strict=True)
        inside.append(all(b.min_value >= 0 and b.max_value < int(size) for b, size in bounds))
    ones = TensorLoad, lambda load: tirx.const(1, load.ty.dtype)
    rest = substitute_vars(tvm_ffi.structural_map(store.value, ones), places)
    tensors = [tensor for tensor, _ in found]
    return accesses, [uses(rest, axis.var) for axis in axes], tensors, inside


def _address(tensor: tirx.Var, indices: Sequence[tirx.Expr]) -> tirx.Expr:
    address: tirx.Expr = tirx.const(0, "int64")
    for index, extent in zip(indices, tensor.shape, strict=True):
        address = address * int(extent) + index.astype("int64")
    return address


def _step(address: tirx.Expr, var: tirx.Var, analyzer: Analyzer) -> int | None:
    if not uses(address, var):
        return 0
    if str(var.ty.dtype) != "int64":
        # Casts to the width of addresses hide that they are sums.
        wide = tirx.Var(var.name, "int64")
        address = tvm_ffi.structural_map(
            address, (tirx.Cast, lambda c: wide if c.value.same_as(var) else c)
        )
        var = wide
    found = detect_linear_equation(address, [var])
    if not found:
        return None
    step = analyzer.simplify(found[0])
    return int(step) if isinstance(step, tirx.IntImm) else None


def _groups(
    extents: Sequence[int], accesses: Sequence[Steps], tested: Sequence[bool]
) -> list[list[int]]:
    """Return groups of neighbouring axes whose steps fit each other in all accesses."""
    groups: list[list[int]] = []
    outer: int | None = None
    for axis, extent in enumerate(extents):
        fits = groups and (
            extent == 1
            or outer is None
            or (
                not (tested[outer] or tested[axis])
                # One step of the outer axis equals all steps of this one.
                and all((i := s[axis]) is not None and s[outer] == i * extent for s in accesses)
            )
        )
        if fits:
            groups[-1].append(axis)
        else:
            groups.append([axis])
            outer = None
        if extent > 1:
            outer = axis
    return groups


def widest_vector(workload: Workload, block: Block, nest: Nest) -> int:
    """Return the lanes of the widest vector that can compute the innermost loop; 1: none.

    All lanes of a short loop (the channels of a block) are one vector even if they are
    gathered one by one, because they are stored as one.
    """
    found = workload.sch.get(block)
    if not is_vector(found):
        return 1
    lane = found.iter_vars[-1].var
    extent = nest.extents[-1]
    # Neighbours in the last loop are neighbours, or the same element, in every access.
    moved = not nest.tested[-1] and all(steps[-1] in (0, 1) for steps in nest.accesses)
    if gathers_channels(found, lane) or (not moved and gathers_bytes(found, lane)):
        return 1
    if workload.writes_texture(block) or not moved:
        return extent if extent in LANES and len(nest.extents) > 1 else 1
    most = workload.target.device.channel_block
    return max((lanes for lanes in LANES if lanes <= most and extent % lanes == 0), default=1)


def items_for(total: int, vector: int, device: Device) -> int:
    """Return how many of ``total`` vectors a work-item computes: one on GPUs, a stretch on CPUs."""
    if not device.is_cpu:
        return 1
    least = max(CPU_LEAST // vector, -(-total // CPU_GROUPS))
    return max(1, min(CPU_ELEMENTS // vector, least, total))


def distribute(
    workload: Workload, block: Block, nest: Nest, vector: int, items: int, group_size: int
) -> None:
    """Bind a block's loops: ``items`` vectors of ``vector`` elements for each work-item."""
    sch = workload.sch
    loops, extents = list(nest.loops), list(nest.extents)
    lane = None
    if workload.writes_texture(block):
        # A texel is stored whole, in a loop over its channels if vectors are not possible.
        lane = loops.pop()
        extents.pop()
    elif vector > 1:
        rest, lane = sch.split(loops[-1], [None, vector])
        loops[-1], extents[-1] = rest, extents[-1] // vector
    if not loops:
        loops, extents = [sch.add_unit_loop(lane if lane is not None else block)], [1]
    if workload.is_cpu:
        outer = _stretch(sch, loops, extents, items)
        points = _split_points(workload, block, nest)
        inner = loops[-1]
        workload.bind_outer(outer)
        if lane is None and len(outer) < len(loops) and 0 < len(points) <= MOST_PARTS:
            ends = [*points, extents[-1]]
            parts = [end - begin for begin, end in zip([0, *points], ends, strict=True)]
            sch.loop_partition(inner, [*parts[:-1], None])
    else:
        if items > 1:
            # The next outer loop is split, so that neighbours stay with neighbouring work-items.
            at = max(0, len(loops) - 2)
            # An item takes elements that are far apart; the loop along a stretch stays outside.
            inner, loops[at] = sch.split(loops[at], [min(items, extents[at]), None])
            sch.reorder(*loops, inner)
            if lane is not None:
                sch.reorder(inner, lane)
            sch.unroll(inner)
        workload.bind_outer(loops, group_size)
    if lane is not None and vector > 1:
        sch.vectorize(lane)


def _split_points(workload: Workload, block: Block, nest: Nest) -> list[int]:
    """Return values of the innermost loop at which a test of it alone changes its result."""
    found = workload.sch.get(block)
    if len(found.iter_vars) != len(nest.loops):
        return []
    var, extent = found.iter_vars[-1].var, nest.extents[-1]
    points: set[int] = set()

    def visit(test: tirx.Expr) -> None:
        swapped = isinstance(test, (tirx.GT, tirx.GE))
        low, high = (test.b, test.a) if swapped else (test.a, test.b)
        step = detect_linear_equation(Analyzer().simplify(high - low), [var])
        if len(step) != 2 or not all(isinstance(s, tirx.IntImm) for s in step):
            return
        # The test is ``step * var + rest >= 0``, or ``> 0``.
        rest = int(step[1]) - isinstance(test, (tirx.LT, tirx.GT))
        if int(step[0]) == 1:
            points.add(-rest)
        elif int(step[0]) == -1:
            points.add(rest + 1)

    tvm_ffi.structural_walk(found.body, ((tirx.LT, tirx.LE, tirx.GT, tirx.GE), visit))
    return sorted(point for point in points if 0 < point < extent)


def _stretch(sch: s_tir.Schedule, loops: list[Loop], extents: list[int], items: int) -> list[Loop]:
    """Return the loops outside of a stretch of about ``items`` iterations, at least one."""
    at = len(loops)
    while at and extents[at - 1] <= items:
        at -= 1
        items //= extents[at]
    if at == 0:
        return [sch.add_unit_loop(loops[0])]
    if items > 1:
        extent = extents[at - 1]
        size = tile_of(extent, items)
        if at == len(loops) and extent % size:
            # A test in the innermost loop costs more than stretches of another length.
            divisor = largest_divisor(extent, items)
            size = divisor if divisor >= _SHORTEST else size
        loops[at - 1], _ = sch.split(loops[at - 1], [None, size])
    return loops[:at]
