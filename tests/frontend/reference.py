"""Builders of small ONNX models, and the check that each is computed right or refused."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper
from onnx.reference import ReferenceEvaluator
from support.onnx_models import Kind, model_of
from tvm import relax

from tvmflow.errors import ModelError
from tvmflow.frontend.load import ImportedModel, load_model
from tvmflow.graph.weights import lift_weights

#: Relative tolerance of one operator; the absolute one is this fraction of the largest value.
#: float32: sums in another order; float16: TVM adds in half precision (11 bits).
TOLERANCE = {"float16": 5e-3, "float32": 1e-4, "float64": 1e-7}

#: Prefix of refusals that are not decisions but errors of TVM.
ACCIDENT = "TVM does not take it"


def run(imported: ImportedModel, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Build an imported model for the CPU with TVM's own pipeline, and run it."""
    level = int(os.environ.get("TVMFLOW_LLVM_OPT_LEVEL") or 3)
    target = tvm.target.Target({"kind": "llvm", "opt-level": level})
    # TVM cannot read constants without elements from its executable.
    mod, constants = lift_weights(imported.mod)
    executable = relax.build(mod, target)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    arrays = [np.array(feeds[info.name], order="C") for info in imported.inputs]
    arrays += [np.array(weight) for weight in (*imported.weights.values(), *constants.values())]
    result = machine["main"](*[tvm.runtime.tensor(array) for array in arrays])
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [tensor.numpy() for tensor in results]


def onnxruntime_results(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]
) -> list[np.ndarray] | None:
    """Run a model in ONNX Runtime; return ``None`` if it does not accept the model."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return session.run(None, dict(feeds))
    except Exception:  # noqa: BLE001 (its errors share no other class)
        return None


def evaluator_results(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]
) -> list[np.ndarray] | None:
    """Run a model in ONNX's evaluator; return ``None`` if it does not accept the model."""
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(r) for r in ReferenceEvaluator(model).run(None, dict(feeds))]
    except Exception:  # noqa: BLE001 (its errors share no other class)
        return None


Value = tuple["np.ndarray | None", bool]


def node_model(
    op_type: str, values: Sequence[Value], opset: int, results: int = 1, **attributes: Any
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Build a model of one node.

    Parameters
    ----------
    values
        Each input's value, and whether it is a constant; ``None`` omits the input.

    Returns
    -------
    tuple
        The model, and the values of its inputs.
    """
    names = ["" if value is None else f"x{index}" for index, (value, _) in enumerate(values)]
    while names and not names[-1]:
        names.pop()
    given = [(name, *pair) for name, pair in zip(names, values, strict=False) if name]
    feeds = {name: value for name, value, constant in given if not constant}
    constants = {name: value for name, value, constant in given if constant}
    kinds = {name: (value.shape, value.dtype) for name, value in feeds.items()}
    outputs = [f"y{index}" for index in range(results)]
    node = helper.make_node(op_type, names, outputs, name="node", **attributes)
    return graph_model([node], kinds, outputs, constants, opset), feeds


def graph_model(
    nodes: str | Sequence[onnx.NodeProto],
    inputs: Mapping[str, Kind],
    outputs: str | Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """Build a model of an operator set that has operators of today."""
    return model_of(nodes, inputs, outputs, constants, opset, ir_version=10)


def assert_right(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Check shapes, dtypes, and values within the tolerance."""
    assert len(found) == len(expected)
    for array, wanted in zip(found, expected, strict=True):
        assert array.shape == wanted.shape
        assert array.dtype == wanted.dtype
        if wanted.dtype.kind != "f":
            np.testing.assert_array_equal(array, wanted)
            continue
        limit = TOLERANCE[wanted.dtype.name]
        scale = np.abs(wanted[np.isfinite(wanted)].astype(np.float64)).max(initial=0)
        np.testing.assert_allclose(
            array.astype(np.float64), wanted.astype(np.float64), rtol=limit, atol=limit * scale
        )


def judge(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    expected: Sequence[np.ndarray] | None,
) -> str | None:
    """Check that a model is computed right or refused.

    Parameters
    ----------
    expected
        The results; with ``None`` the check is only that the model runs.

    Returns
    -------
    str or None
        The reason of a refusal, ``None`` if the results are right.
    """
    imported, refusal = load_or_refusal(model)
    if refusal is not None or imported is None:
        return refusal
    results = run(imported, feeds)
    assert [r.shape for r in results] == [info.shape for info in imported.outputs]
    assert [r.dtype.name for r in results] == [info.dtype for info in imported.outputs]
    if expected is not None:
        assert_right(results, expected)
    return None


def check(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> None:
    """Check that a model is computed as ONNX Runtime computes it."""
    expected = onnxruntime_results(model, feeds)
    assert expected is not None
    assert judge(model, feeds, expected) is None


def load_or_refusal(model: onnx.ModelProto) -> tuple[ImportedModel | None, str | None]:
    """Import a model; return it, or the reason of its refusal."""
    try:
        return load_model(model), None
    except ModelError as error:
        caught = error
    assert ACCIDENT not in str(caught)
    assert caught.remedy
    return None, str(caught)


def load_and_run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Import a model and run it."""
    return run(load_model(model), feeds)
