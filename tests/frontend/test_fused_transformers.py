"""Fused and quantized operators of transformers against ONNX Runtime."""

from __future__ import annotations

import re

import numpy as np
import pytest
from contrib_models import TARGETS, check
from onnx import TensorProto, helper
from support.onnx_models import model_of

from tvmflow.errors import UnsupportedModelError
from tvmflow.frontend.load import load_model

pytestmark = pytest.mark.onnxruntime
DOMAIN = "com.microsoft"
BATCH, ROWS, DEPTH, HEADS = 2, 7, 15, 3


def weights(*shape, seed=3):
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values / np.sqrt(shape[0])).astype(np.float32)


def attention(
    op_type="Attention", *, mask=None, past=None, present=False, signed=False, columns=False,
    zeros=True, sizes=None, bias=None, rows=ROWS, opset=17, **attributes,
):  # fmt: skip
    """Build attention on two samples, with a mask's shape or values and ``past`` cached keys."""
    rng = np.random.default_rng(5)
    heads, width = HEADS, 3 * DEPTH if sizes is None else sum(sizes)
    inputs = {"x": ((BATCH, rows, DEPTH), "float32")}
    constants, given = {"w": weights(DEPTH, width), "b": weights(width, seed=4)}, {}
    names = ["x", "w", "b"]
    if op_type == "QAttention":
        shape = (width,) if columns else ()
        inputs["x"] = ((BATCH, rows, DEPTH), "uint8")
        given["x"] = rng.integers(0, 256, inputs["x"][0], np.uint8)
        lowest, kind = (-128, np.int8) if signed else (0, np.uint8)
        constants |= {
            "w": rng.integers(lowest, lowest + 256, (DEPTH, width)).astype(kind),
            "sx": np.float32(0.02), "sw": rng.uniform(0.002, 0.004, shape).astype(np.float32),
            "zx": np.uint8(119), "zw": rng.integers(lowest + 100, lowest + 156, shape).astype(kind),
        }  # fmt: skip
        names += ["sx", "sw"]
    names.append("" if mask is None else "mask")
    if op_type == "QAttention":
        names += ["zx", "zw"] if zeros else ["", ""]
    if mask is not None:
        values = np.array(mask) if isinstance(mask, list) else rng.integers(0, 2, mask)
        inputs["mask"], given["mask"] = (values.shape, "int32"), values.astype(np.int32)
    names.append("" if past is None else "past")
    if past is not None:
        inputs["past"] = ((2, BATCH, heads, past, width // 3 // heads), "float32")
    if bias is not None:
        names.append("bias")
        inputs["bias"] = (bias, "float32")
    results = ["y", "present"] if present or past is not None else ["y"]
    if sizes is not None:
        attributes["qkv_hidden_sizes"] = sizes
    node = helper.make_node(op_type, names, results, domain=DOMAIN, num_heads=heads, **attributes)
    used = {n: v for n, v in constants.items() if n in names}
    return model_of([node], inputs, results, used, opset), given


#: Each form of masks for seven keys, or for eleven with four cached ones.
ATTENTIONS = {
    "plain": {"present": True},
    "one direction": {"unidirectional": 1},
    "ends": {"mask": [3, 7]},
    "ends and begins": {"mask": [5, 7, 1, 3], "unidirectional": 1},
    "keys": {"mask": (BATCH, ROWS), "mask_filter_value": -50.0},
    "keys of rows": {"mask": (BATCH, ROWS, ROWS), "unidirectional": 1, "mask_filter_value": -3.0},
    "mask without effect": {"mask": (BATCH, 1)},
    "past": {"past": 4, "mask": (BATCH, ROWS + 4), "unidirectional": 1},
    "one row after a past": {"past": 4, "rows": 1, "unidirectional": 1},
    "scale": {"scale": 0.3, "opset": 11},
}  # fmt: skip
QUANTIZED = {
    "columns": {"columns": True, "signed": True, **ATTENTIONS["past"]},
    "no zero points": {"zeros": False, "mask": [3, 7]},
    "signed": {"signed": True, "opset": 11, **ATTENTIONS["keys of rows"]},
}
PLAIN = {
    "other values": {"sizes": [15, 15, 21]},
    "bias of scores": {"bias": (1, HEADS, ROWS, ROWS), "mask": [3, 7]},
}


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("case", ATTENTIONS | PLAIN)
def test_attention(case, target, device):
    check(*attention(**(ATTENTIONS | PLAIN)[case]), target=target, device=device)


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("case", ATTENTIONS | QUANTIZED)
def test_quantized_attention(case, target, device):
    model, given = attention("QAttention", **(ATTENTIONS | QUANTIZED)[case])
    check(model, given, target=target, device=device)


def embeddings(
    op_type="EmbedLayerNormalization", *, segments=True, mask=True, positions=False, signed=False,
    opset=17, **attributes,
):  # fmt: skip
    """Build embeddings of two samples of seven words, with the number of unmasked words."""
    rng = np.random.default_rng(5)
    inputs = {"ids": ((BATCH, ROWS), "int32")}
    given = {"ids": rng.integers(0, 11, (BATCH, ROWS)).astype(np.int32)}
    tables = {"word": (11, 13), "position": (9, 13), "segment": (2, 13), "g": (13,), "b": (13,)}
    if not segments:
        del tables["segment"]
    constants = {n: weights(*shape, seed=len(n)) for n, shape in tables.items()}
    for name, is_given in (("segments", segments), ("mask", mask)):
        inputs |= {name: ((BATCH, ROWS), "int32")} if is_given else {}
    order = ["word", "position", "segment", "g", "b"]
    names = ["ids", "segments", *order, "mask"]
    results = ["y", "count"]
    if op_type == "QEmbedLayerNormalization":
        lowest, kind = (-128, np.int8) if signed else (0, np.uint8)
        for index, name in enumerate(tables):
            constants[name] = rng.integers(lowest, lowest + 256, tables[name]).astype(kind)
            constants[f"s{name}"] = np.float32(0.01 + index / 100)
            constants[f"z{name}"] = np.array(lowest + 120 + index, kind)
        names += [f"{letter}{name}" for letter in "sz" for name in order]
    else:
        names.append("positions" if positions else "")
        results.append("total")
    if positions:
        inputs["positions"] = ((BATCH, ROWS), "int32")
    names = [name if name in inputs or name in constants else "" for name in names]
    node = helper.make_node(op_type, names, results, domain=DOMAIN, **attributes)
    return model_of([node], inputs, results, constants, opset), given


EMBEDDINGS = {
    "all": {"opset": 18},
    "all of old models": {"opset": 11, "epsilon": 1e-3},
    "no segments": {"segments": False},
    "no mask": {"mask": False},
}


PLAIN_EMBEDDINGS = EMBEDDINGS | {"positions": {"positions": True}}
QUANTIZED_EMBEDDINGS = EMBEDDINGS | {"signed": {"signed": True}}


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("case", PLAIN_EMBEDDINGS)
def test_embeddings(case, target, device):
    check(*embeddings(**PLAIN_EMBEDDINGS[case]), target=target, device=device)


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("case", QUANTIZED_EMBEDDINGS)
def test_quantized_embeddings(case, target, device):
    model, given = embeddings("QEmbedLayerNormalization", **QUANTIZED_EMBEDDINGS[case])
    check(model, given, target=target, device=device)


def test_tables_stay_bytes():
    """Quantized tables are dequantized after the look-up."""
    imported = load_model(embeddings("QEmbedLayerNormalization")[0])
    assert re.search(r'R.take\(metadata\["\w+(\.\w+)*"\]\[\d+\]', str(imported.mod))


REFUSED = {
    "do_rotary is set": {"do_rotary": 1},
    "past_present_share_buffer is set": {"past": 4, "past_present_share_buffer": 1},
    r"mask of shape \[2, 1, 9, 9\] is none of": {"mask": (BATCH, 1, 9, 9)},
    r"mask of shape \[8\] is none of": {"mask": (3 * BATCH + 2,)},
}


@pytest.mark.parametrize("op_type", ["Attention", "QAttention"])
@pytest.mark.parametrize("reason", REFUSED)
def test_other_forms_are_refused_with_the_reason(reason, op_type):
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(attention(op_type, **REFUSED[reason])[0])
    assert re.search(rf"com.microsoft.Attention[^\n]*{reason}", caught.value.details)


def test_a_length_known_at_run_time_is_refused():
    model, _ = attention()
    model.graph.node[0].input[0] = "rows"
    compress = helper.make_node("Compress", ["x", "which"], ["rows"], axis=1)
    model.graph.node.insert(0, compress)
    model.graph.input.append(helper.make_tensor_value_info("which", TensorProto.BOOL, [ROWS]))
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(model)
    assert "Attention" in caught.value.details
    assert "known only at run time" in caught.value.details
