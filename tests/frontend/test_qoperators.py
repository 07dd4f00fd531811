"""ONNX Runtime's quantized operators against it, and data movement of quantized elements."""

from __future__ import annotations

import numpy as np
import pytest
from contrib_models import TARGETS
from onnx import TensorProto, helper, numpy_helper
from support.onnx_models import expected, model_of, typed

import tvmflow
from tvmflow.errors import UnsupportedModelError


def integers(shape, dtype="uint8", seed=1):
    if dtype in ("bool", "float32"):
        values = np.random.default_rng(seed).standard_normal(shape)
        return values > 0 if dtype == "bool" else values.astype(np.float32)
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def contributed(op_type, shapes, *, order="inputs first", dtype="uint8", **attributes):
    """Build a node on operands of these shapes, each with its own scale and zero point."""
    constants, operands = {}, []
    for index in range(len(shapes)):
        constants |= {f"s{index}": np.float32(0.02 + 0.013 * index)}
        constants |= {f"z{index}": np.array(7 + 20 * index, dtype)}
        operands += [f"x{index}", f"s{index}", f"z{index}"]
    constants |= {"sy": np.float32(0.031), "zy": np.array(41, dtype)}
    last = ["sy", "zy"]
    names = operands + last if order == "inputs first" else last + operands
    node = helper.make_node(op_type, names, ["y"], domain="com.microsoft", **attributes)
    inputs = {f"x{index}": (shape, dtype) for index, shape in enumerate(shapes)}
    return model_of([node], inputs, "y", constants)


def qgemm(*, transposed=False, bias=True, columns=True, quantized=True):
    weight, count = integers((37, 11), "int8", 2), (11,) if columns else ()
    constants = {
        "sx": np.float32(0.03), "zx": np.uint8(119), "w": weight.T if transposed else weight,
        "sw": np.random.default_rng(3).uniform(0.01, 0.03, count).astype(np.float32),
        "zw": np.zeros(count, np.int8), "b": integers(11, "int16", 4).astype(np.int32) // 8,
        "sy": np.float32(0.03 * 0.02 * 80 * 6), "zy": np.uint8(128),
    }  # fmt: skip
    if not bias:
        del constants["b"]
    names = ["x", "sx", "zx", "w", "sw", "zw", "b" if bias else ""]
    if quantized:
        names += ["sy", "zy"]
    else:
        del constants["sy"], constants["zy"]
    node = helper.make_node("QGemm", names, ["y"], domain="com.microsoft", transB=int(transposed))
    return model_of([node], {"x": ((5, 37), "uint8")}, "y", constants)


def softmax(dtype, zero, **attributes):
    model = contributed("QLinearSoftmax", [MAP], dtype=dtype, **attributes)
    constants = {t.name: t for t in model.graph.initializer}
    # The quantizer uses these values, as the results of Softmax are between 0 and 1.
    constants["sy"].CopyFrom(numpy_helper.from_array(np.float32(1 / 256), "sy"))
    constants["zy"].CopyFrom(numpy_helper.from_array(np.array(zero, dtype), "zy"))
    return model


def where(condition, x, y, dtype="uint8"):
    model = contributed("QLinearWhere", [x, y], dtype=dtype)
    model.graph.node[0].input.insert(0, "condition")
    model.graph.input.append(typed("condition", (condition, "bool")))
    return model


def product(op_type, *, dtype="int8", columns=False, zero=True, bias=True):
    """Build MatMulIntegerToFloat or DynamicQuantizeMatMul with an odd number of columns."""
    count = (11,) if columns else ()
    own = {
        "w": integers((37, 11), dtype, 2),
        "sw": np.random.default_rng(3).uniform(0.01, 0.03, count).astype(np.float32),
    }
    points = {"zw": integers(count, dtype, 4)} if zero else {}
    added = {"b": np.linspace(-4, 4, 11, dtype=np.float32)} if bias else {}
    last = ["zw" if zero else "", "b" if bias else ""]
    if op_type == "DynamicQuantizeMatMul":
        names, inputs, constants = ["x", "w", "sw", *last], {"x": ((5, 37), "float32")}, {}
    else:
        names = ["x", "w", "sx", "sw", "zx", *last]
        inputs = {"x": ((2, 5, 37), "uint8")}
        constants = {"sx": np.float32(0.03), "zx": np.uint8(119)}
    node = helper.make_node(op_type, names, ["y"], domain="com.microsoft")
    return model_of([node], inputs, "y", constants | own | points | added)


