"""Pack ragged batches: samples with different numbers of boxes, in one buffer.

The boxes of all samples are concatenated, and the offsets of the samples follow them, so that one
copy brings a whole batch to a device::

    buffer   [ box 0 of sample 0 | box 1 | ... | last box of the last sample | offsets ]
    packed   [P, 4], P = boxes of all samples; offsets [B + 1]: sample b has the rows
             offsets[b] to offsets[b + 1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError
from ..ir.tensors import dtype_from_name

#: Coordinates of a box.
LANES = 4
#: Dtypes of packed boxes, and of targets.
DTYPES = ("float32", "float16", "bfloat16", "float64", "uint8", "int16", "int32")


@dataclass(frozen=True, eq=False)
class Ragged:
    """A batch of samples ``[n_b, 4]``."""

    #: Bytes of the packed boxes, followed by those of the offsets.
    buffer: np.ndarray
    #: NumPy's name for the dtype of boxes.
    dtype: str
    #: Number of boxes of all samples, and number of samples.
    rows: int
    samples: int

    @property
    def box_bytes(self) -> int:
        """Return the size of the boxes in bytes, which is where the offsets begin."""
        return self.rows * LANES * dtype_from_name(self.dtype).itemsize

    @property
    def packed(self) -> np.ndarray:
        """Return the boxes ``[P, 4]``, a view of the buffer."""
        return (
            self.buffer[: self.box_bytes]
            .view(dtype_from_name(self.dtype))
            .reshape(self.rows, LANES)
        )

    @property
    def offsets(self) -> np.ndarray:
        """Return the first rows of samples and the end, int32 ``[B + 1]``, a view of the buffer."""
        return self.buffer[self.box_bytes :].view(np.int32)

    @property
    def count(self) -> np.ndarray:
        """Return the number of boxes of each sample, int32 ``[B]``."""
        return np.diff(self.offsets)

    def padded(self, boxes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the boxes as ``[B, M, 4]``, padded with zeros, and the counts ``[B]``.

        ``M`` is ``boxes``, by default the largest count; raises `InputError` if a sample has more.
        """
        count, most = self.count, int(self.count.max(initial=0))
        extent = most if boxes is None else boxes
        if most > extent:
            raise InputError(
                f"Padding to {extent} boxes a sample failed: sample {int(np.argmax(count))} has "
                f"{most}.",
                remedy=f"Pad to {most}, or drop boxes first.",
            )
        result = np.zeros((self.samples, extent, LANES), dtype_from_name(self.dtype))
        result[mask_of(count, extent)] = self.packed
        return result, count


def pack(samples: Sequence[Any], dtype: str | None = None) -> Ragged:
    """Pack the boxes of each sample into one buffer.

    Parameters
    ----------
    samples
        An array ``[n, 4]`` for each sample; ``n`` may be 0, and an empty list is allowed, too.
    dtype
        Dtype of the packed boxes, one of `DTYPES`; by default that of the first sample.

    Raises
    ------
    InputError
        If a sample is no ``[n, 4]``, the dtype is not in `DTYPES`, or cannot hold a sample's
        numbers: fractions as integers, or integers out of its range.
    """
    arrays = [np.asarray(sample) for sample in samples]
    arrays = [a.reshape(0, LANES) if a.size == 0 and a.ndim == 1 else a for a in arrays]
    name = dtype or next((a.dtype.name for a in arrays if a.size), "float32")
    for index, array in enumerate(arrays):
        if array.ndim != 2 or array.shape[1] != LANES:
            raise InputError(
                f"Packing a batch failed: sample {index} is {list(array.shape)}, expected "
                f"[n, {LANES}].",
                remedy="Give each box as x1 y1 x2 y2.",
            )
    if name not in DTYPES:
        raise InputError(
            f"Packing a batch failed: its boxes would be {name}, expected one of "
            f"{', '.join(DTYPES)}.",
            remedy='Convert them, for example with pack(samples, "float32") or "int32".',
        )
    for index, array in enumerate(arrays):
        if not _fits(array, dtype_from_name(name)):
            raise InputError(
                f"Packing a batch failed: sample {index} has {array.dtype} numbers from "
                f"{array.min()} to {array.max()}, expected what {name} can hold.",
                remedy='Pack another dtype, for example with pack(samples, "float32").',
            )
    ends = np.cumsum([len(a) for a in arrays], dtype=np.int64)
    rows = int(ends[-1]) if len(ends) else 0
    if rows > np.iinfo(np.int32).max:
        raise InputError(
            f"Packing a batch failed: it has {rows} boxes, more than 32 bits count.",
            remedy="Split the batch.",
        )
    box_bytes = rows * LANES * dtype_from_name(name).itemsize
    buffer = np.empty(box_bytes + 4 * (len(arrays) + 1), np.uint8)
    batch = Ragged(buffer, name, rows, len(arrays))
    if rows:
        np.concatenate(arrays, out=batch.packed, casting="unsafe")
    batch.offsets[0] = 0
    batch.offsets[1:] = ends
    return batch


def _fits(array: np.ndarray, dtype: np.dtype) -> bool:
    """Return whether a dtype can hold a sample: integers by their values, others by kind."""
    if not array.size or array.dtype == dtype:
        return True
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return bool(limits.min <= array.min() and array.max() <= limits.max)
    return np.can_cast(array.dtype, dtype, "same_kind")


def mask_of(count: np.ndarray, boxes: int) -> np.ndarray:
    """Return a mask ``[B, M]`` of the valid boxes, the first ``count[b]`` of each sample."""
    return np.arange(boxes) < np.asarray(count)[:, None]
