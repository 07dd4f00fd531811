"""Every operator in the registry of ONNX Runtime's quantizers, against ONNX Runtime.

The tests quantize networks with the installed package: an operator that a new version adds has no
case yet, and fails the first test.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime import quantization
from onnxruntime.quantization import QuantFormat, QuantType, registry
from onnxruntime.quantization.execution_providers import qnn
from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer
from support.onnx_models import expected, model_of

import tvmflow
from tvmflow.verify.tolerance import assert_close

pytestmark = pytest.mark.onnxruntime

#: Shape of the input, with an odd number of channels that is not a multiple of a block.
SHAPE = (1, 7, 6, 9)
DOMAIN = "com.microsoft"
REGISTRIES = {
    "dynamic": registry.IntegerOpsRegistry,
    "qoperator": registry.QLinearOpsRegistry,
    "qdq": registry.QDQRegistry,
}


def weights(*shape, seed=3):
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values / np.sqrt(max(1, np.prod(shape[1:])))).astype(np.float32)


@dataclass
class Case:
    """An operator of a network, its attributes, further inputs, and the shape of its first one."""

    attributes: dict = field(default_factory=dict)
    #: Further inputs: arrays, or "x" for the network's input again.
    others: tuple = ()
    shape: tuple = SHAPE
    #: Position of the quantized input.
    position: int = 0
    results: tuple = ("y",)
    domain: str = ""


PADS = np.array([0, 0, 1, 2, 0, 0, 0, 1])
MATRIX = (5, 13)
CASES = {
    "Add": Case(others=("x",)),
    "ArgMax": Case({"axis": 1, "keepdims": 1}),
    "Attention": Case({"num_heads": 3, "unidirectional": 1}, (weights(15, 45), weights(45)),
                      (2, 7, 15), domain=DOMAIN),
    "AveragePool": Case({"kernel_shape": [2, 3], "strides": [2, 1]}),
    "BatchNormalization": Case(others=tuple(np.abs(weights(7, seed=s)) + 0.5 for s in range(4))),
    "Clip": Case(others=(np.float32(-0.5), np.float32(0.75))),
    "Concat": Case({"axis": 1}, ("x",)),
    "Conv": Case({"pads": [1, 1, 1, 1]}, (weights(11, 7, 3, 3), weights(11))),
    "ConvTranspose": Case({"strides": [2, 2]}, (weights(7, 5, 3, 3), weights(5))),
    "CumSum": Case(others=(np.int64(3),)),
    "Flatten": Case({"axis": 1}),
    "Gather": Case({"axis": 0}, (np.array([3, 0, 4, 4]),), MATRIX),
    "GatherElements": Case({"axis": 1}, (np.array([[3, 0], [1, 12]] * 2 + [[5, 5]]),), MATRIX),
    "Gemm": Case({"transB": 1}, (weights(11, 13), weights(11)), MATRIX),
    "GlobalAveragePool": Case(),
    "InstanceNormalization": Case(others=(weights(7) + 1, weights(7, seed=4))),
    "LSTM": Case({"hidden_size": 5}, (weights(1, 20, 13), weights(1, 20, 5), weights(1, 40)),
                 (6, 2, 13)),
    "LayerNormalization": Case(others=(weights(9) + 1, weights(9, seed=4))),
    "LeakyRelu": Case({"alpha": 0.2}),
    "MatMul": Case(others=(weights(13, 11),), shape=MATRIX),
    "MaxPool": Case({"kernel_shape": [2, 3]}),
    "Mul": Case(others=("x",)),
    "Pad": Case(others=(PADS, np.float32(0.3))),
    "Relu": Case(),
    "Reshape": Case(others=(np.array([7, -1]),)),
    "Resize": Case({"mode": "nearest"}, (np.float32([]), np.float32([1, 1, 2, 2]))),
    "Sigmoid": Case(),
    "Slice": Case(others=(np.array([1, 0]), np.array([6, 8]), np.array([1, 3]), np.array([2, 3]))),
    "Softmax": Case({"axis": 1}),
    "Split": Case({"axis": 1}, (np.array([3, 4]),), results=("y0", "y")),
    "Squeeze": Case(others=(np.array([0]),)),
    "TopK": Case({"axis": 1}, (np.array([3]),), results=("y", "places")),
    "Transpose": Case({"perm": [0, 2, 3, 1]}),
    "Unsqueeze": Case(others=(np.array([2]),)),
    "Where": Case(others=(np.arange(np.prod(SHAPE)).reshape(SHAPE) % 3 == 0, "x"), position=1),
}  # fmt: skip


def embeddings():
    """Build embeddings and attention to unmasked words, as the optimizer fuses them."""
    tables = {"word": (11, 15), "position": (7, 15), "segment": (2, 15), "g": (15,), "b": (15,)}
    constants = {name: weights(*shape, seed=len(name)) for name, shape in tables.items()}
    constants |= {"w": weights(15, 45), "c": weights(45)}
    names = ["ids", "segments", *tables, "mask"]
    nodes = [
        ("EmbedLayerNormalization", names, "e", {"domain": DOMAIN}),
        ("Attention", ["e", "w", "c", "e:1"], "y", {"domain": DOMAIN, "num_heads": 3}),
    ]
    inputs = dict.fromkeys(INTEGERS, (2, 7))
    model = _network(nodes, inputs, constants)
    model.graph.node[0].output.append("e:1")
    return model


#: Upper limits, exclusive, of random integer inputs.
INTEGERS = {"ids": 11, "segments": 2, "mask": 2}
#: Builders for operators that need another network than a product and the operator.
NETWORKS_OF = {"EmbedLayerNormalization": embeddings}


def network(op_type):
    """Build a product, which gives quantized values, and an operator on its result."""
    if op_type in NETWORKS_OF:
        return NETWORKS_OF[op_type]()
    case = CASES[op_type]
    constants, names = {}, []
    for index, other in enumerate(case.others):
        constants |= {} if isinstance(other, str) else {f"w{index}": np.asarray(other)}
        names.append("r" if isinstance(other, str) else f"w{index}")
    names.insert(case.position, "a")
    nodes = []
    for name in [name for name in names if not name.startswith("w")]:
        channels = case.shape[-1] if len(case.shape) < 4 else case.shape[1]
        shape = (channels, channels, 1, 1)[: 4 if len(case.shape) == 4 else 2]
        constants[f"of_{name}"] = weights(*shape, seed=ord(name))
        product = "Conv" if len(case.shape) == 4 else "MatMul"
        nodes.append(helper.make_node(product, ["x", f"of_{name}"], [name], name=f"to_{name}"))
    results = list(case.results)
    attributes = case.attributes | ({"domain": case.domain} if case.domain else {})
    node = helper.make_node(op_type, names, results, name="node", **attributes)
    return model_of([*nodes, node], {"x": case.shape}, "y", constants)


class Reader(quantization.CalibrationDataReader):
    """Calibration reader with three random draws of a model's inputs."""

    def __init__(self, model):
        self.draws = iter([draw(model, seed) for seed in range(3)])

    def get_next(self):
        return next(self.draws, None)


