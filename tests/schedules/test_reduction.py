"""Reductions: every subset of axes, trees and second kernels, ties, infinities, precision."""

from __future__ import annotations

import itertools
import re

import numpy as np
import onnx
import pytest
from onnx import helper
from support.checks import dumped_source, options_of
from support.operators import build, feeds_for, random, single
from support.row_reductions import MODES, TURNS, schedule_of, scheduled_text
from support.turns import in_turn

import tvmflow
from tvmflow.schedules.reduction import Knobs
from tvmflow.verify.tolerance import OPERATOR, STORED_AS_HALF, assert_close

pytestmark = pytest.mark.opencl

SHAPE = (3, 5, 7, 11)
#: Subsets of axes that are always tested; the others are slow tests.
TELLING = [(0,), (1,), (3,), (0, 2), (2, 3), (0, 1, 2, 3)]
SUBSETS = [
    pytest.param(c, marks=() if c in TELLING else pytest.mark.slow)
    for n in range(1, 5)
    for c in itertools.combinations(range(4), n)
]


def reduce(operator, shape, axes, keepdims=0):
    """Build one reduction of operator set 11, with its axes as an attribute."""
    return single(operator, [shape], opset=11, axes=list(axes), keepdims=keepdims)


def extreme(operator, shape, axis, last=0):
    """Build a reduction to a position, whose dtype differs from that of the input."""
    node = helper.make_node(operator, ["x0"], ["y"], axis=axis, select_last_index=last)
    return build([node], {"x0": shape}, ["y"], element_type=None)


def run(model, x=None, **options):
    """Return the module's output, and its metadata."""
    feeds = feeds_for(model) if x is None else {"x0": x}
    with tvmflow.compile(model, **options) as module:
        return module(**feeds)["y"], module.metadata


NUMPY = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceL1": lambda x, axis: np.abs(x).sum(axis),
    "ReduceL2": lambda x, axis: np.sqrt((x * x).sum(axis)),
    "ReduceLogSumExp": lambda x, axis: np.log(np.exp(x).sum(axis)),
}


@pytest.mark.parametrize("axes", SUBSETS, ids=str)
def test_every_subset_of_axes(axes):
    """Several reductions are in one network, which is compiled once for each device.

    The operators alternate with the number of axes.
    """
    operators = list(NUMPY)[len(axes) % 2 :: 2]
    nodes = [
        helper.make_node(o, ["x"], [o.lower()], axes=list(axes), keepdims=i % 2)
        for i, o in enumerate(operators)
    ]
    model = build(nodes, {"x": SHAPE}, [o.lower() for o in operators], opset=11)
    x = random(SHAPE)
    for target, device in (("llvm", "cpu"), ("opencl", "adreno")):
        with tvmflow.compile(model, target=target, device=device) as module:
            outputs = module(x=x)
        for i, operator in enumerate(operators):
            reference = NUMPY[operator](x.astype(np.float64), axis=axes).astype(np.float32)
            got = outputs[operator.lower()]
            if i % 2:
                reference = np.expand_dims(reference, axes)
            assert_close(got, reference, OPERATOR, operator)


