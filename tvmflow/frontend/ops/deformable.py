"""Converter of deformable convolutions (Dai et al., "Deformable Convolutional Networks", 2017).

Each tap of each output has its own offset.  The samples of all taps are stacked along the height of
one tensor, on which the layer is a dilated convolution along the height::

    offsets : [N, 2, K * H', W']    of columns, then of rows
    samples : [N, C, K * H', W']    = sample(x, position of each tap + its offset) * mask
    y       : [N, O, H', W']        = conv2d(samples, w : [O, C / group, K, 1], dilation (H', 1))
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...schedules.grid_sample import Taps, sample
from ..converter import NodeContext, Refusal, converts
from .convolution import read_windows, spatial_rank, with_bias


@converts("DeformConv")
def deform_conv(c: NodeContext) -> relax.Expr:
    """Compute a deformable convolution of x, w, offsets, and an optional bias and mask."""
    if len(c.shape()) != 4:
        raise Refusal(f"it has {len(c.shape()) - 2} spatial axes; only two are supported")
    batch, channels, *size = c.shape()
    _check(c)
    kernel = c.shape(1)[2:]
    height, width = c.result.shape[2:]
    groups, taps = c.attribute("offset_group", 1), kernel[0] * kernel[1]
    # Each group of channels has its own offsets, and is treated as an image of the batch.
    pictures, rows = batch * groups, taps * height
    image = c.input()
    if groups > 1:
        image = R.reshape(image, (pictures, channels // groups, *size))
    windows = read_windows(c.attributes, kernel, tuple(size))
    moved = Taps(height, kernel[1], windows.strides, windows.pads[:2], windows.dilations)
    samples = sample(image, _offsets(c, pictures, taps), moved)
    if c.has(4):
        samples = samples * R.reshape(c.input(4), (pictures, 1, rows, width))
    if groups > 1:
        samples = R.reshape(samples, (batch, channels, rows, width))
    weight, groups = c.reshaped(1, (*c.shape(1)[:2], taps, 1)), c.attribute("group", 1)
    return with_bias(c, R.nn.conv2d(samples, weight, dilation=(height, 1), groups=groups), 3)


def _offsets(c: NodeContext, pictures: int, taps: int) -> relax.Expr:
    """Return the offsets of columns, then of rows, of all taps."""
    height, width = c.result.shape[2:]
    # ONNX has the row and the column of each tap in turn; the result has all columns first.
    offsets = R.reshape(c.input(2), (pictures, taps, 2, height, width))
    offsets = R.flip(R.permute_dims(offsets, [0, 2, 1, 3, 4]), 1)
    return R.reshape(offsets, (pictures, 2, taps * height, width))


def _check(c: NodeContext) -> None:
    """Check the shapes of the operands, as ONNX's inference does not."""
    batch, channels = c.shape()[:2]
    group, groups = c.attribute("group", 1), c.attribute("offset_group", 1)
    taps, extents = int(np.prod(c.shape(1)[2:])), c.result.shape[2:]
    spatial_rank(c.shape(), c.shape(1), c.shape(1)[1] * group)
    if channels % groups or c.shape(1)[0] % group:
        raise Refusal(f"its {channels} channels are not divided by its groups")
    for index, name, numbers in ((2, "offsets", 2), (4, "masks", 1)):
        expected_shape = (batch, numbers * groups * taps, *extents)
        if c.has(index) and c.shape(index) != expected_shape:
            raise Refusal(f"its {name} have the shape {c.shape(index)}, not {expected_shape}")
