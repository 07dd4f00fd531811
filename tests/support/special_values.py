"""Operators with NaN and infinities as inputs, and their expected results.

ONNX Runtime defines the right results.  If its result depends on the order in which it reads
elements, or on its vector width, NaN has to show: the maximum of a window is NaN if one element
is.  If its algorithm spreads NaN further than the operator's definition, the inputs have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from support.operators import build

_RNG = np.random.default_rng(20)
_NAN, _INF = np.nan, np.inf

#: Special values that are mixed into each channel in turn.
_MIXES = ([], [_NAN], [_INF], [-_INF], [_INF, -_INF], [_NAN, _INF, -_INF])


def mixed(*shape: int, rng: np.random.Generator = _RNG) -> np.ndarray:
    """Return normal values in eighths, exact in 16 bits, with NaN and infinities among them.

    Channels (axis 1) have different ones; the last three are all NaN, inf and -inf.
    """
    x = np.round(rng.standard_normal(shape) * 16) / 8
    for channel in range(shape[1]):
        mix = _MIXES[channel % len(_MIXES)]
        places = rng.random(x[:, channel].shape) < 0.2
        x[:, channel][places] = rng.choice(mix, int(places.sum())) if mix else 0
    for channel, value in zip(range(shape[1] - 3, shape[1]), (_NAN, _INF, -_INF), strict=True):
        x[:, channel] = value
    return x.astype(np.float32)


#: The number of channels is no multiple of a block's.
SHAPE = (1, 9, 6, 8)
X = mixed(*SHAPE)
Z = np.roll(mixed(*SHAPE), (2, 1), (1, 3))


def _numbers(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), np.float32(0.5), x)


def _finite(x: np.ndarray) -> np.ndarray:
    return np.clip(_numbers(x), -3, 3).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A test of one node: inputs are arrays, or constants in a tuple of one."""

    operator: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 21
    results: int = 1
    #: Whether the result is the maximum or minimum of a set, in which NaN shows.
    shown: bool = False


CASES: dict[str, Case] = {}


def _add(operator: str, *inputs: Any, name: str = "", **options: Any) -> None:
    fields = {key: options.pop(key) for key in ("opset", "results", "shown") if key in options}
    CASES[name or operator] = Case(operator, inputs, options, **fields)


def _f(value: Any) -> tuple[np.ndarray]:
    return (np.array(value, np.float32),)


def _i(*values: int) -> tuple[np.ndarray]:
    return (np.array(values, np.int64),)


def _w(*shape: int) -> tuple[np.ndarray]:
    return ((_RNG.standard_normal(shape) / 2).astype(np.float32),)


for _name in [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf",
    "Exp", "Floor", "IsNaN", "IsInf", "Log", "Neg", "Round", "Sign", "Sin", "Sinh", "Sqrt",
    "Tan", "Tanh", "Relu", "LeakyRelu", "ThresholdedRelu", "Elu", "Selu", "Celu", "Sigmoid",
    "HardSigmoid", "HardSwish", "Softplus", "Mish", "Softsign", "Shrink", "Gelu", "Reciprocal",
    "Flatten", "GlobalAveragePool", "GlobalLpPool",
]:  # fmt: skip
    _add(_name, X)
for _name in [
    "Add", "Sub", "Mul", "Div", "Pow", "Equal", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "Sum", "Mean",
]:  # fmt: skip
    _add(_name, X, Z)
for _name in ("Max", "Min"):
    _add(_name, X, Z, np.roll(X, 1, 1))
    _add(_name, X, _f(0.5), name=f"{_name} of a limit")
# TVM simplifies these for finite numbers.
for _name in ("Equal", "Sub", "Div"):
    _add(_name, X, X, name=f"{_name} of itself")