MEANS = [
    ((1, 1280, 7, 7), (2, 3)), ((1, 37, 9, 5), (1, 2, 3)), ((2, 100003), (1,)), ((4, 1), (1,))
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axes", "mode"), in_turn(MEANS, MODES, *TURNS))
def test_mean(shape, axes, mode):
    model, x = reduce("ReduceMean", shape, axes), random(shape) + 3
    got, metadata = run(model, x, **options_of(mode))
    reference = x.astype(np.float64).mean(axis=axes).astype(np.float32)
    assert_close(got, reference, STORED_AS_HALF if mode[3] == "fp16" else OPERATOR)
    if shape[1] > 1:
        assert "reduction" in {s["family"] for s in metadata["schedules"].values()}


@pytest.mark.parametrize("device", ["cpu", "adreno", "mali"])
@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool"])
def test_a_pool_after_a_convolution_keeps_its_lanes(operator, device):
    """The layout stays blocked: its lanes are results, and the items of a group share them."""
    weight = random((22, 3, 1, 1))
    nodes = [
        helper.make_node("Conv", ["x0", "w"], ["t"]),
        helper.make_node(operator, ["t"], ["u"]),
        helper.make_node("Relu", ["u"], ["y"]),
    ]
    model = build(nodes, {"x0": (1, 3, 40, 30)}, ["y"], {"w": weight})
    x = random((1, 3, 40, 30))
    mixed = np.einsum("oc,nchw->nohw", weight[:, :, 0, 0].astype(float), x.astype(float))
    pooled = (np.mean if "Average" in operator else np.max)(mixed, (2, 3), keepdims=True)
    storages = ("buffer",) if device == "cpu" else ("texture", "buffer")
    for storage in storages:
        got, metadata = run(model, x, target="opencl", device=device, storage=storage)
        assert_close(got, np.maximum(pooled, 0).astype(np.float32), OPERATOR)
        knobs = [s["knobs"] for s in metadata["schedules"].values() if s["family"] == "reduction"]
        assert len(knobs) == 1
        assert (knobs[0]["group_size"] > 1) == (device != "cpu")


KNOBS = [
    Knobs(1, 1, 1),
    Knobs(3, 1, 4),
    Knobs(1, 8, 1),
    Knobs(5, 16, 2),
    Knobs(2, 64, 4),
    Knobs(1, 256, 1),
]


@pytest.mark.parametrize(
    "operator", [pytest.param("ReduceSum", marks=pytest.mark.slow), "ReduceMax"]
)
@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_any_sharing_is_right(operator, knobs):
    """No factor divides the lengths, and a maximum starts from minus infinity."""
    x = random((3, 1999)) - 100
    model = reduce(operator, x.shape, [1], keepdims=1)
    name = "sum" if operator == "ReduceSum" else "max"
    got, metadata = run(model, x, target="opencl", device="adreno", knobs={name: vars(knobs)})
    assert metadata["schedules"][name]["source"] == "given"
    reference = NUMPY[operator](x.astype(np.float64), axis=1)[:, None]
    assert_close(got, reference.astype(np.float32), OPERATOR)
    kernels = [k["family"] for k in metadata["kernels"]]
    assert kernels == ["reduction"] * (2 if knobs.splits > 1 else 1)


@pytest.mark.parametrize("device", ["cpu", "adreno"])
def test_extremes_of_infinities(device):
    x = np.full((3, 300), -np.inf, np.float32)
    x[1, 77], x[2] = 4, np.inf
    for operator, sign in (("ReduceMax", 1), ("ReduceMin", -1)):
        got, _ = run(reduce(operator, x.shape, [1]), sign * x, target="opencl", device=device)
        assert got.tolist() == [sign * -np.inf, sign * 4, sign * np.inf]


@pytest.mark.parametrize("device", ["cpu", "adreno"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 999), 1), ((2, 50, 6), 1), ((5, 1), 1)], ids=str)
def test_positions_of_ties(operator, shape, axis, last, device):
    """With few values many are equal: the first (or last) position counts."""
    x = np.random.default_rng(5).integers(0, 4, shape).astype(np.float32)
    got, metadata = run(extreme(operator, shape, axis, last), x, target="opencl", device=device)
    find = np.argmax if operator == "ArgMax" else np.argmin
    reference = find(x, axis)
    if last:
        reference = shape[axis] - 1 - find(np.flip(x, axis), axis)
    assert np.array_equal(got, np.expand_dims(reference, axis))
    if shape == (3, 999) and device == "adreno":
        sizes = [s["knobs"].get("group_size") for s in metadata["schedules"].values()]
        assert 64 in sizes


def test_a_long_sum_has_two_kernels_with_a_tree():
    model = reduce("ReduceMean", (1000, 1000), (0, 1))
    text = scheduled_text(model, "adreno")
    assert text.count('thread="blockIdx.x"') == 2
    assert text.count('scope="shared"') == 2
    assert "T.vectorized" in text
    assert schedule_of(model, "adreno").knobs["splits"] > 8


def test_a_cpu_has_no_groups():
    for target in ("opencl", "llvm"):
        text = scheduled_text(reduce("ReduceSum", (1000, 1000), (0, 1)), "cpu", target)
        assert "shared" not in text
        assert "threadIdx" not in text
        assert "T.vectorized(T.int64(16))" in text


def test_means_of_half_precision_are_summed_in_single(tmp_path):
    """The sum of 65,600 ones overflows 16 bits, and exceeds their exact integers."""
    x = np.ones((1, 1, 164, 400), np.float32)
    model = single("GlobalAveragePool", [x.shape])
    got, _ = run(model, x, target="opencl", device="adreno", dtype="fp16", accumulate="fp32")
    assert got.reshape(()) == 1
    onnx.checker.check_model(model)


