"""Products with weights of 4 bits, which stay packed in the module."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.checks import options_of
from support.cuda_host import cuda_host
from support.onnx_models import model_of
from support.operators import random
from support.row_reductions import MODES

import tvmflow
from tvmflow.frontend.load import load_model
from tvmflow.verify.compare import verify
from tvmflow.verify.tolerance import OPERATOR, STORED_AS_HALF, assert_close

#: Element type, whether it is Gemm with weights of rows, rows and columns of the result, depth;
#: then elements in a block, its axis and whether there are zero points.
CASES = {
    "columns": ("INT4", False, 1, 9, 64, 0, 1, False),
    "one scale": ("UINT4", False, 3, 7, 32, None, 0, True),
    "blocks": ("INT4", False, 5, 31, 96, 32, 0, True),
    "small blocks": ("INT4", False, 17, 9, 42, 2, 0, True),
    "gemm": ("INT4", True, 1, 40, 256, 0, 0, False),
    "gemm blocks": ("UINT4", True, 7, 33, 128, 16, 1, True),
}
#: Weights unpacked at import: a byte would have two scales, or one weight is left over.
UNPACKED = {
    "blocks across": ("UINT4", False, 2, 32, 64, 16, 1, True),
    "depth": ("INT4", False, 2, 9, 31, 0, 1, False),
    "odd blocks": ("INT4", False, 2, 9, 66, 11, 0, False),
    "scales of rows": ("INT4", False, 2, 9, 64, 0, 0, True),
}


def product_of(case):
    """Return a model, its feeds, and its result in float64."""
    kind, rows, high, wide, depth, block, axis, has_zeros = {**CASES, **UNPACKED}[case]
    rng = np.random.default_rng(3)
    shape = (wide, depth) if rows else (depth, wide)
    low = -8 if kind == "INT4" else 0
    scaled = [shape[axis]] if block == 0 else []
    if block:
        scaled = [n // block if a == axis else n for a, n in enumerate(shape)]
    numbers = rng.integers(low, low + 16, shape)
    zeros = rng.integers(low, low + 16, scaled) if has_zeros else np.zeros(scaled, np.int64)
    scales = rng.uniform(0.01, 0.1, scaled).astype(np.float32)
    dtype = getattr(TensorProto, kind)
    packed_weight = helper.make_tensor("q", dtype, shape, numbers.reshape(-1).tolist())
    weights = {"q": packed_weight, "s": scales}
    if has_zeros:
        weights["z"] = helper.make_tensor("z", dtype, scaled, zeros.reshape(-1).tolist())
    attributes = {"axis": axis, **({"block_size": block} if block else {})}
    x, bias = random((high, depth) if rows else (2, high, depth)), random((wide,))
    nodes = [helper.make_node("DequantizeLinear", [*weights], ["w"], **attributes)]
    if rows:
        nodes.append(helper.make_node("Gemm", ["x", "w", "b"], ["t"], transB=1))
        weights["b"] = bias
    else:
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["t"]))
    nodes.append(helper.make_node("Relu", ["t"], ["y"]))
    model = model_of(nodes, {"x": x.shape}, "y", weights, opset=21, ir_version=10)

    def spread(values):
        if block:
            return np.repeat(values, block, axis)
        return values if block is None else np.expand_dims(values, 1 - axis)

    weight = (numbers - spread(zeros)) * spread(scales.astype(np.float64))
    expected = x.astype(np.float64) @ (weight.T if rows else weight) + (bias if rows else 0)
    return model, {"x": x}, np.maximum(expected, 0).astype(np.float32)


def packed(model):
    """Return whether the importer keeps a product of bytes."""
    return "uint8" in load_model(model).mod.script()


@pytest.mark.opencl
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_packed_weights_are_right(case, mode):
    model, feeds, expected = product_of(case)
    assert packed(model)
    with closing(tvmflow.compile(model, **options_of(mode))) as module:
        table = OPERATOR if mode[3] == "fp32" else STORED_AS_HALF
        assert_close(module(feeds)["y"], expected, table)
        assert {"dense", "gemv"} & {k["family"] for k in module.metadata["kernels"]}


@pytest.mark.parametrize("case", UNPACKED)
def test_other_products_are_unpacked_at_import(case):
    model, feeds, expected = product_of(case)
    assert not packed(model)
    with closing(tvmflow.compile(model, target="llvm")) as module:
        assert_close(module(feeds)["y"], expected, OPERATOR)


@pytest.mark.cuda_host
@pytest.mark.parametrize("case", ["blocks", "gemm"])
def test_on_cuda(case):
    model, feeds, expected = product_of(case)
    with closing(tvmflow.compile(model, target="cuda")) as module:
        assert_close(cuda_host()(module, feeds)["y"], expected, OPERATOR)


def test_a_module_has_half_a_byte_for_a_weight():
    model, _, _ = product_of("gemm")
    with closing(tvmflow.compile(model, target="llvm")) as module:
        weights = sum(w["bytes"] for w in module.metadata["weights"])
    # The module has 40 columns, in panels of 16.
    assert weights < 256 * 48 / 2 + 48 * 8 + 512


@pytest.mark.onnxruntime
def test_the_reference_computes_in_fp32(tmp_path):
    """ONNX Runtime would by default round the other operand to 8 bits."""
    model, feeds, _ = product_of("blocks")
    onnx.save(model, tmp_path / "model.onnx")
    with closing(tvmflow.compile(model, target="llvm")) as module:
        assert verify(tmp_path / "model.onnx", module, feeds).passed
