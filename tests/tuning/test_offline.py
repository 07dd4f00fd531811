"""Tuning without a device: knobs by predicted time, machine code of the best, and the journal."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from support.tunables import model, tasks

import tvmflow
from tvmflow.devices.gpus import GPUS
from tvmflow.errors import TargetError, TvmflowError
from tvmflow.journal.journal import Journal
from tvmflow.tuning import offline
from tvmflow.tuning.offline import FINALISTS, Code, Descent, predict, why_unknown, write_down
from tvmflow.verify.reference import run_reference
from tvmflow.verify.tolerance import OPERATOR, assert_close

A740 = GPUS["adreno-740"]


def known():
    """Return the network's tasks whose cost can be predicted."""
    return [task for task in tasks("adreno").values() if why_unknown(task) is None]


@pytest.mark.parametrize("family", ["conv2d", "conv2d_1x1", "depthwise"])
def test_nothing_in_the_neighbourhood_is_predicted_to_be_better(family):
    task = tasks("adreno")[family]
    search = Descent(task, A740)
    first, *others = search.best(3)
    assert task.allows(first.knobs)
    assert first.seconds <= search.seconds(task.heuristic)
    assert [c.seconds for c in others] == sorted(c.seconds for c in others)
    assert first.seconds <= others[0].seconds
    for name, values in search.values.items():
        for value in values:
            near = {**first.knobs, name: value}
            assert not task.allows(near) or search.seconds(near) >= first.seconds


def test_knobs_without_a_schedule_are_left_out(monkeypatch):
    first = {e.task.digest: e.best.knobs for e in predict(known(), A740)}
    real = offline.scheduled

    def scheduled(task, knobs):
        return None if knobs == first[task.digest] else real(task, knobs)

    monkeypatch.setattr(offline, "scheduled", scheduled)
    for each in predict(known(), A740):
        left = each.best.knobs
        assert left == each.heuristic.knobs or left != first[each.task.digest]
        assert scheduled(each.task, left) is not None or left == each.heuristic.knobs
    assert real(each.task, {**each.task.heuristic, "tile_w": 99}) is None


def test_knobs_that_the_model_does_not_tell_apart_stay():
    for each in predict(known(), A740):
        free = Descent(each.task, A740).values
        same = {n: v for n, v in each.task.heuristic.items() if n not in free}
        assert {n: each.best.knobs[n] for n in same} == same
        assert each.best.seconds <= each.heuristic.seconds


def test_a_seed_repeats_predictions():
    one, other = (predict(known(), A740, seed=3) for _ in range(2))
    assert [e.best for e in one] == [e.best for e in other]


def test_gpus_differ():
    old, new = (predict(known(), GPUS[name]) for name in ("adreno-660", "adreno-740"))
    assert all(a.best.seconds > b.best.seconds for a, b in zip(old, new, strict=True))


def test_machine_code_decides_between_finalists():
    asked = []

    def compiled(cases):
        """Return code that spills but for each task's last finalist, and none for its second."""
        asked.append(len(cases))
        codes = []
        for _, group in itertools.groupby(cases, key=lambda case: case[0].digest):
            count = len(list(group))
            spills = [5] * (count - 1) + [0]
            codes += [Code("Mesa 26", 30, n, 6, 64) for n in spills]
            codes[len(codes) - count + 1] = None
        return codes

    found = predict(known(), A740, compiled)
    assert asked == [len(found) * (1 + FINALISTS)]
    for each in found:
        assert (each.heuristic.code.spills, each.best.code.spills) == (5, 0)
        assert each.best.seconds == Descent(each.task, A740).seconds(each.best.knobs)


@pytest.mark.opencl
def test_what_is_found_is_marked_and_used_where_nothing_was_measured(tmp_path):
    found = predict(known(), A740)
    path = tmp_path / "predicted.journal"
    with Journal.open(path, "a") as journal:
        write_down(journal, found, A740)
        trials = list(journal.trials())
        best = [journal.best(e.task.workload, e.task.journal_target) for e in found]
    assert best == [None] * len(found)
    assert {(t.source, t.device.name, t.target.is_predicted) for t in trials} == {
        ("predicted", "adreno-740", True)
    }
    network = tmp_path / "net.onnx"
    onnx.save(model(), network)
    with tvmflow.compile(network, device="adreno740", journals=[path]) as module:
        choices = {s["family"]: s for s in module.metadata["schedules"].values()}
        x = np.random.default_rng(0).standard_normal((1, 5, 18, 14)).astype(np.float32)
        outputs = module({"x": x})
    reference, _ = run_reference(network, {"x": x}, list(outputs.keys()))
    for name, value in outputs.items():
        assert_close(value, reference[name], OPERATOR, name)
    for each in found:
        chosen = choices[each.task.family.NAME]
        assert (chosen["source"], chosen["knobs"]) == ("journal", each.best.knobs)
        assert "adreno-740, predicted" in chosen["origin"]


def test_what_the_model_does_not_know_is_said():
    buffers = tasks("adreno", "buffer")
    assert why_unknown(buffers["conv2d"]) == "it does not read textures"
    assert "family moving" in why_unknown(tasks("adreno")["moving"])
    with pytest.raises(TvmflowError, match="convolutions that read textures were expected"):
        predict(list(buffers.values()), A740)
    with pytest.raises(TargetError, match="adreno-618 failed: the model knows Adreno and Mali"):
        predict(known(), GPUS["adreno-618"])
