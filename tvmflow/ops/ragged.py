"""Ragged batches: samples with different numbers of boxes, in one piece of memory.

The boxes of all samples stand one behind the other, and the offsets that tell them apart stand
behind these, so that a whole batch is one copy to a device::

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
from ..ir.operator import dtype_of

#: Numbers of a box.
LANES = 4
#: Dtypes of boxes, which are those of targets, too.
DTYPES = ("float32", "float16", "bfloat16", "float64", "uint8", "int16", "int32")


@dataclass(frozen=True, eq=False)
class Ragged:
    """A batch of samples ``[n_b, 4]``."""

    #: Bytes of the packed boxes, then of the offsets.
    buffer: np.ndarray
    #: NumPy's name of the boxes' dtype.
    dtype: str
    #: Boxes of all samples, and the number of samples.
    rows: int
    samples: int

    @property
    def box_bytes(self) -> int:
        """Where in the buffer the offsets begin."""
        return self.rows * LANES * dtype_of(self.dtype).itemsize

    @property
    def packed(self) -> np.ndarray:
        """The boxes ``[P, 4]``, a view of the buffer."""
        return self.buffer[: self.box_bytes].view(dtype_of(self.dtype)).reshape(self.rows, LANES)

    @property
    def offsets(self) -> np.ndarray:
        """Where samples begin and end, int32 ``[B + 1]``, a view of the buffer."""
        return self.buffer[self.box_bytes :].view(np.int32)

    @property
    def count(self) -> np.ndarray:
        """The number of boxes of each sample, int32 ``[B]``."""
        return np.diff(self.offsets)

    def padded(self, boxes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The boxes as ``[B, M, 4]``, zeros behind those of a sample, and the counts ``[B]``.

        ``M`` is ``boxes``, by default those of the sample that has most; raises `InputError` if
        one has more.
        """
        count, most = self.count, int(self.count.max(initial=0))
        extent = most if boxes is None else boxes
        if most > extent:
            raise InputError(
                f"Padding to {extent} boxes a sample failed: sample {int(np.argmax(count))} has "
                f"{most}.",
                remedy=f"Pad to {most}, or drop boxes first.",
            )
        result = np.zeros((self.samples, extent, LANES), dtype_of(self.dtype))
        result[mask_of(count, extent)] = self.packed
        return result, count


def pack(samples: Sequence[Any], dtype: str | None = None) -> Ragged:
    """Pack the boxes of each sample into one buffer.

    Parameters
    ----------
    samples
        An array ``[n, 4]`` for each sample; ``n`` may be 0, and an empty list is none, too.
    dtype
        Of the packed boxes, one of `DTYPES`; default the first sample's.

    Raises
    ------
    InputError
        If a sample is no ``[n, 4]``, the dtype is not among these, or a sample's numbers are not
        of its kind: fractions for integers, or integers that it has not.
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
        if not _fits(array, dtype_of(name)):
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
    box_bytes = rows * LANES * dtype_of(name).itemsize
    buffer = np.empty(box_bytes + 4 * (len(arrays) + 1), np.uint8)
    batch = Ragged(buffer, name, rows, len(arrays))
    if rows:
        np.concatenate(arrays, out=batch.packed, casting="unsafe")
    batch.offsets[0] = 0
    batch.offsets[1:] = ends
    return batch


def _fits(array: np.ndarray, dtype: np.dtype) -> bool:
    """Whether a sample's numbers can be of a dtype: integers by their values, others by kind."""
    if not array.size or array.dtype == dtype:
        return True
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return bool(limits.min <= array.min() and array.max() <= limits.max)
    return np.can_cast(array.dtype, dtype, "same_kind")


def mask_of(count: np.ndarray, boxes: int) -> np.ndarray:
    """Which of ``[B, M]`` boxes count, of the numbers ``[B]`` of valid ones that come first."""
    return np.arange(boxes) < np.asarray(count)[:, None]
