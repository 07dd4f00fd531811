"""Imported modules: forms of operators that fuse, names, parameters, results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from reference import assert_right, check, graph_model, load_and_run, onnxruntime_results, run
from support.onnx_models import nodes_of
from tvm import relax
from tvm.ir import GenericConst

import tvmflow
from tvmflow import models
from tvmflow.frontend.load import load_model


def bindings(model, shapes=None):
    blocks = load_model(model, shapes).mod["main"].body.blocks
    return [binding for block in blocks for binding in block.bindings]


def operators(model):
    """Return the names of the Relax operators of an imported model."""
    values = [binding.value for binding in bindings(model)]
    return [str(v.op.name).removeprefix("relax.") for v in values if hasattr(v, "op")]


def one(op_type, shape, constants=None, opset=18, dtype="float32", **attributes):
    """Build a model of one node named ``node``, with the input ``x`` followed by constants.

    A constant that is ``None`` is an omitted input.
    """
    given = {n: value for n, value in (constants or {}).items() if value is not None}
    names = [n if n in given else "" for n in constants or {}]
    node = helper.make_node(op_type, ["x", *names], ["y"], name="node", **attributes)
    return graph_model([node], {"x": (shape, dtype)}, ["y"], given, opset)


TWICE = {"roi": None, "scales": np.array([1, 1, 2, 2], np.float32)}


def image_constants(rng):
    return {"w": rng.standard_normal((4, 3, 3, 3), dtype=np.float32), "b": np.ones(4, np.float32)}


#: Operators of image networks, and the Relax operators that schedules must match.
FORMS = {
    "Relu": (one("Relu", [1, 3, 8, 8]), ["nn.relu"]),
    "ReLU6 before opset 11": (one("Clip", [1, 3], opset=9, min=0.0, max=6.0), ["clip"]),
    "Sigmoid": (one("Sigmoid", [1, 3]), ["sigmoid"]),
    "HardSwish": (one("HardSwish", [1, 3]), ["tvmflow.product", "add", "clip", "multiply"]),
    "LeakyRelu": (one("LeakyRelu", [1, 3]), ["nn.leakyrelu"]),
    "MaxPool": (one("MaxPool", [1, 3, 8, 8], kernel_shape=[2, 2]), ["nn.max_pool2d"]),
    "AveragePool": (
        one("AveragePool", [1, 3, 8, 8], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        ["nn.avg_pool2d"],
    ),
    "GlobalAveragePool": (one("GlobalAveragePool", [1, 3, 8, 8]), ["mean"]),
    "Flatten": (one("Flatten", [1, 3, 8, 8]), ["reshape"]),
    "Softmax": (one("Softmax", [1, 3]), ["nn.softmax"]),
    "Transpose": (one("Transpose", [1, 3, 8, 8], perm=[0, 2, 3, 1]), ["permute_dims"]),
    "Resize nearest": (
        one("Resize", [1, 3, 8, 8], TWICE,
            mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        ["image.resize2d"],
    ),
    "Resize linear": (
        one("Resize", [1, 3, 8, 8], TWICE,
            mode="linear", coordinate_transformation_mode="half_pixel"),
        ["image.resize2d"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_form(name):
    model, expected = FORMS[name]
    assert operators(model) == expected


def test_form_of_conv(rng):
    model = one("Conv", [1, 3, 8, 8], image_constants(rng), pads=[1, 0, 1, 0])
    conv, add = (binding.value for binding in bindings(model))
    assert conv.op.name == "relax.nn.conv2d"
    assert [int(p) for p in conv.attrs.padding] == [1, 0, 1, 0]
    assert (conv.attrs.data_layout, conv.attrs.kernel_layout) == ("NCHW", "OIHW")
    assert add.op.name == "relax.add"
    assert [int(e) for e in add.args[1].ty.shape] == [1, 4, 1, 1]


@pytest.mark.parametrize("transposed", [0, 1])
def test_form_of_gemm(rng, transposed):
    """A constant weight is stored as (in, out), whether the model transposes it or not."""
    weight = rng.standard_normal((5, 3) if transposed else (3, 5), dtype=np.float32)
    constants = {"w": weight, "b": np.ones(5, np.float32)}
    model = one("Gemm", [2, 3], constants, transB=transposed)
    matmul, add = (binding.value for binding in bindings(model))
    assert (matmul.op.name, add.op.name) == ("relax.matmul", "relax.add")
    assert isinstance(matmul.args[1], GenericConst)
    assert [int(e) for e in matmul.args[1].ty.shape] == [3, 5]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 6.0, ["clip"]),
        (0.0, None, ["clip"]),
        (-1.0, None, ["clip"]),
        (None, 1.0, ["clip"]),
        (None, None, ["clip"]),
        (3.0, 1.0, ["maximum", "minimum"]),
    ],
)
def test_form_of_clip(low, high, expected, rng):
    limits = {"low": low, "high": high}
    constants = {n: None if v is None else np.array(v, np.float32) for n, v in limits.items()}
    model = one("Clip", [2, 30], constants)
    assert operators(model) == expected
    x = rng.standard_normal((2, 30), dtype=np.float32) * 5
    x[0, :2] = np.inf, -np.inf
    # ONNX defines that an omitted limit is the type's largest number, and that the result is the
    # upper limit everywhere if the limits cross.
    largest = np.finfo(np.float32).max
    wanted = np.minimum(np.maximum(x, -largest if low is None else low),
                        largest if high is None else high).astype(np.float32)  # fmt: skip
    np.testing.assert_array_equal(load_and_run(model, {"x": x})[0], wanted)


def test_integer_clip_is_exact():
    limits = {"low": np.array(-(2**40) - 1), "high": np.array(2**53 + 1)}
    model = one("Clip", [3], limits, dtype="int64")
    x = np.array([-(2**60), 5, 2**60])
    np.testing.assert_array_equal(load_and_run(model, {"x": x})[0], np.clip(x, *limits.values()))


# Names -------------------------------------------------------------------------------------


def test_bindings_are_named_after_nodes(rng):
    model = one("Conv", [1, 3, 8, 8], image_constants(rng))
    assert [b.var.name for b in bindings(model)] == ["node#1", "node"]


def test_nodes_without_a_name_are_named_after_their_result():
    nodes = [
        helper.make_node("Relu", ["x"], ["act.1/out"]),
        helper.make_node("Neg", ["act.1/out"], ["y"]),
    ]
    model = graph_model(nodes, {"x": [3]}, "y")
    assert [b.var.name for b in bindings(model)] == ["act.1/out", "y"]


def test_names_of_real_networks_are_nodes():
    model = models.make("mobilenet_v2", width=0.35, size=32)
    known = {node.name for node in model.graph.node}
    names = [binding.var.name.partition("#")[0] for binding in bindings(model)]
    assert set(names) <= known
    for node in model.graph.node:
        if node.op_type != "BatchNormalization":
            assert node.name in names


def test_names_survive_fusion():
    """The variable of a fused kernel is named after its last node."""
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="first/Relu"),
             helper.make_node("Neg", ["a"], ["b"], name="then/Neg"),
             helper.make_node("MaxPool", ["b"], ["y"], name="p", kernel_shape=[2, 2])]  # fmt: skip
    mod = load_model(graph_model(nodes, {"x": [1, 2, 4, 4]}, ["y"])).mod
    for transform in (relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(),
                      relax.transform.FuseOps(), relax.transform.FuseTIR()):  # fmt: skip
        mod = transform(mod)
    names = [b.var.name for b in mod["main"].body.blocks[0].bindings]
    assert names[-1] == "p"


def test_odd_names(rng):
    """Parameters have the model's names, with any characters."""
    nodes = [helper.make_node("Add", ["input.1", "2"], ["a/b:0"], name="1.x"),
             helper.make_node("Relu", ["a/b:0"], ["out put"], name="1.x")]  # fmt: skip
    inputs = {"input.1": [3], "2": [3]}
    model = graph_model(nodes, inputs, ["out put"])
    loaded = load_model(model)
    assert [p.name for p in loaded.mod["main"].params] == ["input.1", "2"]
    assert loaded.outputs[0].name == "out put"
    x = np.array([-1, 0, 2], np.float32)
    np.testing.assert_array_equal(run(loaded, {"input.1": x, "2": x})[0], [0, 0, 4])


