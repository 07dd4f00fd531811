"""Occupancy with different work-group sizes, local memory and registers, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm.script import tirx as T

from tvmflow.devices.presets import Multiprocessors
from tvmflow.devices.target import resolve
from tvmflow.explain.analysis import findings, occupancy

NVIDIA = resolve("opencl", "nvidia")


def copied(size, groups=64):
    """Copy one element per item."""

    @T.prim_func(s_tir=True)
    def copy(a: T.Buffer((groups * size,), "float32"), b: T.Buffer((groups * size,), "float32")):
        for group in T.thread_binding(groups, thread="blockIdx.x"):
            for item in T.thread_binding(size, thread="threadIdx.x"):
                b[group * size + item] = a[group * size + item]

    return copy


def with_local(words):
    """Build groups of 64 items that share this many words."""

    @T.prim_func(s_tir=True)
    def share(a: T.Buffer((64 * words,), "float32"), b: T.Buffer((4096,), "float32")):
        for group in T.thread_binding(64, thread="blockIdx.x"):
            tile = T.alloc_buffer((words,), scope="shared")
            for item in T.thread_binding(64, thread="threadIdx.x"):
                for k in T.serial(words // 64):
                    tile[k * 64 + item] = a[group * words + k * 64 + item]
                T.tvm_storage_sync("shared")
                b[group * 64 + item] = tile[words - 1 - item]

    return share


def with_registers(count):
    """Build groups of 256 items that keep this many sums each."""

    @T.prim_func(s_tir=True)
    def keep(a: T.Buffer((16384 * count,), "float32"), b: T.Buffer((16384 * count,), "float32")):
        for group in T.thread_binding(64, thread="blockIdx.x"):
            total = T.alloc_buffer((count,), scope="local")
            for item in T.thread_binding(256, thread="threadIdx.x"):
                for j in T.unroll(count):
                    total[j] = 0.0
                for k in T.serial(16):
                    for j in T.unroll(count):
                        total[j] = total[j] + a[(k * count + j) * 256 + item]
                for j in T.unroll(count):
                    b[(group * count + j) * 256 + item] = total[j]

    return keep


def only(function, target=NVIDIA):
    (found,) = occupancy(function, target)
    return found


@pytest.mark.parametrize(
    ("size", "waves", "resident", "share", "limit"),
    [(256, 8, 8, 1.0, "waves"), (64, 2, 32, 1.0, "waves"), (32, 1, 32, 0.5, "groups"),
     (1024, 32, 2, 1.0, "waves"), (768, 24, 2, 0.75, "waves")],
)  # fmt: skip
def test_group_sizes(size, waves, resident, share, limit):
    found = only(copied(size))
    assert (found.waves_per_group, found.resident_groups) == (waves, resident)
    assert (found.occupancy, found.limit, found.lanes) == (share, limit, 1.0)


def test_lanes_without_items():
    assert only(copied(40)).lanes == 40 / 64
    assert only(copied(40), resolve("opencl", "mali")).lanes == 40 / 48


@pytest.mark.parametrize(("words", "resident"), [(2048, 18), (8192, 4), (256, 32)])
def test_local_memory(words, resident):
    """A core has 164 KiB; each group takes one KiB more than its own."""
    found = only(with_local(words))
    assert (found.local_bytes, found.resident_groups) == (4 * words, resident)
    assert found.occupancy == resident * 2 / 64
    assert (found.limit == "local memory") == (resident < 32)


@pytest.mark.parametrize(("count", "resident"), [(8, 8), (48, 4), (100, 2)])
def test_registers(count, resident):
    found = only(with_registers(count))
    # 65536 registers for 256 items with 64, and with 112.
    assert found.resident_groups == resident
    assert (found.limit == "registers") == (resident < 8)


@pytest.mark.parametrize("count", [8, 48, 100])
def test_registers_come_in_fours(count):
    """On Adreno: 96 registers for each of two waves of 64."""
    found = only(with_registers(count), resolve("opencl", "adreno"))
    fitting = 96 // -(-found.registers // 4) * 2
    assert found.resident_groups == min(16, fitting) // 4


@pytest.mark.parametrize(("count", "share"), [(16, 1.0), (28, 0.5), (100, 0.5)])
def test_half_of_the_items_have_twice_the_registers(count, share):
    """On Mali: more than 64 registers are not possible."""
    found = only(with_registers(count), resolve("opencl", "mali"))
    assert (found.waves_per_group, found.occupancy) == (16, share)
    assert (found.registers <= 32) == (share == 1.0)


def test_groups_for_every_multiprocessor():
    cuda = resolve("cuda")
    gpu = replace(
        cuda,
        device=replace(
            cuda.device,
            multiprocessors=Multiprocessors(108, 99 << 10, tensor_cores=True, async_copies=True),
        ),
    )
    assert only(copied(256, 54), gpu).busy == 0.5
    assert only(copied(256, 216), gpu).busy == 1.0
    assert only(copied(256)).busy is None


def test_findings():
    def found(function, target=NVIDIA):
        return [f for f in findings(function, target) if f.kind == "occupancy"]

    (finding,) = found(with_local(8192))
    assert "local memory limits it" in finding.sentence
    assert finding.share == pytest.approx(1 - 2 * 8 / 64)
    (finding,) = found(copied(33))
    assert "52%" in finding.sentence
    assert finding.access == "64 work-groups of 33"
    # Two waves of each group read and write, with 31 of 64 lanes idle.
    assert finding.cost == {"cycles": 64 * 2 * 2 * 31 / 64}
    assert found(copied(256)) == []
    assert occupancy(copied(1), resolve("opencl", "cpu")) == []


@T.prim_func(s_tir=True)
def twice(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
    """Two kernels that use the same buffers."""
    b = T.alloc_buffer((4096,))
    for group in T.thread_binding(512, thread="blockIdx.x"):
        for item in T.thread_binding(8, thread="threadIdx.x"):
            b[group * 8 + item] = a[group * 8 + item]
    for group in T.thread_binding(256, thread="blockIdx.x"):
        for item in T.thread_binding(16, thread="threadIdx.x"):
            c[group * 16 + item] = b[group * 16 + item] + a[group * 16 + item]


def test_findings_name_the_launch():
    lines = twice.script().splitlines()
    found = [f for f in findings(twice, NVIDIA) if f.kind == "occupancy"]
    for size in (8, 16):
        named = {lines[f.line - 1] for f in found if f"of {size}" in f.access}
        assert len(named) == 1
        assert f'in T.thread_binding({size}, thread="threadIdx.x")' in named.pop()


def test_order():
    shares = [only(with_local(words)).occupancy for words in (256, 2048, 4096, 8192)]
    assert shares == sorted(set(shares), reverse=True)
