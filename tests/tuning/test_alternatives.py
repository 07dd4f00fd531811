"""Alternatives of algorithm and storage: measuring, deciding, and use by the compiler."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.networks import Graph
from support.tunables import PretendedBuilder, PretendedRunner, failed

import tvmflow
from tvmflow.compiler.compilation import Compilation
from tvmflow.compiler.driver import run_stages
from tvmflow.compiler.lookup import network_digest
from tvmflow.compiler.options import CompileOptions
from tvmflow.devices.device_file import DeviceFile, Fact, Origin
from tvmflow.devices.presets import PRESETS
from tvmflow.journal.journal import Journal
from tvmflow.tuning import maintenance
from tvmflow.tuning.alternatives import (
    HOPELESS,
    alternatives_of,
    network_of,
    tune_alternatives,
)
from tvmflow.tuning.choose_search import searches
from tvmflow.tuning.measure import CRASH
from tvmflow.tuning.session import Network
from tvmflow.tuning.tuner import Budget, Tuner
from tvmflow.verify.reference import run_reference
from tvmflow.verify.tolerance import OPERATOR, assert_close

LAUNCH_S = 1e-6 * PRESETS["adreno"].launch_us
WINOGRAD = {"winograd_input", "winograd_product", "winograd_output"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two equal convolutions with different following operators, and one of stride 2."""
    graph = Graph(1, 9, 11, 10)
    first = graph.relu(graph.conv("x", 9, 3))
    second = graph.node("Add", [graph.conv(first, 9, 3), first], 9)
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    path.write_bytes(graph.model(graph.conv(second, 7, 3, stride=2)).SerializeToString())
    return path


def network(model, **options):
    """Return the tuner's network of a model."""
    return Network(model, CompileOptions(**options))


@pytest.fixture
def tune(tmp_path, model):
    """Tune with pretended costs, given by family and storage."""

    def run(cost, budget=None, **options):
        options = {"device": "adreno", "storage": "buffer", **options}
        alternatives = alternatives_of(network(model, **options).job())
        kernels = [*alternatives.tasks]
        kernels += [t for d in alternatives.decisions for ts in d.options.values() for t in ts]
        by_digest = {task.digest: task for task in kernels}

        class Runner(PretendedRunner):
            def submit(self, built, case, incumbent=None):
                task = by_digest.get(built.task)
                family = task.family.NAME if task else ""
                self._measure = lambda _: cost(family, task.workload.storage if task else "")
                return super().submit(built, case, incumbent)

        asked = []
        with Journal.open(tmp_path / "a.journal", "a") as journal:

            def measure(tasks, budget):
                asked.append((budget.trials, [task.name for task in tasks]))
                made = searches("random", 0, budget.trials)
                builder = PretendedBuilder(tmp_path)
                return Tuner(tasks, builder, Runner(), journal, budget, made).run()

            result = tune_alternatives(alternatives, measure, budget or Budget(3), journal)
        return result, asked

    return run


def compiled(model: Path, journal: Path, **options: object) -> tvmflow.Module:
    return tvmflow.compile(model, journals=[journal], **{"device": "adreno", **options})


def check(model: Path, module: tvmflow.Module) -> None:
    x = np.random.default_rng(3).standard_normal((1, 9, 11, 10)).astype(np.float32)
    outputs = module({"x": x})
    reference, _ = run_reference(model, {"x": x}, list(outputs.keys()))
    for name, value in outputs.items():
        assert_close(value, reference[name], OPERATOR, name)


def algorithms(module: tvmflow.Module) -> list[str]:
    return [choice["algorithm"] for choice in module.metadata["algorithms"]]


def winograd_wins(family: str, storage: str) -> float:
    return 1e-5 if family in WINOGRAD else 1e-4


def direct_wins(family: str, storage: str) -> float:
    return 1e-4


# -- what there is to decide -----------------------------------------------------------------


def test_a_layers_tasks_are_those_of_the_network(model):
    alternatives = alternatives_of(network(model, device="adreno", storage="buffer").job())
    (decision,) = alternatives.decisions
    assert (decision.what, decision.names) == ("algorithm", ("t0", "t2"))
    assert decision.default == "direct"
    assert {o: {t.family.NAME for t in ts} for o, ts in decision.options.items()} == {
        "direct": {"conv2d"},
        "winograd2": WINOGRAD,
        "winograd4": WINOGRAD,
    }
    known = {task.digest for task in alternatives.tasks}
    assert {task.digest for task in decision.options["direct"]} <= known
    # Tasks of the network with Winograd's convolution, including bias and activation.
    asked = network(model, device="adreno", storage="buffer", algorithms={"t0": "winograd4"})
    known = {task.digest for task in asked.tasks()}
    assert {task.digest for task in decision.options["winograd4"]} <= known
    assert [t.calls for t in decision.weighed("direct")] == [2]


