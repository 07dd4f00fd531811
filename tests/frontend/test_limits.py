"""Models that are too large are refused before they cost time or memory."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from reference import graph_model

from tvmflow.errors import ModelError, ShapeError
from tvmflow.frontend import load
from tvmflow.frontend.load import load_model
from tvmflow.ir import limits
from tvmflow.ir.tensors import TensorType


def refused(model, match, **options):
    with pytest.MonkeyPatch.context() as patched:
        # The refusal must come before any conversion.
        patched.setattr(load, "to_relax", lambda _: pytest.fail("it was converted"))
        with pytest.raises(ModelError, match=match) as caught:
            load_model(model, **options)
    assert caught.value.remedy
    return caught.value


def one_node(op_type, inputs, constants=(), shape=(1, 17, 16, 9), opset=18, **attributes):
    node = helper.make_node(op_type, inputs, ["y"], **attributes)
    return graph_model([node], {"x": list(shape)}, "y", dict(constants), opset=opset)


CASES = {
    "resize": one_node("Resize", ["x", "", "", "z"], {"z": [2**31, 17, 16, 9]}, mode="linear"),
    "resize to less than that": one_node(
        "Resize", ["x", "", "", "z"], {"z": [1, 17, 16, 2**30]}, mode="nearest"
    ),
    "upsample": one_node("Upsample", ["x", "s"], {"s": np.array([1, 1, 1e6, 1e6], "f4")}, opset=9),
    "pad": one_node("Pad", ["x", "p"], {"p": [10**6] * 8}),
    "pad at the end of the integers": one_node("Pad", ["x", "p"], {"p": [2**63 - 1] * 8}),
    "expand": one_node("Expand", ["x", "z"], {"z": [10**6, 17, 16, 9]}),
    "tile": one_node("Tile", ["x", "r"], {"r": [1, 1, 10**5, 10**4]}),
    "tile that wraps": one_node("Tile", ["x", "r"], {"r": [1, 1, 2**60, 1]}),
    "convolution": one_node(
        "Conv", ["x", "w"], {"w": np.ones((4, 17, 3, 3), "f4")}, pads=[2**40] * 4
    ),
    "transposed convolution": one_node(
        "ConvTranspose", ["x", "w"], {"w": np.ones((17, 4, 3, 3), "f4")}, strides=[2**20, 2**20]
    ),
    "pooling": one_node("MaxPool", ["x"], kernel_shape=[2**40] * 2, pads=[2**40 - 1] * 4),
    "product": one_node("MatMul", ["w", "x"], {"w": np.ones((10**6, 1), "f4")}, shape=(1, 10**6)),
    "identity matrix": one_node("EyeLike", ["x"], shape=(10**5, 10**5)),
    "crop": one_node("CenterCropPad", ["x", "z"], {"z": [1, 17, 2**40, 2**40]}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_kernels_cannot_count(name):
    error = refused(CASES[name], "too large|overflow")
    assert "'y'" in error.message or "'x'" in error.message


def test_the_sentence_has_the_node_the_shape_the_bytes_and_the_limit():
    error = refused(CASES["resize"], "too large")
    assert error.message == (
        "The result of node 'y' (Resize) is too large: float32[2147483648, 17, 16, 9] has "
        "5257039970304 elements (21.0 TB), but kernels count up to 2147483647."
    )
    assert "attributes" in error.remedy


def constant_source(op_type, inputs, constants, **attributes):
    """Build a node on constants only, which is folded at import."""
    nodes = [
        helper.make_node(op_type, inputs, ["c"], **attributes),
        helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    return graph_model(nodes, {"x": [1]}, "y", constants)


@pytest.mark.parametrize(
    "model",
    [
        constant_source("ConstantOfShape", ["z"], {"z": [2**62]}),
        constant_source("ConstantOfShape", ["z"], {"z": [2**33]}),
        constant_source("ConstantOfShape", ["z"], {"z": [2**20, 2**20]}),
        constant_source(
            "OneHot", ["i", "d", "v"], {"i": [1], "d": 2**40, "v": np.array([0, 1], "f4")}
        ),
        constant_source("Range", ["b", "e", "s"], {"b": 0, "e": 2**40, "s": 1}),
        constant_source("Expand", ["o", "z"], {"o": np.ones(1, "f4"), "z": [2**20, 2**20]}),
    ],
    ids=["shape", "shape33", "shape2d", "onehot", "range", "expand"],
)
def test_constants_are_not_computed(model):
    assert "'c'" in refused(model, "too large|has no shape").message


@pytest.mark.parametrize(
    ("limit", "step"), [(1e30, 1), (1e30, 0), (1, 0), (np.inf, 1), (np.nan, 1)]
)
def test_a_range_without_an_end_is_not_empty(limit, step):
    """ONNX infers a Range without elements, whose sum would be 0."""
    numbers = {"b": np.float32(0), "e": np.float32(limit), "s": np.float32(step)}
    refused(constant_source("Range", ["b", "e", "s"], numbers), "has no shape")


def test_more_parts_than_results():
    """ONNX's shape inference would allocate a list of all parts."""
    refused(one_node("Split", ["x"], axis=1, num_outputs=2**40), "num_outputs is 1099511627776")


@pytest.mark.parametrize("shape", [(2**40, 2**40), (2**63 - 1,), (2**31, 1)])
def test_inputs(shape):
    refused(one_node("Relu", ["x"], shape=shape), "The input 'x' is too large")