_add("Mul", X, _f(0), name="Mul by zero")
_add("Div", X, _f(0), name="Div by zero")
_add("Div", _f(0), X, name="Div of zero")
_add("LeakyRelu", X, alpha=0.0, name="LeakyRelu by zero")
_add("PRelu", X, _f(0), name="PRelu by zero")
_add("PRelu", X, _w(9, 1, 1))
_add("Clip", X, _f(0), _f(6))
_add("Clip", X, _f(-1), name="Clip from below")
_add("Clip", X, None, _f(1), name="Clip from above")
_add("Clip", X, np.float32(-1), np.float32(1), name="Clip at run time")
_add("Swish", X, opset=24)
_add("Pow", X, _f(0.5), name="Pow 0.5")
_add("Pow", X, _f(0.75), name="Pow 0.75")
_add("Pow", X, _f(2.25), name="Pow 2.25")
_add("Pow", X, _f(3), name="Pow 3")
_add("Mod", X, Z, fmod=1)
_add("Where", _RNG.random(SHAPE) < 0.5, X, Z)
_add("Cast", X, to=TensorProto.INT32)
_add("Cast", X, to=TensorProto.BOOL, name="Cast to bool")
_add("CastLike", X, (np.zeros(1, np.float64),))
for _name in [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMean",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "ReduceMax",
    "ReduceMin",
]:
    for _axes in ((1,), (2, 3)):
        _shown = _name in ("ReduceMax", "ReduceMin")
        _add(_name, X, _i(*_axes), name=f"{_name} {_axes}", shown=_shown)
for _name in ("ArgMax", "ArgMin"):
    _add(_name, X, axis=1)
    _add(_name, X, axis=3, select_last_index=1, keepdims=0, name=f"{_name} last")
for _name in ("Softmax", "LogSoftmax"):
    _add(_name, X, axis=1)
# ONNX Runtime's maximum depends on Eigen's vectors.
_add("Hardmax", _numbers(X), axis=1)
_window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
_add("MaxPool", X, **_window, strides=[2, 2], shown=True)
_add("MaxPool", X.reshape(1, 9, 48), kernel_shape=[3], shown=True, name="MaxPool 1-D")
_add("MaxPool", X.reshape(1, 9, 3, 4, 4), kernel_shape=[2] * 3, shown=True, name="MaxPool 3-D")
_add("GlobalMaxPool", X, shown=True)
_add("AveragePool", X, **_window)
_add("LpPool", X, **_window)
_add("BatchNormalization", X, _w(9), _w(9), _w(9), _f(np.linspace(0.5, 2, 9)))
_add("InstanceNormalization", X, _w(9), _w(9))
_add("GroupNormalization", X, _w(9), _w(9), num_groups=3)
_add("LayerNormalization", X, _w(8), _w(8))
_add("RMSNormalization", X, _w(8), opset=23)
_add("MeanVarianceNormalization", X)
_add("LpNormalization", X, axis=3)
# ONNX Runtime computes a running sum, which infinities never leave.
_add("LRN", _finite(X), size=3)
_add("CumSum", X, (np.array(3),))
_add("TopK", X, _i(5), axis=3, results=2)
_add("TopK", X, _i(4), axis=1, largest=0, results=2, name="TopK smallest")
_add("Conv", X, _w(5, 9, 3, 3), _w(5), pads=[1] * 4)
_add("ConvTranspose", X, _w(9, 4, 2, 2), strides=[2, 2])
_add("Gemm", X.reshape(9, 48), _w(48, 5), _w(5))
_add("MatMul", X, _w(8, 5))
_add("Einsum", X, Z, equation="bchw,bckw->bchk")
for _mode in ("nearest", "linear", "cubic"):
    # Modules add the cubic weights of an edge's element; ONNX Runtime subtracts infinities there.
    _values = np.nan_to_num(X, nan=_NAN, posinf=3, neginf=-3) if _mode == "cubic" else X
    _add("Resize", _values, None, _f([1, 1, 2, 2]), mode=_mode, name=f"Resize {_mode}")