def test_products_of_matrices_are_options_on_cuda(model):
    strided, of_equal = sorted(
        alternatives_of(network(model, target="cuda", dtype="fp16").job()).decisions,
        key=lambda d: d.names[0] != "t4",
    )
    assert set(strided.options) == {"direct", "gemm"}
    assert set(of_equal.options) == {"direct", "gemm", "winograd2"}
    # 16-bit tensors have blocks of 8 channels there.
    assert all(t.arguments[-1].shape[-1] == 8 for t in of_equal.options["direct"])


def test_what_the_user_asks_for_is_not_decided(model):
    both = {"t0": "winograd2", "t2": "direct"}
    asked = network(model, device="adreno", storage="texture", algorithms=both)
    assert alternatives_of(asked.job()).decisions == []
    # A device without images has only one storage.
    assert [d.what for d in alternatives_of(network(model, target="llvm").job()).decisions] == [
        "algorithm"
    ]
    job = network(model, device="adreno").job()
    assert [d.what for d in alternatives_of(job).decisions] == ["storage", "algorithm"]
    kept = network(model, device="adreno", keep_layout={"x": "nchw4c"}).job()
    assert [d.what for d in alternatives_of(kept).decisions] == ["algorithm"]


def imported(model: object) -> Compilation:
    job = network(model, target="llvm").job()
    run_stages(job, until="simplify")
    return job


def test_a_networks_digest_is_that_of_its_operators_and_shapes(model):
    def other(stride: int = 2, seed: int = 0, channels: int = 9) -> str:
        graph = Graph(1, channels, 11, 10, seed=seed)
        first = graph.relu(graph.conv("x", 9, 3))
        second = graph.node("Add", [graph.conv(first, 9, 3), first], 9)
        network = graph.model(graph.conv(second, 7, 3, stride=stride))
        for node in network.graph.node:
            node.name = f"other_{node.output[0]}"
        return network_digest(imported(network).mod)

    own = network_digest(imported(model).mod)
    assert other(seed=5) == own
    assert other(stride=1) != own
    assert other(channels=8) != own


def test_a_layer_ends_where_its_result_has_two_readers(model):
    mod = imported(model).mod
    first, second = (network_of(mod, name)["main"] for name in ("t0", "t2"))
    assert [b.var.name for b in first.body.blocks[0].bindings] == ["t0_1", "t0", "t1"]
    assert len(first.params) == 1
    assert [b.var.name for b in second.body.blocks[0].bindings] == ["t2_1", "t2", "t3"]


# -- what is measured, and what compiling makes of it ------------------------------------------


@pytest.mark.opencl
def test_winograd_that_is_measured_to_be_faster_is_compiled(tune, model, tmp_path):
    assert algorithms(tvmflow.compile(model, device="adreno")) == ["direct"] * 3
    result, asked = tune(winograd_wins)
    (settled,) = result.settled
    assert settled.choice in ("winograd2", "winograd4")
    assert settled.costs["direct"] == pytest.approx(1e-4 + LAUNCH_S)
    assert settled.costs[settled.choice] == pytest.approx(3 * (1e-5 + LAUNCH_S))
    assert result.algorithms == dict.fromkeys(("t0", "t2"), settled.choice)
    # The progress is that of the chosen network, whose other layer has one more operator.
    assert {p.task.family.NAME for p in result.progress} >= WINOGRAD
    assert all(np.isfinite(p.best) for p in result.progress)
    assert [trials for trials, _ in asked][:2] == [1, 3]
    for storage in ("buffer", "texture"):
        with compiled(model, tmp_path / "a.journal", storage=storage) as module:
            assert algorithms(module) == [settled.choice] * 2 + ["direct"]
            reason = module.metadata["algorithms"][0]["reason"]
            ms, direct = (f"{1e3 * settled.costs[n]:.3g} ms" for n in (settled.choice, "direct"))
            start = f"journal (a.journal: {ms} on pretended, measured, fp32, "
            assert reason.startswith(start)
            assert f"direct {direct}" in reason
            check(model, module)


@pytest.mark.opencl
def test_launches_cost_what_was_measured_on_the_device(tune, tmp_path):
    file = DeviceFile("slow", "adreno", rates={"launch_us": Fact(1e5, Origin.MEASURED)})
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(file.to_json()))
    result, _ = tune(winograd_wins, device=str(path))
    (settled,) = result.settled
    assert settled.choice == "direct"
    assert settled.costs["direct"] == pytest.approx(1e-4 + 0.1)


@pytest.mark.opencl
def test_direct_that_is_measured_to_be_faster_is_compiled(tune, model, tmp_path, monkeypatch):
    # Use a cost model that makes Winograd's convolution nearly free.
    monkeypatch.setattr(
        "tvmflow.graph.layout.algorithms.cost", lambda _, a, __: float(a == "direct")
    )
    with tvmflow.compile(model, device="adreno", algorithms={"t2": "direct"}) as module:
        assert algorithms(module)[0] != "direct"
    (settled,) = tune(direct_wins)[0].settled
    assert settled.default != "direct"
    assert settled.choice == "direct"
    with compiled(model, tmp_path / "a.journal") as module:
        assert algorithms(module) == ["direct"] * 3
        check(model, module)