def test_a_given_shape():
    model = one_node("Relu", ["x"], shape=("batch", 3))
    error = refused(model, "The input 'x' is too large", shapes={"x": [10**9, 3]})
    assert "`shapes`" in error.remedy


def test_an_extent_beside_an_empty_one():
    model = constant_source("ConstantOfShape", ["z"], {"z": np.array([2**62, 0])})
    refused(model, "extents beside 0 that kernels do not count")


@pytest.mark.parametrize("dims", [[2**40], [2**63 - 1, 2**63 - 1], [2**40, 0]])
def test_weights_of_which_there_is_little(dims):
    model = one_node("Add", ["x", "w"])
    model.graph.initializer.append(TensorProto(name="w", data_type=1, dims=dims, raw_data=b"1234"))
    refused(model, "Tensor 'w' is too large")


def test_intermediate_results_of_a_node():
    """LRN pads the channels by no more than their number."""
    loaded = load_model(one_node("LRN", ["x"], size=2**40))
    assert loaded.outputs[0].shape == (1, 17, 16, 9)


def test_what_does_not_fit_this_machine(monkeypatch):
    monkeypatch.setattr(limits, "memory_bytes", lambda: 1 << 20)
    model = one_node("Pad", ["x", "p"], {"p": [0, 0, 100, 100, 0, 0, 100, 100]})
    error = refused(model, r"needs 3\.1 MB, but this machine has 1\.0 MB of memory")
    assert isinstance(error, ShapeError)
    # The limit of memory does not apply to weights in files.
    kind = TensorType((1 << 20,), "float32")
    assert limits.excess(kind)
    assert limits.excess(kind, in_memory=False) is None


def test_the_memory_of_this_machine():
    limits.memory_bytes.cache_clear()
    assert 1 << 28 < limits.memory_bytes() < 1 << 50


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_an_axis_that_stays_costs_nothing(mode):
    """Finding that an axis is unchanged must not need a matrix of its extent squared."""
    model = one_node(
        "Resize", ["x", "", "s"], {"s": np.array([1, 1, 1, 2], "f4")}, shape=(1, 1, 1 << 20, 3),
        mode=mode,
    )  # fmt: skip
    assert load_model(model).outputs[0].shape == (1, 1, 1 << 20, 6)


def functions(count: int, calls: int, wrapped: bool = False) -> onnx.ModelProto:
    """Build functions that each call the next one ``calls`` times, the last one Relu."""
    made = []
    for number in range(count):
        last = number == count - 1
        names = ["x", *(f"v{i}" for i in range(calls - 1)), "y"]
        operator, domain = ("Relu", "") if last else (f"F{number + 1}", "pkg")
        nodes = [
            helper.make_node(operator, [a], [b], domain=domain)
            for a, b in itertools.pairwise(names)
        ]
        if wrapped:
            yes = helper.make_node("Constant", [], ["c"], value_ints=[1])
            test = helper.make_node("Cast", ["c"], ["t"], to=TensorProto.BOOL)
            branches = {
                f"{label}_branch": helper.make_graph(
                    [helper.make_node(operator, ["x"], [label], domain=domain)],
                    label, [], [onnx.ValueInfoProto(name=label)],
                )
                for label in ("then", "else")
            }  # fmt: skip
            nodes = [yes, test, helper.make_node("If", ["t"], ["y"], **branches)]
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("pkg", 1)]
        made.append(helper.make_function("pkg", f"F{number}", ["x"], ["y"], nodes, imports))
    model = graph_model("y = pkg.F0(x)", {"x": [2, 3]}, {"y": [2, 3]}, opset=17)
    model.functions.extend(made)
    return model


@pytest.mark.parametrize("wrapped", [False, True])
def test_functions_that_double(wrapped):
    error = refused(functions(26, 2, wrapped), r"become \d{8,} nodes .* more than the 100000")
    assert "call each other" in error.remedy


def test_functions_that_call_each_other_in_a_long_row():
    refused(functions(5000, 1), "call each other more than 100 deep")
    load_model(functions(60, 1))


def test_functions_that_call_themselves():
    model = functions(3, 1)
    model.functions[2].node[0].op_type, model.functions[2].node[0].domain = "F0", "pkg"
    refused(model, "call each other more than 100 deep")


def test_a_valid_model_at_the_limit():
    loaded = load_model(one_node("Relu", ["x"], shape=(2**28, 7)))
    assert loaded.outputs[0].elements == 7 * 2**28


def test_from_a_file(tmp_path):
    onnx.save(CASES["resize"], tmp_path / "net.onnx")
    refused(tmp_path / "net.onnx", "The result of node 'y'")


def test_tensors_with_too_many_axes():
    """Inputs, intermediate results and constants are all checked."""
    many = one_node("Relu", ["x"], shape=(1,) * 33)
    refused(many, r"The input 'x' has 33 axes, expected at most 32")
    reshaped = one_node("Reshape", ["x", "z"], {"z": np.ones(100, np.int64)}, shape=(1,))
    refused(reshaped, r"result of node 'y' \(Reshape\) has 100 axes")
    weight = one_node("Add", ["x", "w"], {"w": np.float32(1)}, shape=(1,))
    weight.graph.initializer[0].dims.extend([1] * 100)
    refused(weight, "'w' has 100 axes")
    load_model(one_node("Relu", ["x"], shape=(1,) * 32))
