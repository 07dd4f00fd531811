"""Builds on a Dask cluster: the results of local builds, and faults of workers and schedulers."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import asdict, replace

import numpy as np
import onnx
import pytest
from support.clusters import Cluster
from support.knob_choices import sample_knobs
from support.onnx_models import model_of
from support.tunables import tasks
from typer.testing import CliRunner

from tvmflow.cli.app import app
from tvmflow.errors import FarmError
from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Error
from tvmflow.tuning import cluster as module
from tvmflow.tuning.building import Builder
from tvmflow.tuning.candidate_kernels import CandidateKernels
from tvmflow.tuning.cluster import ClusterBuilder
from tvmflow.tuning.measure import Config
from tvmflow.tuning.session import Network, Options, tune
from tvmflow.tuning.timing import StopRule
from tvmflow.tuning.tuner import Budget

distributed = pytest.importorskip("distributed")

# The first test starts the cluster.
pytestmark = pytest.mark.slow

#: Longer than anything here takes, on a slow machine where other tests run.
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Return a cluster with two workers."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        for _ in range(2):
            made.add_worker()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def client(cluster):
    with distributed.Client(cluster.address, set_as_default=False) as made:
        made.wait_for_workers(2, timeout=PATIENCE_S)
        yield made


@pytest.fixture(scope="module")
def builder(cluster, client):
    made = ClusterBuilder(cluster.address, workers=1, limit_s=PATIENCE_S, as_kernels=True)
    yield made
    made.close()


def some_knobs(task, count):
    found = sample_knobs(task.family, task.shape, task.target.device, random.Random(3))
    return [task.heuristic, *(asdict(next(found)) for _ in range(count - 1))]


def test_kernels_are_those_of_local_builds(builder):
    local = Builder(workers=1, limit_s=PATIENCE_S, as_kernels=True)
    try:
        for device in ("cpu", "adreno"):
            task = tasks(device)["conv2d_1x1"]
            for knobs in some_knobs(task, 3):
                ours, theirs = (b.submit(task, knobs).result() for b in (local, builder))
                assert theirs.error is None
                assert theirs.knobs == knobs
                assert theirs.path.parent == builder.folder
                assert replace(theirs, path=None) == replace(ours, path=None)
                assert CandidateKernels.read(theirs.path) == CandidateKernels.read(ours.path)
    finally:
        local.close()


def test_builds_of_a_killed_worker_are_repeated(builder, client):
    task = tasks()["conv2d"]
    builds = [builder.submit(task, knobs) for knobs in some_knobs(task, 12)]
    builds[0].result()
    killed, other = client.run(os.getpid).items()
    os.kill(killed[1], signal.SIGKILL)
    found = [build.result() for build in builds]
    assert [built.error for built in found] == [None] * 12
    assert all(built.path.exists() for built in found)
    # The other one did not end, and the killed one is started again.
    assert client.run(os.getpid, workers=[other[0]]) == dict([other])


def test_faulty_candidates_fail_alone(builder):
    task = tasks()["conv2d_1x1"]
    crashed, killed = (builder.submit(task, {"fault": f}) for f in ("crash", "kill the worker"))
    assert crashed.result().error.startswith("The build failed: the process ended with SIGSEGV")
    assert "on 2 different workers, but all those workers died" in killed.result().error
    assert builder.submit(task, None).result().error is None


def test_a_build_has_a_time_limit(cluster, client):
    builder = ClusterBuilder(cluster.address, workers=1, limit_s=0.5, as_kernels=True)
    try:
        built = builder.submit(tasks()["conv2d_1x1"], {"fault": "hang"}).result()
        assert built.error == "The build failed: it took more than 0.5 s"
    finally:
        builder.close()


@pytest.fixture
def add_odd_worker(cluster, client):
    """Return a function that adds a worker which runs some statements first."""
    addresses = []

    def add(before):
        name = f"odd {before}"
        cluster.add_worker("--no-nanny", f"--name={name}", before=before, preload=False)
        found = []
        ends = time.monotonic() + PATIENCE_S
        while not found:
            assert time.monotonic() < ends
            time.sleep(0.05)
            workers = client.scheduler_info(n_workers=-1)["workers"]
            found = [address for address, each in workers.items() if each["name"] == name]
        addresses.extend(found)

    yield add
    client.retire_workers(addresses)


def test_workers_need_the_same_version(builder, cluster, add_odd_worker):
    add_odd_worker("import tvmflow._versions as v; v.__version__ = '0.0'")
    with pytest.raises(FarmError, match=r"needs tvmflow \S+ as here, but has tvmflow 0\.0"):
        ClusterBuilder(cluster.address, workers=1, as_kernels=True)
    # The worker joined while this session ran.
    builds = [builder.submit(tasks()["conv2d"], None) for _ in range(20)]
    failures = [error for build in builds if (error := build.exception()) is not None]
    assert {type(error) for error in failures} == {FarmError}
    assert "but has tvmflow 0.0" in failures[0].message


def test_workers_need_this_package(cluster, add_odd_worker):
    add_odd_worker("import sys; sys.modules['tvmflow'] = None")
    with pytest.raises(FarmError, match=r"candidates: .*ModuleNotFoundError") as caught:
        ClusterBuilder(cluster.address, workers=1, as_kernels=True)
    assert "Install this version of tvmflow" in caught.value.remedy


def test_an_address_without_a_scheduler(monkeypatch):
    monkeypatch.setattr(module, "CONNECT_LIMIT_S", 0.5)
    with pytest.raises(FarmError, match=r"no Dask scheduler answered at tcp.* within") as caught:
        ClusterBuilder("tcp://127.0.0.1:1")
    assert "dask scheduler" in caught.value.remedy
    with pytest.raises(FarmError, match="no Dask scheduler answered at carrier"):
        ClusterBuilder("carrier-pigeon://coop:1")
    with pytest.raises(FarmError, match="needs a certificate"):
        ClusterBuilder("tls://127.0.0.1:1")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(FarmError, match="needs the package distributed") as caught:
        ClusterBuilder("tcp://127.0.0.1:1")
    assert "cluster" in caught.value.remedy


def pointwise():
    """Return a network with one task, which has knobs."""
    weights = {"w": np.ones((20, 20, 1, 1), np.float32)}
    return model_of("y = Conv(x, w)", {"x": (1, 20, 9, 7)}, {"y": None}, weights, opset=18)


@pytest.mark.opencl
def test_a_session_measures_libraries_until_the_scheduler_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CONNECT_LIMIT_S", 0.5)
    cluster = Cluster(tmp_path)
    try:
        with pytest.raises(FarmError, match="no worker joined it"):
            ClusterBuilder(cluster.address)
        cluster.add_worker("--no-nanny")
        with distributed.Client(cluster.address, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=PATIENCE_S)

        def watch(progress, devices):
            if cluster.scheduler.poll() is None:
                cluster.scheduler.kill()
                cluster.scheduler.wait()

        quick = Config(StopRule(rounds=1, repeats=2), min_repeat_ms=0)
        settings = {"workers": 1, "build_on": cluster.address, "measuring": quick}
        options = Options(Budget(trials=500), "random", compare=False, **settings)
        path = tmp_path / "a.journal"
        with pytest.raises(FarmError, match=r"The scheduler at tcp://.* was lost"):
            tune(Network(pointwise()), path, options, watch=watch)
        with Journal.open(path) as journal:
            trials = list(journal.trials())
        # Results were compared with the task's case.
        assert any(trial.error is Error.NONE and trial.cost > 0 for trial in trials)
    finally:
        cluster.close()


def test_the_command_names_its_option(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CONNECT_LIMIT_S", 0.5)
    onnx.save(pointwise(), tmp_path / "a.onnx")
    where = "tcp://127.0.0.1:1"
    words = ["tune", str(tmp_path / "a.onnx"), "--journal", str(tmp_path / "a.journal")]
    done = CliRunner().invoke(app, [*words, "--device", "cpu", "--build-on", where])
    assert done.exit_code == 2
    said = " ".join(done.output.split())
    assert f"no Dask scheduler answered at {where} within 0.5 s" in said
    assert "--build-on" in said
