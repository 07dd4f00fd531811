"""Graphs that become one primary function of attention, and graphs that do not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from support.attention_models import Choice, attention, heads
from support.first_stages import compiled_until
from support.onnx_models import model_of

from tvmflow.ir.rewriter import shape_of
from tvmflow.ir.signatures import bindings_of, called_function
from tvmflow.schedules.attention import NAME

ODD = heads(7, 5, 9)
MASK = np.zeros((5,), np.float32)


def calls(model, **options):
    """Return the calls of attention after "simplify": shapes of their arguments."""
    job = compiled_until("simplify", model, **{"target": "llvm", **options})
    found = [
        (job.mod, binding.value) for binding in bindings_of(job.mod["main"])
        if called_function(job.mod, binding.value) is not None
    ]  # fmt: skip
    return [
        [shape_of(argument) for argument in called_function(mod, call)[1]]
        for mod, call in found
        if call.args[0].name_hint == NAME
    ]


def test_before_and_after():
    (arguments,) = calls(attention(**heads(7, 21, 9, 20), masks=[(1, 1, 7, 21)]))
    assert arguments == [
        (1, 3, 7, 9),  # q
        (1, 3, 2, 9, 16),  # k
        (1, 3, 2, 21, 16),  # v
        (1, 1, 7, 32),  # a mask with whole vectors
    ]


FUSED = {
    "plain": attention(**ODD, scale=None),
    "divided": attention(**ODD, scale=("Div", 3.0)),
    "a factor of each head": attention(**ODD, scale=("Mul", np.ones((3, 1, 1)))),
    "a factor of keys": attention(**ODD, scale=("Mul", np.ones((5,)))),
    "a factor of masked scores": attention(**ODD, masks=[MASK], late=[("Mul", 3.0)]),
    "a cap": attention(**ODD, cap=5.0),
    "a choice": attention(**ODD, chosen=[Choice((1, 1, 7, 5))]),
    "a choice of the others": attention(**ODD, chosen=[Choice((5,), -1e9, keeps=False)]),
    "keys as columns": attention((2, 7, 9), (2, 9, 5), (2, 5, 4), turned=False),
    "no batch": attention((7, 9), (5, 9), (5, 4)),
    "shared keys": attention((2, 3, 7, 9), (2, 1, 5, 9), (1, 5, 4)),
    "masks": attention(**ODD, masks=[(7, 5), MASK, (1, 3, 1, 1)]),
    "windows": attention(
        **heads(5, 5, 8, batch=(6, 2)), masks=[(1, 1, 2, 5, 5), (3, 1, 5, 5)], view=(2, 3, 2, 5, 5)
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused(name):
    assert len(calls(FUSED[name])) == 1
    assert len(calls(FUSED[name], target="opencl")) == 1


def edited(change, **options):
    """Return a model of attention with changed nodes."""
    model = attention(**ODD, **options)
    nodes = {node.output[0]: node for node in model.graph.node}
    change(model, nodes)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    onnx.checker.check_model(inferred)
    return inferred


def with_axis(model, nodes):
    nodes["p"].attribute[0].i = 2


def with_log(model, nodes):
    nodes["p"].op_type = "LogSoftmax"


def with_two_tensors(model, nodes):
    """Replace the scale by a tensor."""
    nodes["c0"].input[2] = "products"


def with_inverse(model, nodes):
    """Divide the scale by the scores, which does not scale them."""
    nodes["scaled"].input[:] = ["scale", "products"]


def with_more_values(model, nodes):
    """Use the same probabilities for several values."""
    model.graph.input[2].CopyFrom(
        helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, (4, 3, 5, 9))
    )
    for dimension, extent in zip(
        model.graph.output[0].type.tensor_type.shape.dim, (4, 3, 7, 9), strict=True
    ):
        dimension.dim_value = extent


APART = {
    "scores are an output": attention(**ODD, outputs=["y", "scaled"]),
    "probabilities are an output": attention(**ODD, outputs=["y", "p"]),
    "a mask of more scores": attention(**ODD, masks=[(2, 1, 1, 1)]),
    "by zero": attention(**ODD, scale=("Div", 0.0)),
    "times zero": attention(**ODD, scale=("Mul", 0.0)),
    "few queries": attention(**heads(3, 50, 9)),
    "another axis": edited(with_axis),
    "a logarithm": edited(with_log),
    "a choice of two tensors": edited(with_two_tensors, chosen=[Choice((5,))]),
    "an inverse": edited(with_inverse, scale=("Div", 3.0)),
    "more values": edited(with_more_values),
}


@pytest.mark.parametrize("name", APART)
def test_not_fused(name):
    assert not calls(APART[name])


def test_probabilities_that_are_read_twice_stay():
    nodes = "s = MatMul(q, k) p = Softmax<axis = -1>(s) a = MatMul(p, v) b = MatMul(p, w)"
    inputs = {"q": (7, 9), "k": (9, 5), "v": (5, 4), "w": (5, 4)}
    assert not calls(model_of(nodes, inputs, "a b"))


GPUS = [("opencl", "adreno"), ("opencl", "mali"), ("opencl", "nvidia"), ("cuda", "auto")]


@pytest.mark.parametrize(("target", "device"), GPUS)
def test_on_gpus(target, device):
    """Rows are vectors of four, whatever the blocks of other layers."""
    model = attention(**heads(197, 197, 62, batch=(9, 12)), masks=[(1, 1, 197, 197)])
    for dtype in ("fp32", "fp16"):
        if (target, dtype) == ("cuda", "fp16"):
            # Tensor cores compute their products.
            assert not calls(model, target=target, dtype=dtype)
            continue
        (arguments,) = calls(model, target=target, device=device, dtype=dtype)
        assert arguments == [
            (9, 12, 197, 16, 4),  # q
            (9, 12, 62, 50, 4),  # k
            (9, 12, 197, 16, 4),  # v
            (1, 1, 197, 200),  # a mask with whole vectors
        ]


@pytest.mark.parametrize(("target", "device"), GPUS)
@pytest.mark.parametrize(
    "model",
    [
        # Its work fills a few cores only, while products with so many keys fill all.
        attention(**heads(8, 4096, 64, batch=(1, 1))),
        # It has as many slots as products and a softmax, and more reads.
        attention(**heads(64, 64, 8, 300, batch=(1, 64))),
    ],
    ids=["few groups", "deep"],
)
def test_gpus_decline(model, target, device):
    assert not calls(model, target=target, device=device)
