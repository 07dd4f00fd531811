"""``tvmflow bench --scaling``."""

from __future__ import annotations

import re
import signal

import onnx
import psutil
import pytest
from support.farms import PATIENCE_S, Farm, closed_port, eventually
from support.interrupted import everything, start
from support.timings import timing
from support.tiny_model import tiny_model

import tvmflow
from tvmflow.errors import FarmError
from tvmflow.explain.scaling import devices, measure
from tvmflow.farm import connect
from tvmflow.runtime import tracker
from tvmflow.runtime.process import Worker, WorkerLostError
from tvmflow.runtime.secret import Address

pytestmark = pytest.mark.slow

SCALING = ("--scaling", "--seconds", "0.05")


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Return the module of the network with a batch of four."""
    folder = tmp_path_factory.mktemp("four")
    with tvmflow.compile(tiny_model(), target="llvm", shapes={"x/in": (4, 3, 8, 8)}) as module:
        return module.save(folder / "four.so")


@pytest.fixture
def simulated(monkeypatch):
    """Simulate calls that take 2 ms plus 1 ms per sample, a fifth of it in one thread."""

    def ask(worker, place, path, batched, devices, threads, *others, limit_s):
        ms = (2 + (4 if path.stem == "four" else 1)) * (0.2 + 0.8 / (threads or 1))
        return timing(ms, 0.9 * ms, 1.25 * ms)

    monkeypatch.setattr(measure, "_ask", ask)


def test_a_table_has_a_row_for_each_measurement(cli, compiled, four, simulated):
    printed = cli(
        "bench", compiled, four, *SCALING, "--batches", "1,4", "--threads", "1,2"
    ).succeeded()
    rows = {tuple(line.split()[:3]): line.split()[3:] for line in printed.stdout.splitlines()}
    assert "Throughput, llvm on" in printed.stdout
    assert re.search(r"^LLVM \d+, tvmflow \S+ TVM \S+ *$", printed.stdout, re.MULTILINE)
    # Devices, batch, threads: 3 ms with one thread, 1.8 ms with two.
    assert rows["1", "1", "1"] == ["3.00", "ms", "333", "267–370", "1.00"]
    assert rows["1", "1", "2"] == ["1.80", "ms", "556", "444–617", "1.67"]
    assert rows["1", "4", "2"][-1] == "3.33"


def test_a_model_is_compiled_and_measured(cli, model):
    result = cli(
        "bench", model, *SCALING, "--target", "llvm", "--batches", "1,3", "--json"
    ).succeeded()
    found = result.json["points"]
    assert [point["batch"] for point in found] == [1, 3]
    for point in found:
        assert point["items_per_s"] == pytest.approx(point["batch"] / point["median_ms"] * 1e3)
        assert point["low_per_s"] <= point["items_per_s"] <= point["high_per_s"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--batches", "1,0"), ["Numbers of batches have to be from 1 to 1000000000, got 0"]),
        (("--link", "fast"), ["The link 'fast' was not understood", "10Gbit"]),
        (("--latency-us", "3"), ["goes with --link"]),
        (
            ("--link", "1Gbit", "--tracker", "127.0.0.1:9190", "--key", "k"),
            ["--link does not go with --tracker"],
        ),
        (("--threads", "-1"), ["Numbers of threads have to be from 1"]),
        (("--devices", "0"), ["Numbers of devices have to be from 1"]),
        (("--devices", "1,99"), ["Numbers of devices have to be from 1 to", "got 99"]),
        (("--threads", "999999"), ["Numbers of threads have to be from 1 to", "got 999999"]),
        (("--batches", "1,64"), ["Numbers of batches have to be 1, got 64"]),
        (("--devices", "1,two"), ["1,two", "1,2,4"]),
        (("--device-index", "9"), ["there is no llvm device 9"]),
        (("--target", "llvm"), ["--target", "ONNX models"]),
        (("--runs", "3"), ["do not go with --scaling"]),
        (("--warmup", "3"), ["do not go with --scaling"]),
        (("--seconds", "inf"), ["--seconds must be finite"]),
        (("--tracker", "127.0.0.1:9190"), ["--tracker and --key go together"]),
        (("--tracker", "nowhere", "--key", "k"), ["HOST:PORT was expected"]),
    ],
)
def test_mistakes_are_refused(cli, compiled, monkeypatch, options, words):
    monkeypatch.setattr(measure, "_ask", None)
    result = cli("bench", compiled, *SCALING, *options)
    assert result.status == 2
    text = " ".join(result.stderr.replace("│", " ").split())
    for word in words:
        assert word in text


def test_a_links_cost_is_predicted(cli, compiled, four):
    link = ("--link", "8Mbit", "--latency-us", "0")
    result = cli("bench", compiled, four, *SCALING, *link, "--json").succeeded()
    found = result.json["communication"]
    assert (found["batch"], found["link"]) == (4, {"bytes_per_s": 1e6, "latency_s": 0.0})
    (point,) = (p for p in result.json["points"] if p["batch"] == 4)
    call_s = point["median_ms"] / 1e3
    moved_s = (found["input_bytes"] + found["output_bytes"]) * 1e-6
    assert found["predicted"][0]["efficiency"] == pytest.approx(call_s / (call_s + moved_s))
    printed = cli("bench", compiled, *SCALING, *link[:2])
    rows = [line.split()[0] for line in printed.stdout.splitlines() if "%" in line]
    assert rows == ["1", "2", "4", "8", "16", "32", "64"]


def test_options_of_scaling_do_nothing_else(cli, compiled):
    result = cli("bench", compiled, "--key", "board")
    assert result.status == 2
    assert "go with --scaling" in result.stderr
    assert cli("bench", compiled, compiled).status == 2


def test_a_model_with_a_fixed_batch_has_no_others(cli, tmp_path, compiled, simulated):
    model = tiny_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, tmp_path / "fixed.onnx")
    options = (*SCALING, "--target", "llvm")
    cli("bench", "fixed.onnx", *options, "--batches", "1,2").refused(
        "none of whose inputs has an open first dimension", "Remedy", "open batch"
    )
    measured = cli("bench", "fixed.onnx", *options, "--json")
    assert [point["batch"] for point in measured.json["points"]] == [2]
    assert cli("bench", "fixed.onnx", compiled, *SCALING).status == 2
    cli("bench", compiled, compiled, *SCALING).refused("no input of", "Remedy")


def test_a_target_that_is_none_is_refused_as_one(cli, model):
    result = cli("bench", model, *SCALING, "--target", "metal")
    assert result.status == 2
    assert "The target 'metal' is not known; expected one of" in result.stderr


def test_names_of_models_are_no_markup(cli, tmp_path, simulated):
    model = tiny_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    (tmp_path / "x[" / "y]").mkdir(parents=True)
    # Within it stands "[/y]", which would end what has not begun.
    onnx.save(model, tmp_path / "x[" / "y]" / "nä.onnx")
    result = cli("bench", "x[/y]/nä.onnx", *SCALING, "--target", "llvm", "--json").succeeded()
    assert result.json["files"] == ["x[/y]/nä.onnx"]


def test_a_tracker_that_is_not_there_is_told_before_anything_is_compiled(cli, model, monkeypatch):
    monkeypatch.setattr("tvmflow.compiler.pipeline.compile", None)
    with closed_port() as port:
        farm = ("--tracker", f"127.0.0.1:{port}", "--key", "board")
        result = cli("bench", model, *SCALING, "--target", "llvm", *farm)
        result.refused(f"The tracker at 127.0.0.1:{port} cannot be reached", "farm tracker")
        # Kernels for OpenCL are shaped for a device, which is not this machine's.
        cli("bench", model, *SCALING, *farm).refused("preset of its devices", "--device adreno")


# ---- A farm ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Wait longer for a tracker, which may answer late while other tests run."""
    monkeypatch.setattr(tracker, "_ANSWER_S", PATIENCE_S)


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    """Start a farm of two servers with one key."""
    farm = Farm(tmp_path_factory.mktemp("farm"))
    for _ in range(2):
        farm.serve("pair")
    yield farm
    farm.close()


