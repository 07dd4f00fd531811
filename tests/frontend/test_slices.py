"""Elements that a Slice selects, against NumPy's slices."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from onnx import helper

from tvmflow.frontend.converter import Refusal
from tvmflow.frontend.ops.shaping import slice_ranges

SHAPE = (3, 5, 7, 9)

CASES = {
    "first_axes": ({"starts": [1, 2], "ends": [3, 4]}, np.s_[1:3, 2:4]),
    "axis": ({"starts": [2], "ends": [5], "axes": [2]}, np.s_[:, :, 2:5]),
    "axes_from_the_end": (
        {"starts": [2, 1], "ends": [5, 4], "axes": [-1, -3]},
        np.s_[:, 1:4, :, 2:5],
    ),
    "places_from_the_end": ({"starts": [-4], "ends": [-1], "axes": [3]}, np.s_[..., -4:-1]),
    "beyond": ({"starts": [-99], "ends": [99], "axes": [1]}, np.s_[:, -99:99]),
}
#: Slices with steps, which operator set 10 introduced.
STEPS = {
    "steps": (
        {"starts": [1, 8], "ends": [99, -99], "axes": [2, 3], "steps": [2, -3]},
        np.s_[:, :, 1:99:2, 8:-99:-3],
    )
}


def test_a_step_back_begins_at_the_first_element_at_least():
    """ONNX selects one element where NumPy selects none."""
    values = {"starts": [-8], "ends": [-100], "axes": [2], "steps": [-1]}
    node = helper.make_node("Slice", ["x", *values], ["y"])
    constants = {n: np.array(v, np.int64) for n, v in values.items()}
    assert ranges_of(node, constants, 13)[2] == range(0, -1, -1)


def ranges_of(node, constants, opset):
    return slice_ranges(node, SHAPE, opset, constants)


def taken(ranges):
    """Return the elements at these ranges of a tensor whose elements are their indices."""
    whole = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    for axis, places in ranges.items():
        whole = np.take(whole, list(places), axis)
    return whole


@pytest.mark.parametrize(
    ("name", "opset"), [*product(CASES, (9, 13)), *product(STEPS, (10,))], ids=str
)
def test_elements(name, opset):
    values, index = {**CASES, **STEPS}[name]
    if opset < 10:
        node, constants = helper.make_node("Slice", ["x"], ["y"], **values), {}
    else:
        names = ["starts", "ends", "axes", "steps"]
        node = helper.make_node("Slice", ["x", *(n if n in values else "" for n in names)], ["y"])
        constants = {n: np.array(v, np.int64) for n, v in values.items()}
    ranges = ranges_of(node, constants, opset)
    expected = np.arange(np.prod(SHAPE)).reshape(SHAPE)[index]
    np.testing.assert_array_equal(taken(ranges), expected)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"starts": [0], "ends": [1], "axes": [4]}, "its axis 4"),
        ({"starts": [0], "ends": [1], "axes": [0], "steps": [0]}, "step 0"),
        ({"starts": [0, 1], "ends": [1]}, "differ in number"),
    ],
)
def test_what_is_impossible_is_said(values, words):
    node = helper.make_node("Slice", ["x", *values], ["y"])
    constants = {n: np.array(v, np.int64) for n, v in values.items()}
    with pytest.raises(Refusal, match=words):
        ranges_of(node, constants, 13)
