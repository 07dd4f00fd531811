"""Resize and Upsample."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...schedules.resize import relax_nearest, relax_positions
from .context import NodeContext, Refusal, constant, dtype_of
from .interpolation import AxisMap, ResizeModes, axis_map
from .registry import converts
from .shaping import normalized_axes, take_places

R = relax.op


@converts("Resize")
def resize(c: NodeContext) -> relax.Expr:
    """Resize any axes, in any of ONNX's modes."""
    rank = len(c.shape())
    if c.opset < 11:
        return upsample(c)
    modes = ResizeModes(
        mode=c.attribute("mode", "nearest"),
        coordinate=c.attribute("coordinate_transformation_mode", "half_pixel"),
        nearest=c.attribute("nearest_mode", "round_prefer_floor"),
        cubic_alpha=c.attribute("cubic_coeff_a", -0.75),
        exclude_outside=bool(c.attribute("exclude_outside", 0)),
        antialias=bool(c.attribute("antialias", 0)),
    )
    axes = normalized_axes(c.attribute("axes") or range(rank), rank)
    return _resize(c, _scales(c, axes), _regions(c, axes, modes), modes)


@converts("Upsample")
def upsample(c: NodeContext) -> relax.Expr:
    """Resize by factors: what Resize was before opset 11."""
    scales = c.array(1, "scales").tolist() if c.has(1) else list(c.required("scales"))
    mode = {"nearest": "nearest", "linear": "linear", "bilinear": "linear"}.get(
        c.attribute("mode", "nearest")
    )
    if mode is None:
        raise Refusal(f"its mode {c.attribute('mode')!r} is unknown")
    modes = ResizeModes(mode, "asymmetric", "simple", -0.75, False, False)
    return _resize(c, scales, [(0.0, 1.0)] * len(c.shape()), modes)


def _scales(c: NodeContext, axes: list[int]) -> list[float]:
    """Return the factor of every axis: given, or the ratio of given extents."""
    shape = c.shape()
    scales = [1.0] * len(shape)
    given = c.array(2, "scales").tolist() if c.has(2) else []
    if given:
        for axis, scale in zip(axes, given, strict=True):
            scales[axis] = scale
        return scales
    sizes = c.array(3, "sizes").tolist()
    ratios = [size / shape[axis] for axis, size in zip(axes, sizes, strict=True)]
    policy = c.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "not_larger":
        ratios = [min(ratios)] * len(ratios)
    elif policy == "not_smaller":
        ratios = [max(ratios)] * len(ratios)
    elif policy != "stretch":
        raise Refusal(f"its keep_aspect_ratio_policy {policy!r} is unknown")
    for axis, ratio in zip(axes, ratios, strict=True):
        scales[axis] = ratio
    return scales


def _regions(c: NodeContext, axes: list[int], modes: ResizeModes) -> list[tuple[float, float]]:
    """Return the region of interest of every axis, which one mode asks for."""
    regions = [(0.0, 1.0)] * len(c.shape())
    if modes.coordinate == "tf_crop_and_resize":
        given = c.array(1, "regions of interest").tolist()
        if len(given) != 2 * len(axes):
            raise Refusal(f"its region of interest has {len(given)} numbers for {len(axes)} axes")
        for index, axis in enumerate(axes):
            regions[axis] = (given[index], given[index + len(axes)])
    return regions


def _resize(
    c: NodeContext, scales: list[float], regions: list[tuple[float, float]], modes: ResizeModes
) -> relax.Expr:
    shape, result = c.shape(), c.result.shape
    floating = np.dtype(c.dtype()).kind == "f"
    if not floating and modes.mode != "nearest":
        raise Refusal(f"interpolating {c.dtype()} values is not supported")
    maps = {}
    for axis, (size, extent, scale) in enumerate(zip(shape, result, scales, strict=True)):
        if modes.coordinate == "align_corners" and abs(size * scale - extent) > 1e-3:
            # The specification's formula and ONNX Runtime differ here.
            raise Refusal(
                f"align_corners with an extent of {size * scale:.3f} that is not whole is ambiguous"
            )
        if size == extent and scale == 1 and regions[axis] == (0.0, 1.0):
            continue  # its elements stay where they are, in all modes
        mapped = axis_map(size, extent, scale, regions[axis], modes)
        if not mapped.is_identity:
            maps[axis] = mapped
    if not maps:
        return c.input()
    if shape == result:
        # ONNX Runtime copies the input here; the specification moves its elements.
        raise Refusal("resizing to the same shape by factors other than 1 is ambiguous")
    native = _native(c, maps, modes)
    if native is not None:
        return native
    value, kind = c.input(), c.dtype()
    compute = "float32" if kind == "float16" and modes.mode != "nearest" else kind
    if compute != kind:
        value = c.emit(R.astype(value, compute))
    for axis, mapped in maps.items():
        value = c.emit(_along(c, value, axis, mapped))
        if mapped.outside.any():
            mask = constant(mapped.outside.reshape(_along_axis(len(shape), axis)))
            fill = c.constant(c.attribute("extrapolation_value", 0.0), compute)
            value = c.emit(R.where(mask, fill, value))
    return value if compute == kind else R.astype(value, kind)


