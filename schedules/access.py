"""How a data-parallel block steps through memory as its loops count.

Every element that a block writes or reads has an address, in elements from the beginning of
its tensor.  Where that is a sum of loop variables times constants, the constants are *steps*::

    for c, y, x: out[c, y, x] = a[y, c, x] + b[c]       with c < 3, y < 4, x < 5

               c   y   x
    out       20   5   1
    a          5  15   1
    b          1   0   0

Neighbouring loops whose steps fit each other for all accesses are one loop in truth:
:func:`nest_of` makes them one.  Its index arithmetic disappears where TVM can simplify addresses:
where what a loop is split into afterwards divides the extents, or they divide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer, detect_linear_equation
from tvm.tirx import IterVar

from ..ir.expressions import uses
from ..ir.scope import is_texture
from .common import Block, Loop, Workload

Steps = tuple[int | None, ...]


@dataclass
class Nest:
    """The loops of a block, outermost first, and the steps of its accesses.

    Parameters
    ----------
    loops, extents
        After fusion.
    accesses
        Steps of what is written, then of what is read; ``None`` where an address is no sum of
        constant multiples.
    tested
        Whether a loop's variable occurs outside of addresses, in a condition for example.
    """

    loops: list[Loop]
    extents: list[int]
    accesses: list[Steps]
    tested: list[bool]
    #: The tensor of each access.
    tensors: list[Any]
    #: Whether each access is inside of its tensor whatever is tested.
    inside: list[bool]

    @property
    def moves_vectors(self) -> bool:
        """Whether neighbours of the last loop are neighbours, or one element, in every access."""
        return not self.tested[-1] and all(steps[-1] in (0, 1) for steps in self.accesses)


def nest_of(workload: Workload, block: Block, digits: bool = False) -> Nest | None:
    """Analyse a block, and give it one axis for each group of axes that fit each other.

    Parameters
    ----------
    digits
        Whether axes become two whose variables occur as quotient and remainder, as in
        ``x[c // 16, y, c % 16]``.

    Returns
    -------
    Nest or None
        ``None`` for a block of another kind than one store with a loop for each axis.
    """
    sch = workload.sch
    found = sch.get(block)
    kinds = {v.iter_type for v in found.iter_vars}
    plain = isinstance(found.body, tirx.BufferStore) and kinds == {IterVar.DataPar}
    if not plain or len(sch.get_loops(block)) != len(found.iter_vars):
        return None
    bases = _bases(found) if digits else {}
    places: dict[Any, Any] = {}
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
    # Axes of one element step nowhere: the last that has more stands for its group.
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

    var: Any
    extent: int
    #: Of the block's axis.
    position: int
    base: int = 1
    is_remainder: bool = False


def regroup(
    sch: s_tir.Schedule, block: Block, axes: Sequence[Axis], groups: Sequence[Sequence[int]]
) -> None:
    """Give a block one axis, and one loop, for each group of axes, and simplify its indices.

    Indices are simplified also where nothing is regrouped: that all lanes of a vector read one
    texel can be seen as long as axes are not split.

    Not TVM's `transform_block_layout`: what it simplifies indices by afterwards loses carries.
    Of ``(x % m + c) // d`` it makes ``(x + c) % m // d``, another number where ``x % m + c`` is
    ``m`` or more (`arith::IterMapSimplify` of TVM 0.27).

    Parameters
    ----------
    block
        One whose axes are counted by one loop each, with nothing else in them.
    axes
        The block's axes, or digits of them.
    groups
        Positions in ``axes``, the one that counts slowest first.
    """
    old = sch.get(block)
    dtype = str(old.iter_vars[0].var.ty.dtype)
    values: dict[int, Any] = {}
    analyzer = Analyzer()
    iter_vars, bindings, loops = [], [], []
    for number, group in enumerate(groups):
        extent = tirx.IntImm(dtype, prod(axes[i].extent for i in group))
        var, loop = tirx.Var(f"v{number}", dtype), tirx.Var(f"ax{number}", dtype)
        if int(extent) > 1:
            # An axis of one element stays in the indices: `reindex` counts those that occur there.
            analyzer.bind(var, Range(0, extent))
        iter_vars.append(IterVar(Range(tirx.IntImm(dtype, 0), extent), var, IterVar.DataPar))
        bindings.append(loop)
        loops.append((loop, extent))
        rest: Any = var
        for i in reversed(group[1:]):
            values[i] = tirx.floormod(rest, tirx.IntImm(dtype, axes[i].extent))
            rest = tirx.floordiv(rest, tirx.IntImm(dtype, axes[i].extent))
        values[group[0]] = rest
    replaced: dict[Any, Any] = {}
    for i, axis in enumerate(axes):
        var = old.iter_vars[axis.position].var
        replaced[var] = replaced.get(var, 0) + values[i] * (1 if axis.is_remainder else axis.base)

    def rewritten(node: Any) -> Any:
        return tvm_ffi.structural_map(node, (tirx.Var, lambda var: replaced.get(var, var)))

    def simplified(indices: Sequence[Any]) -> list[Any]:
        return [analyzer.simplify(rewritten(index)) for index in indices]

    def load(node: TensorLoad) -> Any:
        return tirx.BufferLoad(node.source, [analyzer.simplify(index) for index in node.indices])

    def region(found: Any) -> Any:
        begins = simplified([r.min for r in found.region])
        extents = simplified([r.extent for r in found.region])
        ranges = [Range.from_min_extent(*part) for part in zip(begins, extents, strict=True)]
        return tirx.BufferRegion(found.source, ranges)

    store = old.body
    value = tvm_ffi.structural_map(rewritten(store.value), (TensorLoad, load))
    new = s_tir.SBlock(
        iter_vars,
        [region(r) for r in old.reads],
        [region(r) for r in old.writes],
        old.name_hint,
        tirx.BufferStore(store.buffer, value, simplified(store.indices)),
        annotations=old.annotations,
    )
    nest: Any = s_tir.SBlockRealize(bindings, True, new)
    for loop, extent in reversed(loops):
        nest = tirx.For(loop, tirx.IntImm(dtype, 0), extent, tirx.ForKind.SERIAL, nest)
    outermost = [*sch.get_loops(block), block][0]
    sch.state.replace(sch.get_sref(outermost), nest, {old: new})


def _bases(block: Any) -> dict[Any, int]:
    """Divisors of variables whose remainder occurs."""
    values = [v.var for v in block.iter_vars]
    bases: dict[Any, int] = {}

    def visit(node: Any) -> None:
        if any(node.a.same_as(value) for value in values) and isinstance(node.b, tirx.IntImm):
            bases[node.a] = int(node.b)

    tvm_ffi.structural_walk(block.body, (tirx.FloorMod, visit))
    return bases


def _steps(
    store: Any, axes: Sequence[Axis], places: dict[Any, Any]
) -> tuple[list[Steps], list[bool], list[Any], list[bool]]:
    analyzer = Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, Range(0, axis.extent))
    loads: list[Any] = []
    tvm_ffi.structural_walk(store, (TensorLoad, loads.append))
    found = [(store.buffer, store.indices), *((load.source, load.indices) for load in loads)]

    def replace(var: tirx.Var) -> Any:
        return places.get(var, var)

    accesses: list[Steps] = []
    inside = []
    for tensor, indices in found:
        if places:
            indices = [tvm_ffi.structural_map(i, (tirx.Var, replace)) for i in indices]
        address = analyzer.simplify(_address(tensor, indices))
        accesses.append(tuple(_step(address, axis.var, analyzer) for axis in axes))
        bounds = [analyzer.const_int_bound(index) for index in indices]
        inside.append(
            all(
                bound.min_value >= 0 and bound.max_value < int(extent)
                for bound, extent in zip(bounds, tensor.shape, strict=True)
            )
        )
    rest = tvm_ffi.structural_map(
        store.value, (TensorLoad, lambda load: tirx.const(1, load.ty.dtype))
    )
    if places:
        rest = tvm_ffi.structural_map(rest, (tirx.Var, replace))
    tensors = [tensor for tensor, _ in found]
    return accesses, [uses(rest, axis.var) for axis in axes], tensors, inside


def _address(tensor: Any, indices: Sequence[Any]) -> Any:
    address: Any = tirx.const(0, "int64")
    for index, extent in zip(indices, tensor.shape, strict=True):
        address = address * int(extent) + index.astype("int64")
    return address


def _step(address: Any, var: Any, analyzer: Analyzer) -> int | None:
    if not uses(address, var):
        return 0
    if str(var.ty.dtype) != "int64":
        # Conversions to the width of addresses hide that they are sums.
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
    """Neighbouring axes whose steps fit each other in all accesses, together."""
    groups: list[list[int]] = []
    outer: int | None = None
    for axis, extent in enumerate(extents):
        fits = groups and (
            extent == 1
            or outer is None
            or (
                not (tested[outer] or tested[axis])
                and all(_joins(steps[outer], steps[axis], extent) for steps in accesses)
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


def _joins(outer: int | None, inner: int | None, extent: int) -> bool:
    """Whether one step of an axis leads where ``extent`` steps of the next one lead."""
    return outer is not None and inner is not None and outer == inner * extent
