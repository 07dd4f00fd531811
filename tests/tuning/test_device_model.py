"""The model of a GPU: its invariants, and the constants that were fitted to measurements."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from common import RESULTS
from support import pages

from tvmflow.devices.gpus import GPUS
from tvmflow.errors import TargetError
from tvmflow.schedules import conv2d_1x1, depthwise
from tvmflow.tuning.device_model import (
    CONSTANTS,
    Kernel,
    rates_of,
    registers,
    seconds,
    waves_held,
)
from tvmflow.tuning.kernel_facts import Precision, kernel_of

A660, A740, G76 = GPUS["adreno-660"], GPUS["adreno-740"], GPUS["mali-g76"]
ADRENO = CONSTANTS["ir3"]
#: A compute-bound kernel with a hundred groups per core.
BUSY = Kernel(
    groups=600, items=128, steps=64, multiply_adds=64, fetches=8, texel_bytes=16, lines=48,
    sums=4, sum_bytes=4, bytes=1e5, live=8,
)  # fmt: skip


def time_of(gpu=A740, **changes):
    return float(seconds(replace(BUSY, **changes), gpu))


@pytest.mark.parametrize("gpu", [A660, A740, G76], ids=lambda gpu: gpu.name)
def test_work_takes_time_in_proportion(gpu):
    launch = rates_of(gpu).launch_s
    once = time_of(gpu) - launch
    assert time_of(gpu, steps=128) - launch == pytest.approx(2 * once, rel=0.05)
    assert time_of(gpu, groups=1200) - launch == pytest.approx(2 * once, rel=0.05)


def test_gpus_with_more_cores_are_faster():
    # A 740 has twice the cores of a 660, at a lower clock.
    assert 1.2 < time_of(A660) / time_of() < 2.5


def test_lanes_without_items_and_cores_without_groups_are_lost():
    assert time_of(items=65) == time_of(items=128)
    # Six cores: few groups are assigned whole, and of many it does not matter.
    assert time_of(groups=7) == time_of(groups=12) > time_of(groups=6)
    assert time_of(groups=600) < time_of(groups=603) < time_of(groups=606)


def test_many_registers_leave_too_few_waves_to_hide_latency():
    rates = rates_of(A740)
    held = [float(waves_held(n, rates, ADRENO)) for n in (6, 12, 24, 200)]
    assert held[:2] == [16, 16]
    assert 3 < held[2] <= 8
    assert held[3] == 2
    assert float(registers(replace(BUSY, sums=16), ADRENO)) > float(registers(BUSY, ADRENO)) + 10


def test_registers_that_spill_are_a_cliff():
    most = int(ADRENO.spill_registers)
    each = [time_of(sums=n, multiply_adds=16 * n) / n for n in (4, most // 2, most + 12)]
    assert each[1] < 2 * each[0]
    assert each[2] > 5 * each[1]


def test_memory_bounds_what_computes_little():
    bytes_ = 50e6
    least = bytes_ / 67.2e9
    assert 0.9 * least < time_of(bytes=bytes_, steps=1) < 3 * least


def test_half_precision_is_faster():
    half = replace(BUSY, texel_bytes=8, sum_bytes=2, lines=24)
    assert float(seconds(half, A740)) < 0.7 * float(seconds(BUSY, A740))
    mixed = replace(BUSY, texel_bytes=8, lines=24, is_mixed=True, multiply_adds=512)
    both = replace(mixed, is_mixed=False, sum_bytes=2)
    assert float(seconds(mixed, A740)) > 1.1 * float(seconds(both, A740))


def test_arrays_are_many_kernels():
    many = replace(BUSY, groups=np.array([6.0, 600.0]), steps=np.array([64.0, 128.0]))
    assert list(seconds(many, A740)) == [time_of(groups=6), time_of(steps=128)]


@pytest.mark.parametrize("name", ["adreno-618", "adreno-750", "sm_90"])
def test_a_gpu_without_rates_is_refused(name):
    with pytest.raises(TargetError, match=f"{name} failed: the model knows Adreno and Mali"):
        seconds(BUSY, GPUS[name])


def test_a_pointwise_kernel_is_counted_by_hand():
    shape = conv2d_1x1.Shape(
        1, 16, 14, 14, 4, 32, 1, 1, padded=False, texture=True, weights="texture", input_block=4
    )
    knobs = {"tile_o": 2, "tile_h": 1, "tile_w": 4, "split_i": 1}
    knobs |= {"group_o": 8, "group_h": 4, "group_w": 2}
    kernel = kernel_of(conv2d_1x1.NAME, shape, knobs, Precision(4, 4), A740)
    # One group along the channels, four along the rows, two along the columns; 8 input blocks.
    assert (kernel.groups, kernel.items, kernel.steps) == (8, 64, 8)
    # Four texels of input and four of each block's weights, for 4 × 4 products of 8 vectors.
    assert (kernel.fetches, kernel.multiply_adds, kernel.sums) == (12, 128, 8)
    # Rows of 2 × 4 texels of 16 bytes: two lines; four weights of each of 16 blocks: one.
    assert kernel.lines == 4 * 2 + 8 * 2
    assert kernel.bytes == 4 * (32 * 196 + 64 * 196 + 32 * 64)
    # A wave of 8 items has one channel, of four rows and two columns.
    narrow = kernel_of(conv2d_1x1.NAME, shape, knobs, Precision(4, 4), G76)
    assert narrow.lines == 4 * 2 + 2
    split = kernel_of(
        conv2d_1x1.NAME, shape, {**knobs, "split_i": 4, "group_h": 1}, Precision(2, 2), A740
    )
    assert (split.items, split.steps, split.texel_bytes, split.sum_bytes) == (64, 4, 8, 2)


def test_knobs_may_be_arrays():
    shape = depthwise.Shape(
        1, 8, 14, 14, 4, 3, 3, stride_h=1, stride_w=1, span_h=3, span_w=3, padded=True, texture=True
    )
    knobs = {"tile_o": 1, "tile_h": 2, "tile_w": 2, "group_o": 8, "group_h": 7, "group_w": 1}
    each = [{**knobs, "reuse_rows": reuse} for reuse in (False, True)]
    single = [asdict(kernel_of(depthwise.NAME, shape, k, Precision(4, 4), A740)) for k in each]
    both = {**knobs, "reuse_rows": np.array([False, True])}
    many = asdict(kernel_of(depthwise.NAME, shape, both, Precision(4, 4), A740))
    for name, column in many.items():
        assert list(np.broadcast_to(column, 2)) == [float(row[name]) for row in single], name


# -- what phones measured ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results():
    """Return results of ``benchmarks/evidence.py``, whose fits exclude what they predict."""
    return json.loads((RESULTS / "evidence.json").read_text())


@pytest.mark.parametrize(("vendor", "isa"), [("adreno", "ir3"), ("mali", "bifrost")])
def test_the_constants_are_those_that_were_fitted(results, vendor, isa):
    fitted = results["model"][vendor]["all"]["fitted"]
    assert asdict(CONSTANTS[isa]) == fitted["constants"]
    launches = {"adreno": (A660.launch_us, A740.launch_us), "mali": (G76.launch_us,)}
    found = fitted["launch_old_us"], fitted["launch_new_us"]
    assert launches[vendor] == found[: len(launches[vendor])]


def test_gpus_and_networks_are_predicted_without_having_been_fitted(results):
    found = results["model"]["adreno"]
    rows = [row for fold, row in found.items() if fold.startswith("without") and "records" in row]
    count = sum(row["records"] for row in rows)
    assert len(rows) >= 12
    assert sum(row["records"] * row["within_2"] for row in rows) > 0.95 * count
    held_out = found["held_out_spaces"]
    assert held_out["median_rho"] >= 0.8
    assert held_out["eight"][-1] <= 1.05


def test_the_page_states_these_results(results):
    text = (pages.ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| Adreno (\d+) \| (\d+) \| ([\d.]+) \| (\d+) % \| (\d+) % \|", text)
    assert len(rows) == 5
    for number, *stated in rows:
        found = results["model"]["adreno"][f"without adreno-{number}"]
        count, ratio, *percents = map(float, stated)
        assert (count, ratio) == (found["records"], round(found["median"], 2))
        shares = [100 * found[name] for name in ("within_1.5", "within_2")]
        assert percents == pytest.approx(shares, abs=0.55)


def test_heuristics_are_near_the_best(results):
    median, ninetieth, _ = results["heuristics"]["model"]["all"]["quantiles"]
    assert median <= 1.10
    assert ninetieth <= 1.35
