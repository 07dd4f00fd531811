"""Findings of unrolled code."""

from __future__ import annotations

from tvm.script import tirx as T

from tvmflow.devices.target import resolve
from tvmflow.explain.analysis import coalescing, findings

ADRENO = resolve("opencl", "adreno")


@T.prim_func(s_tir=True)
def unrolled(a: T.Buffer((64, 1024), "float32"), b: T.Buffer((1024,), "float32")):
    for group in T.thread_binding(16, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            for k in T.unroll(4):
                b[group * 64 + item] = b[group * 64 + item] + a[item, group * 64 + k * 16]


@T.prim_func(s_tir=True)
def crowded(a: T.Buffer((512,), "float32"), b: T.Buffer((512,), "float32")):
    for group in T.thread_binding(16, thread="blockIdx.x"):
        tile = T.alloc_buffer((4096,), scope="shared")
        for item in T.thread_binding(32, thread="threadIdx.x"):
            for k in T.serial(128):
                tile[k * 32 + item] = a[group * 32 + item]
            T.tvm_storage_sync("shared")
            b[group * 32 + item] = tile[31 - item] + tile[4095 - item]


def test_accesses_of_a_line_are_one_finding():
    reads = [access for access in coalescing(unrolled, ADRENO) if access.buffer == "a"]
    assert len(reads) == 4
    found = [f for f in findings(unrolled, ADRENO) if f.kind == "coalescing"]
    assert [f.access.split("[")[0] for f in found] == ["a"]
    # A wave fetches 64 lines, of which four would suffice.
    assert found[0].cost == {"bytes": 4 * 16 * 60 * 64.0}
    assert found[0].sentence.endswith("3 more of this line are like it.")


def test_the_largest_share_is_first():
    shares = [finding.share for finding in findings(unrolled, ADRENO)]
    assert len(shares) > 1
    assert shares == sorted(shares, reverse=True)


def test_what_needs_different_remedies_stays_apart():
    """A group of 32 of 64 lanes, of which local memory lets few be there at a time."""
    kinds = [finding for finding in findings(crowded, ADRENO) if finding.kind == "occupancy"]
    assert len({finding.remedy for finding in kinds}) == len(kinds) == 2


def test_small_shares_are_left_out():
    assert all(finding.share >= 0.05 for finding in findings(unrolled, ADRENO))
    assert all(finding.share >= 0.05 for finding in findings(crowded, ADRENO))
