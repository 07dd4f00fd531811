"""Predicted times of networks: sums, ranges, lower bounds, and their verification."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from math import prod

import pytest
from common import RESULTS
from support.onnx_models import model_of
from support.operators import conv, random
from support.tunables import model, tasks

import tvmflow
from tvmflow.compiler.options import CompileOptions
from tvmflow.devices.gpus import GPUS
from tvmflow.errors import TargetError, TvmflowError
from tvmflow.journal.journal import Journal
from tvmflow.tuning import offline
from tvmflow.tuning.device_model import CONSTANTS, least_seconds, rates_of
from tvmflow.tuning.predict_network import bound_of, predict_network
from tvmflow.tuning.session import Network
from tvmflow.tuning.verified import ERRORS, verification_of

A740 = GPUS["adreno-740"]


@cache
def predicted(gpu="adreno-740", **options):
    """Return the small network's predicted time."""
    return tvmflow.predict(model(), gpu, **options)


def test_a_network_takes_as_long_as_its_layers():
    found = predicted()
    assert found.seconds == pytest.approx(sum(e.calls * e.seconds for e in found.layers))
    low, high = found.range
    assert low == pytest.approx(sum(e.calls * e.range[0] for e in found.layers))
    assert high == pytest.approx(sum(e.calls * e.range[1] for e in found.layers))
    assert low < found.seconds < high
    assert sum(map(found.share, found.layers)) == pytest.approx(1)
    assert repr(found).startswith("<NetworkTime: ")


def test_layers_are_tasks_with_their_nodes():
    by_family = {layer.family: layer for layer in predicted().layers}
    pointwise = by_family["conv2d_1x1"]
    assert (pointwise.calls, len(pointwise.functions)) == (2, 1)
    assert set(by_family) == set(tasks("adreno"))
    assert pointwise.label == f"{pointwise.nodes[0]}, {len(pointwise.nodes) - 1} more"
    # A function without nodes is labelled with its own name.
    own = replace(pointwise, nodes=())
    assert own.label == pointwise.functions[0]


def test_the_model_predicts_convolutions_and_bounds_are_marked():
    found = predicted()
    task = offline.Descent(tasks("adreno")["conv2d"], A740)
    by_family = {layer.family: layer for layer in found.layers}
    layer = by_family["conv2d"]
    # Those tasks are for the preset; the network is for the GPU, which may have other tiles.
    assert layer.seconds == pytest.approx(task.seconds(layer.knobs), rel=0.2)
    assert layer.bound is None
    for family in set(by_family) - {"conv2d", "conv2d_1x1", "depthwise"}:
        assert by_family[family].bound == f"the model does not know the family {family}"
    bounds = sum(e.total for e in found.layers if e.bound)
    assert found.bound_share == pytest.approx(bounds / found.seconds)
    buffers = predicted(storage="buffer")
    assert {e.bound for e in buffers.layers if e.family == "conv2d"} == {
        "it does not read textures"
    }


def test_a_faster_gpu_is_faster_and_halves_are():
    assert predicted("adreno-740").seconds < predicted("adreno-660").seconds
    large = conv((1, 64, 56, 56), 64)
    whole, half = (tvmflow.predict(large, "adreno-740", dtype=dtype) for dtype in ("fp32", "fp16"))
    assert half.seconds < 0.8 * whole.seconds
    assert (half.dtype, half.accumulate) == ("fp16", "mixed")


def test_ranges_are_those_of_held_out_kernels():
    errors = ERRORS["adreno-740"]
    for layer in predicted().layers:
        low, high = errors.bound if layer.bound else errors.model
        ends = layer.seconds * min(low, 1), layer.seconds * max(high, 1)
        assert layer.range == pytest.approx(ends)


def test_knobs_of_a_journal_are_predicted(tmp_path):
    network = Network(model(), CompileOptions(device="adreno740"))
    before = predict_network(network, A740)
    assert {layer.source for layer in before.layers} == {"heuristic"}
    known = [task for task in network.tasks() if offline.why_unknown(task) is None]
    found = {each.task.name: each.best for each in offline.predict(known, A740)}
    path = tmp_path / "a.journal"
    with Journal.open(path, "a") as journal:
        offline.write_down(journal, offline.predict(known, A740), A740)
    after = predict_network(
        replace(network, options=replace(network.options, journals=[path])), A740
    )
    for layer in after.layers:
        if layer.functions[0] in found:
            assert layer.source == "journal"
            assert layer.seconds == pytest.approx(found[layer.functions[0]].seconds)
    assert after.seconds <= before.seconds