def _along_axis(rank: int, axis: int) -> list[int]:
    return [-1 if a == axis else 1 for a in range(rank)]


def _along(c: NodeContext, x: relax.Expr, axis: int, mapped: AxisMap) -> relax.Expr:
    """Resize one axis: by taking elements, mixing two, or a product with a matrix."""
    rank, taps = len(x.ty.shape), mapped.places.shape[1]
    if taps == 1:
        return take_places(x, mapped.places[:, 0], axis)
    if taps == 2:
        shape, parts = _along_axis(rank, axis), []
        for tap in range(2):
            taken = c.emit(take_places(x, mapped.places[:, tap], axis))
            weight = c.constant(mapped.weights[:, tap].reshape(shape), dtype_of(x))
            parts.append(c.emit(R.multiply(taken, weight)))
        return R.add(*parts)
    matrix = mapped.matrix()
    if axis == rank - 2:
        return R.matmul(c.constant(matrix, dtype_of(x)), x)
    turned = c.constant(np.ascontiguousarray(matrix.T), dtype_of(x))
    if axis == rank - 1:
        return R.matmul(x, turned)
    swap = list(range(rank))
    swap[axis], swap[-1] = swap[-1], swap[axis]
    return R.permute_dims(c.emit(R.matmul(c.emit(R.permute_dims(x, swap)), turned)), swap)


def _native(c: NodeContext, maps: dict[int, AxisMap], modes: ResizeModes) -> relax.Expr | None:
    """Use Relax's operator for images where it takes the very same elements.

    It computes positions at run time, from whole extents, in modes of its own; they are
    compared with the wanted ones here.
    """
    simple = not modes.antialias and not modes.exclude_outside and modes.mode != "cubic"
    if len(c.shape()) != 4 or not set(maps) <= {2, 3} or not simple:
        return None
    if c.dtype() not in ("float32", "float16") or any(m.outside.any() for m in maps.values()):
        return None
    for mode in ("half_pixel", "asymmetric", "align_corners"):
        if all(_agrees(m, mode, modes) for m in maps.values()):
            return R.image.resize2d(
                c.input(), c.result.shape[2:], layout="NCHW",
                method="nearest_neighbor" if modes.mode == "nearest" else "linear",
                coordinate_transformation_mode=mode,
                rounding_method=_relax_rounding(modes),
            )  # fmt: skip
    return None


def _agrees(mapped: AxisMap, mode: str, modes: ResizeModes) -> bool:
    """Whether a mode of Relax's operator leads to the same elements and weights."""
    result = len(mapped.coordinates)
    if mode == "align_corners" and result == 1:  # Relax's operator would divide by zero
        return False
    x = relax_positions(mapped.size, result, mode)
    if modes.mode == "linear":
        return bool(np.abs(x - mapped.coordinates).max() < 1e-4)
    # Equal for positions a little lower and higher too: rounding errors must not decide.
    margin = 4e-6
    low, high = (relax_nearest(x + m, _relax_rounding(modes)) for m in (-margin, margin))
    places, last = mapped.places[:, 0], mapped.size - 1
    return bool((low.clip(0, last) == places).all() and (high.clip(0, last) == places).all())


def _relax_rounding(modes: ResizeModes) -> str:
    """Relax's name of a rounding; interpolation has none."""
    if modes.mode != "nearest":
        return ""
    return "floor" if modes.nearest == "simple" else modes.nearest