@pytest.mark.parametrize("target", [
    "llvm", pytest.param("opencl", marks=pytest.mark.opencl),
])  # fmt: skip
def test_odd_names_are_fused(target):
    """Functions that the importer creates have parameters named after their operands."""
    nodes = [
        helper.make_node("Abs", ["/x:0"], ["/net/Abs"]),
        helper.make_node("Cast", ["/net/Abs"], ["/net/Cast"], to=TensorProto.UINT8),
        helper.make_node("BitCast", ["/net/Cast"], ["/net/BitCast"], to=TensorProto.INT8),
        helper.make_node("Cast", ["/net/BitCast"], ["y"], to=TensorProto.FLOAT),
    ]
    x = np.linspace(-250, 250, 48, dtype=np.float32)
    model = graph_model(nodes, {"/x:0": [48]}, ["y"], opset=26)
    (found,) = tvmflow.compile(model, target=target)(x)
    np.testing.assert_array_equal(found, np.abs(x).astype(np.uint8).view(np.int8))


# Results -----------------------------------------------------------------------------------


def test_one_output_is_a_tensor_more_are_a_tuple():
    nodes = "a = Relu(x) b = Neg(a)"
    only = load_model(graph_model(nodes, {"x": [3]}, "b"))
    assert isinstance(only.mod["main"].ret_ty, relax.TensorType)
    loaded = load_model(graph_model(nodes, {"x": [3]}, "b a"))
    assert isinstance(loaded.mod["main"].ret_ty, relax.TupleType)
    assert [info.name for info in loaded.outputs] == ["b", "a"]
    x = np.array([-1, 0, 2], np.float32)
    b, a = run(loaded, {"x": x})
    np.testing.assert_array_equal(a, [0, 0, 2])
    np.testing.assert_array_equal(b, [0, 0, -2])


