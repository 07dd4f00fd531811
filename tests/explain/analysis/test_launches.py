"""Waves, lanes and reads of launches, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import onnx
import pytest
from launches import Launch, arithmetic, launches, with_arithmetic
from launches import _launches as of_function
from support.first_stages import compiled_until
from support.operators import conv
from support.scheduled_networks import scheduled
from tvm.script import tirx as T

from tvmflow import models
from tvmflow.devices.gpus import GPUS
from tvmflow.devices.target import resolve
from tvmflow.schedules import common, conv2d

ADRENO = resolve("opencl", "adreno")
ADRENO_740, MALI = GPUS["adreno-740"], GPUS["mali-g610"]


@T.prim_func(s_tir=True)
def products(
    a: T.Buffer((100, 64), "float32"), b: T.Buffer((64, 40), "float32"), c: T.Buffer((100, 40))
):
    """Matrix product with a row for each 40 items; two of the 102 bound rows do not exist."""
    for group in T.thread_binding(34, thread="blockIdx.x"):
        for row in T.thread_binding(3, thread="threadIdx.y"):
            for item in T.thread_binding(40, thread="threadIdx.x"):
                with T.sblock("sum"):
                    total = T.sblock_alloc_buffer((1,), scope="local")
                    total[0] = 0.0
                    for k in range(64):
                        with T.sblock("product"):
                            i = T.axis.spatial(100, group * 3 + row)
                            j = T.axis.spatial(40, item)
                            kk = T.axis.reduce(64, k)
                            T.where(group * 3 + row < 100)
                            total[0] = total[0] + a[i, kk] * b[kk, j]
                    if group * 3 + row < 100:
                        c[group * 3 + row, item] = total[0]


def launch_of(function, target=ADRENO) -> Launch:
    (launch,) = of_function(function.with_attr("global_symbol", "f"), target, 1, 100 * 40 * 64, 1)
    return launch


def test_a_launch_counted_by_hand():
    launch = launch_of(products)
    assert (launch.group, launch.groups, launch.items) == ((40, 3), 34, 34 * 120)
    # 120 items are two waves of 64, or eight of 16.
    assert (launch.waves(ADRENO_740), launch.waves(MALI)) == (34 * 2, 34 * 8)
    assert launch.lanes(ADRENO_740) == launch.lanes(MALI) == 120 / 128
    assert launch.waves_a_core(ADRENO_740) == 34 * 2 / 6
    # Two of the last group's rows sit out, and every product reads both of its factors.
    assert launch.working == 100 / 102
    assert (launch.reads, launch.writes) == (2.0, 1 / 64)
    assert launch.outputs == 100 * 40


@pytest.mark.parametrize(
    ("registers", "held"),
    # 96 vectors of four for each of 128 lanes: those of two waves, 16 waves at most.
    [(4, 16), (48, 16), (49, 14), (96, 8), (192, 4)],
)
def test_waves_that_registers_leave_room_for(registers, held):
    assert replace(launch_of(products), registers=registers).held(ADRENO_740) == held


def test_reasons_for_few_waves():
    launch = launch_of(products)
    assert launch.why_few(ADRENO_740, 4) == ""
    few = replace(launch, groups=5)
    # 1000 vectors of four are 16 waves, 2.7 a core.
    assert "smaller tiles" in few.why_few(ADRENO_740, 4)
    small = replace(few, outputs=400)
    assert "100 vectors, 0.3 waves a core" in small.why_few(ADRENO_740, 4)
    assert "share sums" in small.why_few(ADRENO_740, 4)


def found_in(storage: str = "buffer") -> list[Launch]:
    model = conv((1, 16, 96, 96), 32, (3, 3), stride=2, pad=1, bias=False, activation=None)
    job = compiled_until("weights", model, ADRENO, storage=storage)
    return launches(job.mod, scheduled(model, ADRENO, storage), ADRENO)


def test_a_convolution():
    (launch,) = found_in()
    assert launch.multiply_adds == 32 * 48 * 48 * 16 * 9
    assert (launch.calls, launch.share) == (1, 1.0)
    assert launch.working == 1.0
    # Every output is written once, four at a time.
    assert launch.writes * launch.multiply_adds == 32 * 48 * 48 / 4


def test_small_tiles_read_more(monkeypatch):
    (usual,) = found_in()
    monkeypatch.setattr(conv2d, "_gpu_tile", lambda *_: (1, 1, 1))
    (small,) = found_in()
    assert small.reads > 2 * usual.reads
    assert small.items > 2 * usual.items


@pytest.mark.parametrize("storage", ["buffer", "texture"])
def test_lost_vectors_are_reads(monkeypatch, storage):
    (usual,) = found_in(storage)
    monkeypatch.setattr(common, "LANES", ())
    (narrow,) = found_in(storage)
    assert narrow.reads > 2 * usual.reads
    assert narrow.items == usual.items


def test_arithmetic_is_that_of_the_layers():
    """Every convolution and product of the ONNX graph, and nothing else."""
    model = models.make("mobilenet_v1", width=0.25, size=64, classes=12)
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    inferred = onnx.shape_inference.infer_shapes(model)
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        shapes[value.name] = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
    expected = sum(
        prod(shapes[node.output[0]]) * prod(shapes[node.input[1]][1:])
        for node in model.graph.node
        if node.op_type in ("Conv", "Gemm")
    )
    job = compiled_until("weights", model, ADRENO)
    counts = arithmetic(job.mod)
    assert sum(calls * each for calls, each in counts.values()) == expected
    # Blocks that are alike are one function, which is called five times.
    assert max(calls for calls, _ in counts.values()) == 5
    names = with_arithmetic(job.mod)
    assert all(counts[name][1] for name in names)
    assert set(names) < set(counts)
