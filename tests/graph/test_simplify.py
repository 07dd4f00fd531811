"""Simplification: what is folded, and that the weights leave the program."""

from __future__ import annotations

import numpy as np
from support.first_stages import through
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from tvmflow.graph.weights import lift_weights
from tvmflow.ir.rewriter import identifier, op_name


def module_of(build):
    """A module whose ``main`` computes ``build(x)`` for ``x`` of shape [2, 3]."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, 3], "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            result = bb.emit_output(bb.normalize(build(bb, x)))
        bb.emit_func_output(result)
    return bb.get()


def operators(mod):
    return [op_name(b.value) for block in mod["main"].body.blocks for b in block.bindings]


def test_transposed_weights_are_folded():
    weight = np.arange(12, dtype="float32").reshape(4, 3)

    def build(bb, x):
        transposed = bb.emit(relax.op.permute_dims(relax.const(weight)))
        return relax.op.matmul(x, transposed)

    mod = through("simplify", module_of(build), target="llvm")
    assert "relax.permute_dims" not in operators(mod)
    (constant,) = [
        a
        for block in mod["main"].body.blocks
        for b in block.bindings
        for a in getattr(b.value, "args", [])
        if isinstance(a, GenericConst)
    ]
    np.testing.assert_array_equal(constant.value.numpy(), weight.T)


def test_arithmetic_on_constants_is_folded():
    def build(bb, x):
        scale = bb.emit(relax.op.sqrt(relax.const(np.full((2, 3), 4.0, "float32"))))
        return relax.op.multiply(x, scale)

    assert "relax.sqrt" not in operators(through("simplify", module_of(build), target="llvm"))


def test_weights_are_dequantized_without_compiling(monkeypatch):
    """TVM's own folding takes minutes for the weights of a quantized network."""
    monkeypatch.setattr("tvm.relax.transform.FoldConstant", None)
    weight = np.arange(-3, 3, dtype="int8").reshape(2, 3)
    zero, scale = np.array([[1], [-2]], "int8"), np.array([0.25], "float32")

    def build(bb, x):
        wide = [bb.emit(relax.op.astype(relax.const(a), "float32")) for a in (weight, zero)]
        factor = bb.emit(relax.op.squeeze(relax.const(scale)))
        exact = bb.emit(relax.op.multiply(bb.emit(relax.op.subtract(*wide)), factor))
        return relax.op.add(x, exact)

    mod = through("simplify", module_of(build), target="llvm")
    assert [name for name in operators(mod) if name] == ["relax.add"]
    found = mod["main"].body.blocks[0].bindings[0].value.args[1].value.numpy()
    np.testing.assert_array_equal(found, (weight.astype("float32") - zero) * scale)


def test_weights_become_parameters_once():
    weight = relax.const(np.ones((2, 3), "float32"))

    def build(bb, x):
        once = bb.emit(relax.op.add(x, weight))
        return relax.op.multiply(once, weight)

    mod, weights = lift_weights(module_of(build))
    assert [a.shape for a in weights.values()] == [(2, 3)]
    assert len(mod["main"].params) == 2
    assert [p.name for p in mod["main"].params[1:]] == list(weights)


def test_names_become_identifiers():
    assert identifier("/features/0/Conv_output:0") == "_features_0_Conv_output_0"
    assert identifier("größe") == "gr__e"
    assert identifier("495") == "_495"
    assert identifier("") == "_"


def test_primary_functions_of_the_front_end_have_identifiers():
    def twice(bb, x):
        named = bb.emit(relax.op.nn.relu(x), "/a/Relu:0")
        return bb.call_te(lambda t: te.compute(t.shape, lambda i, j: t(i, j) * 2.0, "t"), named)

    found = through("simplify", module_of(twice))
    (function,) = (f for f in found.functions.values() if isinstance(f, tirx.PrimFunc))
    assert function.params[0].name == "_a_Relu_0"
