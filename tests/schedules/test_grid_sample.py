"""Samples at computed positions for GridSample, DeformConv and RoiAlign: results, any knobs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.checks import check_any_knobs, check_outputs, of_family, options_of
from support.operators import build, feeds_for, random
from support.row_reductions import MODES, TURNS
from support.turns import in_turn

import tvmflow
from tvmflow.schedules import grid_sample

pytestmark = pytest.mark.opencl

#: Attributes of GridSample, and whether the family serves them.
SAMPLES = {
    "linear": ({"mode": "linear"}, True),
    "border": ({"mode": "linear", "padding_mode": "border", "align_corners": 1}, True),
    "nearest": ({"mode": "nearest"}, True),
    "reflection": ({"mode": "linear", "padding_mode": "reflection"}, False),
    "cubic": ({"mode": "cubic"}, False),
}

#: Attributes of DeformConv; whether it has a mask, its channels and those of its result.
DEFORMABLE = {
    "mask": ({"pads": [1, 1, 1, 1]}, True, 10, 7),
    "plain": ({"pads": [0, 1, 2, 1], "strides": [2, 1]}, False, 6, 8),
    "dilated": ({"pads": [2, 2, 2, 2], "dilations": [2, 2]}, True, 9, 4),
    "groups": ({"pads": [1, 1, 1, 1], "group": 2, "offset_group": 3}, True, 12, 6),
}


def sampling(case):
    """Build samples of a convolution's result and of an input, one with an activation after it."""
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["t"]),
        helper.make_node("GridSample", ["t", "g"], ["u"], **SAMPLES[case][0]),
        helper.make_node("Relu", ["u"], ["v"]),
        helper.make_node("Conv", ["v", "b"], ["y"]),
        helper.make_node("GridSample", ["p", "h"], ["z"], **SAMPLES[case][0]),
    ]
    constants = {"a": random((10, 3, 1, 1)), "b": random((5, 10, 1, 1), 0.3)}
    inputs = {"x": (2, 3, 8, 7), "g": (2, 5, 6, 2), "p": (1, 2, 6, 6), "h": (1, 4, 3, 2)}
    return build(nodes, inputs, ["y", "z"], constants, opset=20)


