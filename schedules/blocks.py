"""What a block is: questions that schedules ask before they touch it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import IterVar

from ..codegen.masks import keeps_booleans
from ..ir.expressions import conjuncts, uses
from ..ir.scope import is_texture


def is_reduction(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> bool:
    """Whether a block reduces over some axis."""
    return any(v.iter_type == IterVar.CommReduce for v in sch.get(block).iter_vars)


def is_injective(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> bool:
    """Whether all of a block's axes are data parallel.

    An opaque block (loops that TVM wrote itself) tells neither its axes nor what it writes.
    """
    found = sch.get(block)
    return bool(found.writes) and all(v.iter_type == IterVar.DataPar for v in found.iter_vars)


def launches_threads(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> bool:
    """Whether a block runs on the device's threads already, by its loops or inside.

    An opaque block may launch several kernels, one after the other: in one kernel they would
    overtake each other.
    """
    if any(sch.get(loop).thread_binding is not None for loop in sch.get_loops(block)):
        return True
    found: list[tirx.AttrStmt] = []
    tvm_ffi.structural_walk(sch.get(block).body, (tirx.AttrStmt, found.append))
    return any(statement.attr_key == "thread_extent" for statement in found)


def lane_axis(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> tirx.Var | None:
    """The axis that a block's innermost loop counts, ``None`` where it counts none."""
    loops = sch.get_loops(block)
    if not loops:
        return None
    innermost = sch.get(loops[-1])
    realize = innermost.body
    if not isinstance(realize, s_tir.SBlockRealize):
        return None
    return next(
        (
            axis.var
            for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
            if uses(value, innermost.loop_var)
        ),
        None,
    )


def calls_scalar_function(block: s_tir.SBlock) -> bool:
    """Whether a block calls a function that TVM's LLVM code has for single numbers only."""
    found: list[Call] = []
    tvm_ffi.structural_walk(block.body, (Call, found.append))
    return any(getattr(call.op, "name", None) in _SCALAR_FUNCTIONS for call in found)


def gathers_bytes(block: s_tir.SBlock, lane: tirx.Var) -> bool:
    """Whether lanes of a vector, counted by an axis, are 8-bit numbers from different places.

    TVM's OpenCL code puts them together as bytes of one number, which it then stores as a vector.
    """
    loads: list[Any] = []
    tvm_ffi.structural_walk(block.body, (TensorLoad, loads.append))
    return any(
        str(load.source.dtype) in ("int8", "uint8")
        and any(uses(index, lane) for index in load.indices)
        and not load.indices[-1].same_as(lane)
        for load in loads
    )


def is_vector(block: s_tir.SBlock) -> bool:
    """Whether a block without textures may be computed in vectors."""
    return not (keeps_booleans(block) or calls_scalar_function(block))


def drop_test(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, tile: Sequence[s_tir.schedule.LoopRV]
) -> None:
    """Let a block run for all of its ``tile``, where that is known to do no harm.

    What is asked of the work-item stays: beyond the last one there is nothing to read.
    """
    at = sch.get_loops(block)[-1]
    loop = sch.get(at)
    realize, inner = loop.body, [sch.get(axis).loop_var for axis in tile]
    kept = [t for t in conjuncts(realize.predicate) if not any(uses(t, var) for var in inner)]
    test = tirx.all(*kept) if kept else True
    whole = s_tir.SBlockRealize(realize.iter_values, test, realize.block)
    changed = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, whole)
    sch.state.replace(sch.get_sref(at), changed, {})


_SCALAR_FUNCTIONS = ("tirx.sinh", "tirx.cosh")


def gathers_channels(block: s_tir.SBlock, lane: tirx.Var) -> bool:
    """Whether a block takes the channels of a vector, counted by an axis, from different texels.

    An image read is a whole texel: lanes of a vector can be its channels, in order, and
    nothing else.
    """
    loads: list[Any] = []
    tvm_ffi.structural_walk(block.body, (TensorLoad, loads.append))
    analyzer = Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    for load in loads:
        if not (tirx.is_buffer_var(load.source) and is_texture(load.source.scope())):
            continue
        # A channel that is counted by blocks and lanes is such a lane, too.
        *place, channel = (analyzer.simplify(index) for index in load.indices)
        varies = any(uses(index, lane) for index in place)
        if varies or (uses(channel, lane) and not channel.same_as(lane)):
            return True
    return False
