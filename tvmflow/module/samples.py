"""Random inputs that depend only on the seed, not on the machine."""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from ..errors import InputError
from ..ir.call_checks import CallCheck
from ..ir.limits import excess
from ..ir.tensors import TensorInfo, TensorType, dtype_from_name
from ..runtime.json_types import JsonMapping
from .call_checks import call_checks, validate

#: Exclusive bound of random integers: small ones are valid as indices and counts.
_INTEGERS_BELOW = 10


class Described(Protocol):
    """A network with the facts that `random_inputs` needs."""

    @property
    def inputs(self) -> Sequence[TensorInfo]:
        """Return name, shape and dtype of every input, in order."""

    @property
    def metadata(self) -> JsonMapping:
        """Return the metadata in the module's file."""


def random_inputs(
    module: Described, seed: int, *, without: Container[str] = ()
) -> dict[str, np.ndarray]:
    """Return random arrays for a network's inputs, but not for those named in ``without``.

    Floats are normally distributed with mean 0 and variance 1, integers uniform in
    0 … 9, booleans fair.  An input's values depend on the seed and its name only.  They
    have the layout of the ONNX model, even if the module's input is blocked.  Integers that a
    custom operator would refuse are drawn smaller, and sorted if they have to be.
    """
    wanted = [info for info in module.inputs if info.name not in without]
    for info in wanted:
        if (reason := excess(TensorType(info.shape, info.dtype))) is not None:
            raise InputError(
                f"The input {info.name!r} is too large for random values: {reason}.",
                remedy="Run the module where there is more memory.",
            )
    arrays = {info.name: _random_array(info, seed) for info in wanted}
    checks = call_checks(module.metadata)
    looked_at = {name for check in checks for name in check.inputs}
    integers = {n: a for n, a in arrays.items() if n in looked_at and a.dtype.kind in "iu"}
    trials = ({**arrays, **trial} for trial in _smaller(integers))
    # If no trial fits, the call raises an error that says why.
    return next((trial for trial in trials if _fits(checks, trial)), arrays)


def _smaller(arrays: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the integers as drawn and sorted, both with smaller and smaller bounds."""
    for bound in range(_INTEGERS_BELOW, 0, -1):
        # NumPy's operations turn arrays without dimensions into scalars.
        trial = {name: np.asarray(array % bound) for name, array in arrays.items()}
        yield trial
        yield {
            name: np.sort(array, axis=None).reshape(array.shape) for name, array in trial.items()
        }


def _fits(checks: Sequence[CallCheck], arrays: Mapping[str, np.ndarray]) -> bool:
    """Return whether the custom operators accept these values."""
    with suppress(InputError):
        for check in checks:
            validate(check, arrays)
        return True
    return False


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
