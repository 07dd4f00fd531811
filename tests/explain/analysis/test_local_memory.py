"""Tiles in local memory: read often, once, or by one item; rows with conflicts, and padded ones."""

from __future__ import annotations

import pytest
from onnx import helper
from support.operators import build, random
from support.scheduled_networks import scheduled
from support.simulated import simulate
from tvm.script import tirx as T

from tvmflow.devices.target import resolve, with_storage
from tvmflow.explain.analysis import bank_conflicts, findings, local_memory

NVIDIA = resolve("opencl", "nvidia")


def transposed(width):
    """Transpose a tile of 32 x 32 elements in local memory with rows of ``width`` words."""

    @T.prim_func(s_tir=True)
    def turn(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
        for group in T.thread_binding(4, thread="blockIdx.x"):
            tile = T.alloc_buffer((32 * width,), scope="shared")
            for y in T.thread_binding(8, thread="threadIdx.y"):
                for x in T.thread_binding(32, thread="threadIdx.x"):
                    for row in T.serial(4):
                        tile[(row * 8 + y) * width + x] = a[group * 1024 + (row * 8 + y) * 32 + x]
                    T.tvm_storage_sync("shared")
                    for row in T.serial(4):
                        b[group * 1024 + (row * 8 + y) * 32 + x] = tile[x * width + row * 8 + y]

    return turn


@T.prim_func(s_tir=True)
def row_sums(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    """Each item reads all elements of its group."""
    for group in T.thread_binding(64, thread="blockIdx.x"):
        tile = T.alloc_buffer((64,), scope="shared")
        for item in T.thread_binding(64, thread="threadIdx.x"):
            tile[item] = a[group * 64 + item]
            T.tvm_storage_sync("shared")
            b[group * 64 + item] = 0.0
            for k in T.serial(64):
                b[group * 64 + item] = b[group * 64 + item] + tile[k]


@T.prim_func(s_tir=True)
def alone(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for group in T.thread_binding(64, thread="blockIdx.x"):
        tile = T.alloc_buffer((64,), scope="shared")
        for item in T.thread_binding(64, thread="threadIdx.x"):
            tile[item] = a[group * 64 + item]
            b[group * 64 + item] = tile[item] * tile[item]


@T.prim_func(s_tir=True)
def two_views(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    """Each item reads its own element, and a neighbour's by another name of the buffer."""
    for group in T.thread_binding(64, thread="blockIdx.x"):
        tile = T.alloc_buffer((64,), scope="shared")
        view = T.decl_buffer((64,), data=tile.data, scope="shared")
        for item in T.thread_binding(64, thread="threadIdx.x"):
            tile[item] = a[group * 64 + item]
            T.tvm_storage_sync("shared")
            b[group * 64 + item] = tile[item] * view[63 - item]


@T.prim_func(s_tir=True)
def windows(a: T.Buffer((4096,), "float32"), b: T.Buffer((1024,), "float32")):
    """Each item writes four elements, and reads these and twelve of its neighbours."""
    for group in T.thread_binding(16, thread="blockIdx.x"):
        tile = T.alloc_buffer((64 * 4 + 12,), scope="shared")
        for item in T.thread_binding(64, thread="threadIdx.x"):
            for k in T.serial(4):
                tile[item * 4 + k] = a[group * 256 + item * 4 + k]
            T.tvm_storage_sync("shared")
            b[group * 64 + item] = 0.0
            for k in T.serial(16):
                b[group * 64 + item] = b[group * 64 + item] + tile[item * 4 + k]


def halves(lanes):
    """Each item reads neighbours of 16 bits, as one vector."""

    @T.prim_func(s_tir=True)
    def read(a: T.Buffer((128 * lanes,), "float16"), b: T.Buffer((128 * lanes,), "float16")):
        for group in T.thread_binding(4, thread="blockIdx.x"):
            tile = T.alloc_buffer((32 * lanes,), "float16", scope="shared")
            for item in T.thread_binding(32, thread="threadIdx.x"):
                for lane in T.vectorized(lanes):
                    tile[item * lanes + lane] = a[group * 32 * lanes + item * lanes + lane]
                T.tvm_storage_sync("shared")
                for lane in T.vectorized(lanes):
                    b[group * 32 * lanes + item * lanes + lane] = tile[item * lanes + lane]

    return read


def strided(step):
    """Read vectors of four elements, ``step`` vectors apart."""

    @T.prim_func(s_tir=True)
    def read(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
        for group in T.thread_binding(4, thread="blockIdx.x"):
            tile = T.alloc_buffer((32 * 4 * step,), scope="shared")
            for item in T.thread_binding(32, thread="threadIdx.x"):
                for lane in T.vectorized(4):
                    tile[item * 4 * step + lane] = a[group * 128 + item * 4 + lane]
                T.tvm_storage_sync("shared")
                for lane in T.vectorized(4):
                    b[group * 128 + item * 4 + lane] = tile[item * 4 * step + lane]

    return read


def read_of(function, target=NVIDIA):
    (access,) = (a for a in bank_conflicts(function, target) if not a.is_store)
    return access


@pytest.mark.parametrize(("width", "degree"), [(32, 32), (33, 1), (34, 2), (36, 4), (40, 8)])
def test_rows_of_a_transposed_tile(width, degree):
    read = read_of(transposed(width))
    # 4 groups of 8 waves read 4 times.
    assert (read.instructions, read.least_cycles) == (4096, 128)
    assert (read.degree, read.cycles) == (degree, 128 * degree)
    (write,) = (a for a in bank_conflicts(transposed(width), NVIDIA) if a.is_store)
    assert (write.degree, write.cycles) == (1, 128)


def test_one_word_for_all_is_no_conflict():
    read = read_of(row_sums)
    assert (read.degree, read.cycles, read.least_cycles) == (1, 64 * 2 * 64, 64 * 2 * 64)


@pytest.mark.parametrize(("step", "degree"), [(1, 1), (2, 2), (3, 1), (8, 8)])
def test_vectors_are_served_eight_items_at_a_time(step, degree):
    read = read_of(strided(step))
    assert (read.degree, read.cycles) == (degree, 4 * 4 * degree)


@pytest.mark.parametrize(("lanes", "cycles"), [(2, 1), (4, 2), (8, 4)])
def test_halves_share_words(lanes, cycles):
    read = read_of(halves(lanes), resolve("cuda"))
    # Four groups of one wave.
    assert (read.degree, read.cycles, read.least_cycles) == (1, 4 * cycles, 4 * cycles)


def test_devices_without_banks_have_no_conflicts():
    for device in ("cpu", "mali"):
        assert bank_conflicts(transposed(32), resolve("opencl", device)) == []


def test_reuse():
    (tile,) = local_memory(row_sums, NVIDIA)
    assert (tile.bytes, tile.writes, tile.reads, tile.reuse) == (256, 4096, 64 * 64 * 64, 64.0)
    (tile,) = local_memory(transposed(33), NVIDIA)
    # The allocation omits the padding of the last row.
    assert (tile.bytes, tile.reuse, tile.is_private) == ((32 * 33 - 1) * 4, 1.0, False)
    (tile,) = local_memory(alone, NVIDIA)
    assert (tile.reuse, tile.is_private) == (2.0, True)
    (tile,) = local_memory(windows, NVIDIA)
    assert (tile.reuse, tile.is_private) == (4.0, False)
    (tile,) = local_memory(two_views, NVIDIA)
    assert (tile.reads, tile.is_private) == (8192, False)


def test_findings():
    (found,) = (f for f in findings(transposed(32), NVIDIA) if f.kind == "bank-conflicts")
    assert found.cost == {"cycles": 128.0 * 31}
    # Each of 32 waves runs four accesses four times, in addition to waiting.
    assert found.share == pytest.approx(128 * 31 / (128 * 31 + 32 * 4 * 4))
    assert "32 items" in found.sentence
    assert "Pad" in found.remedy
    assert "tile[" in transposed(32).script().splitlines()[found.line - 1]
    (found,) = (f for f in findings(alone, NVIDIA) if f.kind == "local-memory")
    assert found.cost == {"bytes": 256.0}
    for function in (transposed(33), row_sums):
        kinds = {f.kind for f in findings(function, NVIDIA)}
        assert not kinds & {"bank-conflicts", "local-memory"}


@pytest.mark.parametrize("storage", ["texture", "buffer"])
@pytest.mark.parametrize(
    ("node", "x", "w"),
    [
        (helper.make_node("Conv", ["x", "w"], ["y"]), (1, 192, 14, 14), (64, 192, 1, 1)),
        (helper.make_node("Gemm", ["x", "w"], ["y"]), (1, 256), (256, 126)),
        (helper.make_node("Gemm", ["x", "w"], ["y"], transB=1), (1, 1280), (1000, 1280)),
    ],
    ids=["conv2d_1x1", "gemv", "gemv_turned"],
)
def test_sums_that_schedules_share_do_not_conflict(node, x, w, storage):
    target = with_storage(resolve("opencl", "adreno"), storage)
    functions = scheduled(build([node], {"x": x}, ["y"], {"w": random(w)}), target, storage)
    shared = [a for f in functions.values() for a in bank_conflicts(f, target)]
    assert {access.is_store for access in shared} == {True, False}
    assert all(access.degree == 1 for access in shared)


def test_order():
    cycles = [read_of(transposed(width)).cycles for width in (33, 34, 36, 40, 32)]
    assert cycles == sorted(set(cycles))


@pytest.mark.oclgrind
@pytest.mark.parametrize(
    "function", [transposed(33), row_sums, alone], ids=["turn", "sums", "alone"]
)
def test_counts_are_those_of_a_simulator(function, tmp_path):
    (tile,) = local_memory(function, NVIDIA)
    counts = simulate(function, NVIDIA, tmp_path)
    assert (counts["load local"], counts["store local"]) == (tile.reads, tile.writes)


@pytest.mark.oclgrind
@pytest.mark.parametrize("step", [1, 2])
def test_counts_of_vectors_are_those_of_a_simulator(step, tmp_path):
    counts = simulate(strided(step), NVIDIA, tmp_path)
    for access in bank_conflicts(strided(step), NVIDIA):
        name = "store local" if access.is_store else "load local"
        assert counts[name] == access.instructions
        assert counts[f"{name} bytes"] == 16 * access.instructions