_add("Upsample", X, _f([1, 1, 2, 2]), mode="linear", opset=9)
_add("Transpose", X, perm=[0, 2, 3, 1])
_add("Concat", X, Z, axis=1)
_add("Split", X, _i(4, 5), axis=1, results=2)
_add("Slice", X, _i(2), _i(9), _i(1))
_add("Pad", X, _i(0, 1, 1, 1, 0, 2, 1, 1), _f(-_INF))
_add("Reshape", X, _i(9, 48))
_add("Squeeze", X, _i(0))
_add("Unsqueeze", X, _i(0))
_add("Expand", X, _i(2, 9, 6, 8))
_add("Tile", X, _i(1, 1, 1, 2))
_add("DepthToSpace", X[:, :8], blocksize=2)
_add("SpaceToDepth", X, blocksize=2)
_add("Trilu", X, upper=1)
_add("CenterCropPad", X, _i(4, 10), axes=[2, 3])
_add("Gather", X, _i(3, 1, 5), axis=1)
_places = np.argsort(_RNG.random(SHAPE), axis=3)
_add("GatherElements", X, _places, axis=3)
_add("GatherND", X, (np.array([[0, 3], [0, 1]]),))
_add("Scatter", X, _places, Z, axis=3, opset=9)
_add("ScatterElements", X, _places, Z, axis=3)
_add("ScatterElements", X, _places, Z, axis=3, reduction="max", shown=True, name="Scatter max")
_add("ScatterElements", X, _places, Z, axis=3, reduction="add", name="Scatter add")
_add("ScatterND", X[0], (np.array([[3], [1]]),), Z[0, :2])
_add("OneHot", np.array([[0, 2], [4, 1]]), (np.array(5),), _f([_NAN, _INF]))
# The picture has NaN, the grid has none: ONNX Runtime converts NaN coordinates to integers.
_grid = np.clip(_RNG.standard_normal((1, 4, 4, 2)) * 0.6, -1.2, 1.2).astype(np.float32)
_add("GridSample", X, _grid)
_offsets = np.full((1, 8, 5, 7), 0.25, np.float32)
_weights = np.linspace(-1, 1, 2 * SHAPE[1] * 4, dtype=np.float32).reshape(2, SHAPE[1], 2, 2)
_add("DeformConv", X, (_weights,), (_offsets,), opset=19)
_add("AffineGrid", mixed(1, 2, 3)[:, :, :], _i(1, 3, 4, 4))
_add(
    "RoiAlign",
    X,
    _f([[0, 0, 5, 5]]),
    (np.array([0]),),
    output_height=2,
    output_width=2,
    sampling_ratio=2,
)
_add("QuantizeLinear", X, _f(0.125), (np.array(128, np.uint8),))
_add("QuantizeLinear", X, _f(0.125), (np.array(3, np.int8),), name="QuantizeLinear int8")
_add(
    "QuantizeLinear",
    X,
    _f(np.arange(1, 10) / 16),
    (np.arange(9, dtype=np.int8),),
    name="QuantizeLinear axis",
)
# Scale and zero point are undefined for NaN and infinities.
_add("DynamicQuantizeLinear", _finite(X), results=3)

#: Operators without floating-point inputs.
OF_INTEGERS = frozenset([
    "And", "Or", "Xor", "Not", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
    "BitwiseXor", "ConvInteger", "DequantizeLinear", "MatMulInteger", "QLinearConv",
    "QLinearMatMul",
])  # fmt: skip

#: Operators that ONNX Runtime lacks, and those whose every result depends on many elements:
#: ONNX's own cases and the fuzzer compare these.
NOT_COMPARED = frozenset([
    "BitCast", "CausalConvWithState", "CumProd", "LinearAttention", "SwiGLU",
    "Attention", "DFT", "Det", "NegativeLogLikelihoodLoss", "RotaryEmbedding", "STFT",
    "SoftmaxCrossEntropyLoss", "GRU", "LSTM", "RNN", "BoxSelection", "Compaction",
    "NibbleProduct", "RunLoop",
])  # fmt: skip

