"""A task's test case: its inputs, and what the plain loops of the function make of them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from ..devices.target import resolve
from ..ir.scope import is_half
from ..ir.signatures import with_scopes
from ..verify.tolerance import (
    NETWORK,
    STORED_AS_HALF,
    Comparison,
    compare,
    summed_in_half,
    tolerance_for,
)
from .building import ENTRY, function_of, link, lower
from .tasks import Argument, arguments_of


@dataclass(frozen=True)
class Case:
    """Inputs and results of a task in an ``.npz`` file: ``a0``, ``a1``, … and ``r0``, ….

    Parameters
    ----------
    path
        The file.
    lengths
        Of the function's sums in 16 bits.
    """

    path: Path
    lengths: tuple[int, ...] = ()

    def load(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The inputs and the results."""
        with np.load(self.path, allow_pickle=False) as arrays:
            names = arrays.files
            inputs = [arrays[name] for name in names if name.startswith("a")]
            return inputs, [arrays[name] for name in names if name.startswith("r")]


def compare_results(
    arguments: Sequence[Argument],
    lengths: Sequence[int],
    got: Sequence[np.ndarray],
    wanted: Sequence[np.ndarray],
) -> list[Comparison]:
    """How far results are from the case's, and whether that is within the tolerance.

    A fused function has several operators: the tolerances are those of networks.  ``lengths`` are
    those of its sums in 16 bits.
    """
    table = NETWORK
    if lengths:
        table = summed_in_half(lengths)
    elif any(is_half(argument.scope) for argument in arguments):
        table = STORED_AS_HALF
    return [
        compare(f"result {index}", *pair, tolerance_for(pair[1].dtype.name, table))
        for index, pair in enumerate(zip(got, wanted, strict=True))
    ]


def write_case(text: str, results: int, path: str, seed: int, with_results: bool) -> None:
    """Compute the case of a function on this CPU and write it; called in a worker process.

    The function's loops run as they are, without a schedule: nothing that a schedule family
    does wrong is in what its kernels are compared with.
    """
    function = function_of(text)
    arguments = arguments_of(function)
    rng = np.random.default_rng(seed)
    inputs = [_values(argument, rng) for argument in arguments[:-results]]
    arrays = {f"a{index}": array for index, array in enumerate(inputs)}
    if with_results:
        outputs = [np.zeros(a.shape, a.dtype) for a in arguments[-results:]]
        for index, array in enumerate(_run(function, arguments, inputs, outputs)):
            arrays[f"r{index}"] = array
    np.savez(path, allow_pickle=False, **arrays)


def _run(
    function: tirx.PrimFunc,
    arguments: Sequence[Argument],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """Results of the function's loops as they stand, on this CPU."""
    target = resolve("llvm")
    plain = with_scopes(function, ["global" if a.scope else None for a in arguments])
    with target.tvm_target, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plain.so")
        link(lower(plain, target), path, target)
        tensors = [tvm.runtime.tensor(array) for array in (*inputs, *outputs)]
        tvm_ffi.load_module(path)[ENTRY](*tensors)
    return [tensor.numpy() for tensor in tensors[len(inputs) :]]


def _values(argument: Argument, rng: np.random.Generator) -> np.ndarray:
    """Random values that any function takes."""
    dtype = np.dtype(argument.dtype)
    if dtype.kind == "b":
        return rng.random(argument.shape) < 0.5
    if dtype.kind in "iu":
        # Wide integers may be indices: those of the first two elements exist nearly always.
        high = 2 if dtype.itemsize > 1 else 16
        return rng.integers(0, high, argument.shape).astype(dtype)
    values = rng.standard_normal(argument.shape, dtype=np.float32)
    if is_half(argument.scope):
        values = values.astype(np.float16)
    return values.astype(dtype)
