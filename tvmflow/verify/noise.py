"""The noise model: how much the reference's own results differ when numbers move by one unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .reference import has_custom_operators, open_session, opened, read_model
from .tolerance import HALF_ROUNDING, Tolerance

if TYPE_CHECKING:
    import onnx

    from ..runtime.json_types import JsonMapping

    Arrays = Mapping[str, np.ndarray]

#: Perturbed networks that the noise model runs.
_NEIGHBOURS = 3
#: Largest noise allowed for a network without quantization, relative to the output's magnitude:
#: in fp32, and stored in 16 bits.
_LARGEST_NOISE = (1e-3, 5e-2)
#: Operators whose float inputs determine shapes; these inputs are not perturbed.
_SHAPING = ("Resize", "Upsample", "Range")
#: Operators that move elements without changing them.
_MOVES = ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity")


def with_noise(
    path: Path,
    inputs: Arrays,
    reference: Arrays,
    allowed: dict[str, Tolerance],
    half: bool,
    options: JsonMapping,
) -> tuple[dict[str, Tolerance], dict[str, float]]:
    """Widen the tolerances of outputs by the noise of ONNX Runtime's own results; return both.

    The noise model runs ONNX Runtime with its optimisations, with those for Arm, without any, and
    with all inputs and constants moved by a unit in their last place, which has the effect of
    another order of summation.  If the module stores 16 bits, the unit is that of 16 bits, and
    inner tensors are rounded to 16 bits.  Our results may differ by twice the noise.

    In a quantized network a number between two steps is rounded either way depending on its last
    bit, and later layers amplify that without a limit; outputs may be off by a step.  Without
    quantization, noise comes from an ill-conditioned network: it is limited to `_LARGEST_NOISE`,
    and integers must be equal.
    """
    from ..frontend.nested import all_nodes

    source = opened(path, options).model
    if has_custom_operators(source):
        return allowed, {}
    names = {node.op_type for node in all_nodes(source.graph.node)}
    # Quantized networks round to integers inside.
    rounds = any(n in ("QuantizeLinear", "DynamicQuantizeLinear") or "QLinear" in n for n in names)
    differs = _noise(path, inputs, list(reference), half and not rounds, options)
    if rounds:
        steps = {key: step_of(source, key) for key in allowed}
        wider = {k: widened(t, reference[k], differs[k], steps[k]) for k, t in allowed.items()}
    else:
        wider = {
            key: widened(tolerance, reference[key], differs[key], most=_LARGEST_NOISE[half])
            if reference[key].dtype.kind == "f"
            else tolerance
            for key, tolerance in allowed.items()
        }
    return wider, differs


def _neighbour(array: np.ndarray, rng: np.random.Generator, half: bool) -> np.ndarray:
    """Move floats at random by one unit in the last place (of 16 bits with ``half``), or not."""
    if array.dtype.kind != "f":
        return array
    toward = rng.choice([-np.inf, 0, np.inf], array.shape)
    there = np.nextafter(array, toward.astype(array.dtype))
    if half:
        there = (array * (1 + np.sign(toward) * 2 * HALF_ROUNDING)).astype(array.dtype)
    return np.where((toward == 0) | ~np.isfinite(array), array, there)


def _noise(
    path: Path,
    inputs: Arrays,
    outputs: Sequence[str],
    half: bool,
    options: JsonMapping,
) -> dict[str, float]:
    """Return the largest difference between runs of the noise model, by output."""
    import onnx
    from onnx.numpy_helper import from_array, to_array

    from ..frontend.nested import all_nodes

    rng = np.random.default_rng(0)
    model = read_model(path, options)
    shaping = (n for n in all_nodes(model.graph.node) if n.op_type in _SHAPING)
    fixed = {name for node in shaping for name in node.input} | integers_of(model)
    moving = [
        (tensor, to_array(tensor))
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
        and tensor.data_location != onnx.TensorProto.EXTERNAL
        and tensor.name not in fixed
    ]

    def run(
        changed: onnx.ModelProto, feeds: Arrays, optimised: bool, int8: bool = False
    ) -> dict[str, np.ndarray]:
        session = open_session(path, changed, optimised=optimised, int8=int8)
        return dict(zip(outputs, session.run(list(outputs), dict(feeds)), strict=True))

    runs = [run(model, inputs, optimised) for optimised in (True, False)]
    runs.append(run(model, inputs, optimised=True, int8=True))
    if half:
        rounded = stored_in_half(model, lambda name: name not in fixed)
        runs.append(run(rounded, inputs, optimised=False))
    for _ in range(_NEIGHBOURS):
        feeds = {name: _neighbour(array, rng, half) for name, array in inputs.items()}
        for tensor, array in moving:
            tensor.CopyFrom(from_array(_neighbour(array, rng, half), tensor.name))
        runs += [run(model, feeds, optimised) for optimised in (True, False)]
    first = runs[0]
    return {name: max(_distance(run[name], first[name]) for run in runs) for name in outputs}


def integers_of(model: onnx.ModelProto) -> set[str]:
    """Return the tensors computed from integers, booleans and scalars only, and their inputs.

    They are exact in any order: exporters compute indices as floats and round them down.
    """
    import onnx
    from onnx import TensorProto

    graph = onnx.shape_inference.infer_shapes(model).graph
    counts = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
    known = {
        value.name
        for value in (*graph.input, *graph.value_info)
        if value.type.tensor_type.elem_type in counts
    }
    constants = [(t.name, t) for t in graph.initializer]
    constants += [(n.output[0], a.t) for n in graph.node for a in n.attribute if a.name == "value"]
    known |= {n for n, t in constants if t.data_type in counts or prod(t.dims) == 1}
    found: set[str] = set()
    for node in graph.node:
        if node.input and known.issuperset(filter(None, node.input)):
            known.update(node.output)
            found.update(node.input, node.output)
    return found


def stored_in_half(model: onnx.ModelProto, is_stored: Callable[[str], bool]) -> onnx.ModelProto:
    """Return a copy that rounds the fp32 results for which ``is_stored`` holds to 16 bits."""
    import onnx
    from onnx import TensorProto, helper

    rounded = onnx.shape_inference.infer_shapes(model)
    graph = rounded.graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        casts = []
        for index, name in enumerate(node.output):
            if types.get(name) == TensorProto.FLOAT and is_stored(name):
                wide, stored = f"{name}/32 bits", f"{name}/16 bits"
                node.output[index] = wide
                casts.append(helper.make_node("Cast", [wide], [stored], to=TensorProto.FLOAT16))
                casts.append(helper.make_node("Cast", [stored], [name], to=TensorProto.FLOAT))
        graph.node.extend([node, *casts])
    return rounded


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:  # the extent depends on values: no noise is allowed
        return 0.0
    both = np.isfinite(a) & np.isfinite(b)
    difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(difference[both].max(initial=0))


def step_of(model: onnx.ModelProto, output: str) -> float:
    """Return the step between values of a quantized output; 0 for other outputs."""
    import onnx
    from onnx.numpy_helper import to_array

    makers = {name: node for node in model.graph.node for name in node.output}
    inside = (t for t in model.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL)
    constants = {tensor.name: tensor for tensor in inside}
    node = makers.get(output)
    while node is not None and node.op_type in _MOVES:
        node = makers.get(node.input[0])
    kind = "" if node is None else node.op_type
    if kind == "QuantizeLinear" or kind.startswith("QLinear"):
        return 1.0
    if node is None or kind != "DequantizeLinear" or node.input[1] not in constants:
        return 0.0
    return float(np.max(to_array(constants[node.input[1]])))


def widened(
    tolerance: Tolerance,
    reference: np.ndarray,
    differs: float,
    step: float = 0.0,
    most: float = np.inf,
) -> Tolerance:
    """Return a tolerance for an output with noise of ``differs``.

    `step` is the distance between two values of a quantized output; at most `most` of the
    reference's magnitude is allowed.
    """
    finite = np.abs(reference[np.isfinite(reference)].astype(np.float64))
    largest = float(finite.max(initial=0))
    if not largest:
        return tolerance
    allowed = min(max(step, 2 * differs) * (1 + 1e-6) / largest, most)
    steps = f"{2 * differs / step:.3g} steps" if step else f"{2 * differs:.3g}"
    reason = f"{'a step, or ' if step else ''}twice what ONNX Runtime's own results differ by when "
    reason += f"numbers move by a unit in their last place: {steps}"
    return replace(tolerance, absolute=max(tolerance.absolute, allowed), reason=reason)
