"""Conversion of inputs and outputs between the blocked layout and the ONNX model's.

A tensor of logical shape ``[N, C, H, W]`` is ``[N, C', H, W, 4]`` in the blocked layout;
lanes beyond C are padding, which kernels never read.  A device image has several panels
side by side if one panel would be too high (``global.texture:p2``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..ir.tensors import TensorInfo


def to_blocked(info: TensorInfo, array: np.ndarray) -> np.ndarray:
    """Convert an array of the logical shape to the blocked layout; padding is zero."""
    if info.logical_shape is None or array.shape != info.logical_shape:
        return array
    n, blocks, height, width, lanes = info.shape
    padded = np.zeros((n, blocks * lanes, height, width), array.dtype)
    padded[:, : array.shape[1]] = array
    split = padded.reshape(n, blocks, lanes, height, width)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))


def to_logical(info: TensorInfo, array: np.ndarray) -> np.ndarray:
    """Convert an array to the layout of the ONNX model, without padding."""
    if info.logical_shape is None or array.shape == info.logical_shape or array.ndim != 5:
        return array
    # In a module with several shapes, the array may have another shape than ``info``.
    n, blocks, height, width, lanes = array.shape
    channels = array.transpose(0, 1, 4, 2, 3).reshape(n, blocks * lanes, height, width)
    return np.ascontiguousarray(channels[:, : info.logical_shape[1]])


def all_to_blocked(infos: Iterable[TensorInfo], arrays: Mapping[str, object]) -> dict[str, object]:
    """Convert arrays by name to the layouts of a module's inputs or outputs."""
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
    """Convert arrays by name to the layouts of the ONNX model."""
    known = {info.name: info for info in infos}
    return {n: to_logical(known[n], a) if n in known else a for n, a in arrays.items()}


def to_image(info: TensorInfo, array: np.ndarray, *, inverse: bool = False) -> np.ndarray:
    """Reorder the elements of a blocked array as the texels of its image; keep its shape."""
    panels = panels_of(info.scope)
    if panels == 1:
        return array
    n, blocks, height, width, lanes = info.shape
    rows = (height, panels) if inverse else (panels, height)
    split = array.reshape(n, blocks // panels, *rows, width, lanes)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 2, 4, 5)).reshape(info.shape)


def from_image(info: TensorInfo, array: np.ndarray) -> np.ndarray:
    """Undo :func:`to_image`."""
    return to_image(info, array, inverse=True)


def stored_as(info: TensorInfo) -> str:
    """Return a blocked tensor's image as the plug-in describes it; empty for a buffer."""
    half = info.scope is not None and "-half:" in info.scope
    return (info.image or "") + (" half" if half else "")


def panels_of(scope: str | None) -> int:
    """Return the number of panels side by side in an image of this scope; at least 1."""
    return int(scope.rpartition(":p")[2]) if scope and ":p" in scope else 1
