"""Converters of Resize and Upsample, with positions and weights computed at import.

All of ONNX's Resize modes are separable: along each axis an element of the result is a weighted
sum of a few elements of the input.  With static shapes the positions and weights are constants in
all modes.  The formulas are from the Resize specification in ONNX's operator documentation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from tvm import relax
from tvm.relax import op as R

from ...ir.rewriter import constant
from ...ir.tensors import TensorType
from ...schedules.resize import linear_taps, relax_nearest, relax_positions
from ..converter import InvalidNode, NodeContext, Refusal, converts, normalized_axes, shape_along
from ..graph import Graph, node_attributes
from .shaping import take_places

#: Largest extent: fp32, in which positions are computed, has all integers up to this.
_MOST_POSITIONS = 2**24


@dataclass(frozen=True)
class ResizeModes:
    """Attributes of a Resize that determine positions and weights."""

    mode: str
    coordinate: str
    nearest: str
    cubic_alpha: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


def _resized_type(node: onnx.NodeProto, graph: Graph) -> TensorType | None:
    """Return the type for given factors, computed in fp32 as in ONNX Runtime: 5 · 1.4 is 7.

    ONNX's inference multiplies in fp64, in which the fp32 factor is less than 1.4.
    """
    attributes = node_attributes(node)
    place = 2 if node.op_type == "Resize" and graph.opset >= 11 else 1
    given = attributes.get("scales")
    if given is None and len(node.input) > place:
        given = graph.constants.get(node.input[place])
    if given is None or not len(given):
        return None  # extents are given instead of factors
    data = graph.type_of(node.input[0])
    rank, shape = len(data.shape), list(data.shape)
    axes = normalized_axes(attributes.get("axes") or range(rank), rank)
    for axis, scale in zip(axes, given, strict=True):
        if not 0 < scale < np.inf:
            raise InvalidNode(
                f"its factor along the axis {axis} is {scale}, expected a positive number"
            )
        shape[axis] = int(np.float32(shape[axis]) * np.float32(scale))
    return TensorType(tuple(shape), data.dtype)


@converts("Resize", result_type=_resized_type)
def resize(c: NodeContext) -> relax.Expr:
    """Resize axes in any of ONNX's modes."""
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


@converts("Upsample", result_type=_resized_type)
def upsample(c: NodeContext) -> relax.Expr:
    """Resize by factors, which is also the form of Resize before opset 11."""
    scales = c.array(1, "scales").tolist() if c.has(1) else list(c.required("scales"))
    mode = c.attribute("mode", "nearest").replace("bilinear", "linear")
    if mode not in ("nearest", "linear"):
        raise Refusal(f"its mode {c.attribute('mode')!r} is unknown")
    modes = ResizeModes(mode, coordinate="asymmetric", nearest="simple")
    return _resize(c, scales, [(0.0, 1.0)] * len(c.shape()), modes)


def _scales(c: NodeContext, axes: list[int]) -> list[float]:
    """Return the factor of every axis, as given or as the ratio of given extents."""
    shape = c.shape()
    ratios = c.array(2, "scales").tolist() if c.has(2) else []
    if not ratios:
        sizes = c.array(3, "sizes").tolist()
        ratios = [size / shape[axis] for axis, size in zip(axes, sizes, strict=True)]
        policy = c.attribute("keep_aspect_ratio_policy", "stretch")
        if policy not in ("stretch", "not_larger", "not_smaller"):
            raise Refusal(f"its keep_aspect_ratio_policy {policy!r} is unknown")
        if policy != "stretch":
            ratios = [min(ratios) if policy == "not_larger" else max(ratios)] * len(ratios)
    scales = dict(zip(axes, ratios, strict=True))
    return [scales.get(axis, 1.0) for axis in range(len(shape))]


def _regions(c: NodeContext, axes: list[int], modes: ResizeModes) -> list[tuple[float, float]]:
    """Return the region of interest of every axis, which only one mode uses."""
    if modes.coordinate != "tf_crop_and_resize":
        return [(0.0, 1.0)] * len(c.shape())
    given, count = c.array(1, "regions of interest").tolist(), len(axes)
    if len(given) != 2 * count:
        raise Refusal(f"its region of interest has {len(given)} numbers for {count} axes")
    regions = dict(zip(axes, zip(given[:count], given[count:], strict=True), strict=True))
    return [regions.get(axis, (0.0, 1.0)) for axis in range(len(c.shape()))]


