"""Which elements a Slice takes, from attributes in older operator sets, inputs in newer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from .windows import node_attributes


def slice_ranges(
    node: onnx.NodeProto,
    constants: Mapping[str, np.ndarray],
    shape: Sequence[int],
    opset: int,
) -> dict[int, range] | str:
    """Return the places taken on each sliced axis, or why they are not known.

    Parameters
    ----------
    node
        A Slice.
    constants
        Values known now, by name.
    shape
        Extents of the sliced tensor.
    """
    if opset < 10:
        attributes = node_attributes(node)
        starts, ends = attributes("starts", []), attributes("ends", [])
        axes, steps = attributes("axes", None), None
    else:
        given: list[list[int] | None] = []
        for name in [*node.input[1:], "", "", "", ""][:4]:
            if name and name not in constants:
                return "where it begins and ends is computed at run time"
            given.append(constants[name].reshape(-1).tolist() if name else None)
        starts, ends, axes, steps = given[0] or [], given[1] or [], given[2], given[3]
    axes = list(range(len(starts))) if axes is None else list(axes)
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return "its begins, ends, axes and steps differ in number"
    ranges = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not -len(shape) <= axis < len(shape) or step == 0:
            return f"its axis {axis} or step {step} is impossible for {len(shape)} axes"
        # ONNX counts from the end and clamps like Python.
        ranges[axis % len(shape)] = range(*slice(start, end, step).indices(shape[axis]))
    return ranges
