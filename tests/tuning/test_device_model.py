"""The model of a GPU: its invariants, and predictions of logs that it was not fitted to."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, replace

import device_model as benchmark
import numpy as np
import pytest

from tvmflow.devices.gpus import GPUS
from tvmflow.errors import TargetError
from tvmflow.schedules.conv2d_1x1 import NAME as POINTWISE
from tvmflow.tuning.device_model import (
    CONSTANTS,
    Constants,
    Kernel,
    rates_of,
    registers,
    seconds,
    waves_held,
)
from tvmflow.tuning.kernel_facts import Precision, kernel_of

A660, A740 = GPUS["adreno-660"], GPUS["adreno-740"]
#: A compute-bound kernel with a hundred groups per core.
BUSY = Kernel(
    groups=600, items=128, steps=64, multiply_adds=64, fetches=8, texel_bytes=16, lines=48,
    sums=4, sum_bytes=4, bytes=1e5,
)  # fmt: skip


def time_of(gpu=A740, **changes):
    return float(seconds(replace(BUSY, **changes), gpu))


def test_work_takes_time_in_proportion():
    launch = 1e-6 * CONSTANTS.launch_7xx_us
    assert time_of(steps=128) - launch == pytest.approx(2 * (time_of() - launch), rel=0.05)
    assert time_of(groups=1200) - launch == pytest.approx(2 * (time_of() - launch), rel=0.05)
    # A 740 has twice the cores, at a lower clock.
    assert 1.2 < time_of(A660) / time_of() < 2


def test_lanes_without_items_and_cores_without_groups_are_lost():
    assert time_of(items=65) == time_of(items=128)
    # Six cores.
    assert time_of(groups=7) == time_of(groups=12) > time_of(groups=6)


def test_many_registers_leave_too_few_waves_to_hide_latency():
    rates = rates_of(A740)
    held = [float(waves_held(n, rates)) for n in (8, 16, 32, 48, 200)]
    assert held == [16, 12, 6, 4, 2]
    assert float(registers(replace(BUSY, sums=16))) > float(registers(BUSY)) + 10
    times = [float(seconds(BUSY, A740, held=n)) for n in (2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[2]


def test_memory_bounds_what_computes_little():
    bytes_ = 50e6
    least = bytes_ / 67.2e9
    assert least < time_of(bytes=bytes_, steps=1) < 3 * least


def test_half_precision_is_faster():
    half = replace(BUSY, texel_bytes=8, sum_bytes=2, lines=24)
    assert float(seconds(half, A740)) < 0.7 * float(seconds(BUSY, A740))
    mixed = replace(BUSY, texel_bytes=8, lines=24, is_mixed=True, multiply_adds=256)
    plain = replace(mixed, is_mixed=False)
    assert float(seconds(mixed, A740)) > 1.1 * float(seconds(plain, A740))


def test_arrays_are_many_kernels():
    many = replace(BUSY, groups=np.array([6.0, 600.0]), steps=np.array([64.0, 128.0]))
    assert list(seconds(many, A740)) == [time_of(groups=6), time_of(steps=128)]


def test_a_gpu_without_rates_is_refused():
    with pytest.raises(TargetError, match="mali-g610 failed: the model knows Adreno"):
        seconds(BUSY, GPUS["mali-g610"])


def test_a_pointwise_kernel_is_counted_by_hand():
    shape = benchmark.BY_NAME[POINTWISE].Shape(
        1, 16, 14, 14, 4, 32, 1, 1, padded=False, texture=True, weights="texture", input_block=4
    )
    knobs = {"tile_o": 2, "tile_h": 1, "tile_w": 4, "split_i": 1}
    knobs |= {"group_o": 8, "group_h": 4, "group_w": 2}
    kernel = kernel_of(POINTWISE, shape, knobs, Precision(4, 4))
    # One group along the channels, four along the rows, two along the columns; 8 input blocks.
    assert (kernel.groups, kernel.items, kernel.steps) == (8, 64, 8)
    # Four texels of input and four of each block's weights, for 4 × 4 products of 8 vectors.
    assert (kernel.fetches, kernel.multiply_adds, kernel.sums) == (12, 128, 8)
    # Rows of 2 × 4 texels of 16 bytes: two lines; four weights of each of 16 blocks: one.
    assert kernel.lines == 4 * 2 + 8 * 2
    assert kernel.bytes == 4 * (32 * 196 + 64 * 196 + 32 * 64)
    split = kernel_of(POINTWISE, shape, {**knobs, "split_i": 4, "group_h": 1}, Precision(2, 2))
    assert (split.items, split.steps, split.texel_bytes, split.sum_bytes) == (64, 4, 8, 2)


# -- what AutoTVM measured -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def results():
    """Return results of ``benchmarks/device_model.py``, with constants fitted without each log."""
    return json.loads((benchmark.RESULTS / "device_model.json").read_text())


def test_the_constants_are_those_that_were_fitted(results):
    assert asdict(CONSTANTS) == results["constants"]
    for about in results["logs"].values():
        # They are meaningful: none is far from the constants of all logs.
        assert all(0.3 < about["constants"][n] / v < 3 for n, v in asdict(CONSTANTS).items())


def test_logs_are_predicted_without_having_been_fitted(results):
    ratios, autotvm, ours = [], [], []
    every = benchmark.records(seed=1)
    for log, about in results["logs"].items():
        some = [record for record in every if record.log == log]
        constants = Constants(**about["constants"])
        times = [record.times(constants) for record in some]
        ratios += [t[0] / r.trial.cost for r, t in zip(some, times, strict=True)]
        autotvm += [benchmark.place(t) for t in times]
        for record in some:
            choices = benchmark.own_space(record, seed=1, drawn=100)
            ours.append(benchmark.place(benchmark.own_times(record, choices, constants)))
    assert len(ratios) == len(every) >= 134
    assert sum(1 / 1.5 < ratio < 1.5 for ratio in ratios) >= 0.8 * len(ratios)
    assert statistics.median(autotvm) < 0.1
    assert statistics.median(ours) < 0.1
