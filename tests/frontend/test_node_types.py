"""Element types that ONNX forbids are errors in the model, as in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from support.onnx_models import expected
from support.onnx_models import model_of as any_model

import tvmflow
from tvmflow.errors import ModelError

pytestmark = pytest.mark.onnxruntime


def model_of(op_type, inputs, opset=17, constant=(), **attributes):
    """Build a node with inputs x0, x1, ... of these types and shapes."""
    names = [f"x{index}" for index in range(len(inputs))]
    node = helper.make_node(op_type, names, ["y"], name="the/node", **attributes)
    kinds = {f"x{i}": (shape, kind) for i, (kind, shape) in enumerate(inputs) if i not in constant}
    constants = {f"x{i}": np.ones(inputs[i][1], inputs[i][0]) for i in constant if i < len(inputs)}
    return any_model([node], kinds, "y", constants, opset)


#: Operator, types of its inputs, and an excerpt of the message, by case.
FORBIDDEN = {
    "product": ("Mul", ["f8", "f4"], "'x0' is float64 and 'x1' is float32"),
    "third": ("Concat", ["f4", "f4", "i4"], "'x0' is float32 and 'x2' is int32"),
    "condition": ("Where", ["f4", "f4", "f4"], "'x0' is float32, expected bool"),
    "branches": ("Where", ["bool", "f4", "i8"], "'x1' is float32 and 'x2' is int64"),
    "places": ("Gather", ["f4", "f4"], "'x1' is float32, expected int32 or int64"),
    "truths": ("Add", ["bool", "bool"], "'x0' is bool, expected float16, float32, float64"),
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
    inputs = {"x0": [3], "x1": ([3], "float64"), "x2": ([], "bool")}
    with pytest.raises(ModelError, match=r"inner' .Mul.: its inputs must have one element type"):
        tvmflow.compile(any_model([flow], inputs), target="llvm")
    del inputs["x2"]
    model = any_model("y = local.Product(x0, x1)", inputs)
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
    "mask": ("Where", [("bool", [3]), ("f8", [3]), ("f8", [])], 17),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_allowed_types(case):
    op_type, inputs, opset = ALLOWED[case]
    model = model_of(op_type, inputs, opset)
    feeds = {f"x{i}": np.ones(shape, kind) for i, (kind, shape) in enumerate(inputs)}
    with tvmflow.compile(model, target="llvm") as module:
        np.testing.assert_array_equal(module(feeds)["y"], expected(model, feeds)[0])
