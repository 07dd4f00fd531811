"""Reads of convolutions for each product on GPUs, counted in the code of their kernels.

A work-item that computes one vector reads a vector of weights for each of its products; a tile of
several columns and blocks reuses weights and inputs.
"""

from __future__ import annotations

import pytest
from support.operators import conv
from support.scheduled_networks import scheduled

from tvmflow.devices.target import PRESETS, resolve
from tvmflow.explain.analysis.executions import instructions
from tvmflow.explain.analysis.lowered import kernels_of
from tvmflow.schedules import conv2d

#: Most elements read for a product: 0.42 if 4 channels of 6 pixels are multiplied with those of a
#: block, 0.5 for 4 pixels, 0.75 for two pixels, 1.25 for one.
MOST_READ = 0.6

#: Layers that are neither of Winograd's form, nor so small that a reduction is split.
LAYERS = {
    "strided": ((1, 16, 96, 96), 32, (3, 3), 2),
    "pointwise": ((1, 16, 48, 48), 32, (1, 1), 1),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("device", ["adreno", "mali", "nvidia"])
def test_products_share_what_is_read(device, layer):
    shape, outputs, kernel, stride = LAYERS[layer]
    pad = kernel[0] // 2
    model = conv(shape, outputs, kernel, stride=stride, pad=pad, bias=False, activation=None)
    target = resolve("opencl", device)
    (function,) = (
        f
        for f in scheduled(model, target, "buffer").values()
        if "conv2d" in f.attrs["global_symbol"]
    )
    (code,) = kernels_of(function, target)
    # Loads that unrolled code repeats are read once.
    distinct = {
        str(site): instructions(code, site) * site.lanes
        for site in code.sites
        if site.scope == "global" and not site.is_store
    }
    height, width = (extent // stride for extent in shape[2:])
    products = outputs * height * width * shape[1] * kernel[0] * kernel[1]
    assert sum(distinct.values()) <= MOST_READ * products


@pytest.mark.parametrize("device", [name for name, preset in PRESETS.items() if not preset.is_cpu])
@pytest.mark.parametrize("size", [7, 14, 28, 56, 112])
def test_tiles_fill_the_registers(device, size):
    """Tiles are at least two thirds of the usual, unless twice as large ones would be too few."""
    preset = PRESETS[device]
    for kernel in (1, 3):
        shape = conv2d.Shape(
            1, 16, size, size, preset.channel_block, 64, kernel, kernel, padded=kernel > 1,
            texture=False, weights="buffer", input_block=preset.channel_block,
        )  # fmt: skip
        knobs = conv2d.heuristic(shape, preset)
        tile = knobs.tile_o * knobs.tile_h * knobs.tile_w
        fewer = 16 * size * size / (2 * tile)
        assert 3 * tile >= 2 * preset.convolution.vectors - 2 or fewer < conv2d.LEAST_ITEMS