@pytest.mark.parametrize("device", ["cpu", "adreno"])
@pytest.mark.parametrize(("shape", "axis"), [((19, 333), 1), ((2, 5, 30, 31), 1)], ids=str)
def test_a_mean_that_is_subtracted_is_computed_once(shape, axis, device):
    """Fused after the mean, each element of the subtraction would compute it again."""
    nodes = [
        helper.make_node("ReduceMean", ["x0"], ["m"], axes=[axis]),
        helper.make_node("Sub", ["x0", "m"], ["y"]),
    ]
    model, x = build(nodes, {"x0": shape}, ["y"]), random(shape) + 2
    got, metadata = run(model, x, target="opencl", device=device)
    wide = x.astype(np.float64)
    assert_close(got, (wide - wide.mean(axis, keepdims=True)).astype(np.float32), OPERATOR)
    assert [k["family"] for k in metadata["kernels"]] == ["reduction", "moving"]


OVER_CHANNELS = {
    "mean": ("ReduceMean", {"axes": [1], "keepdims": 1}, lambda t: t.mean(1, keepdims=True)),
    "sum": ("ReduceSum", {"axes": [0, 1, 3], "keepdims": 0}, lambda t: t.sum((0, 1, 3))),
    "product": ("ReduceProd", {"axes": [3], "keepdims": 1}, lambda t: t.prod(3, keepdims=True)),
    "position": ("ArgMax", {"axis": 1, "keepdims": 0}, lambda t: t.argmax(1)),
    "position_in_a_row": ("ArgMin", {"axis": 3}, lambda t: t.argmin(3)[..., None]),
    "softmax": ("Softmax", {"axis": 1}, None),
}


@pytest.mark.parametrize(("case", "mode"), in_turn(OVER_CHANNELS, MODES[1:], *TURNS))
def test_channels_are_read_from_their_lanes(case, mode):
    """No convolution's result is copied to the plain layout; 22 channels are a partial block."""
    operator, attributes, reference = OVER_CHANNELS[case]
    device = mode[1]
    weight = random((22, 3, 1, 1))
    nodes = [
        helper.make_node("Conv", ["x0", "w"], ["t"]),
        helper.make_node(operator, ["t"], ["y"], **attributes),
    ]
    opset = 11 if operator.startswith("Reduce") else 13
    model = build(nodes, {"x0": (1, 3, 6, 5)}, ["y"], {"w": weight}, opset, element_type=None)
    # Integers have the same extremes when rounded to 16 bits.
    x = np.random.default_rng(3).integers(-1, 2, (1, 3, 6, 5)).astype(np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.rint(weight), "w"))
    mixed = np.einsum("oc,nchw->nohw", np.rint(weight)[:, :, 0, 0], x).astype(np.float64)
    got, metadata = run(model, x, **options_of(mode))
    if reference is None:
        e = np.exp(mixed - mixed.max(1, keepdims=True))
        reference = lambda _: e / e.sum(1, keepdims=True)  # noqa: E731
    table = STORED_AS_HALF if mode[3] == "fp16" else OPERATOR
    assert_close(got, reference(mixed).astype(got.dtype), table)
    families = [s["family"] for s in metadata["schedules"].values()]
    # GPUs pack the input; a product keeps its lanes; a CPU's softmax is along pixels.
    copies = (device != "cpu") + (case == "product") + (case == "softmax" and device == "cpu")
    assert families.count("moving") + families.count("transpose") == copies


def test_lanes_of_channels_are_read_as_vectors(tmp_path):
    """5 whole texels of 22 channels are read in vectors, the rest of the last one separately."""
    nodes = [
        helper.make_node("Conv", ["x0", "w"], ["t"]),
        helper.make_node("ReduceMean", ["t"], ["y"], axes=[1]),
    ]
    model = build(nodes, {"x0": (1, 3, 6, 5)}, ["y"], {"w": random((22, 3, 1, 1))}, 11)
    run(model, target="opencl", device="adreno", storage="texture", dump_ir=tmp_path)
    text = dumped_source(tmp_path)
    text = text[text.index("__kernel void mean_kernel") :]
    assert len(re.findall(r"vload4\(0, \w+_rf\w*", text)) == 5


@pytest.mark.parametrize("length", [1000, 1001])
def test_a_hot_loop_has_no_test(length):
    """The last step, which lacks elements, is peeled off the loop over all others."""
    text = scheduled_text(reduce("ReduceSum", (64, length), (1,)), "cpu")
    assert "T.int64(62)" in text
    assert text.count("T.likely") == 1


def test_lengths_without_a_remainder_have_no_test():
    assert "T.likely" not in scheduled_text(reduce("ReduceSum", (64, 1024), (1,)), "cpu")
