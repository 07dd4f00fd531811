"""Copies and tiles of tensor cores that CUDA moves by instructions of its own."""

from __future__ import annotations

import pytest
from onnx import helper
from support.operators import build, random
from tvm.script import tirx as T

import tvmflow
from tvmflow.devices.target import resolve
from tvmflow.explain.analysis import (
    bank_conflicts,
    coalescing,
    findings,
    functions_of,
    kernels_of,
    local_memory,
    occupancy,
)

CUDA = resolve("cuda")


def copied(stride):
    """Each item has 16 bytes copied to shared memory, from places that are ``stride`` apart."""

    @T.prim_func(s_tir=True)
    def copy(a: T.Buffer((4096 * stride // 4,), "float32"), b: T.Buffer((4096,), "float32")):
        for group in T.thread_binding(32, thread="blockIdx.x"):
            tile = T.alloc_buffer((128,), scope="shared")
            for item in T.thread_binding(32, thread="threadIdx.x"):
                T.evaluate(
                    T.s_tir.cp_async_raw(
                        "float32", tile.data, item * 4, a.data, (group * 32 + item) * stride, 16
                    )
                )
                T.tvm_storage_sync("shared")
                for k in T.vectorized(4):
                    b[group * 128 + item * 4 + k] = tile[124 - item * 4 + k]

    return copy


@pytest.mark.parametrize(("stride", "lines"), [(4, 512), (8, 1024), (12, 1024)])
def test_copies_are_reads_and_writes(stride, lines):
    function = copied(stride)
    (read,) = (access for access in coalescing(function, CUDA) if access.buffer == "a")
    assert (read.instructions, read.bytes, read.stride) == (1024, 16384, stride)
    assert read.transactions == lines
    (tile,) = local_memory(function, CUDA)
    # TVM makes vectors of its elements.
    assert (tile.writes, tile.reads, tile.reuse, tile.is_private) == (1024, 1024, 1.0, False)
    (write,) = (access for access in bank_conflicts(function, CUDA) if access.is_store)
    assert (write.instructions, write.cycles, write.degree) == (1024, 32 * 4, 1)


@pytest.fixture(scope="module")
def product():
    """Return the kernel of a pointwise convolution in fp16."""
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    model = build([node], {"x": (1, 64, 28, 28)}, ["y"], {"w": random((64, 64, 1, 1))})
    functions = functions_of(tvmflow.compile(model, target="cuda", dtype="fp16"))
    (kernel,) = kernels_of(functions["conv2d"], CUDA)
    return kernel


@pytest.mark.nvcc
def test_tiles_of_tensor_cores(product):
    reads = {access.buffer: 0 for access in coalescing(product, CUDA)}
    for access in coalescing(product, CUDA):
        reads[access.buffer] += access.bytes
    # Groups of 16 rows and 16 columns read all of the depth, rows only as far as there are any.
    groups = product.groups
    assert (reads["x_0_blocked"], reads["B"]) == (4 * 784 * 64 * 2, groups * 16 * 64 * 2)
    (tiles,) = local_memory(product, CUDA)
    left, right, sums = 16 * 64, 64 * 16, 16 * 16
    assert tiles.writes == groups * (left + right + sums)
    # Sums are read as far as there are results.
    assert tiles.reads == groups * (left + right) + 784 * 64
    assert not tiles.is_private
    # Sums, in registers of 32 items.
    (found,) = occupancy(product, CUDA)
    assert found.registers >= sums / 32


@pytest.mark.nvcc
def test_findings_are_of_tensors_in_the_schedule(product):
    for finding in findings(product, CUDA):
        assert finding.line > 0
        assert "buf_dyn_shmem" not in finding.access + finding.sentence
    # Rows are longer by 16 bytes, so that the reads of tensor cores do not conflict.
    for access in bank_conflicts(product, CUDA):
        assert access.is_store or access.degree == 1
