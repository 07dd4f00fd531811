"""Measured operators: exact ones, the nearest one, and none."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from tvmflow.explain.yardstick.measured import (
    GPUS,
    LIMIT,
    Operator,
    distance,
    measured_operators,
    yardstick_of,
)

CONV = Operator("conv2d", 64, 64, 56, 56, window=3)
TIMES = dict.fromkeys(GPUS.values(), 100.0)


def test_a_measured_shape_has_its_own_times():
    found = yardstick_of(CONV)
    assert found.measured == CONV
    assert found.distance == 0
    assert found.measured_text == "the same"
    assert found.us == measured_operators()[CONV]
    assert set(found.us) == set(GPUS.values())
    flops = 2 * 64 * 64 * 56**2 * 3**2
    assert found.gflops["Adreno 640"] == pytest.approx(flops / found.us["Adreno 640"] / 1e3)


def test_another_shape_has_the_times_of_the_nearest_one_unscaled():
    near, far = replace(CONV, outputs=80), replace(CONV, outputs=32)
    other_window = replace(CONV, outputs=96, window=5)
    known = {near: TIMES, far: {}, other_window: {}, replace(near, stride=2): {}}
    found = yardstick_of(replace(CONV, outputs=96), known)
    assert found.measured == near
    assert found.us == TIMES
    assert 0 < found.distance < LIMIT
    assert found.measured_text == "conv2d 3×3, 64 → 80, 56×56"
    assert found.gflops["Mali-G76"] == pytest.approx(near.flops / 100 / 1e3)


def test_channels_of_a_block_count_as_equal():
    known = {replace(CONV, outputs=62): {}, replace(CONV, outputs=63): TIMES}
    found = yardstick_of(CONV, known)
    assert found.distance == 0
    # Of both, the one with more equal channels.
    assert found.us == TIMES


def test_maps_are_compared_by_their_area():
    oblong = replace(CONV, height=112, width=28)
    assert distance(oblong, CONV) == 0
    assert distance(replace(CONV, height=28), CONV) == 1


def test_beyond_the_limit_there_is_nothing():
    known = {CONV: TIMES}
    assert yardstick_of(replace(CONV, inputs=128), known) is not None
    assert yardstick_of(replace(CONV, inputs=132), known) is None
    assert yardstick_of(replace(CONV, inputs=128, outputs=32), known) is None
    assert yardstick_of(replace(CONV, kind="grouped", groups=2), known) is None
    assert yardstick_of(CONV, {}) is None


def test_groups_of_another_width_are_farther():
    grouped = Operator("grouped", 64, 64, 14, 14, window=3, groups=8)
    assert distance(replace(grouped, groups=16), grouped) == 1


@pytest.mark.parametrize(
    ("operator", "text", "flops"),
    [
        (Operator("conv2d", 3, 8, 4, 5, 3, 2), "conv2d 3×3 stride 2, 3 → 8, 4×5", 8640),
        (Operator("grouped", 8, 8, 2, 2, 3, groups=2), "grouped 3×3 2 groups, 8 → 8, 2×2", 2304),
        (Operator("depthwise", 8, 8, 2, 2, 3), "depthwise 3×3, 8, 2×2", 576),
        (Operator("pooling", 8, 8, 2, 2, 2, 2), "pooling 2×2 stride 2, 8, 2×2", 128),
        (Operator("mean", 8, 8, 7, 7), "mean, 8, 7×7", 392),
        (Operator("dense", 8, 10), "dense, 8 → 10", 160),
        (Operator("concat", 8, 24, 2, 2), "concat, 24, 2×2", 0),
    ],
)
def test_operators_say_what_they_are(operator, text, flops):
    assert str(operator) == text
    assert operator.flops == flops


def test_moves_have_no_rates():
    concat = next(each for each in measured_operators() if each.kind == "concat")
    assert yardstick_of(concat).gflops == {}


def test_shapes_that_are_left_out_are_near_their_neighbours():
    """The median rate of the nearest shape is within a fifth of the true one on each GPU."""
    known = measured_operators()
    ratios = {gpu: [] for gpu in GPUS.values()}
    for operator in list(known)[::7]:
        others = {each: times for each, times in known.items() if each.sizes != operator.sizes}
        found = yardstick_of(operator, others)
        if found is None or not operator.flops:
            continue
        for gpu, us in known[operator].items():
            ratio = found.gflops[gpu] / (operator.flops / us / 1e3)
            ratios[gpu].append(max(ratio, 1 / ratio))
    assert all(len(each) > 100 and median(each) < 1.2 for each in ratios.values())