def test_what_the_user_names_comes_before_a_journal(tune, model, tmp_path):
    tune(winograd_wins)
    with compiled(model, tmp_path / "a.journal", algorithms={"t2": "direct"}) as module:
        first, second, _ = module.metadata["algorithms"]
        assert first["algorithm"].startswith("winograd")
        assert (second["algorithm"], second["asked"]) == ("direct", True)


def test_an_algorithm_that_cannot_be_is_not_used(tune, model, tmp_path):
    tune(lambda family, _: 1e-6 if family in WINOGRAD else 1e-4, dtype="fp32")
    with compiled(model, tmp_path / "a.journal", dtype="fp16", accumulate="fp32") as module:
        # A measurement in fp32 does not apply to fp16.
        assert algorithms(module) == ["direct"] * 3
    with compiled(model, tmp_path / "a.journal", device="mali") as module:
        assert algorithms(module) == ["direct"] * 3


@pytest.mark.opencl
@pytest.mark.parametrize("faster", ["texture", "buffer"])
def test_the_faster_storage_is_compiled(tune, model, tmp_path, faster):
    def cost(family: str, storage: str) -> float:
        return 1e-5 if storage == faster else 2e-5 if family not in WINOGRAD else 1e-3

    result, _ = tune(cost, storage="auto")
    by_what = {settled.what: settled for settled in result.settled}
    journal = tmp_path / "a.journal"
    with compiled(model, journal) as module:
        scopes = {p["storage"] for p in module.metadata["placements"] if not p["constant"]}
        if by_what["storage"].choice != "auto":
            assert result.storage == faster
            assert faster in module.metadata["settled_storage"]
        assert faster in scopes
        assert (faster == "texture") or scopes == {"buffer"}
        check(model, module)
    other = "buffer" if faster == "texture" else "texture"
    with compiled(model, journal, storage=other) as module:
        assert module.metadata["settled_storage"] == ""
        assert module.metadata["options"]["storage"] == other


def test_hopeless_options_have_one_trial(tune):
    def cost(family: str, storage: str) -> float:
        return 2 * HOPELESS * 1e-4 if family == "winograd_product" else 1e-5

    _, asked = tune(cost)
    assert any("winograd" in name for name in asked[0][1])
    assert asked[0][0] == 1
    assert not any("winograd" in name for name in asked[1][1])


def test_noise_and_failures_settle_nothing(tune, model, tmp_path):
    # It saves two per cent with the launches of its three kernels.
    each = (0.98 * (1e-4 + LAUNCH_S) - 3 * LAUNCH_S) / 3
    (settled,) = tune(lambda family, _: each if family in WINOGRAD else 1e-4)[0].settled
    assert 0.97 < settled.costs["winograd2"] / settled.costs["direct"] < 1
    assert settled.choice == "direct"
    (tmp_path / "a.journal").unlink()

    def crashes(family: str, storage: str) -> object:
        return failed(CRASH) if family in WINOGRAD else 1e-4

    (settled,) = tune(crashes)[0].settled
    assert settled.choice == "direct"
    direct = f"{1e3 * settled.costs['direct']:.3g} ms"
    assert settled.comparison == f"direct {direct}, winograd2 failed, winograd4 failed"


def test_the_same_command_writes_a_decision_once(tune, tmp_path):
    for _ in range(2):
        tune(winograd_wins)
    with Journal.open(tmp_path / "a.journal") as journal:
        decisions = [t for t in journal.trials() if t.workload.family == "algorithm"]
        assert len(decisions) == 1
        assert journal.best(decisions[0].workload, decisions[0].target).knobs == decisions[0].knobs
        # Neither the first look at all options nor the second command repeats a trial.
        tried = [(t.workload.key, tuple(sorted(t.knobs.items()))) for t in journal.trials()]
        assert len(tried) == len(set(tried))


def test_decisions_survive_care_of_journals(tune, tmp_path, model):
    tune(winograd_wins, storage="auto")
    source, merged = tmp_path / "a.journal", tmp_path / "b.journal"

    def decisions(path: Path) -> list:
        with Journal.open(path) as journal:
            return [t for t in journal.trials() if t.workload.family in ("algorithm", "storage")]

    before = decisions(source)
    assert {t.workload.family for t in before} == {"algorithm", "storage"}
    maintenance.merge(merged, [source])
    maintenance.compact(merged, best=1)
    assert decisions(merged) == before
    for form in maintenance.FORMATS:
        with Journal.open(merged) as journal:
            maintenance.export(journal.trials(), form, tmp_path / f"out_{form}")
    assert maintenance.verify(merged).good
