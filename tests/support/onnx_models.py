"""Small ONNX models from a few lines of text or nodes, and ONNX Runtime's results for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from onnx import helper, numpy_helper

from tvmflow.verify.reference import exact_session

#: A tensor's shape, if it is of fp32 numbers, or its shape and its dtype.
Kind = Sequence[Any]


def typed(name: str, kind: Kind | None) -> onnx.ValueInfoProto:
    """Return an input or output of a graph, without a type if it has no kind."""
    if kind is None:
        return onnx.ValueInfoProto(name=name)
    has_dtype = len(kind) == 2 and isinstance(kind[0], (tuple, list))
    shape, dtype = kind if has_dtype else (kind, "float32")
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
    )


def nodes_of(text: str) -> list[onnx.NodeProto]:
    """Parse nodes such as ``t = Conv<pads = [1, 1, 1, 1]>(x, w) y = Relu(t)``."""
    return list(onnx.parser.parse_graph(f"nodes () => () {{ {text} }}").node)


def model_of(
    nodes: str | Sequence[onnx.NodeProto],
    inputs: Mapping[str, Kind],
    outputs: str | Sequence[str] | Mapping[str, Kind] = "y",
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
    ir_version: int = 9,
) -> onnx.ModelProto:
    """Build a model, which imports the first version of any domain other than ONNX's.

    Parameters
    ----------
    nodes
        Nodes, or their text (:func:`nodes_of`).
    outputs
        Names of the outputs, as a list or divided by spaces; or their kinds. ONNX Runtime infers
        the types of outputs that have none.
    constants
        Arrays, numbers or ready tensors, by name.
    """
    nodes = nodes_of(nodes) if isinstance(nodes, str) else list(nodes)
    names = outputs.split() if isinstance(outputs, str) else outputs
    results = names if isinstance(names, Mapping) else dict.fromkeys(names)
    graph = helper.make_graph(
        nodes,
        "graph",
        [typed(name, kind) for name, kind in inputs.items()],
        [typed(name, kind) for name, kind in results.items()],
        [
            value
            if isinstance(value, onnx.TensorProto)
            else numpy_helper.from_array(np.asarray(value), name)
            for name, value in (constants or {}).items()
        ],
    )
    domains = sorted({node.domain for node in nodes} - {""})
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def expected(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], *, optimized: bool = True
) -> list[np.ndarray]:
    """Return ONNX Runtime's results."""
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = exact_session(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))