@pytest.mark.slow
def test_two_servers_are_measured(cli, compiled, four, farm):
    at = ("--tracker", str(farm.address), "--key", "pair")
    cli("bench", compiled, *SCALING, "--devices", "1,4", *at).refused("from 1 to 2, got 4")
    result = cli("bench", compiled, four, *SCALING, "--devices", "1,2", *at, "--json").succeeded()
    report = result.json
    assert report["device_name"].startswith("2 of 2 servers of pair (2 × ")
    measured = {(p["batch"], p["devices"]) for p in report["points"]}
    assert measured == {(1, 1), (4, 1), (1, 2), (4, 2)}
    for point in report["points"]:
        samples = point["batch"] * point["devices"]
        assert point["items_per_s"] == pytest.approx(samples / point["median_ms"] * 1e3)


def test_what_a_farm_does_not_have_is_refused(cli, compiled, farm):
    def at(key, *options):
        return cli(
            "bench", compiled, *SCALING, "--tracker", str(farm.address), "--key", key, *options
        )

    at("board").refused("Nobody serves the key 'board'", "pair")
    at("pair", "--threads", "1").refused(
        "those of servers cannot be set from here", "TVM_NUM_THREADS"
    )
    at("pair", "--device-index", "7").refused("has the device llvm:7", "farm status")


def free_servers(farm):
    with tracker.Tracker(farm.address) as connection:
        return connection.summary().queues["pair"].free


def test_ctrl_c_ends_all_processes_and_gives_the_servers_back(compiled, four, farm, tmp_path):
    eventually(lambda: free_servers(farm) == 2)
    at = ("--tracker", str(farm.address), "--key", "pair", "--devices", "2")
    command = ("bench", str(compiled), str(four), "--scaling", "--seconds", "4000", *at)
    process = start("from tvmflow.cli import main\nmain()", *command, folder=tmp_path)
    try:
        eventually(lambda: free_servers(farm) == 0)
        (worker,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "Stopped by SIGINT" in stderr
    assert not worker.is_running()
    assert everything(tmp_path) == ["tmp"]
    eventually(lambda: free_servers(farm) == 2)


def test_a_server_that_has_gone_is_told():
    with (
        closed_port() as port,
        pytest.raises(FarmError, match=f"server at 127.0.0.1:{port} could not be opened"),
    ):
        connect.connect(tracker.Offer(Address("127.0.0.1", port), "ticket"), 10.0)


def test_a_server_that_hangs_is_told():
    class Hanging(Worker):
        def call(self, *_, timeout_s):
            raise WorkerLostError(f"it took more than {timeout_s:g} s", timed_out=True)

    place = devices.FarmDevices(Address("127.0.0.1", 9190), "pair", "llvm", 0, 2, ())
    with pytest.raises(FarmError, match="with 2 servers of the key 'pair' failed: it took more"):
        place.prepare(Hanging(), 2, 10.0)


def test_servers_that_others_use_are_told(farm, monkeypatch):
    place = devices.FarmDevices.find(farm.address, "pair", "llvm", 0, None)
    assert place.existing == 2
    monkeypatch.setattr(connect, "OFFER_S", 0.5)
    held = [farm.session("pair") for _ in range(2)]
    error = devices._connect(place, 1, 10.0)
    assert "on 1 server of the key 'pair' failed: 0 of them were free" in error.message
    assert "farm status" in error.remedy
    del held
