"""How options of the form NAME=VALUE are read: names may have an equals sign, too."""

from __future__ import annotations

import pytest
import typer

from tvmflow.cli.options import (
    parse_bounds,
    parse_keep_layout,
    parse_parameters,
    parse_shapes,
)


def test_shapes():
    assert parse_shapes(["x=1,3,8", "a=b=2", "scalar="]) == {
        "x": (1, 3, 8),
        "a=b": (2,),
        "scalar": (),
    }


@pytest.mark.parametrize("text", ["x", "=1,2", "x=1,0", "x=1,-2", "x=1,two", "x=1,,2"])
def test_what_is_no_shape(text):
    with pytest.raises(typer.BadParameter, match="NAME=1,3,224,224"):
        parse_shapes([text])


def test_a_shape_is_given_once():
    with pytest.raises(typer.BadParameter, match="twice"):
        parse_shapes(["x=1", "x=2"])


def test_layouts_belong_to_names_that_may_have_an_equals_sign():
    assert parse_keep_layout(["a=b=nchw4c"]) == {"a=b": "nchw4c"}
    with pytest.raises(typer.BadParameter, match="twice"):
        parse_keep_layout(["x=texture", "x=nchw4c"])


def test_values_of_parameters_may_have_an_equals_sign():
    assert parse_parameters(["a=b=c"]) == {"a": "b=c"}
    with pytest.raises(typer.BadParameter, match="NAME=VALUE"):
        parse_parameters(["a="])


def test_bounds():
    assert parse_bounds(["nms=100", "a=b=2"]) == {"nms": 100, "a=b": 2}
    assert parse_bounds(None) == {}


@pytest.mark.parametrize("text", ["nms", "nms=", "nms=0", "nms=-1", "nms=1.5", "nms=x", "=3"])
def test_what_is_no_bound(text):
    with pytest.raises(typer.BadParameter, match="NAME=1000"):
        parse_bounds([text])
