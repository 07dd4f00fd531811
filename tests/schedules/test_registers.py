"""Estimates of a work-item's registers, and the texels that schedules stage by them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.operators import conv
from support.scheduled_networks import fused

from tvmflow.devices.target import PRESETS, resolve
from tvmflow.explain.analysis.lowered import kernels_of
from tvmflow.ir.traffic import buffer_bytes
from tvmflow.schedules import conv2d
from tvmflow.schedules.common import Workload
from tvmflow.schedules.conv2d import Knobs, Shape, live_vectors
from tvmflow.schedules.registers import columns_read, most_vectors, window_steps

ADRENO = PRESETS["adreno"]


@pytest.mark.parametrize(
    ("tile_w", "kernel_w", "stride", "dilation", "columns"),
    [(8, 3, 1, 1, 10), (8, 3, 2, 1, 17), (8, 8, 8, 1, 64), (4, 3, 1, 12, 12), (3, 1, 2, 1, 3)],
)
def test_columns_that_a_row_reads(tile_w, kernel_w, stride, dilation, columns):
    assert columns_read(tile_w, kernel_w, stride, dilation) == columns


def test_groups_with_barriers_have_fewer_registers():
    # Mesa's compiler has 48 registers for an item of one wave, 32 and 16 for these groups.
    limits = [most_vectors(ADRENO, items) for items in (1, 64, 128, 256, 288, 512)]
    assert limits == [36, 36, 24, 24, 12, 12]


def test_live_vectors():
    shape = Shape(
        1, 8, 16, 16, 4, 32, 8, 8, padded=False, texture=True, weights="texture", input_block=4
    )
    knobs = Knobs(1, 1, 8, 4, 8, 2, 1, 1, False, False, "direct")
    # 8 sums, 64 texels of a row or 8 of a column, 4 weights.
    assert live_vectors(shape, knobs, 64) == 76
    assert live_vectors(shape, knobs, 8) == 20


def workload_of(model) -> Workload:
    """Return the convolution of a network on textures, before it is scheduled."""
    target = resolve("opencl", "adreno")
    functions = fused(model, target, "texture").functions
    (function,) = (f for gv, f in functions.items() if "conv2d" in gv.name_hint)
    return Workload.of(function, target)


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 3), (4, 1)])
def test_steps_of_a_window(stride, dilation):
    model = conv((1, 8, 40, 40), 8, stride=stride, pad=dilation, dilation=dilation, bias=False)
    workload = workload_of(model)
    assert window_steps(workload, workload.anchor("conv2d")) == (stride, dilation)


def texels_at_once(schedule) -> int:
    """Return the texels of the input that are staged at a time."""
    function = schedule.mod["main"].with_attr("global_symbol", "kernel")
    (kernel,) = kernels_of(function, resolve("opencl", "adreno"))
    (staged,) = (buffer for buffer in kernel.allocated if "pad" in buffer.name)
    return buffer_bytes(staged) // 16


KNOBS = Knobs(group_o=4, group_h=1, group_w=1, tile_o=1, tile_h=1, tile_w=8, unroll_i=4,
              split_i=1, stage_input=False, split_borders=False, weights="direct")  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "stride", "texels"),
    # A row of texels is staged if it fits the registers, else those of a column of the window,
    # with the texels between them, which are not read.
    [(3, 1, 10), (3, 2, 17), (5, 4, 29), (8, 8, 57)],
)
def test_a_row_of_texels_is_staged_if_it_fits(kernel, stride, texels):
    model = conv((1, 64, 64, 64), 64, (kernel, kernel), stride=stride, pad=1, bias=False)
    assert texels_at_once(conv2d.apply(workload_of(model), KNOBS)) == texels


def test_a_row_of_many_texels_is_not_staged():
    """Next to few sums 27 texels fit, but the row's weights are read ahead, too."""
    model = conv((1, 64, 64, 64), 64, (11, 11), stride=4, pad=2, bias=False)
    assert texels_at_once(conv2d.apply(workload_of(model), replace(KNOBS, tile_w=5))) == 17


@pytest.mark.parametrize(("items", "texels"), [(64, 17), (128, 15)])
def test_a_group_with_barriers_stages_less(items, texels):
    model = conv((1, 64, 64, 64), 128, stride=2, bias=False)
    knobs = replace(KNOBS, split_i=4, group_o=items // 4)
    assert texels_at_once(conv2d.apply(workload_of(model), knobs)) == texels


def test_a_group_with_barriers_has_room_for_weights_read_ahead():
    """A row of 12 texels, six sums and a tap's weights fit, but not those of seven taps."""
    model = conv((1, 64, 12, 12), 192, (1, 7), pad=3, bias=False)
    knobs = replace(KNOBS, split_i=2, group_o=48, tile_w=6)
    assert texels_at_once(conv2d.apply(workload_of(model), knobs)) == 6


@pytest.mark.parametrize("outputs", [144, 96, 160, 320])
def test_items_that_share_a_sum_have_registers(outputs):
    """A group of all 144 blocks of channels, two items each, would fill its waves best."""
    shape = Shape(
        1, outputs, 6, 6, 4, 96, 1, 1, padded=False, texture=True, weights="texture", input_block=4
    )
    knobs = conv2d.heuristic(shape, ADRENO)
    assert live_vectors(shape, knobs, knobs.tile_w) <= most_vectors(ADRENO, knobs.barrier_items)
