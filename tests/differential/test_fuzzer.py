"""The fuzzer with a fixed budget: some networks in every column, the same in every run."""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter

import fuzz
import generators
import numpy as np
import onnx
import pytest
from compiling import Outcome
from configurations import COLUMNS, CUDA, OPTIONS, Configuration, option_values
from contexts import POSITIONS, merged
from flow import FLOWS, in_flow
from fuzzer import Batch, Counts, Fuzzer, aims_for, batches, cells
from hypothesis import HealthCheck, Phase, given, seed, settings
from judging import Worker, has_reference
from oracle import run
from saving import load, save
from support.drivers import processor_drivers

OPSET = 18


@pytest.fixture(scope="module")
def worker():
    drivers = processor_drivers(quick=True)
    running = Worker(drivers[-1])
    yield running
    running.close()


@pytest.mark.quick
@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    "column",
    [*COLUMNS, *(pytest.param(c, marks=[pytest.mark.slow, pytest.mark.cuda_host]) for c in CUDA)],
)
def test_some_networks_are_right(column, worker):
    """Judge a batch in each column; FUZZ_BATCHES sets their number."""
    number = zlib.crc32(column.encode())
    aims = aims_for(column, OPSET, Counter())
    # Hypothesis tries the first aim first.
    np.random.default_rng(number).shuffle(aims)
    count = int(os.environ.get("FUZZ_BATCHES", "3"))
    fuzzer = Fuzzer(worker, shrink_seconds=0)
    verdict = fuzzer.run(batches(aims, column, OPSET, size=4), count, number)
    assert verdict is None, str(verdict)
    assert fuzzer.counts.kinds["right"] >= 3


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize("column", COLUMNS)
def test_some_networks_with_control_flow_are_right(column, worker):
    """Judge a batch with branches and loops in each column; FUZZ_BATCHES sets their number."""
    number = zlib.crc32(f"{column} flow".encode())
    aims = aims_for(column, OPSET, Counter())
    np.random.default_rng(number).shuffle(aims)
    count = int(os.environ.get("FUZZ_BATCHES", "3"))
    fuzzer = Fuzzer(worker, shrink_seconds=0)
    verdict = fuzzer.run(batches(aims, column, OPSET, "flow", size=4), count, number)
    assert verdict is None, str(verdict)
    assert fuzzer.counts.kinds["right"] >= 3


