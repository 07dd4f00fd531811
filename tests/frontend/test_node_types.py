"""Element types that ONNX forbids are errors in the model, as in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import tvmflow
from tvmflow.errors import ModelError

pytestmark = pytest.mark.onnxruntime

KINDS = {"f4": 1, "f8": 11, "i4": 6, "i8": 7, "u1": 2, "i1": 3, "b": 9}


def model_of(op_type, inputs, opset=17, constant=(), nodes=None, result=1, **attributes):
    """Build a node with inputs x0, x1, ... of these types and shapes."""
    graph = helper.make_graph(
        nodes or [helper.make_node(op_type, [f"x{i}" for i in range(len(inputs))], ["y"],
                                   name="the/node", **attributes)],
        "types",
        [helper.make_tensor_value_info(f"x{i}", KINDS[k], s)
         for i, (k, s) in enumerate(inputs) if i not in constant],
        [helper.make_tensor_value_info("y", result, None)],
        [numpy_helper.from_array(np.ones(s, "?" if k == "b" else k), f"x{i}")
         for i, (k, s) in enumerate(inputs) if i in constant],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


#: Operator, types of its inputs, and an excerpt of the message, by case.
FORBIDDEN = {
    "product": ("Mul", ["f8", "f4"], "'x0' is float64 and 'x1' is float32"),
    "third": ("Concat", ["f4", "f4", "i4"], "'x0' is float32 and 'x2' is int32"),
    "condition": ("Where", ["f4", "f4", "f4"], "'x0' is float32, expected bool"),
    "branches": ("Where", ["b", "f4", "i8"], "'x1' is float32 and 'x2' is int64"),
    "places": ("Gather", ["f4", "f4"], "'x1' is float32, expected int32 or int64"),
    "truths": ("Add", ["b", "b"], "'x0' is bool, expected float16, float32, float64"),
    "matrices": ("MatMul", ["i1", "i1"], "'x0' is int8, expected float16"),
    "limits": ("Clip", ["f4", "f8"], "'x0' is float32 and 'x1' is float64"),
    "comparison": ("Less", ["i4", "i8"], "'x0' is int32 and 'x1' is int64"),
    "root": ("Sqrt", ["i8"], "'x0' is int64, expected float16, float32 or float64"),
}


@pytest.mark.parametrize("constant", [(), (1,)], ids=["values", "constant"])
@pytest.mark.parametrize("case", FORBIDDEN)
def test_forbidden_types(case, constant):
    op_type, kinds, message = FORBIDDEN[case]
    shape = [] if case == "limits" else [3]
    attributes = {"axis": 0} if op_type in ("Concat", "Gather") else {}
    inputs = [(kind, shape if i else [3]) for i, kind in enumerate(kinds)]
    model = model_of(op_type, inputs, constant=constant, **attributes)
    with pytest.raises(Exception, match=r"(?i)type"):
        onnxruntime.InferenceSession(model.SerializeToString())
    with pytest.raises(ModelError) as caught:
        tvmflow.compile(model, target="llvm")
    assert f"at node 'the/node' ({op_type}): " in caught.value.message
    assert message in caught.value.message
    assert "Cast" in caught.value.remedy


def test_in_a_branch_and_in_a_function():
    product = helper.make_node("Mul", ["x0", "x1"], ["p"], name="inner")
    result = [helper.make_tensor_value_info("p", 1, [3])]
    branch = helper.make_graph([product], "branch", [], result)
    flow = helper.make_node("If", ["x2"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [("f4", [3]), ("f8", [3]), ("b", [])]
    model = model_of("If", inputs, nodes=[flow])
    with pytest.raises(ModelError, match=r"inner' .Mul.: its inputs must have one element type"):
        tvmflow.compile(model, target="llvm")
    call = helper.make_node("Product", ["x0", "x1"], ["y"], domain="local")
    model = model_of("Product", inputs[:2], nodes=[call])
    model.opset_import.append(helper.make_opsetid("local", 1))
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(
        helper.make_function("local", "Product", ["x0", "x1"], ["p"], [product], opsets)
    )
    with pytest.raises(ModelError, match="must have one element type"):
        tvmflow.compile(model, target="llvm")


ALLOWED = {
    "power": ("Pow", [("f4", [3]), ("i8", [])], 17),
    "many": ("Max", [("i4", [3]), ("i4", []), ("i4", [2, 3])], 17),
    "range of a type": ("Clip", [("i8", [3]), ("i8", []), ("i8", [])], 17),
    "mask": ("Where", [("b", [3]), ("f8", [3]), ("f8", [])], 17),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_allowed_types(case):
    op_type, inputs, opset = ALLOWED[case]
    model = model_of(op_type, inputs, opset, result=KINDS[inputs[-2][0]])
    feeds = {f"x{i}": np.ones(s, "?" if k == "b" else k) for i, (k, s) in enumerate(inputs)}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    with tvmflow.compile(model, target="llvm") as module:
        np.testing.assert_array_equal(module(feeds)["y"], wanted)
