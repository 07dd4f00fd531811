"""BatchNormalization is folded into the layer before it where that is possible."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from reference import check, graph_model, load_and_run

from tvmflow.frontend.load import load_model

PARAMETERS = ["gamma", "beta", "mean", "variance"]


def norm(source, result, attributes=""):
    return f"{result} = BatchNormalization{attributes}({source}, gamma, beta, mean, variance)"


#: A convolution, whose results are normalized.
CONV = "c = Conv(x, w)"
NORMED = f"{CONV} {norm('c', 'y')}"


def parameters(rng, channels, dtype="float32"):
    values = [rng.uniform(0.5, 1.5, channels), *rng.standard_normal((2, channels))]
    return dict(
        zip(PARAMETERS, [v.astype(dtype) for v in (*values, rng.uniform(0.1, 2, channels))],
            strict=True)
    )  # fmt: skip


def filters(rng, *kernel):
    """Return weights of 6 filters of 4 channels, and parameters for their results."""
    return {"w": rng.standard_normal((6, 4, *kernel), dtype=np.float32), **parameters(rng, 6)}


def random(rng, *shape):
    return {"x": rng.standard_normal(shape, dtype=np.float32)}


def operators(model):
    """Return the names of the Relax operators of an imported model."""
    bindings = load_model(model).mod["main"].body.blocks[0].bindings
    return [str(b.value.op.name).removeprefix("relax.") for b in bindings]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("opset", [9, 14, 15, 22])
def test_conv(rng, bias, opset):
    operands = "x, w, b" if bias else "x, w"
    nodes = f"c = Conv<group = 2>({operands}) {norm('c', 'n', '<epsilon = 0.01>')} y = Relu(n)"
    constants = {"w": rng.standard_normal((6, 2, 3, 3), dtype=np.float32), **parameters(rng, 6)}
    if bias:
        constants["b"] = rng.standard_normal(6, dtype=np.float32)
    model = graph_model(nodes, {"x": [2, 4, 6, 6]}, ["y"], constants, opset)
    assert operators(model) == ["nn.conv2d", "add", "nn.relu"]
    check(model, random(rng, 2, 4, 6, 6))


@pytest.mark.onnxruntime
def test_transposed_conv(rng):
    nodes = f"c = ConvTranspose<group = 2>(x, w) {norm('c', 'y')}"
    constants = {"w": rng.standard_normal((4, 3, 3, 3), dtype=np.float32), **parameters(rng, 6)}
    model = graph_model(nodes, {"x": [1, 4, 5, 5]}, ["y"], constants)
    assert operators(model) == ["nn.conv2d_transpose", "add"]
    check(model, random(rng, 1, 4, 5, 5))


@pytest.mark.onnxruntime
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("shape", [None, (), (1,), (6,), (1, 6)])
def test_gemm(rng, transposed, shape):
    operands = "x, w" if shape is None else "x, w, b"
    attributes = f"alpha = 0.7, beta = 1.3, transB = {transposed}"
    nodes = f"c = Gemm<{attributes}>({operands}) {norm('c', 'y')}"
    weight = rng.standard_normal((6, 4) if transposed else (4, 6), dtype=np.float32)
    constants = {"w": weight, **parameters(rng, 6)}
    if shape is not None:
        constants["b"] = np.asarray(rng.standard_normal(shape), np.float32)
    model = graph_model(nodes, {"x": [3, 4]}, ["y"], constants)
    assert operators(model) == ["matmul", "add"]
    check(model, random(rng, 3, 4))


@pytest.mark.onnxruntime
def test_gemm_with_a_bias_for_every_row(rng):
    nodes = f"c = Gemm(x, w, b) {norm('c', 'y')}"
    constants = {
        "w": rng.standard_normal((4, 6), dtype=np.float32),
        "b": rng.standard_normal((3, 1), dtype=np.float32),
        **parameters(rng, 6),
    }
    model = graph_model(nodes, {"x": [3, 4]}, ["y"], constants)
    assert operators(model) == ["matmul", "add", "multiply", "add"]
    check(model, random(rng, 3, 4))


@pytest.mark.onnxruntime
def test_two_norms_after_one_conv(rng):
    second = [f"{name}2" for name in PARAMETERS]
    nodes = f"{CONV} {norm('c', 'n')} y = BatchNormalization(n, {', '.join(second)})"
    constants = filters(rng, 1, 1)
    constants |= dict(zip(second, parameters(rng, 6).values(), strict=True))
    model = graph_model(nodes, {"x": [1, 4, 3, 3]}, "y", constants)
    assert operators(model) == ["nn.conv2d", "add"]
    check(model, random(rng, 1, 4, 3, 3))


@pytest.mark.onnxruntime
def test_weight_of_two_convs(rng):
    """Only the copy of the conv before the norm is scaled."""
    nodes = f"a = Conv(x, w) b = Conv(x, w) {norm('a', 'n')} y = Add(n, b)"
    constants = filters(rng, 1, 1)
    model = graph_model(nodes, {"x": [1, 4, 3, 3]}, "y", constants)
    check(model, random(rng, 1, 4, 3, 3))


@pytest.mark.onnxruntime
@pytest.mark.parametrize("second_use", ["node", "output"])
def test_result_of_the_conv_is_used_elsewhere(rng, second_use):
    nodes, outputs = f"{CONV} {norm('c', 'n')}", "n c"
    if second_use == "node":
        nodes, outputs = f"{nodes} y = Add(n, c)", "y"
    constants = filters(rng, 1, 1)
    model = graph_model(nodes, {"x": [1, 4, 3, 3]}, outputs, constants)
    assert operators(model)[:3] == ["nn.conv2d", "multiply", "add"]
    check(model, random(rng, 1, 4, 3, 3))


@pytest.mark.onnxruntime
@pytest.mark.parametrize("computed", [*PARAMETERS, "w"])
def test_parameter_computed_at_run_time(rng, computed):
    constants = filters(rng, 1, 1)
    value = constants.pop(computed)
    inputs = {"x": [1, 4, 3, 3], computed: (value.shape, "float32")}
    model = graph_model(NORMED, inputs, ["y"], constants)
    check(model, {"x": rng.standard_normal((1, 4, 3, 3), dtype=np.float32), computed: value})


def test_training_mode_is_not_folded(rng):
    """In training mode it uses the statistics of its input, and returns running ones."""
    outputs = "y, new_mean, new_variance"
    nodes = f"{CONV} {norm('c', outputs, '<training_mode = 1>')}"
    values = parameters(rng, 6)
    constants = {"w": rng.standard_normal((6, 4, 1, 1), dtype=np.float32), **values}
    model = graph_model(nodes, {"x": [2, 4, 3, 5]}, outputs.split(", "), constants)
    x = rng.standard_normal((2, 4, 3, 5)).astype(np.float32)
    c = np.einsum("nihw,oi->nohw", x.astype(np.float64), constants["w"][:, :, 0, 0])
    mean, variance = c.mean((0, 2, 3)), c.var((0, 2, 3))
    wide = [v.reshape(1, 6, 1, 1) for v in (mean, variance, values["gamma"], values["beta"])]
    expected = [
        (c - wide[0]) / np.sqrt(wide[1] + 1e-5) * wide[2] + wide[3],
        values["mean"] * 0.9 + mean * 0.1,
        values["variance"] * 0.9 + variance * 0.1,
    ]
    for found, right in zip(load_and_run(model, {"x": x}), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_weights_that_would_overflow_do_not(rng):
    """A factor of 1e5 is fine for float16 values near 1e-3: weights near 1 become fp32 first."""
    constants = {"w": np.ones((2, 2, 1, 1), np.float16), **parameters(rng, 2, "float16")}
    constants["gamma"] = np.full(2, 6e4, np.float16)
    constants["variance"] = np.full(2, 0.1, np.float16)
    constants["mean"] = np.zeros(2, np.float16)
    model = graph_model(NORMED, {"x": ([1, 2, 3, 3], "float16")}, ["y"], constants)
    # The convolution is between the conversions of the input and of the result.
    assert operators(model)[0] == operators(model)[-1] == "call_tir"
    assert operators(model).count("nn.conv2d") == 1
    x = (rng.standard_normal((1, 2, 3, 3)) * 1e-3).astype(np.float16)
    (found,) = load_and_run(model, {"x": x})
    assert np.isfinite(found).all()


def test_folding_keeps_the_precision(rng):
    """With statistics far from (0, 1), the product must be rounded once only."""
    nodes = f"{CONV} {norm('c', 'y', '<epsilon = 1e-9>')}"
    constants = filters(rng, 3, 3)
    constants["variance"] *= np.float32(1e-6)
    constants["mean"] *= np.float32(1e3)
    model = graph_model(nodes, {"x": [1, 4, 6, 6]}, ["y"], constants)
    x = rng.standard_normal((1, 4, 6, 6), dtype=np.float32)
    wide = {n: v.astype(np.float64) for n, v in constants.items()}
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    raw = np.einsum("nchwij,ocij->nohw", windows, wide["w"])
    shaped = {n: wide[n].reshape(1, -1, 1, 1) for n in PARAMETERS}
    expected = (raw - shaped["mean"]) / np.sqrt(shaped["variance"] + 1e-9)
    expected = expected * shaped["gamma"] + shaped["beta"]
    (found,) = load_and_run(model, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_the_callers_model_is_not_changed(rng):
    constants = filters(rng, 1, 1)
    model = graph_model(NORMED, {"x": [1, 4, 3, 3]}, ["y"], constants)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    load_model(model)
    assert copy == model
