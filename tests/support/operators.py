"""Small ONNX models of one operator (or a few) for numeric tests, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tvmflow
from support.cuda_host import cuda_host
from support.onnx_models import expected, model_of
from tvmflow.ir.operator import DOMAIN
from tvmflow.ops.onnx_form import op_runs, register_schemas
from tvmflow.verify.tolerance import OPERATOR, assert_close

RNG_SEED = 20


def random(shape: Sequence[int], scale: float = 1.0, seed: int = RNG_SEED) -> np.ndarray:
    """Return normally distributed float32 values."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str] | np.ndarray],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    element_type: int | None = TensorProto.FLOAT,
    name: str = "test",
    strict: bool = True,
) -> onnx.ModelProto:
    """Return a model whose inputs are like arrays, or floats of a shape.

    The shapes of outputs are inferred, and their types, too, if ``element_type`` is ``None``;
    ``strict`` refuses a model of which ONNX does not know all.
    """
    kinds = {
        n: (like.shape, like.dtype) if isinstance(like, np.ndarray) else like
        for n, like in inputs.items()
    }
    model = model_of(nodes, kinds, list(outputs), constants, opset, ir_version=8)
    model.graph.name = name
    if element_type is not None:
        for output in model.graph.output:
            output.type.tensor_type.elem_type = element_type
    if any(node.domain == DOMAIN for node in nodes):
        register_schemas()
    return onnx.shape_inference.infer_shapes(model, strict_mode=strict)


def single(
    operator: str,
    shapes: Sequence[Sequence[int]],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    **attributes: object,
) -> onnx.ModelProto:
    """Return a model of one operator: tensor inputs ``x0, x1, ...`` first, then constants."""
    names = [f"x{i}" for i in range(len(shapes))]
    node = helper.make_node(operator, names + list(constants or {}), ["y"], **attributes)
    return build([node], dict(zip(names, shapes, strict=True)), ["y"], constants, opset)


def conv(
    shape: Sequence[int],
    outputs: int,
    kernel: tuple[int, int] = (3, 3),
    *,
    stride: int = 1,
    pad: int = 1,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
    activation: str | None = "Relu",
    residual: bool = False,
) -> onnx.ModelProto:
    """Return a convolution with an optional bias, residual connection and activation."""
    inputs = shape[1] // groups
    fan_in = inputs * kernel[0] * kernel[1]
    constants = {"w": random((outputs, inputs, *kernel), fan_in**-0.5)}
    operands = ["x", "w"]
    if bias:
        constants["b"] = random((outputs,), seed=RNG_SEED + 1)
        operands.append("b")
    nodes = [
        helper.make_node(
            "Conv",
            operands,
            ["y0"],
            strides=[stride] * 2,
            pads=[pad] * 4,
            dilations=[dilation] * 2,
            group=groups,
        )
    ]
    last = "y0"
    if residual:
        nodes.append(helper.make_node("Add", [last, "x"], ["y1"]))
        last = "y1"
    if activation:
        nodes.append(helper.make_node(activation, [last], ["y2"]))
        last = "y2"
    return build(nodes, {"x": shape}, [last], constants)


def feeds_for(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return random inputs of the model."""
    feeds = {}
    for index, value in enumerate(model.graph.input):
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        feeds[value.name] = random(shape, seed=RNG_SEED + 10 + index)
    return feeds


def references(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of ONNX Runtime, or of ONNX's evaluator if there are custom operators."""
    if any(node.domain == DOMAIN for node in model.graph.node):
        return ReferenceEvaluator(model, new_ops=op_runs()).run(None, dict(feeds))
    return expected(model, feeds)


def check(model: onnx.ModelProto, target: str, device: str, **options: object) -> list[str]:
    """Compile, run and compare with the reference; return the families of the kernels.

    CUDA modules run on the host.
    """
    feeds = feeds_for(model)
    wanted = references(model, feeds)
    with closing(tvmflow.compile(model, target=target, device=device, **options)) as module:
        outputs = cuda_host()(module, feeds) if target == "cuda" else module(**feeds)
        for info, reference in zip(module.outputs, wanted, strict=True):
            assert_close(outputs[info.name], reference, OPERATOR, info.name)
        return [kernel["family"] for kernel in module.metadata["kernels"]]