@pytest.mark.onnxruntime
@pytest.mark.parametrize("flow", FLOWS)
def test_control_flow_computes_the_same(flow):
    """ONNX Runtime agrees."""
    batch = drawn([("Relu", "residual"), ("Slice", "alone"), ("Split", "alone")])
    for n in batch.networks:
        model = in_flow(n, flow).model
        onnx.checker.check_model(model, full_check=True)
        assert {"If", "Loop"} & {node.op_type for node in model.graph.node}
        for found, expected in zip(run(model, n.feeds), run(n.model, n.feeds), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize("column", [name for name in COLUMNS if name.endswith("fp16")])
def test_chains_that_leave_16_bits_are_right(column, worker):
    aims = [(operator, "statistics") for operator in ("Relu", "Add", "Transpose", "MaxPool")]
    fuzzer = Fuzzer(worker, shrink_seconds=0)
    verdict = fuzzer.run(batches(aims, column, OPSET, size=4), 1, zlib.crc32(column.encode()))
    assert verdict is None, str(verdict)
    assert fuzzer.counts.kinds["right"] >= 1


def test_chains_say_what_is_not_rounded():
    (n,) = drawn([("Relu", "statistics")], size=1).networks
    sums = {name for node in n.nodes if node.op_type.startswith("Reduce") for name in node.output}
    assert sums & n.wide


def test_cells_are_operators_places_and_columns():
    assert len(cells()) == len(generators.drawn()) * len(POSITIONS) * len(COLUMNS)


def test_aims_are_what_was_hit_least():
    hits = Counter({("Relu", p, "llvm"): 1 for p in POSITIONS})
    hits["Relu", "where", "llvm"] = 0
    assert aims_for("llvm", OPSET, hits, ["Relu"]) == [("Relu", "where")]
    assert len(aims_for("mali", OPSET, hits, ["Relu"])) == len(POSITIONS)
    assert aims_for("llvm", 9, hits, ["Relu"]) == []


def test_flows_are_those_of_the_option():
    assert option_values("flow", "llvm") == FLOWS


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_possible_somewhere(option):
    assert any(option_values(option, column) for column in COLUMNS)


def drawn(aims, column="llvm", **options):
    """Return one batch."""
    found = []

    @settings(
        max_examples=3, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @seed(3)
    @given(batches(aims, column, OPSET, **options))
    def draw(batch):
        found.append(batch)

    draw()
    return max(found, key=lambda batch: len(batch.networks))


class Falsifying:
    """A worker that calls all networks with an operator wrong."""

    def __init__(self, operator):
        self.operator = operator
        self.asked = 0

    def judge(self, networks, configuration):
        from judging import Verdict

        self.asked += 1
        return [
            Verdict(
                n, configuration, "wrong" if self.operator in kinds(n) else "right", "all of it"
            )
            for n in networks
        ]


def kinds(n):
    return {node.op_type for node in n.nodes}


@pytest.mark.onnxruntime
def test_hypothesis_finds_the_smallest_network():
    """Any network with a Softmax shrinks: one network, few nodes, integers."""
    fuzzer = Fuzzer(Falsifying("Softmax"), shrink_seconds=20)
    aims = [(o, p) for o in ("Relu", "Add", "Slice") for p in ("between convs", "softmax")]
    verdict = fuzzer.run(batches(aims, "llvm", OPSET), 30, 5)
    assert verdict is not None
    assert verdict.network.position == "softmax"
    assert verdict.network.kind == "whole"
    assert len(verdict.network.nodes) <= 4
    assert all(array.shape[0] == 1 for array in verdict.network.feeds.values())


@pytest.mark.onnxruntime
def test_known_failures_are_counted_and_left():
    fuzzer = Fuzzer(Falsifying("Conv"), known=lambda _: True, shrink_seconds=0)
    assert fuzzer.run(batches([("Relu", "between convs")], "llvm", OPSET), 2, 1) is None
    assert fuzzer.counts.kinds["wrong"] > 0
    assert sum(fuzzer.counts.cells.values()) == fuzzer.counts.kinds["wrong"]


@pytest.mark.onnxruntime
def test_networks_are_one_model():
    batch = drawn([("Relu", "residual"), ("Slice", "alone")])
    assert isinstance(batch, Batch)
    assert len(batch.networks) > 2
    model = merged(batch.networks)
    onnx.checker.check_model(model, full_check=True)
    assert len(model.graph.node) == sum(len(n.nodes) for n in batch.networks)
    assert all(has_reference(n) for n in batch.networks)


@pytest.mark.onnxruntime
def test_a_failure_is_saved_with_its_commands(tmp_path):
    from judging import Verdict

    (n, *_) = drawn([("Relu", "statistics")], "mali").networks
    configuration = Configuration("mali", {"keep_layout": "nchw4c"})
    command = save(Verdict(n, configuration, "wrong", "why"), tmp_path, "one")
    assert command.startswith(
        "tvmflow compile one.onnx --output one.so --target opencl --device mali --keep-layout"
    )
    assert command.endswith("&& tvmflow verify one.onnx one.so --inputs one.npz")
    assert onnx.load(tmp_path / "one.onnx").graph.node
    assert set(np.load(tmp_path / "one.npz")) == set(n.feeds)
    assert "wrong: why" in (tmp_path / "one.json").read_text()
    again, options = load(tmp_path / "one.json")
    assert (again.digest, again.outputs, options) == (n.digest, n.outputs, configuration)
    assert again.wide == n.wide


@pytest.mark.onnxruntime
def test_failures_that_are_mended_count_as_right(tmp_path, monkeypatch):
    """Two networks failed; one of them passes when it is judged again."""
    from judging import Verdict

    (mended, *_), (left, *_) = (drawn([(o, "alone")]).networks for o in ("Relu", "Slice"))
    counts = Counts()
    for n in (mended, left):
        verdict = Verdict(n, Configuration("llvm"), "wrong", "why")
        counts.note(verdict)
        save(verdict, tmp_path / fuzz.DRAWN, n.digest)
    fuzz.write_counts(tmp_path, counts, ["llvm"], cpu=1.0, wall=2.0)

    class Judging(Falsifying):
        def close(self):
            pass

    monkeypatch.setattr(fuzz, "processor_drivers", lambda quick: [None])
    monkeypatch.setattr(fuzz, "Worker", lambda driver, optimised: Judging("Slice"))
    assert fuzz.judge_again(tmp_path, optimised=False) == 1
    found = json.loads((tmp_path / fuzz.COUNTS).read_text())
    assert (found["right"], found["wrong"]) == (1, 1)
    assert found["right_when_judged_again"] == {"wrong": 1}
    assert {file.stem for file in (tmp_path / fuzz.DRAWN).iterdir()} == {left.digest}
    assert fuzz.judge_again(tmp_path, optimised=False) == 1
    assert json.loads((tmp_path / fuzz.COUNTS).read_text()) == found


class Stopping(Worker):
    """A worker whose process crashes or hangs at one operator."""

    def __init__(self, operator, how):
        super().__init__(None)
        self.operator, self.how = operator, how

    def ask(self, networks, configuration, alone):
        if any(self.operator in kinds(n) for n in networks):
            return self.how
        return [Outcome("refused", "no reason") for _ in networks]

    def output_tail(self):
        return "last words"


@pytest.mark.parametrize("how", ["crash", "hang"])
@pytest.mark.onnxruntime
def test_a_process_that_falls_does_not_end_the_run(how):
    """The network that caused it is found; the others have their own verdicts."""
    batch = drawn([("Relu", "alone"), ("Slice", "alone"), ("Tanh", "alone")])
    worker = Stopping("Slice", how)
    verdicts = worker.judge(batch.networks, batch.configuration)
    for verdict in verdicts:
        assert verdict.kind == (how if "Slice" in kinds(verdict.network) else "refused")
    counts = Counts()
    for verdict in verdicts:
        counts.note(verdict)
    assert counts.kinds[how] == sum("Slice" in kinds(n) for n in batch.networks)
