"""Random inputs, the same for the same seed on every machine."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

from ..tensors import TensorInfo
from .weights import dtype_from_name

#: Random integers are smaller than this, so that they are valid as small indices and counts.
_INTEGERS_BELOW = 10


def random_inputs(infos: Iterable[TensorInfo], seed: int) -> dict[str, np.ndarray]:
    """Return random arrays for a network's inputs.

    Floats are normally distributed with mean 0 and variance 1, integers uniform in
    0 … 9, booleans fair.  An input's values depend on the seed and its name only.  They
    have the layout of the ONNX model, also where the module keeps another.
    """
    return {info.name: _random_array(info, seed) for info in infos}


def _random_array(info: TensorInfo, seed: int) -> np.ndarray:
    # crc32 and not hash(): Python's hash of a string differs from process to process.
    generator = np.random.default_rng([seed, zlib.crc32(info.name.encode())])
    shape = info.logical_shape or info.shape
    dtype = dtype_from_name(info.dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return generator.integers(0, _INTEGERS_BELOW, shape).astype(dtype)
    return np.asarray(generator.standard_normal(shape, np.float32)).astype(dtype)
