"""LSTM, GRU and RNN in all forms, against ONNX Runtime and the specification."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import onnx
import pytest
from reference import assert_right, load_or_refusal, onnxruntime_results, run
from support.recurrent_cases import KINDS, RESULTS, draw, model_of, reference

import tvmflow
from tvmflow.errors import ModelError
from tvmflow.frontend.load import load_model

OPSETS = (7, 14, 22)


def results_of(kind):
    return [f"y{index}" for index in range(RESULTS[kind])]


def compute(model, feeds):
    imported, refusal = load_or_refusal(model)
    assert refusal is None, refusal
    return run(imported, feeds)


def check(kind, seed, *, layout=0, dtype="float32", clip=False):
    """Check one random node, with operands constant or not, and some of its results."""
    rng = np.random.default_rng(seed)
    arrays, attributes = draw(rng, kind, layout=layout, dtype=dtype, clip=clip)
    constant = [False, *(rng.random(7) < 0.7)]
    opset = 14 if layout else OPSETS[seed % 3]
    wanted = [name if rng.random() < 0.7 else "" for name in results_of(kind)]
    if not any(wanted):
        wanted[-1] = f"y{len(wanted) - 1}"
    model, feeds = model_of(kind, arrays, constant, opset, wanted, **attributes)
    everything = zip(wanted, reference(kind, arrays, attributes), strict=True)
    expected = [array for name, array in everything if name]
    try:
        if not layout and dtype == "float32" and not (kind == "LSTM" and clip):
            theirs = onnxruntime_results(model, feeds)
            assert theirs is not None
            assert_right(theirs, expected)
        assert_right(compute(model, feeds), expected)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {kind} {attributes}") from error


@pytest.mark.onnxruntime
@pytest.mark.parametrize("kind", KINDS)
def test_some(kind):
    for seed in range(4):
        check(kind, seed)


@pytest.mark.slow
@pytest.mark.onnxruntime
@pytest.mark.parametrize("start", range(100, 200, 25))
@pytest.mark.parametrize("kind", KINDS)
def test_many(kind, start):
    for seed in range(start, start + 25):
        check(kind, seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["layout", "float64", "clip"])
def test_what_onnxruntime_lacks(kind, what):
    """ONNX Runtime's LSTM also lacks the specified clip before the last activation."""
    options = {"layout": {"layout": 1}, "float64": {"dtype": "float64"}, "clip": {"clip": True}}
    for seed in range(2):
        check(kind, seed, **options[what])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("start", [200, 220])
def test_many_that_onnxruntime_lacks(kind, layout, start):
    for seed in range(start, start + 20):
        check(kind, seed, layout=layout, dtype="float64", clip=seed % 2 == 0)


def case(kind="GRU", seed=5, change=None, **attributes):
    """Build a random node, with a change."""
    arrays, drawn = draw(np.random.default_rng(seed), kind, units=7, direction="forward")
    if change is not None:
        change(arrays)
    chosen = {name: v for name, v in {**drawn, **attributes}.items() if v is not None}
    constant = [False] + [True] * 7
    return model_of(kind, arrays, constant, 14, results_of(kind), **chosen), arrays


def lengths(*values):
    def change(arrays):
        arrays[0] = np.resize(arrays[0], (4, len(values), arrays[0].shape[2]))
        arrays[4], arrays[5:] = np.array(values, np.int32), [None] * len(arrays[5:])

    return change


def test_no_step_leaves_the_first_state():
    """A sequence of length 0 keeps the initial state, which the specification leaves open."""
    (model, feeds), _ = case(change=lengths(0, 4, 2), activations=None)
    y, y_h = compute(model, feeds)
    assert not y[:, :, 0].any()
    assert not y_h[:, 0].any()
    np.testing.assert_array_equal(y[1, 0, 2], y_h[0, 2])


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5)])
def test_without_elements(shape):
    def change(arrays):
        arrays[0], arrays[1] = np.zeros(shape, np.float32), np.ones((1, 21, 5), np.float32)
        arrays[2], arrays[4:] = np.ones((1, 21, 7), np.float32), [None, None]
        arrays[3] = None

    (model, feeds), _ = case(change=change, activations=None)
    with closing(tvmflow.compile(model, target="llvm")) as module:
        y, y_h = module(feeds).values()
    assert y.size == 0
    assert not y_h.any()


def test_models_in_float16_are_computed_in_fp32():
    arrays, attributes = draw(np.random.default_rng(3), "LSTM", units=9, dtype="float16")
    constant = [False] + [True] * 7
    model, feeds = model_of("LSTM", arrays, constant, 14, results_of("LSTM"), **attributes)
    expected = reference("LSTM", arrays, attributes)
    for found, wanted in zip(compute(model, feeds), expected, strict=True):
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)


def replace_input(index, array):
    def change(arrays):
        arrays[index] = array

    return change


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"activations": ["Sigmoid"]}, "it has 1 activations, not 2"),
        ({"activations": ["Sigmoid", "Gauss"]}, "'gauss' is not one of ONNX's"),
        ({"clip": -1.0}, "its clip is -1.0"),
        ({"hidden_size": 8}, "its hidden_size is 8, its R has 7"),
        ({"change": lengths(5, 1)}, r"its sequence_lens are \[5, 1\], of 4 steps"),
        ({"change": replace_input(3, np.ones((1, 7), np.float32))}, r"its input 3 has the shape"),
    ],
)
def test_refused_in_a_sentence(options, reason):
    (model, _), _ = case(**{"activations": None, **options})
    with pytest.raises(ModelError, match=reason) as caught:
        load_model(model)
    assert "node" in str(caught.value)


def test_the_number_of_steps_is_not_unrolled():
    """A layer's function is the same for any number of steps, except for that number."""
    texts = []
    for steps in (3, 3000):
        arrays, attributes = draw(np.random.default_rng(1), "LSTM", units=7)
        arrays[0] = np.ones((steps, *arrays[0].shape[1:]), np.float32)
        arrays[4] = None
        constant = [False] + [True] * 7
        model, _ = model_of("LSTM", arrays, constant, 14, results_of("LSTM"), **attributes)
        (function,) = (
            str(f) for gv, f in load_model(model).mod.functions_items() if gv.name_hint != "main"
        )
        texts.append(function.replace(str(steps), "T").replace(str(steps - 1), "T - 1"))
    assert len(texts[0].splitlines()) == len(texts[1].splitlines())


def test_equal_layers_are_one_function():
    """Equal layers, as in deep networks, share kernels, which are compiled once."""
    arrays, attributes = draw(np.random.default_rng(1), "RNN", units=7)
    model, _ = model_of("RNN", arrays, [False] + [True] * 7, 14, ["a", "b"], **attributes)
    twin = onnx.NodeProto()
    twin.CopyFrom(model.graph.node[0])
    twin.name, twin.output[:] = "twin", ["c", "d"]
    model.graph.node.append(twin)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in "cd")
    assert len(load_model(model).mod.functions) == 2
