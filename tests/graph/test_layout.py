"""The layout pass: what is blocked, what is converted, and where padding may not leak."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.first_stages import compiled_until
from support.onnx_models import model_of
from support.operators import build, check, conv, random, single
from tvm import sym, tirx

from tvmflow.devices.target import PRESETS
from tvmflow.graph.layout.layout import LayoutPass
from tvmflow.graph.layout.rules import injective
from tvmflow.ir import blocked
from tvmflow.ir.rewriter import op_name
from tvmflow.models import build as build_model


def run_pass(model, device="cpu"):
    layout = LayoutPass(compiled_until("simplify", model, device=device).mod, PRESETS[device])
    mod = layout.run()
    return layout, mod


def functions_called(mod):
    """Names of the primary functions that ``main`` calls, in order, without numbers."""
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    calls = [b.value for b in bindings if op_name(b.value) == "relax.call_tir"]
    return [call.args[0].name_hint.rstrip("0123456789") for call in calls]


def test_a_convolution_becomes_blocked_and_is_unpacked_once():
    layout, mod = run_pass(conv((1, 24, 9, 9), 20, activation="Relu"))
    assert (layout.packed, layout.unpacked) == (1, 1)
    assert functions_called(mod) == ["pack", "conv2d", "unpack"]


def test_few_input_channels_are_read_in_their_plain_layout():
    layout, mod = run_pass(conv((1, 3, 9, 9), 20))
    assert layout.packed == 0
    assert functions_called(mod) == ["conv2d", "unpack"]


@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2"])
def test_no_conversion_between_the_first_and_the_last_convolution(name, tmp_path):
    path = tmp_path / "model.onnx"
    build_model(name, path, size=64, width=0.5)
    _, mod = run_pass(path)
    called = functions_called(mod)
    last = max(i for i, f in enumerate(called) if f == "conv2d")
    assert set(called[: last + 1]) == {"conv2d", "depthwise"}


def test_both_forms_of_a_tensor_with_several_readers_are_made_once():
    nodes = """
        c = Conv<pads = [1, 1, 1, 1]>(x, w) d = Conv<pads = [1, 1, 1, 1]>(c, w)
        s = Softmax<axis = 1>(c) t = Softmax<axis = 2>(c) y = Add(c, d)
    """
    model = model_of(nodes, {"x": (1, 18, 6, 6)}, "y s t", {"w": random((18, 18, 3, 3), 0.1)})
    layout, _ = run_pass(model)
    # One conversion in; out: c for both readers, and y.
    assert (layout.packed, layout.unpacked) == (1, 2)
    check(model, "llvm", "cpu")


TRAPS = {
    # Every one of these reads across channels whose last block is partly padding.
    "softmax": [("Softmax", {"axis": 1})],
    "mean_over_channels": [("ReduceMean", {"axes": [1], "keepdims": 1})],
    "max_over_channels": [("ReduceMax", {"axes": [1], "keepdims": 1})],
    "flatten": [("Flatten", {})],
    "exp_of_padding_then_mean": [("Exp", {}), ("ReduceMean", {"axes": [1, 2, 3]})],
    "log_of_sigmoid": [("Sigmoid", {}), ("Log", {}), ("ReduceMean", {"axes": [1]})],
    "transpose": [("Transpose", {"perm": [0, 2, 3, 1]})],
}


@pytest.mark.parametrize("channels", [1, 3, 7, 18, 30])
@pytest.mark.parametrize("trap", TRAPS)
def test_padding_does_not_leak(trap, channels):
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["t0"], pads=[1] * 4)]
    for index, (operator, attributes) in enumerate(TRAPS[trap]):
        nodes.append(helper.make_node(operator, [f"t{index}"], [f"t{index + 1}"], **attributes))
    constants = {"w": random((channels, 5, 3, 3), 0.15), "b": random((channels,))}
    model = build(nodes, {"x": (1, 5, 6, 6)}, [f"t{len(TRAPS[trap])}"], constants, opset=17)
    check(model, "llvm", "cpu")


def test_squeeze_and_excite_residual_and_concat_stay_blocked():
    constants = {
        "w1": random((16, 3, 3, 3), 0.2),
        "w2": random((16, 1, 3, 3), 0.3),
        "w3": random((7, 16, 1, 1), 0.2),
        "w4": random((16, 7, 1, 1), 0.2),
    }
    nodes = """
        a = Conv<pads = [1, 1, 1, 1]>(x, w1) b = Conv<group = 16, pads = [1, 1, 1, 1]>(a, w2)
        p = GlobalAveragePool(b) q = Conv(p, w3) q1 = Relu(q) s = Conv(q1, w4) s1 = Sigmoid(s)
        m = Mul(b, s1) r = Add(m, a) c = Concat<axis = 1>(r, a)
        y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)
    """
    model = model_of(nodes, {"x": (1, 3, 12, 12)}, "y", constants)
    layout, _ = run_pass(model)
    assert (layout.packed, layout.unpacked) == (0, 1)
    check(model, "llvm", "cpu")


def test_concat_with_a_seam_inside_a_block_stays_blocked():
    nodes = "a = Conv(x, w) b = Conv(x, v) y = Concat<axis = 1>(a, b)"
    constants = {"w": random((3, 4, 1, 1)), "v": random((5, 4, 1, 1))}
    model = model_of(nodes, {"x": (1, 4, 5, 5)}, "y", constants)
    layout, mod = run_pass(model)
    assert layout.unpacked == 1
    assert functions_called(mod)[-2:] == ["concat", "unpack"]
    check(model, "llvm", "cpu")


def test_whole_vectors_move_where_channels_stay_in_their_lanes():
    """A concatenation at a seam and a slice at a block read lane k for lane k."""
    nodes = (
        "a = Conv(x, w) c = Concat<axis = 1>(a, a) s = Slice(c, begin, end, axis) y = Conv(s, w)"
    )
    constants = {"w": random((16, 16, 1, 1))}
    constants |= {"begin": np.array([8]), "end": np.array([24]), "axis": np.array([1])}
    model = model_of(nodes, {"x": (1, 16, 5, 5)}, "y", constants)
    _, mod = run_pass(model, "adreno")
    for name in ("concat", "slice"):
        text = mod[name].script()
        assert "% T.int64(4)" not in text, text
        assert "v_k]" in text


def test_steps_of_a_channel_shuffle_are_not_computed():
    nodes = """
        a = Conv(x, w) b = Reshape(a, split) c = Transpose<perm = [0, 2, 1, 3, 4]>(b)
        d = Reshape(c, joined) y = Conv(d, w)
    """
    constants = {"w": random((6, 6, 1, 1))}
    constants |= {"split": np.array([1, 2, 3, 5, 5]), "joined": np.array([1, 6, 5, 5])}
    layout, mod = run_pass(model_of(nodes, {"x": (1, 6, 5, 5)}, "y", constants))
    assert (layout.packed, layout.unpacked) == (1, 1)
    assert functions_called(mod) == ["pack", "conv2d", "view", "conv2d", "unpack"]


def test_places_by_formula():
    """Reflected, repeated and clamped axes need no table; others do."""
    for places in ([2, 1, 0, 1, 2, 3, 2], [0, 0, 0, 1, 2, 3, 3], [0, 0, 1, 1, 2, 2], [4, 3, 2]):
        formula = injective.place_formula(np.array(places))
        assert formula is not None
        analyzer = sym.Analyzer()
        found = [
            int(analyzer.simplify(formula(tirx.const(i, "int32")))) for i in range(len(places))
        ]
        assert found == places
    assert injective.place_formula(np.array([0, 2, 1, 5, 3, 3, 0, 4])) is None


def test_broadcasts_of_constants_and_maps():
    nodes = """
        c = Conv(x, w) c1 = Mul(c, scalar) c2 = Add(c1, channel) c3 = Add(c2, row)
        y = Sub(map, c3)
    """
    constants = {"w": random((6, 5, 1, 1)), "scalar": np.float32(0.7)}
    constants |= {"channel": random((6, 1, 1)), "row": random((4,))}
    model = model_of(nodes, {"x": (1, 5, 4, 4), "map": (1, 6, 4, 4)}, "y", constants)
    check(model, "llvm", "cpu")


@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (18, 31)])
def test_weights_are_rearranged_and_padded_with_zeros(shape):
    outputs, inputs = shape
    weight = random((outputs, inputs, 3, 2))
    packed = blocked.split_axis(weight, 0, 4)
    assert packed.shape == (-(-outputs // 4), inputs, 3, 2, 4)
    flat = packed.transpose(0, 4, 1, 2, 3).reshape(-1, inputs, 3, 2)
    np.testing.assert_array_equal(flat[:outputs], weight)
    assert not flat[outputs:].any()


def test_a_single_operator_without_convolutions_is_left_alone():
    layout, _ = run_pass(single("Add", [(1, 7, 5, 5), (1, 7, 1, 1)]))
    assert (layout.packed, layout.unpacked) == (0, 0)
