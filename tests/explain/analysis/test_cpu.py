"""Findings on CPU loops: each step of the lab removes one of them."""

from __future__ import annotations

import pytest
from support.loops_for_cpus import LAB, LLVM, kinds, lab

from tvmflow.devices.target import resolve
from tvmflow.explain.analysis import accumulators, cache_lines, findings, loop_nests, vector_lanes
from tvmflow.explain.profiling.record import FINDING_KINDS
from tvmflow.schedules.lab import scheduled


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("naive", {"parallel", "vector-width", "cache-lines", "accumulators"}),
        ("vectorised", {"parallel", "accumulators", "pages"}),
        ("blocked", {"parallel", "pages"}),
        ("parallel", {"pages"}),
        ("packed", set()),
    ],
)
def test_each_step_of_the_lab_removes_something(step, expected):
    assert kinds(lab(step)) == expected


def test_findings_are_of_known_kinds_and_name_lines():
    for step in LAB:
        function = lab(step, 256)
        for finding in findings(function, LLVM):
            assert finding.kind in FINDING_KINDS
            assert finding.kernel == "main"
            assert 0 < finding.share <= 1
            assert all(cost > 0 for cost in finding.cost.values())
            assert finding.line > 0


def test_kernels_for_cpus_have_the_same():
    """On OpenCL a work-item of the device ``cpu`` is a thread."""
    target = resolve("opencl", "cpu")
    naive, fast = (_opencl(step) for step in ("naive", "packed"))
    assert {"vector-width", "cache-lines", "accumulators", "parallel"} <= kinds(naive, target)
    assert not kinds(fast, target) & {"cache-lines", "accumulators", "parallel", "pages"}


def _opencl(step):
    return scheduled("matmul", step, size=1024, target="opencl", device="cpu")


def test_gpus_have_none_of_these():
    gpu = resolve("opencl", "adreno")
    for analysis in (accumulators, cache_lines, loop_nests, vector_lanes):
        assert analysis(_opencl("naive"), gpu) == []
