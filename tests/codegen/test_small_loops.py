"""Loops of a few thousand instructions stay on the calling thread."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx

from tvmflow.codegen.llvm_passes import SerializeSmallLoops

PARALLEL, SERIAL = tirx.ForKind.PARALLEL, tirx.ForKind.SERIAL


def kind_after(extents, *, lanes=16, function=None, target="llvm"):
    """Return the kind of a parallel loop after the pass, with loops in it around a vector sum."""
    dtype = f"float32x{lanes}" if lanes > 1 else "float32"
    a, b = (tirx.decl_buffer((1_000_000,), dtype, name) for name in "ab")
    loops = [tirx.Var(f"i{index}", "int32") for index in range(len(extents))]
    index = loops[0]
    for loop in loops[1:]:
        index = index * 8 + loop
    value = a[index] + b[index]
    body = tirx.BufferStore(a, function(value) if function else value, [index])
    for depth in reversed(range(len(loops))):
        kind = SERIAL if depth else PARALLEL
        body = tirx.For(loops[depth], tirx.const(0, "int32"), extents[depth], kind, body)
    built = tirx.PrimFunc([a, b], body).with_attr("target", tvm.target.Target(target))
    return SerializeSmallLoops(tvm.IRModule({"main": built}))["main"].body.kind


def extents_of(*extents):
    return [tirx.const(extent, "int32") for extent in extents]


@pytest.mark.parametrize(
    ("extents", "options", "kind"),
    [
        ((800,), {}, SERIAL),
        ((4000,), {}, PARALLEL),
        # A wide vector counts as several instructions, a function as many.
        ((800,), {"lanes": 64}, PARALLEL),
        ((100,), {"function": tirx.exp}, SERIAL),
        ((800,), {"function": tirx.exp}, PARALLEL),
        # The body counts as often as it runs.
        ((4, 8), {}, SERIAL),
        ((400, 8), {}, PARALLEL),
        # Kernels have no threads to spare.
        ((400,), {"target": "opencl"}, PARALLEL),
    ],
)
def test_small_loops_stay(extents, options, kind):
    assert kind_after(extents_of(*extents), **options) == kind


def test_a_loop_whose_extent_is_known_at_run_time_is_spread():
    assert kind_after([tirx.Var("n", "int32")]) == PARALLEL
