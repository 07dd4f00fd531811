"""One error lists everything that cannot be compiled, with the nodes' names."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from reference import graph_model

from tvmflow.errors import ModelError, UnsupportedModelError
from tvmflow.frontend.load import load_model


def error_of(model, **options):
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(model, **options)
    assert caught.value.remedy
    return caught.value


def chain(*nodes):
    """Build a chain of nodes from ``x`` to the last result."""
    built, source = [], "x"
    for index, (op_type, attributes) in enumerate(nodes):
        built.append(
            helper.make_node(op_type, [source], [f"v{index}"], name=f"n{index}", **attributes)
        )
        source = f"v{index}"
    return graph_model(built, {"x": ([2, 3, 4, 4], "float32")}, [source])


def test_all_in_one_error():
    """The error lists unknown, foreign and unsupported operators and attributes of a chain."""
    model = chain(
        ("Unique", {}), ("Relu", {}), ("Foo", {}), ("Bar", {"domain": "com.acme"}),
        ("RandomNormalLike", {}), ("RandomNormalLike", {}), ("Mystery", {}),
    )  # fmt: skip
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    error = error_of(model)
    assert "5 " not in error.message
    for word in ("Foo", "com.acme.Bar", "RandomNormalLike", "Mystery", "Unique"):
        assert word in error.message
    for name in ("n0", "n2", "n3", "n4", "n5", "n6"):
        assert name in error.details
    assert "RandomNormalLike (2 nodes)" in error.details


def test_attributes_that_are_not_supported_are_listed_with_reasons():
    model = chain(
        ("Relu", {}),
        ("Resize", {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ("MaxPool", {"kernel_shape": [2, 2], "dilations": [2, 2], "auto_pad": "SAME_UPPER"}),
        ("Unique", {}),
    )
    resize = model.graph.node[1]
    resize.input.extend(["", "scales"])
    model.graph.initializer.append(
        helper.make_tensor("scales", TensorProto.FLOAT, [4], [1, 1, 1.7, 1.7])
    )
    details = error_of(model).details
    assert "not whole is ambiguous" in details
    assert "auto_pad with dilations" in details
    assert "Unique" in details
    assert "Relu" not in details


def test_nodes_behind_a_refused_one_are_still_checked():
    details = error_of(chain(("Unique", {}), ("Cast", {"to": 7}), ("Bernoulli", {}))).details
    assert "Unique" in details
    assert "Bernoulli" in details


def test_many_nodes_are_counted():
    details = error_of(chain(*[("Bernoulli", {})] * 12)).details
    assert "Bernoulli (12 nodes)" in details
    assert "and 4 more" in details


def test_unused_nodes_do_not_matter():
    model = chain(("Relu", {}))
    model.graph.node.append(helper.make_node("Foo", ["x"], ["unused"]))
    assert load_model(model).outputs[0].shape == (2, 3, 4, 4)


def test_custom_domain():
    model = chain(("Relu", {"domain": "com.microsoft"}))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    error = error_of(model)
    assert "com.microsoft.Relu" in error.details
    assert "`ops`" in error.remedy
    assert "`ops`" not in error_of(chain(("Unique", {}))).remedy


@pytest.mark.parametrize(
    ("domain", "op_type"),
    [("com.microsoft", "FusedConv"), ("com.microsoft", "SkipLayerNormalization"),
     ("com.microsoft.nchwc", "Conv"), ("com.ms.internal.nhwc", "MaxPool")],
)  # fmt: skip
def test_files_that_onnx_runtime_optimised(domain, op_type):
    node = helper.make_node(op_type, ["x"], ["y"], domain=domain)
    model = graph_model([node], {"x": ([1, 4, 3, 3], "float32")}, ["y"])
    model.opset_import.append(helper.make_opsetid(domain, 1))
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(model)
    assert "ORT_ENABLE_BASIC" in caught.value.remedy


@pytest.mark.onnxruntime
def test_a_file_that_onnx_runtime_optimised(tmp_path, rng):
    """Files with basic optimisation compile; for others the remedy names the optimisation."""
    import onnxruntime

    w = rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    model = graph_model(nodes, {"x": ([1, 16, 8, 8], "float32")}, ["y"], {"w": w})
    levels = onnxruntime.GraphOptimizationLevel
    for level in (levels.ORT_ENABLE_BASIC, levels.ORT_ENABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        options.optimized_model_filepath = str(tmp_path / "net.onnx")
        options.log_severity_level = 4
        onnxruntime.InferenceSession(model.SerializeToString(), options)
        if level == levels.ORT_ENABLE_BASIC:
            load_model(tmp_path / "net.onnx")
            continue
        with pytest.raises(UnsupportedModelError) as caught:
            load_model(tmp_path / "net.onnx")
        assert "ORT_ENABLE_BASIC" in caught.value.remedy


def test_text_constants():
    node = helper.make_node("Constant", [], ["y"], value_string="hello")
    model = graph_model([helper.make_node("Relu", ["x"], ["z"]), node], {"x": ([2], "float32")},
                        ["z", "y"])  # fmt: skip
    error_of(model)


def test_results_whose_shape_depends_on_values():
    node = helper.make_node("Unique", ["x"], ["y"], name="node")
    model = graph_model([node], {"x": ([1, 6, 4], "float32")}, ["y"])
    assert "known only at run time" in error_of(model).details


@pytest.mark.parametrize(
    ("op_type", "name", "value", "words"),
    [
        ("Reshape", "shape", np.array([3, 2]), "depends on values"),
        ("Expand", "shape", np.array([2, 2, 3]), "depends on values"),
        ("Pad", "pads", np.array([0, 1, 0, 1]), "depends on values"),
        ("Tile", "repeats", np.array([1, 2]), "depends on values"),
        ("Slice", "ends", None, "computed at run time"),
        ("CumSum", "axis", np.array(1), "axis are computed"),
    ],
)
def test_shapes_and_axes_computed_at_run_time(op_type, name, value, words):
    """Operands that must be constant are refused at run time, never guessed."""
    inputs = {"x": ([2, 3], "float32")}
    if op_type == "Slice":
        names, inputs["ends"] = ["x", "starts", "ends"], ([1], "int64")
        constants = {"starts": np.array([0])}
    else:
        names, constants = ["x", name], {}
        inputs[name] = (value.shape, "int64")
    model = graph_model([helper.make_node(op_type, names, ["y"])], inputs, ["y"], constants)
    assert words in error_of(model).details


@pytest.mark.parametrize(
    ("op_type", "attributes", "words"),
    [
        ("Conv", {}, "its input [1, 5, 4, 4] has 5 channels, but its weight [4, 3, 1, 1] is for 3"),
        ("Conv", {"group": 2}, "is for 6"),
        ("ConvTranspose", {}, "is for 4"),
    ],
)
def test_invalid_nodes(op_type, attributes, words):
    """These are mistakes in the model, not missing features."""
    weight = np.ones((4, 3, 1, 1), np.float32)
    node = helper.make_node(op_type, ["x", "w"], ["y"], name="first", **attributes)
    model = graph_model([node], {"x": ([1, 5, 4, 4], "float32")}, ["y"], {"w": weight})
    with pytest.raises(ModelError, match="invalid at node 'first'") as caught:
        load_model(model)
    assert not isinstance(caught.value, UnsupportedModelError)
    assert words in caught.value.message
    assert op_type in caught.value.message


@pytest.mark.parametrize(("op_type", "opset"), [("SequenceMap", 13), ("Optional", 14)])
def test_expanded_operators_that_the_operator_set_lacks(op_type, opset):
    model = chain((op_type, {}))
    model.opset_import[0].version = opset
    with pytest.raises(ModelError, match=f"No Op registered for {op_type}"):
        load_model(model)