def test_outputs_that_are_inputs_constants_or_the_same():
    nodes = "copy = Identity(x) two = Add(one, one) a = Relu(x) b = Identity(a)"
    constants = {"one": np.ones(2, np.float32)}
    outputs = ["copy", "two", "a", "b", "one"]
    model = graph_model(nodes, {"x": [3]}, outputs, constants)
    loaded = load_model(model)
    assert [info.name for info in loaded.outputs] == outputs
    x = np.array([-1, 0, 2], np.float32)
    results = dict(zip(outputs, run(loaded, {"x": x}), strict=True))
    np.testing.assert_array_equal(results["copy"], x)
    np.testing.assert_array_equal(results["two"], [2, 2])
    np.testing.assert_array_equal(results["b"], [0, 0, 2])
    np.testing.assert_array_equal(results["a"], results["b"])


def test_unused_inputs_stay():
    inputs = {"a": ([2], "int64"), "b": [3], "c": ([1], "bool")}
    loaded = load_model(graph_model("y = Relu(b)", inputs, "y"))
    assert [info.name for info in loaded.inputs] == ["a", "b", "c"]
    assert int(loaded.mod["main"].attrs["num_input"]) == 3


def test_nodes_without_effect_vanish(rng):
    nodes = """
        a = Identity(x) b = Dropout(a, ratio, training) c = Cast<to = 1>(b) unused = Exp(x)
        y = Relu(c)
    """
    constants = {"ratio": np.array(0.5, np.float32), "training": np.array(False)}
    model = graph_model(nodes, {"x": [3]}, "y", constants)
    assert operators(model) == ["nn.relu"]


OPTIONAL = "p, indices = MaxPool<kernel_shape = [2, 2]>(x) y, mask = Dropout(p)"


def test_optional_results_that_nothing_uses():
    """Exporters name masks and indices that no node reads."""
    assert operators(graph_model(OPTIONAL, {"x": [1, 2, 4, 4]}, "y")) == ["nn.max_pool2d"]


@pytest.mark.parametrize("result", ["indices", "mask"])
def test_optional_results_that_are_used_are_computed(result, rng):
    model = graph_model(OPTIONAL, {"x": [1, 2, 4, 4]}, ["y", result])
    check(model, {"x": rng.standard_normal((1, 2, 4, 4), np.float32)})


def test_dropout_in_training_is_refused():
    constants = {"training": np.array(True)}
    model = graph_model("y = Dropout(x, , training)", {"x": [3]}, "y", constants)
    with pytest.raises(Exception, match="Dropout"):
        load_model(model)


def test_constants_are_shared_and_exact(rng):
    """A name gives one constant, which keeps its type."""
    values = {n: np.array(2).astype(n) for n in ("float64", "float16", "int8", "uint64", "int64")}
    for dtype, value in values.items():
        model = one("Mul", [2], {"c": value}, dtype=dtype)
        result = load_and_run(model, {"x": np.array([1, 3]).astype(dtype)})[0]
        assert result.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(result, [2, 6])


