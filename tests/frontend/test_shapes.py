"""Static shapes from the file and from the caller, and errors that say what to set."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from reference import graph_model, load_and_run

import tvmflow
from tvmflow.errors import InputError, ShapeError, UnsupportedModelError
from tvmflow.frontend.load import load_model


def dynamic(*shapes, operator="Add"):
    """Build a model with inputs a, b, ... of these shapes, where text and None are open."""
    names = "abc"[: len(shapes)]
    node = helper.make_node(operator, list(names), ["y"], name="node")
    return graph_model([node], dict(zip(names, shapes, strict=True)), "y")


def refused(model, *words, shapes=None):
    with pytest.raises(ShapeError) as caught:
        load_model(model, shapes)
    for word in words:
        assert word in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("shape", "other", "given", "expected"),
    [
        ([2, 3], [3], None, (2, 3)),
        ([2, 3], [3], {"a": (2, 3)}, (2, 3)),
        (["N", 3, None], [1], {"a": [4, 3, 5]}, (4, 3, 5)),
        (["N", 3], [3], {"a": np.array([2, 3])}, (2, 3)),
    ],
    ids=["static", "repeated", "open", "numbers of another type"],
)
def test_shapes_that_are_given(shape, other, given, expected):
    loaded = load_model(dynamic(shape, other), given)
    assert [info.shape for info in loaded.inputs] == [expected, tuple(other)]
    assert loaded.outputs[0].shape == expected


def test_open_dimensions_are_all_named():
    error = refused(dynamic(["N", 3, "H", None], ["N", 1, 1, 1]), "'a' has [N, 3, H, ?]", "'b'")
    assert "`shapes=a=1,3,224,224`" in error.remedy
    assert "`shapes=b=1,1,1,1`" in error.remedy


def test_symbol_set_by_one_input_holds_for_others():
    loaded = load_model(dynamic(["N", 3], ["N", 1]), {"a": (4, 3)})
    assert loaded.inputs[1].shape == (4, 1)


@pytest.mark.parametrize(
    ("shapes", "given", "words"),
    [
        ([["N", 3], ["N", 3]], {"a": (4, 3), "b": (1, 3)}, "'N' 1, but the input 'a' makes it 4"),
        ([["N", "N"], [1]], {"a": (4, 3)}, "'N' 3, but the input itself makes it 4"),
    ],
)
def test_symbol_with_two_extents(shapes, given, words, caplog):
    """ONNX Runtime runs such a model, so it is only a warning."""
    loaded = load_model(dynamic(*shapes), given)
    assert loaded.inputs[0].shape == given["a"]
    assert words in caplog.text


def test_symbol_with_two_extents_sets_no_other_input():
    model = dynamic(["N", 3], ["N", 3], ["N", 3], operator="Sum")
    given = {"a": (4, 3), "b": (1, 3)}
    refused(model, "'c' has [N, 3]", shapes=given)
    assert load_model(model, given | {"c": (4, 3)}).outputs[0].shape == (4, 3)


@pytest.mark.parametrize(
    "name", ["?", "", " ", "None", "none", "-1", "*", "unk__12", "unk__", "UNK", "unknown", "null"]
)
def test_names_of_unknown_extents_bind_nothing(name, caplog):
    model = dynamic([1, 3, name, name], [1, 3, 1, name])
    loaded = load_model(model, {"a": (1, 3, 48, 192), "b": (1, 3, 1, 1)})
    assert loaded.outputs[0].shape == (1, 3, 48, 192)
    assert not caplog.text
    refused(model, "'b' has [1, 3, 1, ?]", shapes={"a": (1, 3, 48, 192)})


@pytest.mark.parametrize("name", ["H", "unk_batch", "none_of", "DynamicDimension.0", "s1"])
def test_other_names_are_symbols(name):
    loaded = load_model(dynamic([name, 3], [name, 1]), {"a": (4, 3)})
    assert loaded.inputs[1].shape == (4, 1)


def test_open_dimension_written_as_a_number():
    model = dynamic([3, 4], [4])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    refused(model, "[?, 4]")
    assert load_model(model, {"a": (2, 4)}).outputs[0].shape == (2, 4)


def test_unknown_rank():
    model = dynamic([3, 4], [4])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    refused(model, "unknown rank")
    assert load_model(model, {"a": (2, 3, 4)}).outputs[0].shape == (2, 3, 4)


def test_unknown_input():
    error = refused(dynamic([3], [3]), "'c'", "'a', 'b'", shapes={"c": (3,)})
    assert error.remedy


def test_weight_is_no_input():
    model = graph_model("y = Add(a, w)", {"a": [3]}, "y", {"w": np.ones(3, np.float32)})
    refused(model, "'w'", shapes={"w": (3,)})


def test_weight_listed_as_input_is_no_input():
    """Before format 4 every weight is an input, too."""
    weights = {"w": np.ones(3, np.float32)}
    model = graph_model("y = Add(a, w)", {"a": [3], "w": [3]}, "y", weights, opset=8)
    model.ir_version = 3
    loaded = load_model(model)
    assert [info.name for info in loaded.inputs] == ["a"]
    assert len(loaded.mod["main"].params) == 1


def test_wrong_rank():
    error = refused(dynamic(["N", 3], [3]), "2 dimensions", "has 3", shapes={"a": (1, 2, 3)})
    assert "`shapes=a=1,3" in error.remedy


@pytest.mark.parametrize("shape", [(1, 4), (1, 2, 3)])
def test_a_shape_for_a_static_input_is_not_answered_with_another(shape):
    error = refused(dynamic([2, 3], [3]), "[2, 3]", shapes={"a": shape})
    assert "`shapes" not in error.remedy
    assert "exported again" in error.remedy


def test_dimensions_that_the_model_leaves_open_are_known():
    loaded = load_model(dynamic(["N", 3], [3]), {"a": (2, 3)})
    assert [info.open_dims for info in loaded.inputs] == [(0,), ()]


def test_contradiction():
    refused(dynamic(["N", 3], [3]), "[N, 3]", "contradicts", shapes={"a": (1, 4)})


@pytest.mark.parametrize("shape", [(0, 3), (-1, 3), (1.5, 3), "ab", (None, 3), 3])
def test_not_a_shape(shape):
    refused(dynamic(["N", 3], [3]), "positive whole numbers", shapes={"a": shape})


def test_shapes_computed_in_the_model(rng):
    """Exporters write ``x.view(x.size(0), -1)`` as Shape, Gather, Concat, Reshape."""
    nodes = """
        s = Shape(x) n = Gather<axis = 0>(s, zero) n1 = Unsqueeze(n, axes)
        shape = Concat<axis = 0>(n1, rest) [view] y = Reshape(x, shape)
    """
    constants = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    model = graph_model(nodes, {"x": ["N", 3, "H"]}, "y", constants)
    loaded = load_model(model, {"x": (2, 3, 5)})
    assert loaded.outputs[0].shape == (2, 15)
    assert loaded.mod["main"].body.blocks[0].bindings[0].var.name == "view"
    assert len(loaded.mod["main"].body.blocks[0].bindings) == 1


def test_resize_to_the_size_of_another_tensor(rng):
    """Feature pyramids resize to ``other.shape[2:]``."""
    mode = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
    nodes = f"""
        sb = Shape(b) hw = Slice(sb, two, end) sa = Shape(a) nc = Slice(sa, zero, two)
        sizes = Concat<axis = 0>(nc, hw) up = Resize<{mode}>(a, , , sizes) y = Add(up, b)
    """
    constants = {"zero": np.array([0]), "two": np.array([2]), "end": np.array([2**31])}
    model = graph_model(nodes, dict.fromkeys("ab", (1, 2, None, None)), "y", constants)
    loaded = load_model(model, {"a": (1, 2, 3, 4), "b": (1, 2, 6, 8)})
    assert loaded.outputs[0].shape == (1, 2, 6, 8)
    a, b = (rng.standard_normal(s, dtype=np.float32) for s in ((1, 2, 3, 4), (1, 2, 6, 8)))
    for value, extents in zip(model.graph.input, ((3, 4), (6, 8)), strict=True):
        for dim, extent in zip(value.type.tensor_type.shape.dim[2:], extents, strict=True):
            dim.dim_value = extent
    (result,) = load_and_run(model, {"a": a, "b": b})
    np.testing.assert_allclose(result, a.repeat(2, 2).repeat(2, 3) + b, rtol=1e-6)


def test_shape_that_depends_on_values():
    model = graph_model("[first] r = Relu(x) [where] y = Unique(r)", {"x": [3]}, "y")
    with pytest.raises(Exception, match="known only at run time") as caught:
        load_model(model)
    assert "where" in str(caught.value)


def test_output_without_elements():
    model = graph_model("y = Slice(x, one, one)", {"x": [3]}, "y", {"one": np.array([1])})
    assert load_model(model).outputs[0].shape == (0,)


def test_a_result_without_elements_in_its_second_axis():
    """TVM writes such a constant into its executable, but cannot read it."""
    model = graph_model("y = Slice(x, one, one, one)", {"x": [2, 3]}, "y", {"one": np.array([1])})
    x = np.ones((2, 3), np.float32)
    with closing(tvmflow.compile(model, target="llvm")) as module:
        assert module(x=x)["y"].shape == (2, 0)


def without_elements(dtype: str) -> onnx.ModelProto:
    """Build a concatenation, a sum and a slice, each with an operand or result without elements."""
    nodes = """
        both = Concat<axis = 0>(x, e) y = Relu(both) sum = ReduceSum<keepdims = 0>(e)
        cut = Slice(x, two, one)
    """
    constants = {"one": np.array([1]), "two": np.array([2])}
    inputs = {"x": ([3, 4], dtype), "e": ([0, 4], dtype)}
    model = graph_model(nodes, inputs, "y sum cut", constants)
    assert model.graph.input[1].type.tensor_type.shape.dim[0].HasField("dim_value")
    return model


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_input_and_output_without_elements(target, dtype):
    x = np.arange(-6, 6).reshape(3, 4).astype(dtype)
    with closing(tvmflow.compile(without_elements(dtype), target=target)) as module:
        assert [info.shape for info in module.inputs] == [(3, 4), (0, 4)]
        found = module(x=x, e=np.zeros((0, 4), dtype))
        with pytest.raises(InputError, match=r'shapes={"e": \(2, 4\)}'):
            module(x=x, e=np.zeros((2, 4), dtype))
    np.testing.assert_array_equal(found["y"], np.maximum(x, 0))
    assert found["sum"] == 0
    assert (found["cut"].shape, found["cut"].dtype) == ((0, 4), dtype)


def test_extent_of_0_may_be_an_open_one():
    """Some exporters write open extents as 0."""
    model = load_model(without_elements("float32"), {"e": (5, 4)})
    assert [info.shape for info in model.inputs] == [(3, 4), (5, 4)]
    assert model.outputs[0].shape == (8, 4)


@pytest.mark.opencl
def test_standalone_libraries_have_tensors_with_elements_only():
    with pytest.raises(UnsupportedModelError, match=r"'e' has the shape \[0, 4\]"):
        tvmflow.compile(without_elements("float32"), target="opencl", format="standalone")


def test_declared_types_of_outputs_do_not_matter():
    model = dynamic(["N", 3], [3])
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "other"])
    )
    assert load_model(model, {"a": (2, 3)}).outputs[0].shape == (2, 3)