MAP = (1, 6, 5, 7)
CASES = {
    "softmax": lambda: softmax("uint8", 0, axis=1, opset=13),
    "softmax_int8": lambda: softmax("int8", -128, opset=17),
    "softmax_of_old_models": lambda: softmax("uint8", 0, axis=2, opset=11),
    "where": lambda: where(MAP, MAP, MAP),
    "where_broadcast": lambda: where((6, 1, 1), MAP, (5, 7), dtype="int8"),
    "to_float": lambda: product("MatMulIntegerToFloat"),
    "to_float_columns": lambda: product("MatMulIntegerToFloat", columns=True, bias=False),
    "to_float_unsigned": lambda: product("MatMulIntegerToFloat", dtype="uint8", zero=False),
    "dynamic_product": lambda: product("DynamicQuantizeMatMul"),
    "dynamic_columns": lambda: product("DynamicQuantizeMatMul", columns=True, dtype="uint8"),
    "dynamic_plain": lambda: product("DynamicQuantizeMatMul", zero=False, bias=False),
    "add": lambda: contributed("QLinearAdd", [MAP, MAP]),
    "add_int8": lambda: contributed("QLinearAdd", [MAP, MAP], dtype="int8"),
    "add_broadcast": lambda: contributed("QLinearAdd", [MAP, (6, 1, 1)]),
    "mul": lambda: contributed("QLinearMul", [MAP, MAP]),
    "leaky": lambda: contributed("QLinearLeakyRelu", [MAP], alpha=0.3),
    "sigmoid": lambda: contributed("QLinearSigmoid", [MAP]),
    "global_average": lambda: contributed("QLinearGlobalAveragePool", [MAP]),
    "average": lambda: contributed(
        "QLinearAveragePool", [MAP], kernel_shape=[2, 3], strides=[2, 2]
    ),
    # Blocks of channels are gathered from bytes that are not adjacent.
    "average_blocks": lambda: contributed(
        "QLinearAveragePool", [(1, 64, 7, 9)], kernel_shape=[3, 2], strides=[1, 1]
    ),
    "concat": lambda: contributed("QLinearConcat", [MAP, (1, 3, 5, 7)], order="last first", axis=1),
    "gemm": qgemm,
    "gemm_transposed": lambda: qgemm(transposed=True),
    "gemm_plain": lambda: qgemm(bias=False, columns=False),
    "gemm_real_result": lambda: qgemm(quantized=False),
}


def feeds_of(model):
    feeds = {}
    for index, value in enumerate(model.graph.input):
        kind = value.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
        feeds[value.name] = integers([d.dim_value for d in kind.shape.dim], dtype, 5 + index)
    return feeds


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_contributed_operator(case, target, device):
    model = CASES[case]()
    feeds = feeds_of(model)
    (reference,) = expected(model, feeds)
    assert len(np.unique(reference)) > 4
    with tvmflow.compile(model, target=target, device=device) as module:
        output = module(**feeds)["y"]
    if reference.dtype == np.float32:
        np.testing.assert_allclose(output, reference, rtol=1e-5, atol=1e-5)
    elif "softmax" in case:
        # ONNX Runtime looks exponentials up, so numbers midway between steps may round differently.
        off = np.abs(output.astype(int) - reference)
        assert off.max() <= 1
        assert (off > 0).mean() < 0.02
    else:
        np.testing.assert_array_equal(output, reference)


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_every_pair_of_numbers(op_type, dtype, target, device):
    """Some sums and products of all pairs are nearly midway between two steps.

    With the scales of these seeds, the sum or product of the dequantized numbers would round to
    another step.
    """
    lowest = np.iinfo(dtype).min
    numbers = np.arange(lowest, lowest + 256, dtype=dtype)
    a, b = np.meshgrid(numbers, numbers)
    rng = np.random.default_rng(7)
    outputs, nodes, constants = [], [], {}
    for number in range(8):
        scales = rng.uniform(0.01, 0.05, 3).astype(np.float32)
        if op_type == "QLinearMul":
            scales[2] = scales[0] * scales[1] * rng.uniform(60, 120)
        points = rng.integers(lowest, lowest + 256, 3)
        names = []
        for index, tensor in enumerate(("x0", "x1", "")):
            constants[f"s{number}{index}"] = scales[index]
            constants[f"z{number}{index}"] = np.array(points[index], dtype)
            names += [*([tensor] if tensor else []), f"s{number}{index}", f"z{number}{index}"]
        outputs.append(f"y{number}")
        nodes.append(helper.make_node(op_type, names, outputs[-1:], domain="com.microsoft"))
    inputs = {"x0": (a.shape, dtype), "x1": (a.shape, dtype)}
    model, feeds = model_of(nodes, inputs, outputs, constants), {"x0": a, "x1": b}
    with tvmflow.compile(model, target=target, device=device) as module:
        found = module(feeds)
    for name, reference in zip(outputs, expected(model, feeds), strict=True):
        np.testing.assert_array_equal(found[name], reference)