def _resize(
    c: NodeContext, scales: list[float], regions: list[tuple[float, float]], modes: ResizeModes
) -> relax.Expr:
    shape, result = c.shape(), c.result.shape
    if not c.is_float() and modes.mode != "nearest":
        raise Refusal(f"interpolating {c.dtype()} values is not supported")
    maps = {}
    for axis, (size, extent, scale) in enumerate(zip(shape, result, scales, strict=True)):
        if modes.coordinate == "align_corners" and abs(size * scale - extent) > 1e-3:
            # The specification's formula and ONNX Runtime differ in this case.
            raise Refusal(
                f"align_corners with an extent of {size * scale:.3f} that is not whole is ambiguous"
            )
        if size == extent and scale == 1 and regions[axis] == (0.0, 1.0):
            continue  # in all modes the axis is unchanged
        mapped = _axis_map(size, extent, scale, regions[axis], modes)
        if not mapped.is_identity:
            maps[axis] = mapped
    if not maps:
        return c.input()
    if shape == result:
        # ONNX Runtime copies the input in this case, the specification resamples it.
        raise Refusal("resizing to the same shape by factors other than 1 is ambiguous")
    native = _native(c, maps, modes)
    if native is not None:
        return native
    kind = c.dtype()
    compute = "float32" if kind == "float16" and modes.mode != "nearest" else kind
    value = c.cast(c.input(), compute)
    for axis, mapped in maps.items():
        value = _along(c, value, axis, mapped, compute)
        if mapped.outside.any():
            mask = constant(mapped.outside.reshape(shape_along(axis, len(shape))))
            fill = c.constant(c.attribute("extrapolation_value", 0.0), compute)
            value = R.where(mask, fill, value)
    return value if compute == kind else R.astype(value, kind)


def _along(c: NodeContext, x: relax.Expr, axis: int, mapped: AxisMap, dtype: str) -> relax.Expr:
    """Resize one axis by selecting elements, mixing two of them, or a matrix product."""
    rank, taps = len(c.shape()), mapped.places.shape[1]
    if taps == 1:
        return take_places(x, mapped.places[:, 0], axis)
    if taps == 2:
        weights = mapped.weights.T.reshape(2, *shape_along(axis, rank))
        return R.add(
            *(
                take_places(x, mapped.places[:, tap], axis) * c.constant(weights[tap], dtype)
                for tap in range(2)
            )
        )
    # The weights become a matrix of shape (result, size).
    dense = np.zeros((len(mapped.places), mapped.size))
    rows = np.broadcast_to(np.arange(len(dense))[:, None], mapped.places.shape)
    np.add.at(dense, (rows, mapped.places), mapped.weights)
    matrix = dense.astype(np.float32)
    if axis == rank - 2:
        return R.matmul(c.constant(matrix, dtype), x)
    turned = c.constant(np.ascontiguousarray(matrix.T), dtype)
    if axis == rank - 1:
        return R.matmul(x, turned)
    swap = list(range(rank))
    swap[axis], swap[-1] = swap[-1], swap[axis]
    return R.permute_dims(R.matmul(R.permute_dims(x, swap), turned), swap)


def _native(c: NodeContext, maps: dict[int, AxisMap], modes: ResizeModes) -> relax.Expr | None:
    """Return Relax's operator for images if it reads the same elements, else ``None``.

    It computes positions at run time, from integer extents and in its own modes, which are
    compared with the required ones here.
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
    """Return whether a mode of Relax's operator has the same elements and weights."""
    result = len(mapped.coordinates)
    if mode == "align_corners" and result == 1:  # Relax's operator would divide by zero
        return False
    x = relax_positions(mapped.size, result, mode)
    if modes.mode == "linear":
        return bool(np.abs(x - mapped.coordinates).max() < 1e-4)
    # Slightly lower and higher positions must agree, too, so that rounding errors do not decide.
    margin = 4e-6
    low, high = (relax_nearest(x + m, _relax_rounding(modes)) for m in (-margin, margin))
    places, last = mapped.places[:, 0], mapped.size - 1
    return bool((low.clip(0, last) == places).all() and (high.clip(0, last) == places).all())


def _relax_rounding(modes: ResizeModes) -> str:
    """Return Relax's name for a rounding mode; interpolation has none."""
    if modes.mode != "nearest":
        return ""
    return "floor" if modes.nearest == "simple" else modes.nearest


@dataclass(frozen=True)
class AxisMap:
    """Positions and weights for one axis of a resize."""

    #: Extent of the input.
    size: int
    #: Real position in the input for each element of the result, float32.
    coordinates: np.ndarray
    #: Indices of elements of the input, of shape (result, taps).
    places: np.ndarray
    #: Weights of these elements, of shape (result, taps); rows sum to 1.
    weights: np.ndarray
    #: Whether an element of the result is outside the input and filled with a value.
    outside: np.ndarray

    @property
    def is_identity(self) -> bool:
        """Return whether the axis is unchanged."""
        if len(self.places) != self.size or self.outside.any():
            return False
        own = self.places == np.arange(self.size)[:, None]
        there = np.where(own, self.weights, 0.0).sum(axis=1).astype(np.float32)
        return bool((there == 1).all() and not self.weights[~own].astype(np.float32).any())


