"""Knobs: heuristics' choices are allowed, invalid ones are refused, and all give right results."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
from dataclasses import replace
from functools import cache
from itertools import islice

import pytest
from support.checks import check_outputs
from support.convolutions import network
from support.family_shapes import SHAPES
from support.first_stages import chosen_schedules
from support.knob_choices import candidates, sample_knobs
from support.operators import feeds_for
from support.quick_knobs import is_quick
from support.turns import in_turn

import tvmflow
from tvmflow.devices.target import PRESETS
from tvmflow.schedules import FAMILIES
from tvmflow.schedules.family import Proposal, accepted, read_knobs, refusal

BY_NAME = {family.NAME: family for family in FAMILIES}


@pytest.mark.parametrize("device", PRESETS)
@pytest.mark.parametrize("name", SHAPES)
def test_heuristics_keep_the_constraints(name, device):
    family, preset, rng = BY_NAME[name], PRESETS[device], random.Random(0)
    for _ in range(200):
        shape = SHAPES[name](rng, preset.channel_block)
        knobs = family.heuristic(shape, preset)
        assert refusal(family, knobs, shape, preset) is None, (shape, knobs)


@pytest.mark.parametrize("name", ["conv2d", "conv2d_1x1"])
def test_what_a_cpu_unrolls_is_bounded(name):
    family = BY_NAME[name]
    form = {"padded": False, "texture": False, "weights": "buffer", "input_block": 16}
    shape = family.Shape(1, 36, 14, 14, 16, 96, 1, 1, **form)
    knobs = replace(family.heuristic(shape, PRESETS["cpu"]), tile_o=1, tile_h=1, tile_w=14)
    for unroll_i, allowed in ((4, True), (8, True), (16, False)):
        chosen = replace(knobs, unroll_i=unroll_i)
        found = refusal(family, chosen, shape, PRESETS["cpu"])
        assert (found is None) == allowed, (unroll_i, found)
    assert "is at most 112" in found


@pytest.mark.parametrize(("across", "lanes"), [(56, 8), (48, 16), (7, 1)])
def test_sums_over_rows_have_vectors_of_columns_on_a_cpu(across, lanes):
    shape = BY_NAME["reduction"].Shape(
        across * 3, 49, along=1, across=across, broadcast=False, positions=False
    )
    assert BY_NAME["reduction"].heuristic(shape, PRESETS["cpu"]).lanes == lanes


@pytest.mark.parametrize("name", SHAPES)
def test_a_space_has_several_candidates_and_all_are_allowed(name):
    family, preset, rng = BY_NAME[name], PRESETS["adreno"], random.Random(1)
    counts = []
    for _ in range(20):
        shape = SHAPES[name](rng, preset.channel_block)
        found = list(islice(candidates(family, shape, preset), 1000))
        assert len(found) == len(set(found)) >= 1
        counts.append(len(found))
    # Winograd's transforms sum neighbours, so that there is little to choose but the length of a
    # row.  Each class has its own group.
    few = ("winograd_input", "winograd_output", "nms")
    assert max(counts) > (4 if name in few else 20)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.NAME)
def test_every_knob_is_explained(family):
    for field in dataclasses.fields(family.Knobs):
        assert field.metadata["sentence"].endswith(".")
    assert family.__doc__


#: Algorithms of the tensors that are not computed directly.
ALGORITHMS = {"z": "winograd4", "b": "direct"}


@cache
def schedules(device):
    """Return the schedules of the network's functions with the heuristics' knobs."""
    options = {"target": "opencl", "device": device, "algorithms": ALGORITHMS}
    return chosen_schedules(network(), **options)


@pytest.fixture
def compiled():
    return schedules("adreno")


def choices(device, seed, allowed):
    """Return random allowed knobs for every function that has some."""
    rng = random.Random(seed)
    chosen = {}
    for name, entry in schedules(device).items():
        if not entry["knobs"]:
            continue
        family = BY_NAME[entry["family"]]
        shape = family.Shape(**entry["shape"])
        found = filter(allowed, sample_knobs(family, shape, PRESETS[device], rng))
        chosen[name] = dataclasses.asdict(next(found))
    return chosen


WAYS = [
    pytest.param("adreno", "texture", id="texture"),
    pytest.param("adreno", "buffer", id="buffer"),
    pytest.param("cpu", "buffer", id="cpu"),
]
SLOW = [
    pytest.param(seed, *way.values, marks=pytest.mark.slow, id=f"{seed}-{way.id}")
    for seed in range(3, 12)
    for way in WAYS
]


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("seed", "device", "storage"), [*in_turn(range(3), WAYS, ("texture", "buffer")), *SLOW]
)
def test_any_knobs_are_right(seed, device, storage):
    """Results are right for small tiles, in slow tests for any knobs of the spaces."""
    model = network()
    knobs = choices(device, seed, is_quick if seed < 3 else lambda _: True)
    options = {"target": "opencl", "device": device, "storage": storage}
    with tvmflow.compile(model, algorithms=ALGORITHMS, knobs=knobs, **options) as module:
        taken = module.metadata["schedules"]
        assert {entry["source"] for entry in taken.values() if entry["knobs"]} == {"given"}
        check_outputs(model, module, feeds_for(model))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tile_w": 64}, "must fit the device's registers"),
        ({"unroll_i": 4}, "unroll_i must divide"),
        ({"group_h": 4096}, "at most what the device accepts"),
        ({"tile_w": "wide"}, "'tile_w' must be a positive number, not 'wide'"),
        ({"tile_w": 0}, "'tile_w' must be a positive number, not 0"),
        ({"tile_d": 1}, "There is no knob 'tile_d'; there are tile_o"),
        ({"stage_input": 1}, "'stage_input' must be true or false, not 1"),
    ],
)
def test_bad_knobs_are_refused(compiled, caplog, change, sentence):
    name, entry = next(i for i in compiled.items() if i[1]["family"] == "conv2d")
    proposal = Proposal("given", {**entry["knobs"], **change})
    shape = BY_NAME["conv2d"].Shape(**entry["shape"])
    with caplog.at_level(logging.WARNING, logger="tvmflow"):
        assert accepted(BY_NAME["conv2d"], shape, PRESETS["adreno"], proposal, name) is None
    assert f"The knobs given for {name} do not fit" in caplog.text
    assert sentence in caplog.text
    assert "They are not used." in caplog.text


def test_the_heuristic_replaces_bad_knobs(compiled, caplog):
    name = next(n for n, entry in compiled.items() if entry["family"] == "conv2d")
    knobs = {name: {**compiled[name]["knobs"], "tile_w": 64}}
    with (
        caplog.at_level(logging.WARNING, logger="tvmflow"),
        tvmflow.compile(
            network(), target="opencl", device="adreno", algorithms=ALGORITHMS, knobs=knobs
        ) as module,
    ):
        assert module.metadata["schedules"] == compiled
    assert f"The knobs given for {name} do not fit" in caplog.text


def test_a_missing_knob_is_named():
    with pytest.raises(ValueError, match="The knob 'tile_w' is missing"):
        read_knobs(BY_NAME["conv2d"], {"tile_o": 1, "tile_h": 1, "stage_input": False})


def test_knobs_of_no_function_are_mentioned(caplog):
    with caplog.at_level(logging.WARNING, logger="tvmflow"):
        tvmflow.compile(network(), target="llvm", knobs={"fused_nothing": {}}).close()
    assert "fused_nothing, which is no primary function here" in caplog.text


def test_schedules_are_independent_of_a_json_round_trip(compiled):
    assert json.loads(json.dumps(compiled)) == compiled
