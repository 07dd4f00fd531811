"""Outputs with a bounded dynamic size, cut to the size of each run.

A network returns such an output with as many elements as its bound; the number of valid elements is
another output, ``NAME.count``, and the others are zero.  Bounds that the user gave have such an
output, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..ir.tensors import SizeLimit, TensorInfo, count_name
from ..runtime.json_types import JsonMapping
from .values import Outputs


@dataclass(frozen=True)
class RunTimeSizes:
    """Bounded dynamic sizes of a module."""

    #: Outputs of the ONNX model, without those that hold sizes.
    outputs: tuple[TensorInfo, ...]
    limits: tuple[SizeLimit, ...]

    @classmethod
    def of(cls, metadata: JsonMapping, outputs: Sequence[TensorInfo]) -> RunTimeSizes:
        """Return the sizes of a module, from its metadata and all outputs of its network."""
        return cls.split(outputs, [SizeLimit(**limit) for limit in metadata.get("limits", ())])

    @classmethod
    def split(cls, outputs: Sequence[TensorInfo], limits: Sequence[SizeLimit]) -> RunTimeSizes:
        """Separate the outputs of the ONNX model from the outputs that hold sizes."""
        counts = {count_name(info.name) for info in outputs if info.bounded_axis is not None}
        counts |= {limit.count for limit in limits}
        return cls(tuple(info for info in outputs if info.name not in counts), tuple(limits))

    def cut(self, results: Outputs) -> Outputs:
        """Cut outputs to their sizes, and drop the outputs that hold sizes.

        Raises `InputError` if a size exceeds its bound, or an index is out of range.
        """
        for limit in self.limits:
            size = int(results[limit.count])
            if limit.reason is not None:
                if size > limit.bound:
                    raise InputError(
                        f"This input cannot be computed: at the node {limit.node!r}, "
                        f"{limit.reason}.",
                        remedy="Compile the model for shapes that fit that branch (`shapes`), or "
                        "give an input that takes the other one.",
                    )
                continue
            if limit.least is not None:
                if not limit.least <= size <= limit.bound:
                    raise InputError(
                        f"The node {limit.node!r} has the index {size} for this input; expected "
                        f"one from {limit.least} to {limit.bound}.",
                        remedy="Correct the input: without `check_indices` the nearest index in "
                        "range counts.",
                    )
                continue
            if size > limit.bound:
                raise InputError(
                    f"The node {limit.node!r} has {size} elements for this input, more than its "
                    f"bound of {limit.bound}.",
                    remedy="Compile the model with a larger bound for it, or without one.",
                )
        if len(self.outputs) == len(results):
            return results
        return Outputs(
            [info.name for info in self.outputs],
            [_cut(info, results) for info in self.outputs],
        )

    def whole(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return all outputs of a network from those of the ONNX model; the reverse of `cut`.

        The values that are compared with limits are unknown, and NaN.
        """
        found: dict[str, np.ndarray] = {limit.count: np.array(np.nan) for limit in self.limits}
        for info in self.outputs:
            array = arrays[info.name]
            if info.bounded_axis is None:
                found[info.name] = array
                continue
            size = array.shape[info.bounded_axis]
            found.setdefault(count_name(info.name), np.array(size))
            found[info.name] = np.zeros(info.shape, array.dtype)
            found[info.name][_first(info.bounded_axis, size)] = array
        return found


def _cut(info: TensorInfo, results: Outputs) -> np.ndarray:
    array: np.ndarray = results[info.name]
    if info.bounded_axis is None:
        return array
    # In a module with several shapes, the bound is that of the shape that has run.
    size = min(int(results[count_name(info.name)]), array.shape[info.bounded_axis])
    return np.ascontiguousarray(array[_first(info.bounded_axis, size)])


def _first(axis: int, size: int) -> tuple[slice, ...]:
    """Return the index of the first ``size`` elements along an axis."""
    return (*[slice(None)] * axis, slice(size))