def test_what_the_sum_leaves_out_is_stated():
    assert predicted().missing == ()
    scatter = model_of(
        "y = ScatterElements(x, i, u)", {"x": (100,), "i": ((5,), "int64"), "u": (5,)}, opset=18
    )
    found = tvmflow.predict(scatter, "adreno-740")
    assert found.missing == ("1 function with TVM's own loops left out.",)
    loop = model_of(
        "y = Loop(n, yes, x) <body = b (int64 i, bool c, float[2,3] a) => "
        "(bool d, float[2,3] t) { f = Cast<to=1>(i) t = Add(a, f) d = Identity(c) }>",
        {"x": (2, 3), "n": ((), "int64")},
        constants={"yes": True},
        opset=18,
    )
    found = tvmflow.predict(loop, "adreno-740")
    assert found.missing == ("1 loop counted with one iteration.",)
    assert all(not layer.nodes for layer in found.layers)
    nothing = model_of("y = Identity(x)", {"x": (4,)}, opset=18)
    with pytest.raises(TvmflowError, match="the network has no kernels"):
        tvmflow.predict(nothing, "adreno-740")


# -- lower bounds ---------------------------------------------------------------------------------


def test_a_bound_is_that_of_bytes_or_of_multiply_adds():
    rates, c = rates_of(A740), CONSTANTS["ir3"]
    moved, steps = 1e6, 1e9
    memory = least_seconds(moved, 0, A740) - rates.launch_s
    assert memory == pytest.approx(moved / (c.memory_share * 67.2e9))
    arithmetic = least_seconds(0, steps, A740) - rates.launch_s
    assert least_seconds(moved, steps, A740) - rates.launch_s == max(memory, arithmetic)
    half = least_seconds(0, steps, A740, 0.5) - rates.launch_s
    assert half == pytest.approx(arithmetic / 2)


def test_no_prediction_of_the_model_is_below_the_bound():
    for task in tasks("adreno").values():
        if offline.why_unknown(task) is None:
            assert offline.Descent(task, A740).seconds(task.heuristic) > bound_of(task, A740)


def test_a_table_counts_as_far_as_it_is_read():
    table = {"table": random((9216, 64))}
    gather = model_of("y = Gather(table, i)", {"i": ((4,), "int64")}, {"y": None}, table, opset=18)
    found = tvmflow.predict(gather, "adreno-740")
    assert all(layer.bound for layer in found.layers)
    whole = least_seconds(4 * prod(table["table"].shape), 0, A740)
    assert max(layer.seconds for layer in found.layers) < whole / 2


# -- verification ---------------------------------------------------------------------------------


def test_gpus_without_measurements_have_the_errors_of_their_vendor():
    own = verification_of(A740)
    assert own.is_verified
    assert own.sentence.startswith("327 kernels were measured on adreno-740; 80 % of them took")
    other = verification_of(GPUS["adreno-830"])
    assert not other.is_verified
    assert other.errors is ERRORS["adreno"]
    assert other.sentence.startswith("Not verified: no measurement of this GPU. ")
    assert "adreno-660, adreno-730, adreno-740" in other.sentence
    mali = verification_of(GPUS["mali-g710"])
    assert mali.measured == ("mali-g76",)
    assert "fits without their network" in mali.sentence


def test_the_table_of_errors_is_the_measured_one():
    content = json.loads((RESULTS / "evidence.json").read_text(encoding="utf-8"))
    assert {name: json.loads(json.dumps(asdict(e))) for name, e in ERRORS.items()} == content[
        "verified"
    ]
    folds = {**content["model"]["adreno"], **content["model"]["mali"]}
    for name, errors in ERRORS.items():
        if (fold := folds.get(f"without {name}")) is not None:
            assert errors.kernels == fold["records"]
            quantiles = 1 / fold["ninetieth"], 1 / fold["tenth"]
            assert errors.model == pytest.approx(quantiles, abs=0.02)


def test_gpus_without_rates_and_other_targets_are_refused():
    with pytest.raises(TargetError, match="adreno-618 failed: the model knows Adreno and Mali"):
        predicted("adreno-618")
    with pytest.raises(TargetError, match="'adreno-7400' is not known"):
        predicted("adreno-7400")
    with pytest.raises(TargetError, match="kernels for llvm were asked for") as error:
        predicted(target="llvm", device="cpu")
    assert error.value.remedy == "Use `target=opencl`."
