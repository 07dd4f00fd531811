"""Recurrent layers in networks: results with any storage and knobs, and no data races."""

from __future__ import annotations

import logging
from contextlib import closing

import numpy as np
import pytest
from onnx import helper
from support.checks import check_any_knobs, check_outputs, of_family, options_of
from support.cuda_host import cuda_host
from support.first_stages import chosen_schedules, compiled_until
from support.operators import build, feeds_for, random
from support.row_reductions import MODES, TURNS
from support.turns import in_turn

import tvmflow
from tvmflow.schedules import recurrent

pytestmark = [pytest.mark.opencl, pytest.mark.onnxruntime]

#: The operator, hidden units, and attributes, by name.
LAYERS = {
    "lstm": ("LSTM", 31, {"direction": "bidirectional"}),
    "peepholes": ("LSTM", 9, {"direction": "reverse"}),
    "gru": ("GRU", 130, {"direction": "bidirectional"}),
    "linear": ("GRU", 7, {"linear_before_reset": 1, "clip": 0.9}),
    "rnn": ("RNN", 16, {"activations": ["Softsign"]}),
    "two": ("RNN", 1, {"direction": "bidirectional", "activations": ["Relu", "Elu"]}),
}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def network(layer, entries=2, steps=7):
    """Build a layer that reads the columns of a convolution's result, and a reader of the layer."""
    kind, units, attributes = LAYERS[layer]
    directions = 1 + (attributes.get("direction") == "bidirectional")
    rows, wide = GATES[kind] * units, directions * units
    constants = {
        "f": random((10, 3, 5, 1), 0.3), "axes": np.array([2]),
        "w": random((directions, rows, 10), 0.3),
        "r": random((directions, rows, units), 0.6 * units**-0.5, seed=3),
        "b": random((directions, 2 * rows), 0.5), "shape": np.array([steps, entries, wide]),
        "starts": np.array([1]), "ends": np.array([6]), "first": np.array([0]),
        "v": random((wide, 12), wide**-0.5),
    }  # fmt: skip
    operands = ["s", "w", "r", "b", "", "h"]
    inputs = {"x": (entries, 3, 5, steps), "h": (directions, entries, units)}
    if layer == "peepholes":
        constants["p"] = random((directions, 3 * units), 0.5)
        constants["lengths"] = np.arange(steps, steps - entries, -1, np.int32)
        operands[4:] = ["lengths", "h", "", "p"]
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "f"], ["c"]),
        node("Relu", ["c"], ["d"]),
        node("Squeeze", ["d", "axes"], ["e"]),
        node("Transpose", ["e"], ["s"], perm=[2, 0, 1]),
        node(kind, operands, ["y", "y_h"], hidden_size=units, **attributes),
        node("Transpose", ["y"], ["t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "shape"], ["u"]),
        node("Slice", ["u", "starts", "ends", "first"], ["part"]),
        node("MatMul", ["part", "v"], ["z"]),
    ]
    return build(nodes, inputs, ["z", "y_h"], constants, opset=14)


def shape_of(layer, device="cpu", **extents):
    found = of_family(recurrent, chosen_schedules(network(layer, **extents), device=device))
    ((_, choice),) = found.items()
    return choice


@pytest.mark.parametrize(("layer", "mode"), in_turn(LAYERS, MODES, *TURNS))
def test_layers_are_right(layer, mode):
    model = network(layer)
    with tvmflow.compile(model, **options_of(mode)) as module:
        check_outputs(model, module, feeds_for(model), mode[3])
        assert len(of_family(recurrent, module.metadata["schedules"])) == 1


@pytest.mark.parametrize("entries", [1, 3, 8])
def test_entries_share_weights(entries):
    model = network("lstm", entries=entries)
    with tvmflow.compile(model, target="llvm") as module:
        check_outputs(model, module, feeds_for(model))
    assert shape_of("lstm", entries=entries)["knobs"]["entries"] == {1: 1, 3: 3, 8: 4}[entries]


@pytest.mark.parametrize("device", ["cpu", "adreno"])
@pytest.mark.parametrize("layer", ["gru", "peepholes"])
def test_any_knobs_are_right(layer, device):
    model = network(layer, entries=4)
    check_any_knobs(model, recurrent, device, (1, 4), feeds_for(model))


@pytest.mark.parametrize("layer", ["gru", "peepholes"])
def test_more_units_than_items(layer):
    """Items take turns, and the last turn has too few units."""
    model = network(layer)
    choice = shape_of(layer, "adreno")
    knobs = {"recurrent": {**choice["knobs"], "group_size": 4}}
    with tvmflow.compile(model, device="adreno", knobs=knobs) as module:
        check_outputs(model, module, feeds_for(model))
        (taken,) = of_family(recurrent, module.metadata["schedules"]).values()
        assert taken["source"] == "given"


def test_a_state_beyond_local_memory_is_left_to_the_fallback(caplog):
    """Then one item computes the layer, which is right, if slow."""
    inputs = {"x": (1, 1, 2), "w": (1, 5480, 2), "r": (1, 5480, 5480)}
    node = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=5480)
    model = build([node], inputs, ["y"], opset=14)
    with caplog.at_level(logging.DEBUG, "tvmflow.schedules"):
        found = chosen_schedules(model, device="adreno")
    assert not of_family(recurrent, found)
    assert "does not fit local memory" in caplog.text


@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_the_definition_is_right_by_itself(target, monkeypatch):
    """The fallback compiles the loops of the definition."""
    monkeypatch.setattr(recurrent, "match", lambda workload: None)
    model = network("gru")
    device = "cpu" if target == "llvm" else "adreno"
    with tvmflow.compile(model, target=target, device=device) as module:
        assert not of_family(recurrent, module.metadata["schedules"])
        check_outputs(model, module, feeds_for(model))


def test_code_size_is_independent_of_steps():
    """A layer is one kernel, with the same statements for any number of steps."""
    lines = []
    for steps in (7, 700):
        job = compiled_until("schedule", network("lstm", steps=steps), device="adreno")
        (found,) = (s for s in job.schedules.values() if s.family == recurrent.NAME)
        lines.append(len(str(found.schedule.mod["main"]).splitlines()))
    assert lines[0] == lines[1]


@pytest.mark.cuda_host
@pytest.mark.parametrize("layer", ["lstm", "gru", "peepholes"])
@pytest.mark.parametrize("dtype", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_on_cuda(layer, dtype):
    model = network(layer)
    with closing(tvmflow.compile(model, target="cuda", dtype=dtype)) as module:
        assert of_family(recurrent, module.metadata["schedules"])
        check_outputs(model, module, feeds_for(model), dtype, run=cuda_host())


@pytest.mark.oclgrind
@pytest.mark.parametrize(("layer", "items"), [("peepholes", 4), ("gru", 1024), ("lstm", 8)])
def test_no_race(layer, items, under_oclgrind):
    model = network(layer, steps=3)
    knobs = {"recurrent": {**shape_of(layer, "adreno")["knobs"], "group_size": items}}
    with tvmflow.compile(model, device="adreno", storage="texture", knobs=knobs) as module:
        check_outputs(model, module, feeds_for(model), run=under_oclgrind())


def test_standalone(tmp_path):
    model = network("lstm")
    feeds = feeds_for(model)
    path = tmp_path / "layer.so"
    with tvmflow.compile(model, device="adreno", storage="texture", format="standalone") as module:
        module.save(path)
    with closing(tvmflow.load(path)) as module:
        check_outputs(model, module, feeds)
