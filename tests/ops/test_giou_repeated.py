"""The benchmark's kernels with their body several times: a loop wherever a box is computed."""

from __future__ import annotations

import giou_kernels
import pytest
from tvm import tirx

from tvmflow.devices.target import resolve
from tvmflow.ir.expressions import nodes_in


@pytest.mark.parametrize("target", [("llvm", "cpu"), ("cuda", "nvidia")], ids=lambda t: t[0])
@pytest.mark.parametrize("form", giou_kernels.FORMS)
def test_loops_are_around_the_body_alone(form, target):
    spec, refused = resolve(*target), []
    for skip in giou_kernels.SKIPS:
        scheduled = giou_kernels.schedule(5, 40, form, skip, spec)
        if isinstance(scheduled, str):
            refused.append(skip)
            continue
        function = giou_kernels.repeated(scheduled, 7)
        found = nodes_in(function.body, tirx.For)
        turns = [loop for loop in found if loop.loop_var.name == "repetition"]
        assert turns
        for loop in turns:
            assert int(loop.extent) == 7
            written = {store.buffer.name for store in nodes_in(loop.body, tirx.BufferStore)}
            assert written <= {"sums", "item_sum"}, skip
    # Why, `masked_mean.CONSTRAINTS` says.
    assert refused == (["element"] if target[0] == "llvm" else ["warp"] * (form == "mask"))
