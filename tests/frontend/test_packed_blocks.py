"""Products and look-ups with weights in packed blocks against ONNX Runtime."""

from __future__ import annotations

import re

import numpy as np
import pytest
from contrib_models import TARGETS, check, draw
from onnx import TensorProto, helper, numpy_helper
from support.onnx_models import expected, model_of

import tvmflow
from tvmflow.errors import UnsupportedModelError
from tvmflow.frontend.load import load_model

pytestmark = pytest.mark.onnxruntime
DOMAIN = "com.microsoft"


def product(
    *, bits=4, depth=37, units=21, block=16, zeros=None, order=False, bias=False, dtype="float32",
    opset=17, lead=(2, 5), **attributes,
):  # fmt: skip
    """Build a MatMulNBits with random bytes; ``zeros`` are packed, real or real integers."""
    rng, blocks = np.random.default_rng(3), -(-depth // block)
    constants = {
        "b": rng.integers(0, 256, (units, blocks, block * bits // 8), np.uint8),
        "s": rng.uniform(0.01, 0.02, (units, blocks)).astype(dtype),
    }
    if zeros == "packed":
        constants["z"] = rng.integers(0, 256, (units, -(-blocks * bits // 8)), np.uint8)
    elif zeros:
        points = rng.uniform(0, 15, units * blocks)
        constants["z"] = (np.rint(points) if zeros == "whole" else points).astype(dtype)
    if order:
        constants["g"] = rng.integers(0, blocks, depth).astype(np.int32)
    if bias:
        constants["c"] = rng.standard_normal(units).astype(dtype)
    names = ["x", *(n if n in constants else "" for n in "bszgc")]
    node = helper.make_node(
        "MatMulNBits", names, ["y"], domain=DOMAIN, K=depth, N=units, bits=bits, block_size=block,
        **attributes,
    )  # fmt: skip
    return model_of([node], {"x": ((*lead, depth), dtype)}, "y", constants, opset)


PRODUCTS = {
    "4 bits": {},
    "4 bits of whole blocks": {"depth": 48, "zeros": "packed", "bias": True},
    "4 bits in a block": {"depth": 15, "block": 32, "zeros": "packed", "opset": 21},
    "4 bits with zero points": {"zeros": "packed", "bias": True, "accuracy_level": 1},
    "4 bits with real zero points": {"zeros": "real"},
    "4 bits with whole zero points": {"depth": 64, "block": 32, "zeros": "whole"},
    "4 bits out of order": {"order": True, "bias": True},
    "4 bits out of order with zero points": {"order": True, "zeros": "real"},
    "4 bits of half numbers": {"zeros": "packed", "bias": True, "dtype": "float16"},
    "2 bits": {"bits": 2, "zeros": "packed", "depth": 70, "bias": True},
    "8 bits": {"bits": 8, "zeros": "packed", "opset": 13},
    "8 bits of a vector": {"bits": 8, "lead": (), "block": 64, "bias": True},
}  # fmt: skip


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("case", PRODUCTS)
def test_product(case, target, device):
    check(product(**PRODUCTS[case]), target=target, device=device)


def test_4_bits_stay_packed():
    """Whole blocks stay packed, even if the model's operator set has no blocks yet."""
    packed = '(T.int64(2), T.int64(24), T.int64(16)), "uint8")'
    assert packed in str(load_model(product(depth=48, zeros="packed", opset=13)).mod)


def test_packed_zero_points_count_out_of_order():
    """ONNX Runtime's CPU kernel ignores them, against its operator's definition."""
    models = [product(order=True, zeros="packed") for _ in range(2)]
    tensor = next(t for t in models[1].graph.initializer if t.name == "z")
    packed = numpy_helper.to_array(tensor)
    points = np.stack([packed & 15, packed >> 4], -1).reshape(21, -1)[:, :3]
    tensor.CopyFrom(numpy_helper.from_array(points.astype(np.float32), "z"))
    check(models[1])
    feeds, results = draw(models[0]), []
    for model in models:
        with tvmflow.compile(model, target="llvm") as module:
            results.append(module(feeds)["y"])
    np.testing.assert_array_equal(*results)


def test_what_is_rounded_by_accuracy_level_is_within_8_bits():
    """ONNX Runtime may round blocks of the other operand to 8 bits, which tvmflow does not."""
    model = product(depth=64, block=32, accuracy_level=4)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 5, 64)).astype(np.float32)}
    (rounded,) = expected(model, feeds)
    with tvmflow.compile(model, target="llvm") as module:
        found = module(feeds)["y"]
    assert np.abs(found - rounded).max() <= np.abs(rounded).max() / 50


def bnb4(quant_type, *, depth=37, units=21, block=16, trans=1):
    rng, count = np.random.default_rng(3), depth * units
    constants = {
        "b": rng.integers(0, 256, -(-count // 2), np.uint8),
        "s": rng.uniform(0.5, 1, -(-count // block)).astype(np.float32),
    }
    node = helper.make_node(
        "MatMulBnb4", ["x", "b", "s"], ["y"], domain=DOMAIN, K=depth, N=units, block_size=block,
        quant_type=quant_type, transB=trans,
    )  # fmt: skip
    inner = depth if trans else units
    return model_of([node], {"x": (5, inner)}, "y", constants)


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("quant_type", [0, 1], ids=["FP4", "NF4"])
def test_product_of_a_table(quant_type, target, device):
    check(bnb4(quant_type), target=target, device=device)


def gather(
    kind="UINT4", shape=(7, 37), *, axis=0, along=1, block=16, zeros=True, bits=4,
    indices=((3, -1, 0), (6, -7, 2)), dtype="float32", opset=21,
):  # fmt: skip
    """Build a GatherBlockQuantized on random numbers of this shape, unpacked or in bytes."""
    rng = np.random.default_rng(3)
    scales = [-(-n // block) if a == along % len(shape) else n for a, n in enumerate(shape)]
    constants = {"s": rng.uniform(0.5, 1, scales).astype(dtype)}

    def numbers(name, extents):
        if kind == "uint8":
            extents = [*extents[:-1], -(-extents[-1] * bits // 8)]
            return rng.integers(0, 256, extents, np.uint8)
        low = -8 if kind == "INT4" else 0
        values = rng.integers(low, low + 16, extents).reshape(-1).tolist()
        return helper.make_tensor(name, getattr(TensorProto, kind), extents, values)

    node = helper.make_node(
        "GatherBlockQuantized", ["w", "i", "s", *(["z"] if zeros else [])], ["y"], domain=DOMAIN,
        gather_axis=axis, quantize_axis=along, block_size=block,
        **({"bits": bits} if kind == "uint8" else {}),
    )  # fmt: skip
    indices = np.array(indices)
    constants["w"] = numbers("w", shape)
    if zeros:
        constants["z"] = numbers("z", scales)
    return model_of([node], {"i": (indices.shape, "int64")}, "y", constants, opset), {"i": indices}


GATHERS = {
    "unsigned": {},
    "signed": {"kind": "INT4", "zeros": False},
    "signed with zero points": {"kind": "INT4", "shape": (5, 3, 37), "axis": 1, "along": -1,
                                              "indices": ((0, -1), (2, 1))},
    "blocks before": {"shape": (37, 5, 3), "axis": 1, "along": 0, "indices": (0, 3, 3)},
    "blocks along": {"shape": (37, 5), "axis": 0, "along": 0, "indices": (0, 36, 17, -1)},
    "out of range": {"indices": (7, -8, 100, 3)},
    "bytes": {"kind": "uint8", "shape": (7, 40), "bits": 8},
    "bytes of 4 bits": {"kind": "uint8", "shape": (7, 48)},
    "bytes of 2 bits": {"kind": "uint8", "shape": (7, 48), "bits": 2, "zeros": False},
    "half numbers": {"dtype": "float16"},
}  # fmt: skip


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("case", GATHERS)
def test_look_up(case, target, device):
    check(*gather(**GATHERS[case]), target=target, device=device)


REFUSED = {
    "weights are packed for": lambda: product(weight_prepacked=1),
    "have 3 bits": lambda: product(bits=3, block=16),
    "K.* is missing": lambda: without(product(), attribute="K"),
    "weights are computed at run time": lambda: without(product(), constant="b"),
    "scales are .*expected 63 elements": lambda: resized(product(), "s"),
}


def without(model, attribute=None, constant=None):
    """Return the model without an attribute, or with a constant turned into an input."""
    (node,) = model.graph.node
    kept = [a for a in node.attribute if a.name != attribute]
    del node.attribute[:]
    node.attribute.extend(kept)
    for tensor in [t for t in model.graph.initializer if t.name == constant]:
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(value)
        model.graph.initializer.remove(tensor)
    return model


def resized(model, name):
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:-1], name))
    return model


@pytest.mark.parametrize("reason", REFUSED)
def test_other_forms_are_refused_with_the_reason(reason):
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(REFUSED[reason]())
    assert "com.microsoft.MatMulNBits" in caught.value.message
    assert re.search(reason, caught.value.details)


def test_all_refused_nodes_are_in_one_error_with_the_file(tmp_path):
    model = product(bits=3, block=16)
    (node,) = model.graph.node
    other = helper.make_node(node.op_type, node.input, ["other"], "second", domain=node.domain)
    other.attribute.extend(a for a in node.attribute if a.name != "K")
    model.graph.node.append(other)
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, None))
    path = tmp_path / "refused.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(path)
    assert str(path) in caught.value.message
    assert "have 3 bits" in caught.value.details
    assert "'K' is missing" in caught.value.details
