"""Branches that do not fit the compiled shapes, and inputs that are bound to constants."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest
from onnx import helper
from reference import onnxruntime_results
from support.onnx_models import model_of

import tvmflow
from tvmflow.errors import CompileError, InputError, ModelError, ShapeError, UnsupportedModelError
from tvmflow.frontend.load import load_model

RNG = np.random.default_rng(4)
X = RNG.standard_normal((1, 512)).astype(np.float32)


def body(name, nodes):
    result = helper.make_tensor_value_info(nodes[-1].output[0], 1, None)
    return helper.make_graph(nodes, name, [], [result])


#: A branch on windows of 256 elements, which fits; and branches that do not, as found by the
#: converter or by ONNX's inference.
FITS = [
    helper.make_node("Reshape", ["x", "two"], ["f"], name="reshape"),
    helper.make_node("Relu", ["f"], ["f_out"]),
]
UNFIT = {
    "shape": [helper.make_node("Reshape", ["x", "three"], ["u"], name="wrong")],
    "product": [helper.make_node("MatMul", ["x", "w"], ["u"], name="wrong")],
    "recurrent": [helper.make_node("LSTM", ["x", "r", "r"], ["u"], hidden_size=4, name="wrong")],
}
UNKNOWN = [helper.make_node("NoSuchOperator", ["x"], ["u"], name="wrong")]
CONSTANTS = {
    "two": np.array([2, 256]), "three": np.array([3, 256]), "rate": np.array(16000),
    "w": np.ones((7, 3), np.float32), "r": np.ones((1, 16, 4), np.float32),
}  # fmt: skip


def network(then, otherwise, sr_shape=(), deep=False):
    """Build a network that chooses its branch by the rate of its input."""
    choice = helper.make_node(
        "If", ["is_wide"], ["y"], name="choice",
        then_branch=body("then", then), else_branch=body("else", otherwise),
    )  # fmt: skip
    if deep:
        inner = helper.make_node("Identity", ["y"], ["z"])
        outer = body("outer", [choice, inner])
        other = body("other", [*FITS[:1], helper.make_node("Neg", ["f"], ["n"])])
        choice = helper.make_node(
            "If", ["is_loud"], ["y"], name="outer", then_branch=outer, else_branch=other
        )
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["same"]),
        helper.make_node("Squeeze", ["same"], ["is_wide"]),
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "limit"], ["is_loud"]),
        choice,
    ]
    constants = {**CONSTANTS, "limit": np.array(100, np.float32)}
    inputs = {"x": X.shape, "sr": (sr_shape, "int64")}
    return model_of(nodes, inputs, {"y": None}, constants, opset=16)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", UNFIT)
def test_a_branch_that_does_not_fit_is_an_error_when_it_is_taken(name, swapped):
    pair = (UNFIT[name], FITS) if swapped else (FITS, UNFIT[name])
    right, wrong = (8000, 16000) if swapped else (16000, 8000)
    with tvmflow.compile(network(*pair), target="llvm") as module:
        assert [output.name for output in module.outputs] == ["y"]
        found = module(x=X, sr=np.array(right))["y"]
        np.testing.assert_array_equal(found, np.maximum(X.reshape(2, 256), 0))
        with pytest.raises(InputError, match=r"'choice', its branch .*/wrong'") as caught:
            module(x=X, sr=np.array(wrong))
    assert ("then_branch" if swapped else "else_branch") in caught.value.message


def test_a_branch_within_a_branch_that_is_not_taken_is_none():
    with tvmflow.compile(network(FITS, UNFIT["shape"], deep=True), target="llvm") as module:
        loud = X.copy()
        loud[0, 5] = 200
        for x, rate in ((X, 16000), (X, 8000), (loud, 16000)):
            taken = np.maximum(x.reshape(2, 256), 0) if x is loud else -x.reshape(2, 256)
            np.testing.assert_array_equal(module(x=x, sr=np.array(rate))["y"], taken)
        with pytest.raises(InputError, match="else_branch"):
            module(x=loud, sr=np.array(8000))


def test_a_network_of_which_no_branch_fits_is_refused():
    with pytest.raises(ModelError, match=r"'choice/.*/wrong'"):
        load_model(network(UNFIT["product"], UNFIT["recurrent"]))


@pytest.mark.parametrize("other", [FITS, UNFIT["shape"]])
def test_an_operator_that_is_not_supported_is_refused_in_a_branch_too(other):
    with pytest.raises(UnsupportedModelError, match="NoSuchOperator"):
        load_model(network(UNKNOWN, other))


def test_a_node_after_the_branches_is_refused():
    model = network(FITS, FITS)
    model.graph.node.append(helper.make_node("MatMul", ["y", "w"], ["z"], name="after"))
    model.graph.output[0].name = "z"
    with pytest.raises(ModelError, match="'after'"):
        load_model(model)


def test_applications_in_c_do_not_check():
    with pytest.raises(ModelError, match="'choice/else/wrong'") as caught:
        tvmflow.compile(network(FITS, UNFIT["product"]), target="llvm", format="standalone")
    assert "`inputs`" in caught.value.remedy


# -- inputs that are bound ------------------------------------------------------------------------


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("shape", "value"), [((), 16000), ((1,), 16000), ((1,), [16000])])
def test_a_bound_input_decides_the_branch(shape, value):
    model = network(FITS, UNFIT["shape"], shape)
    with tvmflow.compile(model, target="llvm", inputs={"sr": value}) as module:
        assert [i.name for i in module.inputs] == ["x"]
        assert "limits" not in module.metadata
        (expected,) = onnxruntime_results(
            model, {"x": X, "sr": np.array(value, np.int64).reshape(shape)}
        )
        np.testing.assert_array_equal(module(x=X)["y"], expected)


def test_open_extents_are_those_of_the_value():
    model = model_of("y = Mul(x, s)", {"x": [2, 3], "s": ["N"]}, opset=16)
    x = X[0, :6].reshape(2, 3)
    with tvmflow.compile(model, target="llvm", inputs={"s": [1, 0.5, -2]}) as module:
        np.testing.assert_allclose(module(x=x)["y"], x * np.float32([1, 0.5, -2]), rtol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "error", "words"),
    [
        ({"rate": 1}, ShapeError, "the model has 'x', 'sr'"),
        ({"sr": 0.5}, ShapeError, "not of its type int64"),
        ({"sr": 2**70}, CompileError, "should be a number"),
        ({"sr": [1, 2]}, ShapeError, "shape [2], which contradicts []"),
        ({"sr": "fast"}, CompileError, "should be a number"),
        ({"sr": [[1], [2, 3]]}, CompileError, "should be a number"),
        ({"x": np.zeros(2000)}, CompileError, "up to 1024"),
    ],
)
def test_values_that_do_not_fit_are_refused(inputs, error, words):
    with pytest.raises(error, match=re.escape(words)) as caught:
        tvmflow.compile(network(FITS, FITS), target="llvm", inputs=inputs)
    assert caught.value.remedy


@pytest.mark.onnxruntime
def test_commands_bind_inputs(tmp_path, run_python):
    """The reference uses the constant, too."""
    onnx.save(network(FITS, UNFIT["shape"]), tmp_path / "net.onnx")
    code = "import sys; from tvmflow.cli import main; sys.argv[0] = 'tvmflow'; main()"
    given = ("--target", "llvm", "--input", "sr=16000", "-o", "net.so")
    assert run_python(code, "compile", tmp_path / "net.onnx", *given).returncode == 0
    done = run_python(code, "verify", tmp_path / "net.onnx", "net.so", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    wrong = run_python(code, "compile", tmp_path / "net.onnx", "--input", "sr=fast")
    assert wrong.returncode == 2
    assert "NAME=NUMBER" in wrong.stderr