def test_local_functions_are_inlined(rng):
    """Newer exporters export modules of a network as functions."""
    function = helper.make_function(
        "local", "twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"], name="add")],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    model = graph_model("y = local.twice(x)", {"x": [3]}, "y")
    model.functions.append(function)
    x = rng.standard_normal(3, dtype=np.float32)
    np.testing.assert_array_equal(load_and_run(model, {"x": x})[0], 2 * x)


# Types and operator sets -------------------------------------------------------------------


def test_image_of_bytes(rng):
    """A network can read uint8 pixels and normalize them itself."""
    nodes = "f = Cast<to = 1>(x) n = Div(f, scale) y = Conv(n, w, b)"
    constants = {"scale": np.array(255, np.float32), **image_constants(rng)}
    model = graph_model(nodes, {"x": ([1, 3, 8, 8], "uint8")}, ["y"], constants)
    assert load_model(model).inputs[0].dtype == "uint8"
    check(model, {"x": rng.integers(0, 256, (1, 3, 8, 8)).astype(np.uint8)})


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", ["float16", pytest.param("float64", marks=pytest.mark.slow)])
def test_network_of_another_type(rng, dtype):
    model = models.make("mobilenet_v1", width=0.25, size=32, classes=8)
    expected = onnxruntime_results(model, {"input": np.ones((1, 3, 32, 32), np.float32)})
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(dtype)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = elem_type
    loaded = load_model(model)
    assert (loaded.inputs[0].dtype, loaded.outputs[0].dtype) == (dtype, dtype)
    (found,) = run(loaded, {"input": np.ones((1, 3, 32, 32), dtype)})
    limit = 2e-2 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(
        found, expected[0], rtol=limit, atol=limit * np.abs(expected[0]).max()
    )


def test_half_precision_means_do_not_overflow():
    x = np.full((1, 2, 64, 64), 100, np.float16)
    model = one("GlobalAveragePool", list(x.shape), dtype="float16")
    np.testing.assert_array_equal(load_and_run(model, {"x": x})[0].ravel(), [100, 100])


NEWEST = onnx.defs.onnx_opset_version()
#: Operator sets in which the test's operators changed; the other sets run with the slow tests.
CHANGES = (7, 11, 13, NEWEST)


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    "opset",
    [pytest.param(n, marks=[] if n in CHANGES else pytest.mark.slow) for n in range(7, NEWEST + 1)],
)
def test_operator_sets(rng, opset):
    """A small classifier is right in every operator set, from the oldest to the newest."""
    pads = [0, 0, 1, 0, 0, 0, 0, 1]
    clip = "Clip<min = 0.0, max = 6.0>(c)" if opset < 11 else "Clip(c, low, high)"
    pad = f"Pad<pads = {pads}>(p)" if opset < 11 else "Pad(p, pads)"
    squeeze = "Squeeze<axes = [2, 3]>(g)" if opset < 13 else "Squeeze(g, axes)"
    nodes = nodes_of(f"""
        c = Conv<pads = [1, 1, 1, 1]>(x, w, b) r = {clip}
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r) q = {pad}
        g = GlobalAveragePool(q) s = {squeeze} t = Softmax<axis = 1>(s) y = Dropout(t)
    """)
    constants = {
        "low": np.array(0, np.float32), "high": np.array(6, np.float32), "axes": np.array([2, 3]),
        "pads": np.array(pads), **image_constants(rng),
    }  # fmt: skip
    used = {name for node in nodes for name in node.input}
    constants = {name: value for name, value in constants.items() if name in used}
    model = graph_model(nodes, {"x": [1, 3, 8, 8]}, ["y"], constants, opset)
    model.ir_version = 8
    feeds = {"x": rng.standard_normal((1, 3, 8, 8), dtype=np.float32)}
    found = load_and_run(model, feeds)
    expected = onnxruntime_results(model, feeds)
    if expected is None:  # newer than ONNX Runtime: the same network in an older set
        model.opset_import[0].version = 21
        expected = onnxruntime_results(model, feeds)
    assert_right(found, expected)


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mobilenet_v1", {"width": 0.25, "size": 32}),
        ("mobilenet_v2", {"width": 0.35, "size": 32, "batch": 2}),
        ("facebox_net", {"size": 64, "boxes": 64}),
    ],
)
def test_example_networks(rng, name, options):
    model = models.make(name, **options)
    (info,) = load_model(model).inputs
    check(model, {info.name: rng.standard_normal(info.shape, dtype=np.float32)})
