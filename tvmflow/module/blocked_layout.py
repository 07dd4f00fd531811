"""Inputs and outputs that an application has in the blocked layout, as NumPy arrays.

A tensor of logical shape ``[N, C, H, W]`` is ``[N, C', H, W, 4]`` there; lanes beyond C
are padding, which kernels never look at.  Device images have several panels side by
side when one alone would be too high (``global.texture:p2``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..ir.tensors import TensorInfo


def to_blocked(info: TensorInfo, array: np.ndarray) -> np.ndarray:
    """An array of the logical shape in the blocked layout, with zeros as padding."""
    if info.logical_shape is None or array.shape != info.logical_shape:
        return array
    n, blocks, height, width, lanes = info.shape
    padded = np.zeros((n, blocks * lanes, height, width), array.dtype)
    padded[:, : array.shape[1]] = array
    split = padded.reshape(n, blocks, lanes, height, width)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))


def to_logical(info: TensorInfo, array: np.ndarray) -> np.ndarray:
    """An array in the layout of the ONNX model, without padding."""
    if info.logical_shape is None or array.shape == info.logical_shape or array.ndim != 5:
        return array
    # Of a module with several shapes, the array may have another one than is described.
    n, blocks, height, width, lanes = array.shape
    channels = array.transpose(0, 1, 4, 2, 3).reshape(n, blocks * lanes, height, width)
    return np.ascontiguousarray(channels[:, : info.logical_shape[1]])


def all_to_blocked(infos: Iterable[TensorInfo], arrays: Mapping[str, object]) -> dict[str, object]:
    """Bring arrays into the layouts that the application has."""
    known = {info.name: info for info in infos}
    return {
        name: to_blocked(known[name], array)
        if name in known and isinstance(array, np.ndarray)
        else array
        for name, array in arrays.items()
    }


def all_to_logical(
    infos: Iterable[TensorInfo], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Bring arrays into the layouts that the ONNX model has them."""
    known = {info.name: info for info in infos}
    return {n: to_logical(known[n], a) if n in known else a for n, a in arrays.items()}


def to_image(info: TensorInfo, array: np.ndarray, *, inverse: bool = False) -> np.ndarray:
    """Elements of a blocked array in the order of the texels of its image, in its shape."""
    panels = panels_of(info.scope)
    if panels == 1:
        return array
    n, blocks, height, width, lanes = info.shape
    rows = (height, panels) if inverse else (panels, height)
    split = array.reshape(n, blocks // panels, *rows, width, lanes)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 2, 4, 5)).reshape(info.shape)


def from_image(info: TensorInfo, array: np.ndarray) -> np.ndarray:
    """The inverse of :func:`to_image`."""
    return to_image(info, array, inverse=True)


def stored_as(info: TensorInfo) -> str:
    """The image of a kept tensor as the plug-in describes it; empty for a buffer."""
    half = info.scope is not None and "-half:" in info.scope
    return (info.image or "") + (" half" if half else "")


def panels_of(scope: str | None) -> int:
    """Count the panels that stand side by side in an image; 1 for what has none."""
    return int(scope.rpartition(":p")[2]) if scope and ":p" in scope else 1