_add("ReverseSequence", np.moveaxis(X[0], 0, 1), (np.arange(1, 10) % 6 + 1,), opset=24)
_add("TensorScatter", X, (Z[:, :, :2],), (np.array([3]),), opset=24, axis=2)
_add("Dropout", X, opset=24)
_add("Col2Im", X.reshape(1, 9, 48), (np.array([8, 10]),), (np.array([3, 3]),), opset=24)
_add("MaxUnpool", X, (np.arange(X.size).reshape(X.shape) * 4,), kernel_shape=[2, 2],
     strides=[2, 2], opset=24)  # fmt: skip


# -- networks -----------------------------------------------------------------------------


def network(
    names: Iterable[str], blocked: bool = False
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a network in which each case is a node, and its inputs.

    With ``blocked``, an identity convolution precedes the nodes that read `X`, whose channels are
    then in blocks.
    """
    nodes, constants, outputs = [], {}, []
    inputs: dict[int, str] = {}
    feeds: dict[str, np.ndarray] = {}
    opset = max(CASES[name].opset for name in names)
    for name in names:
        case, arguments = CASES[name], []
        for value in case.inputs:
            if value is None:
                arguments.append("")
            elif isinstance(value, tuple):
                arguments.append(f"k{len(constants)}")
                constants[arguments[-1]] = value[0]
            else:
                if id(value) not in inputs:
                    inputs[id(value)] = f"x{len(inputs)}"
                    feeds[inputs[id(value)]] = np.asarray(value)
                arguments.append(inputs[id(value)])
        results = [f"{name}/{index}" for index in range(case.results)]
        nodes.append(helper.make_node(case.operator, arguments, results, name, **case.attributes))
        outputs += results
    if blocked:
        source = inputs[id(X)]
        for node in nodes:
            node.input[:] = ["same" if each == source else each for each in node.input]
        ones = np.ones((SHAPE[1], 1, 1, 1), np.float32)
        constants["ones"] = ones
        nodes.insert(
            0, helper.make_node("Conv", [source, "ones"], ["same"], "same", group=SHAPE[1])
        )
    return build(nodes, feeds, outputs, constants, opset, None, strict=False), feeds


def references(names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the expected outputs of `network`, computed case by case."""
    found: dict[str, np.ndarray] = {}
    for name in names:
        for index, array in enumerate(_reference(CASES[name])):
            found[f"{name}/{index}"] = array
    return found


def _reference(case: Case) -> list[np.ndarray]:
    if not case.shown:
        return _run(case.operator, case.attributes, case)
    least = "Min" in case.operator or case.attributes.get("reduction") == "min"
    extreme = _run(
        case.operator,
        case.attributes,
        case,
        lambda x: np.where(np.isnan(x), _INF if least else -_INF, x),
    )
    has_nan = _run(case.operator.replace("Min", "Max"), case.attributes, case, np.isnan)
    # Some loops of ONNX Runtime over windows start from the largest finite number.
    extreme = [np.where(a == np.finfo(np.float32).min, -_INF, a) for a in extreme]
    shown = [np.where(b > 0, _NAN, a) for a, b in zip(extreme, has_nan, strict=True)]
    return [array.astype(np.float32) for array in shown]


def _run(
    operator: str, attributes: Mapping[str, Any], case: Case, change: Any = None
) -> list[np.ndarray]:
    """Run one node in ONNX Runtime, with its floats changed."""
    arguments: list[str] = []
    feeds: dict[str, np.ndarray] = {}
    for index, value in enumerate(case.inputs):
        if value is None:
            arguments.append("")
            continue
        array = np.asarray(value[0] if isinstance(value, tuple) else value)
        if change is not None and array.dtype == np.float32:
            array = change(array).astype(np.float32)
        arguments.append(f"x{index}")
        feeds[arguments[-1]] = array
    results = [f"y{index}" for index in range(case.results)]
    nodes = [helper.make_node(operator, arguments, results, **attributes)]
    model = build(nodes, feeds, results, None, case.opset, None, strict=False)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)
