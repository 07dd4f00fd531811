"""Facts of a convolution's kernel for :mod:`.device_model`, from its shape and knobs.

Nothing is compiled.  Knobs may be arrays, for many kernels at a time.  The supported kernels read
textures: convolutions, pointwise or not, and depthwise ones.  Lanes of a wave are items along
columns first, then along rows and channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..devices.gpus import Gpu
from ..devices.presets import PRESETS
from ..ir.annotations import MOST_TEXELS
from ..schedules import conv2d, conv2d_1x1, depthwise
from ..schedules.registers import most_vectors
from .device_model import LINE, Kernel, Number

#: Families whose kernels the model supports.
FAMILIES = (conv2d.NAME, conv2d_1x1.NAME, depthwise.NAME)
#: Knobs that the model distinguishes; there are no measurements for others.
KNOBS = (
    *("tile_o", "tile_h", "tile_w", "group_o", "group_h", "group_w"),
    *("split_i", "reuse_rows"),
)


@dataclass(frozen=True)
class Precision:
    """Bytes of a stored number, and of a sum."""

    stored: int
    sums: int

    @property
    def texel(self) -> int:
        """Return the bytes of a texel."""
        return 4 * self.stored


def lanes_along(
    group_o: Number, group_h: Number, group_w: Number, wave: int
) -> tuple[Number, Number, Number]:
    """Return the numbers of different channels, rows and columns of a wave's items."""
    columns = np.minimum(group_w, wave)
    rows = np.minimum(group_h, np.ceil(wave / columns))
    return np.minimum(group_o, np.ceil(wave / (columns * rows))), rows, columns


def lines_of(texels: Number, texel_bytes: Number) -> Number:
    """Return the number of cache lines of neighbouring texels."""
    return np.ceil(texels * texel_bytes / LINE)


def convolution(
    shape: conv2d.Shape, knobs: Mapping[str, Any], precision: Precision, stride: int, gpu: Gpu
) -> Kernel:
    """Return the kernel of a convolution that reads textures, pointwise or not.

    If the products of a row are unrolled (:mod:`schedules.conv2d`), a row of texels serves all
    columns of the window; a step is then a row of the window for a block of input channels.
    """
    tile_o, tile_h, tile_w, group_o, group_h, group_w = (knobs[name] for name in KNOBS[:6])
    split = knobs.get("split_i", 1)
    vectors = tile_o * tile_h * tile_w
    weights = tile_o * shape.input_lanes
    row = tile_h * ((tile_w - 1) * stride + shape.kernel_w)
    unrolled = shape.kernel_w * shape.input_lanes * vectors <= conv2d.UNROLLED_PRODUCTS
    unrolled &= vectors + row + weights <= most_vectors(PRESETS[gpu.preset])
    unrolled &= row <= MOST_TEXELS
    taps = np.where(unrolled, shape.kernel_w, 1)
    blocks = -(-shape.inputs // shape.input_block)
    steps = blocks * shape.kernel_h * shape.kernel_w // taps
    # Items also wait for writing a part into local memory and for reading the others' parts.
    steps = np.where(np.greater(split, 1), -(-steps // split) + 2, steps)
    channels, rows, columns = lanes_along(group_o, group_h, group_w, gpu.wave)
    texels = tile_h * ((tile_w - 1) * stride + taps)
    bytes_in = 4 * blocks * shape.height * shape.width * stride**2
    bytes_out = 4 * shape.outputs * shape.height * shape.width
    return Kernel(
        groups=_groups(shape.batch, shape.outputs, shape.height, shape.width, knobs),
        items=group_o * group_h * group_w * split,
        steps=steps,
        multiply_adds=4 * shape.input_lanes * taps * vectors,
        fetches=texels + taps * weights,
        texel_bytes=precision.texel,
        lines=rows * tile_h * lines_of(columns * tile_w * stride, precision.texel)
        + channels * tile_o * lines_of(taps * shape.input_lanes, precision.texel),
        sums=vectors,
        sum_bytes=precision.sums,
        bytes=precision.stored * (shape.batch * (bytes_in + bytes_out) + shape.weight_bytes // 4),
        live=texels + weights,
    )


def depthwise_convolution(
    shape: depthwise.Shape, knobs: Mapping[str, Any], precision: Precision, gpu: Gpu
) -> Kernel:
    """Return the kernel of a depthwise convolution that reads textures.

    A step is a row of the window for a row of the tile, or with ``reuse_rows`` for the whole tile.
    """
    tile_o, tile_h, tile_w, group_o, group_h, group_w = (knobs[name] for name in KNOBS[:6])
    reuse, taps_w = knobs["reuse_rows"], shape.kernel_w
    taps_h, tile_rows = np.where(reuse, shape.kernel_h, 1), np.where(reuse, tile_h, 1)
    rows_in = np.where(reuse, (tile_h - 1) * shape.stride_h + shape.span_h, 1)
    columns_in = (tile_w - 1) * shape.stride_w + shape.span_w
    channels, rows, columns = lanes_along(group_o, group_h, group_w, gpu.wave)
    fetches = rows_in * columns_in + taps_h * taps_w
    row_lines = lines_of(columns * tile_w * shape.stride_w, precision.texel)
    map_in = shape.height * shape.stride_h * shape.width * shape.stride_w
    numbers = map_in + shape.height * shape.width + shape.kernel_h * shape.kernel_w
    return Kernel(
        groups=_groups(shape.batch, shape.blocks, shape.height, shape.width, knobs),
        items=group_o * group_h * group_w,
        steps=tile_o * (tile_h // tile_rows) * (shape.kernel_h // taps_h),
        multiply_adds=4 * tile_rows * tile_w * taps_h * taps_w,
        fetches=fetches,
        texel_bytes=precision.texel,
        lines=channels * (rows * rows_in * row_lines + lines_of(taps_h * taps_w, precision.texel)),
        sums=tile_rows * tile_w,
        sum_bytes=precision.sums,
        bytes=4 * precision.stored * shape.batch * shape.blocks * numbers,
        live=fetches,
    )


def _groups(batch: int, blocks: int, height: int, width: int, knobs: Mapping[str, Any]) -> Number:
    """Return the number of work-groups of a launch."""
    groups: Number = 1
    for extent, axis in zip((batch * blocks, height, width), "ohw", strict=True):
        groups *= -(-extent // (knobs[f"tile_{axis}"] * knobs[f"group_{axis}"]))
    return groups


def kernel_of(
    family: str,
    shape: Any,
    knobs: Mapping[str, Any],
    precision: Precision,
    gpu: Gpu,
    stride: int = 1,
) -> Kernel:
    """Return the kernel of one of :data:`FAMILIES`; ``stride`` is a convolution's."""
    if family == depthwise.NAME:
        return depthwise_convolution(shape, knobs, precision, gpu)
    return convolution(shape, knobs, precision, stride, gpu)
