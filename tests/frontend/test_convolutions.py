"""Convolutions are converted to 2-D ones, without weights that only meet padding."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from reference import check, graph_model, load_and_run

from tvmflow.frontend.load import load_model

#: Input, kernel, dilations, pads, strides, and the remaining kernel.
CASES = {
    "the middle one": ((6, 6), (3, 3), (12, 12), (12, 12, 12, 12), (1, 1), (1, 1)),
    "of a row": ((6, 20), (3, 3), (6, 6), (6, 6, 6, 6), (1, 1), (1, 3)),
    "the last ones": ((3, 5), (4, 2), (2, 1), (6, 0, 0, 1), (1, 1), (2, 2)),
    "the first ones": ((3, 5), (4, 2), (2, 1), (1, 1, 6, 0), (1, 1), (2, 2)),
    "by strides": ((4, 4), (3, 3), (5, 5), (5, 5, 5, 5), (3, 3), (1, 1)),
    "all": ((6, 6), (3, 3), (5, 5), (5, 5, 5, 5), (1, 1), (3, 3)),
    "without padding": ((7, 7), (3, 3), (3, 3), (0, 0, 0, 0), (1, 1), (3, 3)),
    "nothing but padding": ((1, 1), (2, 2), (9, 9), (5, 5, 5, 5), (9, 9), (2, 2)),
}


def model_of(case, weights):
    sizes, _, dilations, pads, strides, _ = CASES[case]
    windows = {"pads": pads, "strides": strides, "dilations": dilations}
    node = helper.make_node("Conv", ["x", "w"], ["y"], **windows)
    return graph_model([node], {"x": ((2, 5, *sizes), "float32")}, ["y"], {"w": weights})


@pytest.mark.onnxruntime
@pytest.mark.parametrize("case", CASES)
def test_what_is_left(case, rng):
    sizes, kernel, *_, left = CASES[case]
    model = model_of(case, rng.standard_normal((6, 5, *kernel)).astype(np.float32))
    (call,) = (b.value for b in load_model(model).mod["main"].body.blocks[0].bindings[:1])
    assert call.args[1].value.shape == (6, 5, *left)
    check(model, {"x": rng.standard_normal((2, 5, *sizes)).astype(np.float32)})


def test_weights_that_are_no_numbers_stay(rng):
    """Infinity times the padding's zero is NaN, so the weight must stay."""
    weights = rng.standard_normal((6, 5, 3, 3)).astype(np.float32)
    weights[0, 0, 0, 0] = np.inf
    x = rng.standard_normal((2, 5, 6, 6)).astype(np.float32)
    (y,) = load_and_run(model_of("the middle one", weights), {"x": x})
    assert np.isnan(y[:, 0]).all()
    assert np.isfinite(y[:, 1:]).all()


#: Input, weights, and attributes.
OTHER_AXES = {
    "one": ((2, 6, 11), (8, 6, 3), {"pads": [1, 2], "strides": [2]}),
    "one, of groups": ((1, 6, 11), (8, 3, 3), {"group": 2, "dilations": [2]}),
    "three": ((2, 4, 5, 6, 7), (8, 4, 3, 2, 3), {"pads": [1, 0, 1, 2, 1, 0], "strides": [2, 1, 2]}),
    "three, of groups": ((1, 6, 5, 6, 7), (8, 3, 2, 3, 3), {"group": 2, "dilations": [3, 1, 2]}),
    "of each channel": ((2, 6, 5, 6, 7), (12, 1, 3, 3, 3), {"group": 6, "pads": [1] * 6}),
    "along the depth": (
        (2, 4, 9, 3, 5),
        (8, 4, 3, 1, 1),
        {"pads": [1, 0, 0] * 2, "strides": [2, 1, 1]},
    ),
    "of each frame": ((2, 4, 5, 6, 7), (8, 4, 1, 3, 3), {"pads": [0, 1, 1] * 2}),
    "of one frame in two": ((1, 4, 5, 6, 7), (8, 4, 1, 1, 1), {"strides": [2, 2, 1]}),
}


@pytest.mark.onnxruntime
@pytest.mark.parametrize("weights", ["constant", "computed"])
@pytest.mark.parametrize("case", OTHER_AXES)
def test_other_numbers_of_axes(case, weights, rng):
    data, weight, attributes = OTHER_AXES[case]
    arrays = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("x", data), ("w", weight), ("b", weight[:1]))
    }
    inputs = ["x"] if weights == "constant" else ["x", "w"]
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)
    model = graph_model(
        [node], {name: (arrays[name].shape, "float32") for name in inputs}, ["y"],
        {name: array for name, array in arrays.items() if name not in inputs},
    )  # fmt: skip
    text = load_model(model).mod["main"].script()
    assert "R.nn.conv2d(" in text
    assert "R.nn.conv1d(" not in text
    assert "R.nn.conv3d(" not in text
    check(model, {name: arrays[name] for name in inputs})


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    "attributes",
    [{}, {"strides": [3], "pads": [1, 2]}, {"strides": [4], "output_padding": [2], "group": 2},
     {"strides": [2], "auto_pad": "SAME_UPPER", "dilations": [2]}],
)  # fmt: skip
def test_transposed_along_one_axis(attributes, rng):
    arrays = {
        "w": rng.standard_normal((6, 4, 5)).astype(np.float32),
        "b": rng.standard_normal(4 * attributes.get("group", 1)).astype(np.float32),
    }
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)
    model = graph_model([node], {"x": ((2, 6, 9), "float32")}, ["y"], arrays)
    assert "R.nn.conv2d_transpose(" in load_model(model).mod["main"].script()
    check(model, {"x": rng.standard_normal((2, 6, 9)).astype(np.float32)})
