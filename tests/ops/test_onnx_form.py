"""Nodes of the domain ai.tvmflow in ONNX models: checker, inference, front end, refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference
from support.operators import build, feeds_for, random, references

import tvmflow
from tvmflow import ops
from tvmflow.errors import InputError, ModelError, ShapeError, UnsupportedModelError
from tvmflow.frontend.load import load_model
from tvmflow.ir import operators
from tvmflow.ir.operator import DOMAIN, Operand
from tvmflow.ops.onnx_form import register_schemas
from tvmflow.verify.tolerance import OPERATOR, assert_close

BOXES = 6


def anchors(count: int = BOXES, dtype: str = "float32") -> np.ndarray:
    """Return boxes x1 y1 x2 y2 of some extent."""
    corners, sizes = np.abs(random((2, count, 2)))
    return np.concatenate([corners, corners + sizes + 0.1], -1).astype(dtype)


def decode(source: str, result: str, name: str = "decode", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(
        "BoxDecode", [source, "anchors"], [result], name, domain=DOMAIN, **attributes
    )


def network(boxes: np.ndarray | None = None, **attributes: object) -> onnx.ModelProto:
    """Return a model that scales offsets, decodes boxes, and clips these to 0 to 1."""
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["offsets"], "scale"),
        decode("offsets", "boxes", **attributes),
        helper.make_node("Clip", ["boxes", "zero", "one"], ["y"], "clip"),
    ]
    constants = {
        "anchors": anchors() if boxes is None else boxes,
        "scale": np.float32(0.5), "zero": np.float32(0), "one": np.float32(1),
    }  # fmt: skip
    return build(nodes, {"x": (2, BOXES, 4)}, ["y"], constants)


def inferred(model: onnx.ModelProto, name: str) -> list[int | str]:
    graph = shape_inference.infer_shapes(model, strict_mode=True).graph
    kind = next(value.type for value in graph.value_info if value.name == name)
    return [dim.dim_param or dim.dim_value for dim in kind.tensor_type.shape.dim]


def with_extents(model: onnx.ModelProto, extents: Sequence[int | str]) -> onnx.ModelProto:
    """Return the model with another input shape, and without inferred shapes."""
    del model.graph.value_info[:]
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for dim, extent in zip(dims, extents, strict=True):
        dim.Clear()
        setattr(dim, "dim_param" if isinstance(extent, str) else "dim_value", extent)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


# -- ONNX's own tools ---------------------------------------------------------------------


def test_the_checker_and_shape_inference_know_operators():
    model = network()
    onnx.checker.check_model(model, full_check=True)
    assert inferred(model, "boxes") == [2, BOXES, 4]


def test_open_dimensions_stay_open():
    assert inferred(with_extents(network(), ["N", BOXES, 4]), "boxes") == ["N", BOXES, 4]


def test_a_result_whose_shape_is_not_known_has_a_type():
    """The number of anchors is known: other numbers of boxes may or may not be right."""
    model = with_extents(network(), [7, "M", 4])
    graph = shape_inference.infer_shapes(model, strict_mode=True).graph
    kind = next(value.type.tensor_type for value in graph.value_info if value.name == "boxes")
    assert kind.elem_type == onnx.TensorProto.FLOAT
    assert not kind.HasField("shape")


def test_inference_says_which_shapes_do_not_fit():
    with pytest.raises(shape_inference.InferenceError, match=r"\[2, 6, 4\] and anchors \[5, 4\]"):
        network(anchors(5))


def test_a_schema_is_replaced_with_its_operator(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(operators, "REGISTERED", {})
    mine = replace(ops.OPERATORS["BoxDecode"], name="MyDecode", gradient=None)
    register_schemas([ops.register(mine)])
    assert list(onnx.defs.get_schema("MyDecode", 1, DOMAIN).attributes) == ["limit"]
    register_schemas([ops.register(replace(mine, attributes={"other": 1}))])
    assert list(onnx.defs.get_schema("MyDecode", 1, DOMAIN).attributes) == ["other"]


# -- through the front end ----------------------------------------------------------------


def test_a_model_with_a_custom_operator_computes_what_the_reference_does():
    model = network(limit=0.25)
    feeds = {"x": random((2, BOXES, 4), 2.0)}
    (expected,) = references(model, feeds)
    with tvmflow.compile(model, target="llvm") as module:
        assert [info.shape for info in module.outputs] == [(2, BOXES, 4)]
        assert_close(module(**feeds)["y"], expected, OPERATOR)
    plain = network()
    assert np.abs(references(plain, feeds)[0] - expected).max() > 0.01, "the attribute is unused"


def test_open_batches_are_set_when_it_is_compiled():
    model = with_extents(network(), ["N", BOXES, 4])
    with pytest.raises(ShapeError, match=r'`shapes={"x": '):
        load_model(model)
    assert load_model(model, {"x": (5, BOXES, 4)}).outputs[0].shape == (5, BOXES, 4)


def test_constant_operands_make_constant_results():
    """One half is computed at compile time, in float64; the other is not."""
    nodes = [
        decode("offsets", "boxes"),
        helper.make_node("Add", ["x", "boxes"], ["sum"]),
        decode("sum", "y", "second"),
    ]
    constants = {"anchors": anchors(), "offsets": random((BOXES, 4))}
    model = build(nodes, {"x": (2, BOXES, 4)}, ["y"], constants)
    feeds = feeds_for(model)
    with tvmflow.compile(model, target="llvm") as module:
        assert [k["name"] for k in module.metadata["kernels"]] == ["fused_add_BoxDecode"]
        assert_close(module(**feeds)["y"], references(model, feeds)[0], OPERATOR)


def test_results_that_are_known_and_of_other_nodes_are_found_by_a_custom_operator():
    """The model computes anchors from constants, through an Identity."""
    nodes = [
        helper.make_node("Mul", ["halves", "two"], ["doubled"]),
        helper.make_node("Identity", ["doubled"], ["anchors"]),
        helper.make_node("Identity", ["x"], ["same"]),
        decode("same", "y"),
    ]
    constants = {"halves": anchors() / 2, "two": np.float32(2)}
    model = build(nodes, {"x": (BOXES, 4)}, ["y"], constants)
    feeds = feeds_for(model)
    with tvmflow.compile(model, target="llvm") as module:
        assert_close(module(**feeds)["y"], references(model, feeds)[0], OPERATOR)


def test_operators_in_functions_of_the_model():
    node = helper.make_node("BoxDecode", ["a", "b"], ["c"], domain=DOMAIN)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    function = helper.make_function("com.acme", "Head", ["a", "b"], ["c"], [node], opsets)
    model = network()
    call = helper.make_node("Head", ["offsets", "anchors"], ["boxes"], domain="com.acme")
    model.graph.node[1].CopyFrom(call)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    assert load_model(model).outputs[0].shape == (2, BOXES, 4)


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register an operator with two results, the second one a sum, and an optional input."""
    from tvm import te

    from tvmflow.ir.tensors import TensorType

    def infer(types, attributes):
        return types[0], TensorType(types[0].shape[:1], types[0].dtype)

    def compute(tensors, attributes):
        x, offset = tensors
        k = te.reduce_axis((0, x.shape[1]), name="k")
        more = (lambda i, j: x[i, j]) if offset is None else (lambda i, j: x[i, j] + offset[j])
        return [
            te.compute(x.shape, lambda i, j: more(i, j) * attributes["factor"], name="scaled"),
            te.compute(x.shape[:1], lambda i: te.sum(more(i, k), axis=k), name="total"),
        ]

    def reference(arrays, attributes):
        x, offset = arrays
        x = x if offset is None else x + offset
        return [x * attributes["factor"], x.sum(1)]

    monkeypatch.setattr(operators, "REGISTERED", {})
    floats = ("float32",)
    ops.register(
        ops.Operator(
            "ScaleAndSum", "Both.", (Operand("x", floats), Operand("offset", floats, True)),
            (Operand("scaled", floats), Operand("total", floats)), infer, compute, reference,
            {"factor": 3.0},
        )
    )  # fmt: skip


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("used", ["both", "first", "second"])
def test_several_results_and_optional_inputs(used: str, optional: bool):
    inputs = ["d", "offset"] if optional else ["d"]
    names = [
        name if used in ("both", when) else "" for name, when in (("s", "first"), ("t", "second"))
    ]
    nodes = [
        helper.make_node("Abs", ["x"], ["d"]),
        helper.make_node("ScaleAndSum", inputs, names, "split", domain=DOMAIN),
        *(helper.make_node("Neg", [n], [f"{n}_out"]) for n in names if n),
    ]
    constants = {"offset": random((5,))} if optional else {}
    model = build(nodes, {"x": (3, 5)}, [f"{n}_out" for n in names if n], constants)
    feeds = feeds_for(model)
    with tvmflow.compile(model, target="llvm") as module:
        for info, reference in zip(module.outputs, references(model, feeds), strict=True):
            assert_close(module(**feeds)[info.name], reference, OPERATOR, info.name)
        functions = set(module.metadata["schedules"])
    assert "fused_tir_abs_ScaleAndSum" in functions, "what it reads is computed where it is read"


