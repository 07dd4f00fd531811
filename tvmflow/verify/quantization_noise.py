"""How far results of quantized networks may be apart that are all right.

A number between two steps goes to the one or the other by its last bit, and each later layer makes
more of that.  ONNX Runtime's own results differ so: with its optimisations and without, and when
inputs move by a unit in their last place.  Results may differ twice as much as these do, or by a
step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from .tolerance import Tolerance

#: Inputs that are one unit in the last place away, for which the network is run, too.
_NEIGHBOURS = 3
#: Operators that pass on what they read.
_MOVES = ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity")


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether a network rounds to integers inside."""
    names = {node.op_type for node in model.graph.node}
    return any(n in ("QuantizeLinear", "DynamicQuantizeLinear") or "QLinear" in n for n in names)


def neighbours(inputs: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Inputs whose floats are one unit in the last place larger, smaller or the same, at random."""
    rng = np.random.default_rng(0)

    def moved(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f":
            return array
        toward = rng.choice([-np.inf, 0, np.inf], array.shape)
        stays = toward == 0
        there = np.nextafter(array, toward.astype(array.dtype))
        return np.where(stays | ~np.isfinite(array), array, there)

    return [{name: moved(a) for name, a in inputs.items()} for _ in range(_NEIGHBOURS)]


def noise(
    path: str | os.PathLike[str], inputs: Mapping[str, np.ndarray], outputs: Sequence[str]
) -> dict[str, float]:
    """The largest difference between ONNX Runtime's results, by output."""
    from .compare import open_reference

    sessions = [open_reference(Path(path), optimised) for optimised in (True, False)]
    runs = [
        dict(zip(outputs, session.run(list(outputs), dict(feeds)), strict=True))
        for feeds in (dict(inputs), *neighbours(inputs))
        for session in sessions
    ]
    first = runs[0]
    return {name: max(_distance(run[name], first[name]) for run in runs) for name in outputs}


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    both = np.isfinite(a) & np.isfinite(b)
    difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(difference[both].max(initial=0))


def step_of(model: onnx.ModelProto, output: str) -> float:
    """The distance between two values of an output, 0 if it is none of quantized numbers."""
    makers = {name: node for node in model.graph.node for name in node.output}
    constants = {
        tensor.name: tensor
        for tensor in model.graph.initializer
        if tensor.data_location != onnx.TensorProto.EXTERNAL
    }
    node = makers.get(output)
    while node is not None and node.op_type in _MOVES:
        node = makers.get(node.input[0])
    if node is None:
        return 0.0
    if node.op_type == "QuantizeLinear" or node.op_type.startswith("QLinear"):
        return 1.0
    if node.op_type != "DequantizeLinear" or node.input[1] not in constants:
        return 0.0
    return float(np.max(numpy_helper.to_array(constants[node.input[1]])))


def widened(tolerance: Tolerance, reference: np.ndarray, differs: float, step: float) -> Tolerance:
    """A tolerance for an output of a quantized network."""
    finite = np.abs(reference[np.isfinite(reference)].astype(np.float64))
    largest = float(finite.max(initial=0))
    if not largest:
        return tolerance
    absolute = max(tolerance.absolute, max(step, 2 * differs) * (1 + 1e-6) / largest)
    steps = f"{2 * differs / step:.3g} steps" if step else f"{2 * differs:.3g}"
    reason = f"a step, or twice what ONNX Runtime's own results differ by: {steps}"
    return replace(tolerance, absolute=absolute, reason=reason)
