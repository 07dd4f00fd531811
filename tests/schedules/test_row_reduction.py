"""Softmax and normalisations: results in all modes, one kernel each, no races."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.checks import check_outputs, options_of
from support.onnx_models import expected
from support.operators import build, feeds_for, random, single
from support.row_reductions import MODES, TURNS, scheduled_text, schedules
from support.turns import in_turn

import tvmflow
from tvmflow.devices.target import PRESETS
from tvmflow.schedules.row_reduction import Knobs, Shape, heuristic
from tvmflow.verify.tolerance import NETWORK, OPERATOR, STORED_AS_HALF, assert_close

pytestmark = pytest.mark.opencl


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def normal(x, axes, epsilon=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def affine(*shape):
    """Return scale and bias of a shape, neither of them neutral."""
    return {"s": random(shape, seed=3) + 2, "b": random(shape, seed=4)}


def check(model, reference, x, families, mode, table=OPERATOR):
    """Compile for a mode, compare with float64, and return the families of the kernels."""
    with tvmflow.compile(model, **options_of(mode)) as m:
        (got,) = m(**{m.inputs[0].name: x}).values()
        found = [s["family"] for s in m.metadata["schedules"].values()]
    table = STORED_AS_HALF if mode[3] == "fp16" else table
    assert_close(got, reference.astype(np.float32), table)
    assert [f for f in found if f in ("softmax", "normalization")] == families
    return found


SOFTMAX = [((1, 1000), 1), ((5, 1003), 1), ((2, 21, 9, 8), 1), ((1, 7, 3, 40), -1), ((3, 1), 1)]


@pytest.mark.parametrize(("shape", "axis", "mode"), in_turn(SOFTMAX, MODES, *TURNS))
def test_softmax(shape, axis, mode):
    x = random(shape, 5)
    model = single("Softmax", [shape], axis=axis)
    reference = softmax(x.astype(np.float64), axis)
    assert check(model, reference, x, ["softmax"], mode) == ["softmax"]


@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_softmax_has_no_subnormal_numbers(target):
    """The least normal number is 1.2e-38, exp(-87.3); CPUs are slow with smaller ones."""
    x = np.array([[0, -80, -87, -88, -95, -100, -120, -np.inf]], np.float32)
    with tvmflow.compile(single("Softmax", [x.shape], axis=1), target=target) as module:
        (got,) = module(x0=x).values()
    np.testing.assert_allclose(got[0, :3], np.exp(x[0, :3].astype(np.float64)), rtol=1e-5)
    assert not got[0, 3:].any()


@pytest.mark.parametrize("device", ["cpu", "adreno"])
def test_log_softmax_of_large_numbers_with_an_epilogue(device):
    nodes = [helper.make_node("LogSoftmax", ["x0"], ["t"]), helper.make_node("Abs", ["t"], ["y"])]
    x = random((3, 777), 1e4)
    shifted = x.astype(np.float64) - x.max(1, keepdims=True)
    reference = np.abs(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))
    model = build(nodes, {"x0": x.shape}, ["y"])
    mode = ("opencl", device, "auto", "fp32")
    assert check(model, reference, x, ["softmax"], mode) == ["softmax"]


@pytest.mark.parametrize("device", ["cpu", "adreno"])
def test_rows_that_a_mask_leaves_out(device):
    """A row without any key is zeros, by a comparison of one number a row."""
    nodes = [
        helper.make_node("Softmax", ["x0"], ["s"], axis=-1),
        helper.make_node("Less", ["x1", "zero"], ["t"]),
        helper.make_node("Where", ["t", "zero", "s"], ["y"]),
    ]
    shapes = {"x0": (2, 5, 37), "x1": (2, 5, 1)}
    model = build(nodes, shapes, ["y"], {"zero": np.float32(0)})
    feeds = feeds_for(model)
    (reference,) = expected(model, feeds)
    assert 0 < (reference == 0).all(-1).sum() < 10
    with tvmflow.compile(model, target="opencl", device=device) as module:
        assert_close(module(**feeds)["y"], reference, OPERATOR)
        families = [choice["family"] for choice in module.metadata["schedules"].values()]
    assert "softmax" in families
    assert "fallback" not in families


NORMALS = {
    "layer": ("LayerNormalization", (7, 197), (197,), (1,), {}),
    "layer_of_two_axes": ("LayerNormalization", (3, 5, 33), (5, 33), (1, 2), {"axis": 1}),
    "layer_vector": ("LayerNormalization", (333,), (333,), (0,), {}),
    "instance": ("InstanceNormalization", (2, 6, 15, 17), (6,), (2, 3), {}),
    "instance_pixel": ("InstanceNormalization", (1, 6, 1, 1), (6,), (2, 3), {}),
}


@pytest.mark.parametrize(("case", "mode"), in_turn(NORMALS, MODES, *TURNS))
def test_normalization_with_its_scale_and_bias(case, mode):
    """The mean is large relative to the deviation: a variance of squares would lose its digits."""
    operator, shape, parameters, axes, attributes = NORMALS[case]
    constants = affine(*parameters)
    half = mode[3] == "fp16"
    x = random(shape) + (2 if half else 100)
    wide = (1, -1, 1, 1) if operator.startswith("Instance") else parameters
    scale, bias = (constants[n].astype(np.float64).reshape(wide) for n in "sb")
    reference = normal(x.astype(np.float64), axes) * scale + bias
    model = single(operator, [shape], constants, **attributes)
    # The mean is rounded to 2^-24 of itself, which is 100 times the deviation.
    assert check(model, reference, x, ["normalization"], mode, NETWORK) == ["normalization"]


def test_rms_and_groups():
    x = random((5, 101)) + 1
    wide = x.astype(np.float64)
    reference = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    scale = {"s": random((101,))}
    model = single("RMSNormalization", [x.shape], scale, opset=23)
    mode = ("opencl", "adreno", "auto", "fp32")
    assert check(model, reference * scale["s"], x, ["normalization"], mode) == ["normalization"]

    x = random((2, 12, 5, 7)) + 1
    constants = affine(12)
    grouped = normal(x.astype(np.float64).reshape(2, 3, 4, 5, 7), (2, 3, 4)).reshape(x.shape)
    scale, bias = (constants[n].reshape(1, 12, 1, 1) for n in "sb")
    model = single("GroupNormalization", [x.shape], constants, opset=21, num_groups=3)
    # Groups are views of channels; only the result, which the caller gets, is copied.
    found = check(model, grouped * scale + bias, x, ["normalization"], mode)
    assert found == ["normalization", "moving"]


def normalized_convolution(channels=22, operator="LeakyRelu"):
    """Build a convolution, an instance normalisation in its layout, and a selection after it."""
    constants = {"w": random((channels, 5, 1, 1)), **affine(channels)}
    nodes = [
        helper.make_node("Conv", ["x0", "w"], ["t"]),
        helper.make_node("InstanceNormalization", ["t", "s", "b"], ["u"]),
        helper.make_node(operator, ["u"], ["v"]),
        helper.make_node("MaxPool", ["v"], ["y"], kernel_shape=[2, 2]),
    ]
    return build(nodes, {"x0": (1, 5, 13, 31)}, ["y"], constants)


@pytest.mark.parametrize(("operator", "mode"), in_turn(["LeakyRelu", "Relu"], MODES, *TURNS))
def test_the_blocked_layout_is_kept(operator, mode):
    model = normalized_convolution(operator=operator)
    feeds = feeds_for(model)
    (reference,) = expected(model, feeds)
    found = check(model, reference, feeds["x0"], ["normalization"], mode)
    # At most one conversion of the input and one of the output are left.
    assert found.count("moving") <= 2


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(1, 1, 1),
        Knobs(1, 1, 8),
        Knobs(1, 8, 2),
        Knobs(1, 32, 4),
        Knobs(1, 256, 1),
        Knobs(4, 1, 1),
        Knobs(3, 16, 2),
        Knobs(2, 64, 1),
    ],
    ids=str,
)
def test_any_sharing_is_right(knobs):
    x = random((3, 1021))
    model = single("Softmax", [x.shape], axis=1)
    options = {"target": "opencl", "device": "adreno", "knobs": {"softmax": vars(knobs)}}
    with tvmflow.compile(model, **options) as module:
        assert module.metadata["schedules"]["softmax"]["source"] == "given"
        assert_close(
            module(x0=x)["y"], softmax(x.astype(np.float64), 1).astype(np.float32), OPERATOR
        )


def test_a_group_shares_a_long_row():
    text = scheduled_text(single("Softmax", [(1, 1000)], axis=1), "adreno")
    assert text.count('thread="blockIdx.x"') == 1
    # The maximum and the sum each have 32 partial results, then 8, and the total.
    assert text.count('scope="shared"') == 6
    assert text.count('thread="threadIdx.x"') > 6


def test_a_cpu_computes_a_row_in_vectors():
    for target in ("opencl", "llvm"):
        text = scheduled_text(single("Softmax", [(64, 1000)], axis=1), "cpu", target)
        assert "shared" not in text
        assert "threadIdx" not in text
        # Both statistics with their initialisation, and the output, are in vectors.
        assert text.count("T.vectorized") >= 5


@pytest.mark.parametrize(("log", "mode"), in_turn([False, True], MODES, *TURNS))
def test_few_long_rows_are_shared_by_groups(log, mode):
    """Two kernels compute the maximum, two the sum, and one the rest."""
    x = random((2, 70003), 3)
    model = single("LogSoftmax" if log else "Softmax", [x.shape], axis=1)
    with tvmflow.compile(model, **options_of(mode)) as module:
        (choice,) = (c for c in module.metadata["schedules"].values() if c["family"] == "softmax")
        assert choice["knobs"]["splits"] > 1
        own = [k for k in module.metadata["kernels"] if k["family"] == "softmax"]
        assert len(own) == (5 if mode[0] == "opencl" else 1)
        reference = softmax(x.astype(np.float64), 1)
        reference = (np.log(reference) if log else reference).astype(np.float32)
        table = STORED_AS_HALF if mode[3] == "fp16" else OPERATOR
        assert_close(module(x0=x)["y"], reference, table)


@pytest.mark.parametrize("mode", MODES[2:])
def test_long_rows_of_blocked_channels_are_shared_by_groups(mode):
    nodes = [
        helper.make_node("Conv", ["x0", "w"], ["t"]),
        helper.make_node("InstanceNormalization", ["t", "s", "b"], ["u"]),
        helper.make_node("Relu", ["u"], ["y"]),
    ]
    constants = {"w": random((6, 5, 1, 1)), **affine(6)}
    model = build(nodes, {"x0": (1, 5, 130, 127)}, ["y"], constants)
    feeds = feeds_for(model)
    (reference,) = expected(model, feeds)
    check(model, reference, feeds["x0"], ["normalization"], mode)
    found = schedules(model, mode[1], storage=mode[2])
    (norm,) = [s for s in found.values() if s.family == "normalization"]
    assert norm.shape["blocked"]
    assert norm.knobs["splits"] > 1


def test_shared_rows_have_kernels_for_each_statistic():
    found = scheduled_text(single("Softmax", [(1, 300001)], axis=1), "adreno")
    assert found.count('thread="blockIdx.x"') == 5
    # A group combines parts only in the first kernel of each statistic.
    assert found.count('scope="shared"') == 4
    assert found.count("T.vectorized") >= 3


@pytest.mark.parametrize("length", [1003, 1004])
def test_vectors_of_cuda_are_aligned(length, tmp_path):
    """Rows of 1003 elements begin anywhere: only those of 1004 are written in vectors."""
    model = single("Softmax", [(3, length)], axis=1)
    tvmflow.compile(model, target="cuda", dump_ir=tmp_path).close()
    (source,) = tmp_path.glob("*export.0.cuda")
    assert ("*(float4*)(softmax_ptr" in source.read_text()) == (length == 1004)


def test_requested_statistics_are_computed():
    node = helper.make_node("LayerNormalization", ["x0", "s", "b"], ["y", "m", "d"])
    model = build([node], {"x0": (4, 30)}, ["y", "m", "d"], affine(30))
    with tvmflow.compile(model, target="llvm") as module:
        check_outputs(model, module, feeds_for(model), table=OPERATOR)


def test_families_of_a_network():
    found = schedules(normalized_convolution(), "mali", storage="texture")
    (norm,) = [s for s in found.values() if s.family == "normalization"]
    assert norm.shape["blocked"]
    assert norm.knobs["group_size"] > 1


@pytest.mark.parametrize(
    ("rows", "length", "device", "items"),
    [
        # 32 items of a group take two rows if that divides their number.
        (196, 768, "adreno", 32),
        (197, 768, "adreno", 64),
        (49, 256, "adreno", 64),
        (197, 768, "mali", 32),
    ],
)
def test_groups_of_rows_fill_their_waves(rows, length, device, items):
    shape = Shape(rows, length, across=1, blocked=False)
    assert heuristic(shape, PRESETS[device]) == Knobs(1, items, 4)


def test_rows_that_a_whole_wave_shares_are_right():
    x = random((49, 256))
    model = single("Softmax", [x.shape], axis=1)
    check(model, softmax(x, 1), x, ["softmax"], ("opencl", "adreno", "buffer", "fp32"))


@pytest.mark.oclgrind
def test_trees_have_no_races(under_oclgrind):
    """The network shares its work in every way: by vectors, groups and second kernels."""
    constants = {"w": random((10, 5, 1, 1)), **affine(10)}
    nodes = [
        helper.make_node("Conv", ["x0", "w"], ["t"]),
        helper.make_node("InstanceNormalization", ["t", "s", "b"], ["u"]),
        helper.make_node("GlobalAveragePool", ["u"], ["p"]),
        helper.make_node("Softmax", ["x1"], ["q"], axis=1),
        helper.make_node("LayerNormalization", ["x1", "g"], ["r"]),
        helper.make_node("ReduceMean", ["x1"], ["m"], axes=[0, 1]),
        helper.make_node("ReduceMax", ["x1"], ["n"], axes=[0]),
        helper.make_node("ArgMax", ["x1"], ["a"], axis=1),
    ]
    constants["g"] = random((1999,))
    shapes = {"x0": (1, 5, 17, 19), "x1": (20, 1999)}
    model = build(nodes, shapes, list("pqrmna"), constants, element_type=None)
    # Two groups share the rows of the softmax, too.
    knobs = {"softmax": vars(Knobs(2, 64, 1))}
    options = {"target": "opencl", "device": "adreno", "storage": "texture", "knobs": knobs}
    with tvmflow.compile(model, **options) as module:
        chosen = module.metadata["schedules"]
        assert chosen["softmax"]["source"] == "given"
        assert sum(s["knobs"].get("group_size", 1) > 1 for s in chosen.values()) >= 6
        assert len(module.metadata["kernels"]) > len(chosen)
        check_outputs(model, module, feeds_for(model), run=under_oclgrind(), table=OPERATOR)
