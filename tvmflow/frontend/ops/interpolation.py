"""Where every element of a resized axis comes from, worked out when the model is imported.

All of ONNX's Resize modes are separable: each axis of the result is a weighted sum of a
few elements of the same axis of the input.  With static shapes the places and weights
are constants, whatever the mode.  The formulas are those of the Resize specification,
in ONNX's operator documentation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...schedules.resize import linear_taps
from .context import Refusal

#: Up to here fp32, in which positions are worked out, has all whole numbers.
_MOST_POSITIONS = 2**24


@dataclass(frozen=True)
class AxisMap:
    """One axis of a resize.

    Parameters
    ----------
    size
        Extent of the input.
    coordinates
        Real position in the input for each element of the result, float32.
    places
        Shape (result, taps): elements of the input, within the axis.
    weights
        Shape (result, taps): what they are multiplied by; rows sum to 1.
    outside
        Which elements of the result lie outside the input and are filled with a value.
    """

    size: int
    coordinates: np.ndarray
    places: np.ndarray
    weights: np.ndarray
    outside: np.ndarray

    @property
    def is_identity(self) -> bool:
        """Whether the axis stays as it is."""
        if len(self.places) != self.size or self.outside.any():
            return False
        own = self.places == np.arange(self.size)[:, None]
        there = np.where(own, self.weights, 0.0).sum(axis=1).astype(np.float32)
        return bool((there == 1).all() and not self.weights[~own].astype(np.float32).any())

    def matrix(self) -> np.ndarray:
        """Return the weights as a matrix (result, size) in float32."""
        dense = np.zeros((len(self.places), self.size))
        rows = np.broadcast_to(np.arange(len(self.places))[:, None], self.places.shape)
        np.add.at(dense, (rows, self.places), self.weights)
        return dense.astype(np.float32)


@dataclass(frozen=True)
class ResizeModes:
    """The attributes of a Resize that say where elements come from."""

    mode: str
    coordinate: str
    nearest: str
    cubic_alpha: float
    exclude_outside: bool
    antialias: bool


def axis_map(
    size: int, result: int, scale: float, roi: tuple[float, float], modes: ResizeModes
) -> AxisMap:
    """Work out one axis.

    Parameters
    ----------
    size, result
        Extents of the input and the result.
    scale
        Result per input, as given or as the ratio of the extents.
    roi
        Begin and end of the region of interest, relative to the axis.

    Raises
    ------
    Refusal
        If a mode is unknown, or positions are not exact.
    """
    if max(size, result) > _MOST_POSITIONS:
        raise Refusal(
            f"resizing an axis of {size} elements to {result}: beyond {_MOST_POSITIONS} their "
            "positions are not exact in fp32"
        )
    x = coordinates(size, result, scale, roi, modes.coordinate)
    outside = np.zeros(result, bool)
    if modes.coordinate == "tf_crop_and_resize" and scale == 1 and roi != (0.0, 1.0):
        # ONNX Runtime does not crop such an axis, the specification does.
        raise Refusal("cropping an axis without resizing it is ambiguous")
    if modes.coordinate == "tf_crop_and_resize":
        outside = (x < 0) | (x > size - 1)
    if modes.antialias and size == result and scale != 1:
        raise Refusal("smoothing an axis that keeps its extent is ambiguous")
    if modes.mode == "nearest":
        if modes.coordinate == "half_pixel_symmetric" and _near_boundary(x, modes.nearest):
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


def coordinates(
    size: int, result: int, scale: float, roi: tuple[float, float], mode: str
) -> np.ndarray:
    """Return the real position in the input of each element of the result, in float32.

    Single precision decides, as in ONNX Runtime, where a position falls on a boundary
    between two elements.
    """
    one, half = np.float32(1), np.float32(0.5)
    y, s = np.arange(result, dtype=np.float32), np.float32(scale)
    length = np.float32(result)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and result > 1):
        return (y + half) / s - half
    if mode == "pytorch_half_pixel":
        return np.zeros(result, np.float32)
    if mode == "half_pixel_symmetric":
        # The middle of the input is the middle of the result, also where the exact extent
        # size · scale is not whole.
        adjustment = length / (s * np.float32(size))
        centre = np.float32(size) / np.float32(2)
        return centre * (one - adjustment) + (y + half) / s - half
    if mode == "asymmetric":
        return y / s
    if mode == "align_corners":
        return y * np.float32(size - 1) / (length - one) if result > 1 else np.zeros_like(y)
    if mode == "tf_crop_and_resize":
        begin, end = np.float32(roi[0]), np.float32(roi[1])
        if result > 1:
            return begin * np.float32(size - 1) + y * (end - begin) * np.float32(size - 1) / (
                length - one
            )
        return half * (begin + end) * np.float32(size - 1) + np.zeros_like(y)
    raise Refusal(f"its coordinate_transformation_mode {mode!r} is unknown")


def _near_boundary(x: np.ndarray, mode: str) -> bool:
    """Whether a position is so near a rounding boundary that the last bit decides."""
    shifted = x.astype(np.float64) - (0.5 if mode.startswith("round") else 0.0)
    return bool((np.abs(shifted - np.round(shifted)) < 1e-5).any())


def _nearest(x: np.ndarray, mode: str, scale: float) -> np.ndarray:
    if mode == "simple":  # before opset 11, where ONNX Runtime gives the unsaid rule
        mode = "ceil" if scale < 1 else "floor"
    if mode == "round_prefer_floor":
        rounded = np.ceil(x - np.float32(0.5))
    elif mode == "round_prefer_ceil":
        rounded = np.floor(x + np.float32(0.5))
    elif mode == "floor":
        rounded = np.floor(x)
    elif mode == "ceil":
        rounded = np.ceil(x)
    else:
        raise Refusal(f"its nearest_mode {mode!r} is unknown")
    return rounded.astype(np.int64)


def _taps(x: np.ndarray, shrink: float, modes: ResizeModes) -> tuple[np.ndarray, np.ndarray]:
    """Return places and weights of all elements under the interpolation's kernel.

    A kernel for reduction (``antialias``) is the same one, stretched by 1 / shrink.
    """
    radius = (1 if modes.mode == "linear" else 2) / shrink
    first = np.floor(x.astype(np.float64) - radius).astype(np.int64) + 1
    places = first[:, None] + np.arange(int(np.ceil(2 * radius)))[None, :]
    distance = np.abs(places - x.astype(np.float64)[:, None]) * shrink
    if modes.mode == "linear":
        return places, np.clip(1.0 - distance, 0.0, 1.0)
    return places, _cubic(distance, modes.cubic_alpha)


def _cubic(t: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel (IEEE Trans. ASSP 29(6), 1981, eq. 4 with free a)."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))
