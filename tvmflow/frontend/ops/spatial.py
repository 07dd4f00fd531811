"""Sampling an image at computed positions."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ..converter import NodeContext, Refusal, converts, shape_along


@converts("GridSample")
def grid_sample(c: NodeContext) -> relax.Expr:
    """Sample an image at the positions of a grid."""
    if len(c.shape()) != 4:
        raise Refusal("only images with two spatial axes are supported")
    methods = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest",
               "cubic": "bicubic", "bicubic": "bicubic"}  # fmt: skip
    method = methods.get(c.attribute("mode", "linear"))
    if method is None:
        raise Refusal(f"its mode {c.attribute('mode')!r} is unknown")
    padding, align = c.attribute("padding_mode", "zeros"), bool(c.attribute("align_corners", 0))
    image = c.input()
    for axis in (2, 3):
        # Reflected between the centres of the first and the last element, which TVM divides by
        # the distance of: between two that are alike, every position is the one that there is.
        if padding == "reflection" and align and c.shape()[axis] == 1:
            image = R.concat([image, image], axis)
    # Relax keeps the two coordinates in front of the grid's axes.
    grid = R.permute_dims(c.input(1), [0, 3, 1, 2])
    return R.image.grid_sample(
        image, grid, method=method, padding_mode=padding, align_corners=align
    )


@converts("RoiAlign")
def roi_align(c: NodeContext) -> relax.Expr:
    """Average of samples in every cell of every region."""
    if c.attribute("mode", "avg") != "avg":
        raise Refusal("only the mode avg is supported")
    default = "half_pixel" if c.opset >= 16 else "output_half_pixel"
    mode = c.attribute("coordinate_transformation_mode", default)
    batch = R.astype(R.reshape(c.input(2), (c.shape(2)[0], 1)), c.dtype(1))
    rois = R.concat([batch, c.input(1)], 1)
    scale = c.attribute("spatial_scale", 1.0)
    if mode == "half_pixel":
        offset = np.array([0, -0.5, -0.5, -0.5, -0.5]) / scale
        rois = rois + c.constant(offset, c.dtype(1))
    return R.vision.roi_align(
        c.input(), rois,
        pooled_size=(c.attribute("output_height", 1), c.attribute("output_width", 1)),
        spatial_scale=scale, sample_ratio=c.attribute("sampling_ratio", 0),
        aligned=mode == "half_pixel", layout="NCHW", mode="avg",
    )  # fmt: skip


@converts("AffineGrid")
def affine_grid(c: NodeContext) -> relax.Expr:
    """Positions of a grid, of two or three axes, under an affine map."""
    batch, _, *extents = (int(extent) for extent in c.array(1, "sizes"))
    if len(extents) not in (2, 3):
        raise Refusal(f"its grid has {len(extents)} axes; two and three are supported")
    # Between the centres of the first and the last element, or between their outer sides.
    align = bool(c.attribute("align_corners", 0))
    lines = [_positions(n) if align else _positions(n) * (n - 1) / n for n in extents]
    rank = len(extents)

    def column(index: int) -> relax.Expr:
        found = R.strided_slice(c.input(), [2], [index], [index + 1])
        return R.reshape(found, (batch, *[1] * rank, rank))

    result = column(rank)
    # Positions begin with the last axis, x.
    for index, axis in enumerate(reversed(range(rank))):
        line = c.constant(lines[axis].reshape(1, *shape_along(axis, rank), 1))
        result = result + line * column(index)
    return R.broadcast_to(result, (batch, *extents, rank))


def _positions(count: int) -> np.ndarray:
    """Return numbers from -1 to 1; ONNX Runtime's only one is 1."""
    return np.linspace(-1, 1, count) if count > 1 else np.ones(1)