def deforming(case):
    """Build a deformable convolution whose offsets and mask are convolutions of its input."""
    attributes, masked, channels, outputs = DEFORMABLE[case]
    windows = {key: value for key, value in attributes.items() if "group" not in key}
    group, offsets = attributes.get("group", 1), attributes.get("offset_group", 1)
    constants = {
        "a": random((channels, 3, 1, 1)),
        "offset": random((offsets * 18, channels, 3, 3), 0.3),
        "mask": random((offsets * 9, channels, 3, 3), 0.3),
        "w": random((outputs, channels // group, 3, 3), 0.3),
        "b": random((outputs,)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["t"]),
        helper.make_node("Conv", ["t", "offset"], ["o"], **windows),
        helper.make_node("Conv", ["t", "mask"], ["s"], **windows),
        helper.make_node("Sigmoid", ["s"], ["m"]),
        helper.make_node(
            "DeformConv", ["t", "w", "o", "b", *(["m"] if masked else [])], ["u"], **attributes
        ),
        helper.make_node("Relu", ["u"], ["y"]),
    ]
    return build(nodes, {"x": (2, 3, 9, 7)}, ["y"], constants, opset=19)


def positions(model):
    """Return feeds in which most positions of grids are inside the picture, some outside."""
    return {
        name: array if name in "xp" else np.clip(0.7 * array, -1.3, 1.3)
        for name, array in feeds_for(model).items()
    }


@pytest.mark.parametrize(("case", "mode"), in_turn(SAMPLES, MODES, *TURNS))
def test_samples_are_right(case, mode):
    if mode[3] == "fp16" and case == "nearest":
        pytest.skip("a position rounded to 16 bits may be nearest to another element")
    model = sampling(case)
    with tvmflow.compile(model, **options_of(mode)) as module:
        check_outputs(model, module, positions(model), mode[3])
        found = of_family(grid_sample, module.metadata["schedules"])
    assert len(found) == (2 if SAMPLES[case][1] else 0)
    if found:
        block = 16 if mode[1] == "cpu" else 4
        assert {choice["shape"]["lanes"] for choice in found.values()} == {1, block}


@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_samples_of_several_pictures_are_functions_of_their_own(target):
    """Attention at sampled places (RT-DETR) reads pictures of several sizes, and joins samples."""
    node = helper.make_node
    nodes = [
        node("Mul", ["g", "two"], ["places"]),
        node("Slice", ["places", "zero", "three", "axis"], ["g0"]),
        node("Slice", ["places", "three", "five", "axis"], ["g1"]),
        node("GridSample", ["x", "g0"], ["s0"], mode="linear"),
        node("GridSample", ["p", "g1"], ["s1"], mode="linear"),
        node("Concat", ["s0", "s1"], ["y"], axis=3),
    ]
    constants = {"two": np.float32(2), "axis": np.array([2])}
    constants |= {"zero": np.array([0]), "three": np.array([3]), "five": np.array([5])}
    inputs = {"g": (2, 4, 5, 2), "x": (2, 3, 8, 7), "p": (2, 3, 4, 5)}
    model = build(nodes, inputs, ["y"], constants, opset=20)
    with tvmflow.compile(model, target=target, device="cpu") as module:
        check_outputs(model, module, positions(model))
        assert len(of_family(grid_sample, module.metadata["schedules"])) == 2


@pytest.mark.parametrize(("case", "mode"), in_turn(DEFORMABLE, MODES, *TURNS))
def test_deformable_convolutions_are_right(case, mode):
    model = deforming(case)
    with tvmflow.compile(model, **options_of(mode)) as module:
        check_outputs(model, module, positions(model), mode[3])
        # Several groups of offsets are sampled as separate pictures, in the plain layout.
        assert len(of_family(grid_sample, module.metadata["schedules"])) == (case != "groups")


@pytest.mark.opencl
def test_places_are_not_rounded_to_16_bits():
    """Offsets from columns beyond 2048, where 16 bits have even numbers only, are constants."""
    constants = {"w": random((3, 2, 1, 3), 0.3), "o": random((1, 6, 1, 2598), 0.3)}
    node = helper.make_node("DeformConv", ["x", "w", "o"], ["y"])
    model = build([node], {"x": (1, 2, 1, 2600)}, ["y"], constants, opset=19)
    with tvmflow.compile(model, target="opencl", device="cpu", dtype="fp16") as module:
        check_outputs(model, module, feeds_for(model), "fp16")


#: Columns and rows of corners: inside the picture, around it, outside, a line, and reversed.
REGIONS = np.float32(
    [[0.3, 0.7, 5.2, 6.1], [-20, -15, 40, 41], [9, 1, 30, 2], [2, 2, 2, 5], [5, 6, 4, 1]]
)


@pytest.mark.parametrize("pool", ["avg", "max"])
@pytest.mark.parametrize("place", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("mode", MODES)
def test_regions_have_as_many_samples_as_they_are_large(mode, place, pool):
    node = helper.make_node(
        "RoiAlign", ["x", "r", "n"], ["y"], mode=pool, coordinate_transformation_mode=place,
        output_height=2, output_width=3, sampling_ratio=0,
    )  # fmt: skip
    constants = {"r": REGIONS, "n": np.array([0, 1, 1, 0, 1])}
    model = build([node], {"x": (2, 9, 7, 8)}, ["y"], constants, opset=16)
    with tvmflow.compile(model, **options_of(mode)) as module:
        check_outputs(model, module, feeds_for(model), mode[3])


@pytest.mark.parametrize("device", ["cpu", "adreno"])
def test_any_knobs_are_right(device):
    model = deforming("mask")
    check_any_knobs(model, grid_sample, device, (1, 4), positions(model))


def test_operands_that_do_not_fit_are_refused():
    model = deforming("mask")
    node = next(n for n in model.graph.node if n.op_type == "DeformConv")
    node.attribute.append(helper.make_attribute("offset_group", 2))
    with pytest.raises(tvmflow.TvmflowError, match="its offsets have the shape"):
        tvmflow.compile(model)