def draw(model, seed):
    rng, feeds = np.random.default_rng(seed), {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.name in INTEGERS:
            feeds[value.name] = rng.integers(0, INTEGERS[value.name], shape, np.int32)
        else:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
    return feeds


def quantized(model, form, folder, **options):
    """Quantize the model with one of ONNX Runtime's quantizers."""
    path = folder / "quantized.onnx"
    extra = {"ForceQuantizeNoInputCheck": True, **options.pop("extra_options", {})}
    try:
        logging.disable(logging.WARNING)
        if form == "dynamic":
            quantization.quantize_dynamic(model, path, extra_options=extra, **options)
        elif form == "qnn":
            config = qnn.get_qnn_qdq_config(model, Reader(model), **options)
            quantization.quantize(model, path, config)
        else:
            kind = QuantFormat.QDQ if form == "qdq" else QuantFormat.QOperator
            quantization.quantize_static(
                model, path, Reader(model), quant_format=kind, extra_options=extra, **options
            )
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load(path)


def both(model):
    """Return tvmflow's result, and ONNX Runtime's without its optimisations."""
    feeds = draw(model, 7)
    (wanted,) = expected(model, feeds, optimized=False)
    with tvmflow.compile(model, target="llvm") as module:
        return next(iter(module(feeds).values())), wanted


def check(model):
    """Check that results equal ONNX Runtime's, except for a few elements off by one step.

    Its optimisations are off, as with them its results differ as much from the quantized model's as
    those of any other compiler.
    """
    found, wanted = both(model)
    assert len(np.unique(wanted)) > 4
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    off = np.abs(found.astype(np.float64) - wanted)
    step = result_scale(model) or np.ptp(wanted) / 255
    assert off.max() <= 1.01 * step, off.max() / step
    assert (off > step / 100).mean() <= SHARE.get(
        next((n.op_type for n in model.graph.node if n.op_type in SHARE), ""), 0.03
    )


#: Share of elements that may differ: ONNX Runtime rounds an LSTM's state to 8 bits, tvmflow not.
SHARE = {"DynamicQuantizeLSTM": 1.0}


def result_scale(model):
    """Return the scale of the model's result, zero if it is not quantized."""
    last = next(n for n in model.graph.node if model.graph.output[0].name in n.output)
    if last.op_type != "DequantizeLinear":
        return 0
    scales = {t.name: t for t in model.graph.initializer}
    return numpy_helper.to_array(scales[last.input[1]]).max()


@pytest.mark.parametrize("form", REGISTRIES)
def test_every_operator_of_the_registries_has_a_case(form):
    assert set(REGISTRIES[form]) <= set(CASES) | set(NETWORKS_OF)


def registered():
    """Yield each operator in each form; it is a slow test if an earlier form has the operator."""
    seen = set()
    for form, entries in REGISTRIES.items():
        for op_type in sorted((CASES.keys() | NETWORKS_OF.keys()) & entries.keys()):
            marks = [pytest.mark.slow] if op_type in seen else []
            yield pytest.param(form, op_type, marks=marks)
            seen |= set() if form == "dynamic" else {op_type}


@pytest.mark.parametrize(("form", "op_type"), list(registered()))
def test_operator_of_a_registry(form, op_type, tmp_path):
    model = quantized(network(op_type), form, tmp_path)
    found = {n.op_type for n in model.graph.node}
    assert any("Quantize" in each or each.startswith("Q") for each in found)
    check(model)


def convolutions():
    """Build convolutions with a residual, branches of other extents, and a classifier."""
    sizes = {
        "stem": (9, 3, 3, 3), "deep": (9, 1, 3, 3), "point": (9, 9, 1, 1), "up": (9, 5, 2, 2),
        "last": (7, 14, 1, 1), "classes": (10, 7),
    }  # fmt: skip
    constants = {f"{n}_w": weights(*s, seed=ord(n[0])) for n, s in sizes.items()}
    constants |= {f"{n}_b": weights(sizes[n][0], seed=7) / 4 for n in ("stem", "deep", "classes")}
    nodes = [
        ("Conv", ["x", "stem_w", "stem_b"], "a", {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("Relu", ["a"], "b", {}),
        ("Conv", ["b", "deep_w", "deep_b"], "c", {"group": 9, "pads": [1, 1, 1, 1]}),
        ("LeakyRelu", ["c"], "d", {"alpha": 0.1}),
        ("Conv", ["d", "point_w"], "e", {}),
        ("Add", ["e", "b"], "f", {}),
        ("MaxPool", ["f"], "g", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("ConvTranspose", ["g", "up_w"], "h", {"strides": [2, 2]}),
        ("Sigmoid", ["h"], "i", {}),
        ("Concat", ["f", "i"], "j", {"axis": 1}),
        ("Conv", ["j", "last_w"], "k", {}),
        ("GlobalAveragePool", ["k"], "l", {}),
        ("Flatten", ["l"], "m", {}),
        ("Gemm", ["m", "classes_w", "classes_b"], "n", {"transB": 1}),
        ("Softmax", ["n"], "y", {"axis": -1}),
    ]
    return _network(nodes, {"x": (1, 3, 16, 12)}, constants)


def attention():
    """Build a layer of attention as exporters write it, and a feed-forward layer."""
    constants = {f"w{i}": weights(15, 15, seed=i) for i in range(4)}
    constants |= {"heads": np.array([1, 7, 3, 5]), "rows": np.array([1, 7, 15])}
    constants |= {"root": np.float32(5**0.5), "g": weights(15) + 1, "b": weights(15, seed=9)}
    constants |= {"up": weights(15, 31), "down": weights(31, 15)}
    nodes = []
    for i, name in enumerate("qkv"):
        nodes.append(("MatMul", ["x", f"w{i}"], f"{name}0", {}))
        nodes.append(("Reshape", [f"{name}0", "heads"], f"{name}1", {}))
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes.append(("Transpose", [f"{name}1"], name, {"perm": order}))
    nodes += [
        ("MatMul", ["q", "k"], "s", {}),
        ("Div", ["s", "root"], "t", {}),
        ("Softmax", ["t"], "p", {"axis": -1}),
        ("MatMul", ["p", "v"], "o0", {}),
        ("Transpose", ["o0"], "o1", {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["o1", "rows"], "o", {}),
        ("MatMul", ["o", "w3"], "l0", {}),
        ("Add", ["l0", "x"], "l1", {}),
        ("LayerNormalization", ["l1", "g", "b"], "l", {}),
        ("MatMul", ["l", "up"], "u0", {}),
        ("Relu", ["u0"], "u", {}),
        ("MatMul", ["u", "down"], "y", {}),
    ]
    return _network(nodes, {"x": (1, 7, 15)}, constants)


def reader():
    """Build a bidirectional recurrent layer on the columns of an image."""
    constants = {"c": weights(5, 1, 3, 3), "shape": np.array([1, 30, 12]), "w": weights(22, 13)}
    constants |= {"W": weights(2, 44, 30), "R": weights(2, 44, 11, seed=4), "B": weights(2, 88)}
    constants |= {"steps": np.array([12, 1, 22])}
    nodes = [
        ("Conv", ["x", "c"], "a", {"pads": [1, 1, 1, 1]}),
        ("Reshape", ["a", "shape"], "b", {}),
        ("Transpose", ["b"], "d", {"perm": [2, 0, 1]}),
        ("LSTM", ["d", "W", "R", "B"], "e", {"hidden_size": 11, "direction": "bidirectional"}),
        ("Transpose", ["e"], "f", {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["f", "steps"], "h", {}),
        ("MatMul", ["h", "w"], "i", {}),
        ("Softmax", ["i"], "y", {"axis": 2}),
    ]
    return _network(nodes, {"x": (1, 1, 6, 12)}, constants)


def _network(nodes, inputs, constants):
    made = [helper.make_node(op, i, [o], name=o, **a) for op, i, o, a in nodes]
    kinds = {n: (shape, "int32") if n in INTEGERS else shape for n, shape in inputs.items()}
    return model_of(made, kinds, "y", constants)


U8, S8, U16, S16 = QuantType.QUInt8, QuantType.QInt8, QuantType.QUInt16, QuantType.QInt16
U4, S4 = QuantType.QUInt4, QuantType.QInt4
#: Form, operator set, types of activations (``None`` if dynamic) and weights, and options.
FORMS = {
    "qoperator": ("qoperator", U8, S8, {}),
    "qoperator channels": ("qoperator", U8, S8, {"per_channel": True}),
    "qoperator signed": ("qoperator", S8, S8, {"per_channel": True}),
    "qoperator unsigned": ("qoperator", U8, U8, {}),
    "qdq": ("qdq", U8, S8, {}),
    "qdq channels": ("qdq", U8, U8, {"per_channel": True}),
    "qdq symmetric": ("qdq", S8, S8, {"extra_options": {"ActivationSymmetric": True}}),
    "qdq contrib": ("qdq", U8, S8, {"extra_options": {"UseQDQContribOps": True}}),
    "qdq 16": ("qdq", U16, U8, {"per_channel": True}),
    "qdq 16 signed": ("qdq", S16, S8, {}),
    "qdq 4": ("qdq", U8, S4, {"per_channel": True}),
    "qdq 4 unsigned": ("qdq", U16, U4, {}),
    "qdq pairs": ("qdq", U8, S8, {"extra_options": {"AddQDQPairToWeight": True}}),
    "qdq pairs 4": ("qdq", U8, S4, {"extra_options": {"AddQDQPairToWeight": True}}),
    "qnn": ("qnn", U8, U8, {}),
    "qnn channels": ("qnn", U8, S8, {"per_channel": True}),
    "qnn 16": ("qnn", U16, U8, {}),
    "qnn 16 4": ("qnn", U16, S4, {"per_channel": True}),
    "dynamic": ("dynamic", None, S8, {}),
    "dynamic unsigned": ("dynamic", None, U8, {}),
    "dynamic channels": ("dynamic", None, S8, {"per_channel": True, "reduce_range": True}),
}
NETWORKS = {"convolutions": convolutions, "attention": attention, "reader": reader}


@pytest.mark.parametrize(
    ("network", "form"),
    [
        pytest.param(n, f, marks=[] if (i + j) % len(NETWORKS) == 0 else [pytest.mark.slow])
        for i, n in enumerate(NETWORKS)
        for j, f in enumerate(FORMS)
    ],
)
def test_whole_network(network, form, tmp_path):
    kind, activations, weight, options = FORMS[form]
    options = options | {"weight_type": weight}
    if activations is not None:
        options["activation_type"] = activations
    model = quantized(NETWORKS[network](), kind, tmp_path, **options)
    check(model)


@pytest.mark.parametrize("algorithm", ["RTN", "k_quant"])
@pytest.mark.parametrize("options", [(4, "asym"), (4, "sym"), (8, "asym")], ids=str)
def test_weight_only(options, algorithm):
    pytest.importorskip("onnx_ir")  # the quantizer imports it
    from onnxruntime.quantization import neural_compressor

    bits, scheme = options
    model = neural_compressor.rtn_quantize(
        words(), num_bits=bits, group_size=32, scheme=scheme, algorithm=algorithm
    ).model
    assert "MatMulNBits" in {node.op_type for node in model.graph.node}
    assert_close(*both(model))


@pytest.mark.parametrize(
    ("form", "bits"), [("QOperator", 2), ("QOperator", 4), ("QOperator", 8), ("QDQ", 4)]
)
@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
def test_weight_only_by_default(form, bits, symmetric):
    """Look-ups are quantized to 4 bits only, and only in one of the forms."""
    pytest.importorskip("onnx_ir")  # the quantizer imports it
    from onnxruntime.quantization import matmul_nbits_quantizer

    with_look_up = bits == 4 and form == "QOperator"
    quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(
        words(), bits=bits, block_size=16, is_symmetric=symmetric, accuracy_level=1,
        quant_format=QuantFormat[form],
        op_types_to_quantize=("MatMul", "Gather") if with_look_up else ("MatMul",),
    )  # fmt: skip
    quantizer.process()
    model = quantizer.model.model
    found = {node.op_type for node in model.graph.node}
    assert ("MatMulNBits" in found) == (form == "QOperator")
    assert ("GatherBlockQuantized" in found) == with_look_up
    assert_close(*both(model))


@pytest.mark.parametrize("quant_type", [0, 1], ids=["FP4", "NF4"])
def test_weight_only_by_a_table(quant_type):
    quantizer = MatMulBnb4Quantizer(words(), quant_type, block_size=16)
    quantizer.process()
    model = quantizer.model.model
    assert "MatMulBnb4" in {node.op_type for node in model.graph.node}
    assert_close(*both(model))


def words():
    """Build a look-up of words and two products, with an even number of blocks of 32.

    One of ONNX Runtime's quantizers cannot pack an odd number of zero points.
    """
    constants = {"table": weights(11, 37), "up": weights(37, 49), "down": weights(49, 13)}
    nodes = [
        ("Gather", ["table", "ids"], "e", {"axis": 0}),
        ("MatMul", ["e", "up"], "u0", {}),
        ("Relu", ["u0"], "u", {}),
        ("MatMul", ["u", "down"], "y", {}),
    ]
    return _network(nodes, {"ids": (2, 7)}, constants)
