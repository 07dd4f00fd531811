"""Several shapes for one module: ranges of batches, open extents, and refusals."""

from __future__ import annotations

import pytest
from onnx import helper
from reference import graph_model

from tvmflow.errors import ShapeError
from tvmflow.frontend.expand_shapes import compiled_batches, expand, is_open
from tvmflow.frontend.source import open_model


def model(*shapes):
    """Build a model with inputs a, b, ... of these shapes, where text and None are open."""
    names = "abc"[: len(shapes)]
    node = helper.make_node("Sum", list(names), ["y"], name="node")
    inputs = {n: (s, "float32") for n, s in zip(names, shapes, strict=True)}
    return open_model(graph_model([node], inputs, ["y"]))


def expanded(source, at=None, **shapes):
    return [dict(v) for v in expand(source.inputs, shapes, at or {}).variants]


IMAGES = (["N", 3, "H", "W"],)


def test_a_range_is_compiled_at_powers_of_two_and_its_ends():
    assert compiled_batches(1, 8) == [1, 2, 4, 8]
    assert compiled_batches(3, 9) == [3, 4, 8, 9]
    assert compiled_batches(5, 5) == [5]
    found = expanded(model(*IMAGES), a=("1..6", 3, 8, 8))
    assert found == [{"a": (n, 3, 8, 8)} for n in (1, 2, 4, 6)]


def test_open_extents_of_the_one_input():
    found = expanded(model(*IMAGES), {"": [(8, 8), (4, 6)]}, a=(1, 3, "?", "?"))
    assert found == [{"a": (1, 3, 8, 8)}, {"a": (1, 3, 4, 6)}]


def test_ranges_and_open_extents_make_all_combinations():
    found = expanded(model(*IMAGES), {"a": [(8, 8), (4, 6)]}, a=("1..2", 3, "?", "?"))
    assert found == [{"a": (n, 3, *size)} for size in ((8, 8), (4, 6)) for n in (1, 2)]


def test_the_same_shape_twice_is_one():
    assert len(expanded(model(*IMAGES), {"": [(8, 8), (8, 8)]}, a=(1, 3, "?", "?"))) == 1


def test_symbols_are_set_together():
    source = model(["N", 3, "H"], ["N", 1, "H"])
    assert expanded(source, {"": [(8,), (4,)]}, a=("1..2", 3, "?")) == [
        {"a": (n, 3, h), "b": (n, 1, h)} for h in (8, 4) for n in (1, 2)
    ]
    # The shape of the second input may be given, too.
    assert expanded(source, {"": [(8,)]}, a=(1, 3, "?"), b=(1, 1, "?")) == [
        {"a": (1, 3, 8), "b": (1, 1, 8)}
    ]


def test_several_open_inputs_are_named_and_go_together():
    source = model(["N", "H"], [1, "W"])
    at = {"a": [(1,), (1,)], "b": [(5,), (6,)]}
    assert expanded(source, at, a=(1, "?"), b=(1, "?")) == [
        {"a": (1, 1), "b": (1, 5)},
        {"a": (1, 1), "b": (1, 6)},
    ]


def test_probes_are_two_batches_of_each_size():
    source = model(*IMAGES)
    found = expand(source.inputs, {"a": ("1..4", 3, "?", "?")}, {"": [(8, 8), (4, 6)]})
    assert found.probes == tuple(
        ({"a": (2, 3, *size)}, {"a": (3, 3, *size)}) for size in ((8, 8), (4, 6))
    )
    assert not expand(source.inputs, {"a": (1, 3, "?", "?")}, {"": [(8, 8)]}).probes


def test_what_may_stand_for_several_shapes():
    assert not is_open({"a": (1, 3)}, {})
    assert is_open({"a": ("1..2", 3)}, {})
    assert is_open({"a": (1, 3)}, {"": [(8,)]})


@pytest.mark.parametrize(
    ("shapes", "at", "words"),
    [
        ({"a": ("0..4", 3, 8, 8)}, {}, "is empty"),
        ({"a": ("4..1", 3, 8, 8)}, {}, "is empty"),
        ({"a": (1, "1..3", 8, 8)}, {}, "only the first axis"),
        ({"a": (1, 3, "1..8", 8)}, {}, "only the first axis"),
        ({"a": ("2x", 3, 8, 8)}, {}, "expected a number"),
        ({"a": (1, 3, "?", 8)}, {}, "none are listed"),
        ({"a": (1, 3, 8, 8)}, {"": [(8, 8)]}, "no given shape has an open one"),
        ({"a": (1, 3, "?", 8)}, {"": [(8, 8)]}, "has 1 open"),
        ({"a": (1, 3, "?", "?")}, {"": [(8,)]}, "has 2 open"),
        ({"a": (1, 3, "?", "?")}, {"b": [(8, 8)]}, "leave none of it open"),
        ({"a": (1, 3, "?", "?")}, {"": []}, "No extents"),
        ({"a": (1, 3, "?", "?")}, {"": [(n, n) for n in range(1, 18)]}, "at most 16"),
        ({"a": ("1..4", 3, "?", "?")}, {"": [(n, n) for n in range(1, 7)]}, "18 (6 of `at`"),
        ({"a": (1, "?", 8, 8)}, {"": [(4,)]}, "contradicts"),
        ({"c": ("1..2", 3)}, {}, "'c'"),
    ],
)
def test_what_is_refused(shapes, at, words):
    with pytest.raises(ShapeError) as caught:
        expanded(model(*IMAGES), at, **shapes)
    assert words in caught.value.message
    assert caught.value.remedy


def test_a_batch_that_the_model_fixes():
    with pytest.raises(ShapeError, match="fixes at 2"):
        expanded(model([2, "C"]), a=("1..4", 3))


def test_two_open_inputs_without_a_name():
    source = model(["N", "H"], [1, "W"])
    with pytest.raises(ShapeError, match="2 have open ones"):
        expanded(source, {"": [(1,)]}, a=(1, "?"), b=(1, "?"))
    with pytest.raises(ShapeError, match="'b' has open ones, too"):
        expanded(source, {"a": [(1,)]}, a=(1, "?"), b=(1, "?"))
    with pytest.raises(ShapeError, match="different lengths"):
        expanded(source, {"a": [(1,)], "b": [(1,), (2,)]}, a=(1, "?"), b=(1, "?"))


def test_different_ranges():
    with pytest.raises(ShapeError, match=r"1\.\.2 and 1\.\.4"):
        expanded(model(["N", 3], ["M", 3]), a=("1..2", 3), b=("1..4", 3))