@pytest.mark.parametrize("axes", [[1], [2, 3], [-1]])
@pytest.mark.parametrize("opset", [13, 18])
def test_mean_of_axes(axes, opset):
    """ONNX Runtime defines the operator, but has no CPU kernel to compare with."""
    model = contributed("QLinearReduceMean", [MAP], axes=axes, keepdims=0)
    model.opset_import[0].version = opset
    feeds = feeds_of(model)
    known = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    real = (feeds["x0"].astype(np.float64) - known["z0"]) * known["s0"]
    wanted = np.clip(np.rint(real.mean(tuple(axes)) / known["sy"]) + known["zy"], 0, 255)
    with tvmflow.compile(model, target="llvm") as module:
        np.testing.assert_array_equal(module(**feeds)["y"], wanted)


def there_and_back(domain, attributes):
    """Write nodes that quantize x and dequantize the result, y."""
    prefix = f"{domain}." if domain else ""
    return (
        f"q = {prefix}QuantizeLinear{attributes}(x, s, z) "
        f"y = {prefix}DequantizeLinear{attributes}(q, s, z)"
    )


NARROW = ["int4", "uint4", "int16", "uint16", "int8", "uint8"]


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("channels", [False, True], ids=["tensor", "channels"])
@pytest.mark.parametrize("domain", ["com.microsoft", pytest.param("", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", NARROW)
def test_numbers_of_4_and_16_bits(dtype, domain, channels, target, device):
    """Values beyond the range of the type are clamped to it."""
    count = 7 if channels else 1
    lowest, highest = {"int4": (-8, 7), "uint4": (0, 15)}.get(dtype) or (
        np.iinfo(dtype).min, np.iinfo(dtype).max
    )  # fmt: skip
    rng = np.random.default_rng(4)
    scales = rng.uniform(4, 8, count).astype(np.float32) / (highest - lowest)
    points = rng.integers(lowest, highest, count, endpoint=True)
    shape = [count] if channels else []
    kind = getattr(TensorProto, dtype.upper())
    zero = helper.make_tensor("z", kind, shape, points.tolist())
    nodes = there_and_back(domain, "<axis = 1>" if channels else "")
    constants = {"s": scales.reshape(shape), "z": zero}
    # ONNX has these types since operator set 21, and ONNX Runtime earlier in its own domain.
    opset = 17 if domain else 21
    model = model_of(nodes, {"x": (3, 7, 9)}, "y", constants, opset, ir_version=10)
    feeds = {"x": rng.standard_normal((3, 7, 9)).astype(np.float32) * 4}
    (wanted,) = expected(model, feeds)
    with tvmflow.compile(model, target=target, device=device) as module:
        np.testing.assert_allclose(module(feeds)["y"], wanted, rtol=1e-6, atol=1e-7)


def test_columns_in_an_older_operator_set():
    """ONNX has scales per column since operator set 13, ONNX Runtime's own operators always."""
    scales = np.random.default_rng(4).uniform(0.01, 0.02, 9).astype(np.float32)
    nodes = there_and_back("com.microsoft", "<axis = 1>")
    constants = {"s": scales, "z": integers(9, "uint8")}
    model = model_of(nodes, {"x": (3, 9)}, "y", constants, opset=11)
    feeds = feeds_of(model)
    (wanted,) = expected(model, feeds)
    with tvmflow.compile(model, target="llvm") as module:
        np.testing.assert_allclose(module(feeds)["y"], wanted, rtol=1e-6)


@pytest.mark.parametrize("columns", [False, True], ids=["directions", "columns"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_recurrent_layer_of_bytes(dtype, columns):
    """Weights and input are rounded as in ONNX Runtime, but the state is not.

    The reference is an LSTM with these weights; ONNX Runtime's result, with a state of 8 bits,
    must be close.
    """
    rng = np.random.default_rng(5)
    d, units, inputs = 2, 5, 7
    shape = (d, 4 * units) if columns else (d,)
    constants = {
        "w": integers((d, inputs, 4 * units), dtype, 1), "b": weights_of(rng, d, 8 * units),
        "r": integers((d, units, 4 * units), dtype, 2), "h": weights_of(rng, d, 3, units),
        "c": weights_of(rng, d, 3, units), "p": weights_of(rng, d, 3 * units),
        "lengths": np.array([6, 2, 4], np.int32),
    }  # fmt: skip
    # ONNX Runtime accepts only one zero point for all columns.
    zeros = np.zeros(shape) if dtype == "int8" else np.full(shape, 131)
    for name in "wr":
        constants[f"{name}s"] = rng.uniform(0.002, 0.005, shape).astype(np.float32)
        constants[f"{name}z"] = zeros.astype(dtype)
    names = ["x", "w", "r", "b", "lengths", "h", "c", "p", "ws", "wz", "rs", "rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=units,
        direction="bidirectional", activations=["Sigmoid", "Tanh", "Tanh"] * 2,
    )  # fmt: skip
    model = model_of([node], {"x": (6, 3, inputs)}, "y", constants)
    feeds = feeds_of(model)
    (theirs,) = expected(model, feeds)
    with tvmflow.compile(model, target="llvm") as module:
        found = module(feeds)["y"]
    np.testing.assert_allclose(found, theirs, atol=0.02)
    x = feeds["x"]
    scale = (max(x.max(), 0) - min(x.min(), 0)) / np.float32(255)
    zero = np.rint(-min(x.min(), 0) / scale)
    plain = {k: v for k, v in constants.items() if k not in ("w", "r", "ws", "wz", "rs", "rz")}
    for name in "wr":
        scales, points = (
            constants[f"{name}{k}"].reshape(d, 1, -1).astype(np.float32) for k in "sz"
        )
        plain[name] = ((constants[name] - points) * scales).transpose(0, 2, 1)
    attributes = {"hidden_size": units, "direction": "bidirectional"}
    node = helper.make_node("LSTM", names[:8], ["y"], **attributes)
    model = model_of([node], {"x": x.shape}, "y", plain)
    rounded = ((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)
    (wanted,) = expected(model, {"x": rounded})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def weights_of(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32) / 4


@pytest.mark.parametrize("attributes", [{"channels_last": 1}, {}], ids=["channels last", "no zero"])
def test_what_is_not_known_is_refused_by_name(attributes):
    model = contributed("QLinearGlobalAveragePool", [MAP], **attributes)
    if not attributes:
        model.graph.node[0].input[-1] = ""
    with pytest.raises(UnsupportedModelError) as caught:
        tvmflow.compile(model, target="llvm")
    assert "com.microsoft.QLinearGlobalAveragePool" in f"{caught.value}{caught.value.details}"


MOVES = {
    "Flatten": "Flatten(r)",
    "Reshape": "Reshape(r, shape)",
    "Transpose": "Transpose<perm = [1, 0]>(r)",
}


@pytest.mark.parametrize("move", MOVES)
def test_elements_move_before_they_are_real_numbers(move, tmp_path):
    """The product after the moves then reads integers."""
    shape = (37, 5) if move == "Transpose" else (5, 37, 1, 1)
    constants = {
        "s": np.float32(0.03), "z": np.uint8(119), "w": integers((37, 11), "int8", 2),
        "ws": np.float32(0.02), "wz": np.int8(0),
    }  # fmt: skip
    if move == "Reshape":
        constants["shape"] = np.array([5, -1])
    nodes = f"""
        r = DequantizeLinear(x, s, z) m = {MOVES[move]}
        wr = DequantizeLinear(w, ws, wz) y = Gemm(m, wr)
    """
    model = model_of(nodes, {"x": (shape, "uint8")}, "y", constants)
    feeds = feeds_of(model)
    # ONNX Runtime quantizes once more in between, so it is no reference.
    rows = (feeds["x"].T if move == "Transpose" else feeds["x"].reshape(5, 37)).astype(np.float64)
    reference = (rows - 119) * 0.03 @ (constants["w"] * 0.02)
    with tvmflow.compile(model, target="llvm", dump_ir=tmp_path) as module:
        np.testing.assert_allclose(module(**feeds)["y"], reference, rtol=1e-4, atol=1e-4)
    (scheduled,) = tmp_path.glob("*_schedule.py")
    assert "tvmflow_dot4" in scheduled.read_text()


QUANTIZED_MOVES = {
    "Reshape": {"shape": [5, -1]},
    "Slice": {"starts": [3, 1], "ends": [-5, 4], "axes": [2, 1], "steps": [2, 1]},
    "Split": {"split": [2, 3]},
    "Transpose": {},
}


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("move", QUANTIZED_MOVES)
def test_bytes_that_only_move_are_never_real_numbers(move, dtype, target, device, tmp_path):
    """Moves between DequantizeLinear and QuantizeLinear of the same steps stay in bytes."""
    constants = {"s": np.float32(0.0039222617), "z": np.array(117, dtype)}
    constants |= {name: np.array(value) for name, value in QUANTIZED_MOVES[move].items()}
    attributes = {"perm": [0, 3, 1, 2]} if move == "Transpose" else {}
    if move == "Split":
        attributes = {"axis": 1}
    results = ["m0", "m"] if move == "Split" else ["m"]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["r"]),
        helper.make_node(move, ["r", *QUANTIZED_MOVES[move]], results, **attributes),
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["y"]),
    ]
    model = model_of(nodes, {"x": ((1, 5, 37, 9), dtype)}, "y", constants)
    feeds = {"x": integers((1, 5, 37, 9), dtype, 5)}
    with tvmflow.compile(model, target=target, device=device, dump_ir=tmp_path) as module:
        np.testing.assert_array_equal(module(**feeds)["y"], expected(model, feeds)[0])
    assert "quotient" not in (tmp_path / "0_import.py").read_text()


def test_bytes_of_other_steps_are_real_numbers_between(tmp_path):
    """A different scale or zero point changes numbers, and so may a scale near fp32's limits."""
    values = np.arange(256, dtype=np.uint8)
    for after in ((0.5, 3), (0.25, 4), (0.25, 3), (1e38, 3)):
        before = after if after[0] > 1 else (0.25, 3)
        constants = {
            "s": np.float32(before[0]), "z": np.uint8(before[1]),
            "s2": np.float32(after[0]), "z2": np.uint8(after[1]),
        }  # fmt: skip
        nodes = "r = DequantizeLinear(x, s, z) y = QuantizeLinear(r, s2, z2)"
        model = model_of(nodes, {"x": ((256,), "uint8")}, "y", constants)
        with np.errstate(over="ignore"):
            real = (values.astype(np.float32) - before[1]) * np.float32(before[0])
            wanted = np.clip(np.rint(real / np.float32(after[0])) + after[1], 0, 255)
        with tvmflow.compile(model, target="llvm", dump_ir=tmp_path) as module:
            np.testing.assert_array_equal(module(x=values)["y"], wanted.astype(np.uint8))
        kept = "quotient" in (tmp_path / "0_import.py").read_text()
        assert kept == (after != (0.25, 3))