def _axis_map(
    size: int, result: int, scale: float, roi: tuple[float, float], modes: ResizeModes
) -> AxisMap:
    """Compute one axis; refuse unknown modes and positions that are not exact.

    ``scale`` is result / input, as given or as the ratio of the extents; ``roi`` is the start and
    end of the region of interest, relative to the axis.
    """
    if max(size, result) > _MOST_POSITIONS:
        raise Refusal(
            f"resizing an axis of {size} elements to {result}: beyond {_MOST_POSITIONS} their "
            "positions are not exact in fp32"
        )
    x = _coordinates(size, result, scale, roi, modes.coordinate)
    outside = np.zeros(result, bool)
    if modes.coordinate == "tf_crop_and_resize" and scale == 1 and roi != (0.0, 1.0):
        # ONNX Runtime does not crop an axis that keeps its extent, the specification does.
        raise Refusal("cropping an axis without resizing it is ambiguous")
    if modes.coordinate == "tf_crop_and_resize":
        outside = (x < 0) | (x > size - 1)
    if modes.antialias and size == result and scale != 1:
        raise Refusal("smoothing an axis that keeps its extent is ambiguous")
    if modes.mode == "nearest":
        # A position may be so close to a rounding boundary that its last bit decides.
        shifted = x.astype(np.float64) - (0.5 if modes.nearest.startswith("round") else 0.0)
        near = (np.abs(shifted - np.round(shifted)) < 1e-5).any()
        if modes.coordinate == "half_pixel_symmetric" and near:
            raise Refusal("a position between two elements, where rounding errors decide")
        places = _nearest(x, modes.nearest, scale)[:, None]
        weights = np.ones_like(places, np.float64)
    elif modes.mode == "linear" and not modes.antialias and not modes.exclude_outside:
        places, weights = linear_taps(x, size)
    elif modes.mode in ("linear", "cubic"):
        shrink = min(scale, 1.0) if modes.antialias else 1.0
        places, weights = _taps(x, shrink, modes)
        if modes.exclude_outside:
            weights = np.where((places >= 0) & (places < size), weights, 0.0)
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    else:
        raise Refusal(f"its mode {modes.mode!r} is unknown")
    return AxisMap(size, x, np.clip(places, 0, size - 1), weights, outside)


def _coordinates(
    size: int, result: int, scale: float, roi: tuple[float, float], mode: str
) -> np.ndarray:
    """Return the real position in the input of each element of the result, in float32.

    As in ONNX Runtime, fp32 decides about positions at the boundary between two elements.
    """
    one, half = np.float32(1), np.float32(0.5)
    y, s = np.arange(result, dtype=np.float32), np.float32(scale)
    length = np.float32(result)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and result > 1):
        return (y + half) / s - half
    if mode == "pytorch_half_pixel":
        return np.zeros_like(y)
    if mode == "half_pixel_symmetric":
        # The centre of the input becomes the centre of the result even if the exact extent
        # size · scale is not an integer.
        adjustment = length / (s * np.float32(size))
        centre = np.float32(size) / np.float32(2)
        return centre * (one - adjustment) + (y + half) / s - half
    if mode == "asymmetric":
        return y / s
    if mode == "align_corners":
        return y * np.float32(size - 1) / (length - one) if result > 1 else np.zeros_like(y)
    if mode == "tf_crop_and_resize":
        begin, end, last = np.float32(roi[0]), np.float32(roi[1]), np.float32(size - 1)
        if result > 1:
            return begin * last + y * (end - begin) * last / (length - one)
        return half * (begin + end) * last + np.zeros_like(y)
    raise Refusal(f"its coordinate_transformation_mode {mode!r} is unknown")


_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _nearest(x: np.ndarray, mode: str, scale: float) -> np.ndarray:
    if mode == "simple":  # before opset 11 ONNX defines no rule, so this is ONNX Runtime's
        mode = "ceil" if scale < 1 else "floor"
    if mode not in _ROUNDINGS:
        raise Refusal(f"its nearest_mode {mode!r} is unknown")
    return _ROUNDINGS[mode](x).astype(np.int64)


def _taps(x: np.ndarray, shrink: float, modes: ResizeModes) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices and weights of all elements under the interpolation's kernel.

    For downsampling with ``antialias`` the kernel is stretched by 1 / shrink.
    """
    radius = (1 if modes.mode == "linear" else 2) / shrink
    first = np.floor(x.astype(np.float64) - radius).astype(np.int64) + 1
    places = first[:, None] + np.arange(int(np.ceil(2 * radius)))[None, :]
    distance = np.abs(places - x.astype(np.float64)[:, None]) * shrink
    if modes.mode == "linear":
        return places, np.clip(1.0 - distance, 0.0, 1.0)
    return places, _cubic(distance, modes.cubic_alpha)


def _cubic(t: np.ndarray, a: float) -> np.ndarray:
    """Return Keys' cubic convolution kernel (IEEE Trans. ASSP 29(6), 1981, eq. 4, a free)."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))