# -- what is refused ----------------------------------------------------------------------


def unknown(model: onnx.ModelProto) -> None:
    model.graph.node[1].op_type = "BoxDecod"


def version_2(model: onnx.ModelProto) -> None:
    model.opset_import[1].version = 2


def no_version(model: onnx.ModelProto) -> None:
    del model.opset_import[1]


def more_inputs(model: onnx.ModelProto) -> None:
    model.graph.node[1].input.append("scale")


def fewer_inputs(model: onnx.ModelProto) -> None:
    del model.graph.node[1].input[1]


def input_left_out(model: onnx.ModelProto) -> None:
    model.graph.node[1].input[1] = ""


def attribute(name: str, value: object) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node[1].attribute.append(helper.make_attribute(name, value))

    return change


def other_anchors(boxes: np.ndarray) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        found = next(t for t in model.graph.initializer if t.name == "anchors")
        found.CopyFrom(numpy_helper.from_array(boxes, "anchors"))

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            unknown,
            'no such operator is registered (`tvmflow.ops.load("FILE")`)',
        ),
        (version_2, "version 1 in its opset_import, but there is 2."),
        (no_version, "version 1 in its opset_import, but there is none."),
        (more_inputs, "has input size 3 not in range [min=2, max=2]"),
        (fewer_inputs, "has input size 1 not in range [min=2, max=2]"),
        (input_left_out, "input 1 is marked single but has an empty string"),
        (attribute("bound", 1.0), "Unrecognized attribute: bound for operator BoxDecode"),
        (attribute("limit", 3), "'decode : limit'. Expected: 'FLOAT', actual: 'INT'"),
        (other_anchors(anchors(5)), "'decode' is not valid: BoxDecode is given deltas [2, 6, 4]"),
        (other_anchors(anchors(dtype="float64")), "'anchors' of BoxDecode is float64[6, 4]"),
        (other_anchors(anchors(dtype="float16")), "anchors float16[6, 4], expected one dtype"),
    ],
)
def test_what_does_not_fit_is_refused(change: Callable[[onnx.ModelProto], None], words: str):
    model = network()
    change(model)
    with pytest.raises(ModelError) as caught:
        load_model(model)
    assert words in " ".join(str(caught.value).split())
    assert caught.value.remedy
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("constant", [True, False])
def test_values_of_constants_are_looked_at(monkeypatch: pytest.MonkeyPatch, constant: bool):
    """The shape of computed floats is known, of computed integers nothing."""
    seen = []

    def check(arrays, attributes):
        x, count = arrays
        seen.append((x.shape, np.isnan(x).all(), count))
        if count is not None and count.max() > x.shape[1]:
            raise InputError(f"{count.max()} of {x.shape[1]}", remedy="Count again.")

    monkeypatch.setattr(operators, "REGISTERED", {})
    ops.register(
        ops.Operator(
            "First", "Some of them.", (Operand("x", ("float32",)), Operand("count", ("int64",))),
            (Operand("y", ("float32",)),), lambda types, _: types[:1],
            lambda *_: [], lambda arrays, _: arrays[:1], check=check,
        )
    )  # fmt: skip
    cast = helper.make_node("Cast", ["c"], ["count"], to=TensorProto.INT64)
    node = helper.make_node("First", ["x", "count"], ["y"], "first", domain=DOMAIN)
    known = {"c": np.array([3, 7], np.float32)} if constant else {}
    inputs = {"x": (2, 5), **({} if constant else {"c": (2,)})}
    model = build([cast, node], inputs, ["y"], known)
    with pytest.raises(ModelError) as caught:
        load_model(model)
    words = "'first' is not valid: 7 of 5" if constant else "TVM does not take it"
    assert words in str(caught.value)
    assert seen[0][:2] == ((2, 5), True)
    assert (seen[0][2] is None) == (not constant)


def test_operators_of_other_domains_are_still_refused():
    model = network()
    model.graph.node[1].domain = "com.acme"
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    with pytest.raises(UnsupportedModelError, match=r"those of ai\.tvmflow are supported"):
        load_model(model)
