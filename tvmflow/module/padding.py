"""Padding of arrays to a compiled shape, and cropping of the results.

Elements are appended at the end of each axis.  Results change wherever a network looks beyond the
border: `tvmflow.verify` with ``pad`` measures by how much.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import InputError

#: Value that is appended: a number, or ``edge`` to repeat the last elements.
Padding = float | str
EDGE = "edge"


def check_padding(name: str, padding: Padding) -> None:
    """Raise `InputError` if a value is neither a number nor ``edge``."""
    if padding != EDGE and isinstance(padding, str):
        raise InputError(
            f"The padding of {name!r} is {padding!r}, expected a number or 'edge'.",
            remedy="`pad=0`, for example.",
        )


def fits(shape: Sequence[int], larger: Sequence[int]) -> bool:
    """Return whether an array of a shape can be padded to another shape."""
    return len(shape) == len(larger) and all(map(int.__le__, shape, larger))


def pad(array: np.ndarray, shape: Sequence[int], padding: Padding) -> np.ndarray:
    """Return an array of this shape, which `fits`, that begins with the given one."""
    if array.shape == tuple(shape):
        return array
    if padding == EDGE:
        sizes = zip(shape, array.shape, strict=True)
        return np.pad(array, [(0, wanted - there) for wanted, there in sizes], "edge")
    padded = np.full(shape, padding, array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded


def crop(name: str, array: np.ndarray, shape: Sequence[int] | None) -> np.ndarray:
    """Return the beginning of an output of a padded run.

    Raises `InputError` if the shape without padding is unknown, or does not lie in the output.
    """
    if shape is None or not fits(shape, array.shape):
        wanted = "an unknown shape" if shape is None else list(shape)
        raise InputError(
            f"The output {name!r} of the padded run has shape {list(array.shape)}, which cannot be "
            f"cropped to {wanted}.",
            remedy="Compile this model for each shape instead of padding its inputs.",
        )
    return array[tuple(map(slice, shape))]
