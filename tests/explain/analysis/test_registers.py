"""Private arrays of different sizes, with constant and with computed indices."""

from __future__ import annotations

import pytest
from tvm.script import tirx as T

from tvmflow.codegen.kernels import device_source
from tvmflow.devices.target import resolve
from tvmflow.explain.analysis import findings, kernels_of, registers, reported_registers

NVIDIA = resolve("opencl", "nvidia")


def sums(count):
    """Each item computes ``count`` columns of a product, and keeps their sums."""

    @T.prim_func(s_tir=True)
    def product(
        a: T.Buffer((64, 100), "float32"),
        b: T.Buffer((100, count), "float32"),
        c: T.Buffer((64, count), "float32"),
    ):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            total = T.alloc_buffer((count,), scope="local")
            for j in T.unroll(count):
                total[j] = 0.0
            for k in T.serial(100):
                for j in T.unroll(count):
                    total[j] = total[j] + a[item, k] * b[k, j]
            for j in T.unroll(count):
                c[item, j] = total[j]

    return product


def copied(count):
    """Return a kernel that reads ``count`` elements to registers before it writes them."""

    @T.prim_func(s_tir=True)
    def copy(a: T.Buffer((64, count), "float32"), c: T.Buffer((64, count), "float32")):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            values = T.alloc_buffer((count,), scope="local")
            for k in T.unroll(count):
                values[k] = a[item, k]
            for k in T.unroll(count):
                c[item, k] = values[k]

    return copy


def histogram(length):
    """Return a kernel with a private array that a loop indexes: it cannot be in registers."""

    @T.prim_func(s_tir=True)
    def count(a: T.Buffer((64, length), "float32"), c: T.Buffer((64, length), "float32")):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            total = T.alloc_buffer((length,), scope="local")
            for k in T.serial(length):
                total[k] = a[item, k]
            for k in T.serial(length):
                c[item, k] = total[k]

    return count


def only(function, device="nvidia"):
    (use,) = registers(function, resolve("opencl", device))
    return use


@pytest.mark.parametrize("count", [1, 8, 32])
def test_sums_are_registers(count):
    use = only(sums(count))
    # Three tensors, a loop, an axis, and two operands.
    assert (use.array_registers, use.registers) == (count, count + 6 + 1 + 1 + 2)
    assert (use.indexed, use.memory_bytes, use.spilled_bytes) == ((), 0, 0)


def test_copies_are_made_when_they_are_needed():
    assert only(copied(300)).array_registers == 0


def test_more_than_the_device_has_is_spilled():
    assert only(sums(80), "nvidia").spilled_bytes == 0
    use = only(sums(80), "mali")
    assert (use.limit, use.spilled_bytes) == (64, 4 * (use.registers - 64))


@pytest.mark.parametrize(("length", "indexed"), [(8, ()), (64, ("total",))])
def test_arrays_with_addresses_are_memory(length, indexed):
    use = only(histogram(length))
    assert use.indexed == indexed
    assert (use.memory_bytes, use.array_registers) == ((4 * length, 0) if indexed else (0, length))


def test_findings():
    (finding,) = (f for f in findings(histogram(64), NVIDIA) if f.kind == "registers")
    assert finding.cost == {"bytes": 64 * 4.0 * 64}
    assert "total" in finding.sentence
    assert "total[" in histogram(64).script().splitlines()[finding.line - 1]
    (finding,) = (f for f in findings(sums(80), resolve("opencl", "mali")) if f.kind == "registers")
    assert "at most 64" in finding.sentence
    assert not [f for f in findings(sums(32), NVIDIA) if f.kind == "registers"]


@pytest.mark.nvcc
def test_the_assembler_agrees():
    """It takes a few more, to read ahead."""
    target = resolve("cuda")
    estimates, counts = [], []
    for count in (24, 64, 320):
        (kernel,) = kernels_of(sums(count), target)
        (use,) = registers(kernel, target)
        with target.tvm_target:
            source = device_source({kernel.name: kernel.device})
        (reported,) = reported_registers(source, "sm_80").values()
        assert (use.spilled_bytes > 0) == (reported.spilled_bytes > 0) == (count == 320)
        estimates.append(min(use.registers, use.limit))
        counts.append(reported.registers)
    assert counts == sorted(counts)
    ratios = [estimate / count for estimate, count in zip(estimates, counts, strict=True)]
    assert all(0.7 < ratio < 1.3 for ratio in ratios), (estimates, counts)
