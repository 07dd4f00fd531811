"""Batches of samples with different numbers of boxes."""

from __future__ import annotations

import numpy as np
import pytest

from tvmflow.errors import InputError
from tvmflow.ops.ragged import mask_of, pack


def samples(counts, dtype="float32", seed=3):
    rng = np.random.default_rng(seed)
    return [rng.random((n, 4)).astype(dtype) for n in counts]


@pytest.mark.parametrize("counts", [(3, 0, 5, 1), (0, 0), (7,), ()])
def test_packed_boxes_and_offsets_are_one_buffer(counts):
    boxes = samples(counts)
    batch = pack(boxes)
    assert batch.packed.shape == (sum(counts), 4)
    assert batch.offsets.dtype == np.int32
    assert batch.offsets.tolist() == np.cumsum([0, *counts]).tolist()
    assert np.shares_memory(batch.offsets, batch.buffer)
    for sample, first, last in zip(boxes, batch.offsets[:-1], batch.offsets[1:], strict=True):
        np.testing.assert_array_equal(batch.packed[first:last], sample)
    if sum(counts):
        assert np.shares_memory(batch.packed, batch.buffer)
        assert batch.buffer.nbytes == 16 * sum(counts) + 4 * (len(counts) + 1)


def test_padded_form_has_zeros_behind_the_boxes_of_a_sample():
    boxes = samples((2, 0, 4))
    target, count = pack(boxes).padded(6)
    assert target.shape == (3, 6, 4)
    assert count.tolist() == [2, 0, 4]
    np.testing.assert_array_equal(target[2, :4], boxes[2])
    assert not target[~mask_of(count, 6)].any()
    assert pack(boxes).padded()[0].shape == (3, 4, 4)
    with pytest.raises(InputError, match="Padding to 3 boxes a sample failed: sample 2 has 4"):
        pack(boxes).padded(3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_boxes_are_converted_while_they_are_packed(dtype):
    boxes = samples((3, 2))
    batch = pack(boxes, dtype)
    assert batch.packed.dtype.name == dtype
    np.testing.assert_allclose(batch.packed.astype("float32"), np.concatenate(boxes), rtol=1e-2)
    assert batch.offsets.tolist() == [0, 3, 5]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32"])
def test_integer_boxes_stay_as_they_are(dtype):
    last = np.iinfo(dtype).max
    boxes = [np.array([[0, 1, 2, last], [3, 4, 5, 6]], dtype), np.zeros((0, 4)), [[7, 8, 9, 10]]]
    batch = pack(boxes)
    assert batch.packed.dtype.name == dtype
    assert batch.packed.tolist() == [[0, 1, 2, last], [3, 4, 5, 6], [7, 8, 9, 10]]
    assert batch.offsets.tolist() == [0, 2, 2, 3]
    target, _ = batch.padded(2)
    assert target.dtype.name == dtype
    assert target[2].tolist() == [[7, 8, 9, 10], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("box", "dtype", "message"),
    [
        ([0, 0, 7, 256], "uint8", "int64 numbers from 0 to 256, expected what uint8 can hold"),
        ([-1, 0, 7, 25], "uint8", "int64 numbers from -1 to 25"),
        ([0, 0, 7, 2**31], "int32", "int64 numbers from 0 to 2147483648"),
        ([0, 0, 0.5, 1], "int32", "float64 numbers from 0.0 to 1.0, expected what int32 can hold"),
    ],
)
def test_numbers_that_a_dtype_has_not_are_refused(box, dtype, message):
    with pytest.raises(InputError, match=f"sample 1 has {message}"):
        pack([[[0, 0, 1, 1]], [box]], dtype)


def test_lists_without_boxes():
    batch = pack([[], [[0, 0, 1, 1]], []], "float32")
    assert batch.offsets.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([np.zeros((2, 5))], r"sample 0 is \[2, 5\], expected \[n, 4\]"),
        ([np.zeros((1, 4)), np.zeros(4)], r"sample 1 is \[4\]"),
        ([np.zeros((1, 4), int)], "would be int64, expected one of float32, .*, int32"),
        ([np.zeros((1, 4)), np.full((1, 4), 1j)], "sample 1 has complex128 numbers"),
    ],
)
def test_what_is_no_batch_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        pack(given)
