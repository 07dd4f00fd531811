"""Servers of phones and boards, with Debian's adb and daemons that play the phones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from support.adb_daemon import AdbDaemon, Phone
from support.commands import run
from support.farms import LOCAL, PATIENCE_S, Farm, eventually, free_port
from support.networks import Graph
from typer.testing import CliRunner

import tvmflow
from tvmflow.agent.device import RemoteDevice
from tvmflow.agent.lent import LentAgent, TicketError
from tvmflow.cli.app import app
from tvmflow.errors import AgentError, FarmError
from tvmflow.farm.connect import borrow
from tvmflow.farm.runner import FarmRunner
from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Event
from tvmflow.module.standalone.binding import opencl_libraries
from tvmflow.runtime.secret import Address, Secret
from tvmflow.runtime.tracker import Offer, Queue, Server, Tracker, are_agents
from tvmflow.tuning.building import Argument, Built, Case
from tvmflow.tuning.candidate_kernels import CandidateKernels, CandidateLaunch
from tvmflow.tuning.measure import CRASH, DEVICE, WRONG, Config
from tvmflow.tuning.timing import StopRule

# The first tests start the farm.
pytestmark = pytest.mark.slow

#: The server's program.
SERVER = str(Path(__file__).parents[1] / "support" / "agent_server.py")


def set_celsius(folder: Path, celsius: float) -> None:
    """Write what the only sensor below a folder reports, as Linux shows it."""
    zone = folder / "class" / "thermal" / "thermal_zone0"
    zone.mkdir(parents=True, exist_ok=True)
    (zone / "type").write_text("gpu\n")
    # In one step: the server may be reading.
    new = zone / "new"
    new.write_text(f"{celsius * 1000:.0f}\n")
    new.rename(zone / "temp")


def servers_of(farm: Farm, key: str) -> list[Server]:
    with Tracker(farm.address) as tracker:
        return tracker.summary().serving(key)


def free_of(farm: Farm, key: str) -> int:
    with Tracker(farm.address) as tracker:
        return tracker.summary().queues.get(key, Queue(0, 0)).free


def connect(farm: Farm, key: str) -> RemoteDevice:
    secret = farm.address.secret
    assert secret is not None
    return tvmflow.connect(f"farm:{farm.address}/{key}", secret_file=secret.file)


def farm_options(farm: Farm) -> list[object]:
    assert farm.address.secret is not None
    return [farm.address, "--secret-file", farm.address.secret.file]


def write_secret(file: Path, digit: str) -> Secret:
    file.write_text(digit * 64)
    file.chmod(0o600)
    return Secret.read(file)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A farm with a secret."""
    folder = tmp_path_factory.mktemp("farm")
    farm = Farm(folder, write_secret(folder / "secret", "a"))
    yield farm
    farm.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the board's files and sensors."""
    return tmp_path_factory.mktemp("board")


@pytest.fixture(scope="module")
def board(farm: Farm, folder: Path) -> Iterator[Address]:
    """A server of this machine, with the key ``board`` and a limit of 45 °C."""
    set_celsius(folder / "sys", 41.5)
    environment = {
        "TVMFLOW_AGENT_SYS": str(folder / "sys"),
        "TVMFLOW_CACHE_DIR": str(folder / "cache"),
    }
    address = farm.serve("board", SERVER, "--on", "local", "--max-temp", "45", **environment)
    eventually(lambda: free_of(farm, "board") == 1)
    yield address
    assert farm.stop(address) == 130
    assert "Traceback" not in farm.log(address)
    eventually(lambda: not agents_in(folder))


def agents_in(folder: Path) -> list[str]:
    """Return the command lines of agents whose files are in a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(folder) in words and "--folder" in words:
            found.append(words)
    return found


def test_a_board_is_lent_to_one_client_after_the_other(farm: Farm, board: Address, caplog):
    (server,) = servers_of(farm, "board")
    about = server.about
    assert (about["kind"], about["temperature_c"], about["state"]) == ("agent", 41.5, "")
    content = np.random.default_rng(0).bytes(9_000_000)
    first = connect(farm, "board")
    assert (about["model"], about["devices"][0]["driver"]) == (
        first.name,
        first.opencl_devices()[0].driver,
    )
    memory = first.allocate(len(content))
    first.write(memory, content)
    assert first.read(memory, len(content)) == content
    eventually(lambda: servers_of(farm, "board")[0].about["busy_s"])
    assert free_of(farm, "board") == 0
    found: list[str] = []

    def wait() -> None:
        with connect(farm, "board") as second:
            found.append(second.name)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: "No device of the key board is free" in caplog.text)
    assert f"{board}: in use." in caplog.text
    first.close()
    waiting.join()
    assert found == [first.name]
    eventually(lambda: free_of(farm, "board") == 1)
    eventually(lambda: farm.log(board).count("ended after") >= 2)


def test_a_hot_board_is_withdrawn_until_it_is_cool(farm: Farm, board: Address, folder: Path):
    def state() -> str:
        return servers_of(farm, "board")[0].about["state"]

    eventually(lambda: free_of(farm, "board") == 1)

    with connect(farm, "board"):
        set_celsius(folder / "sys", 47)
    eventually(lambda: state() == "paused: 47 °C, limit 45")
    assert free_of(farm, "board") == 0
    set_celsius(folder / "sys", 44)
    eventually(lambda: state() == "paused: 44 °C, limit 45")
    assert free_of(farm, "board") == 0
    done = run(sys.executable, "-m", "tvmflow", "farm", "status", "--tracker", *farm_options(farm))
    assert "paused: 44 °C, limit 45" in done.stdout
    set_celsius(folder / "sys", 43)
    eventually(lambda: free_of(farm, "board") == 1)
    assert state() == ""
    eventually(lambda: "local is offered again: 43 °C." in farm.log(board))
    assert farm.log(board).count("local is paused: ") == 1
    set_celsius(folder / "sys", 41.5)


def test_a_ticket_admits_one_client(farm: Farm, board: Address):
    with pytest.raises(TicketError, match="refused the session"):
        LentAgent(Offer(board, "board:0")).start()
    eventually(lambda: free_of(farm, "board") == 1)
    with Tracker(farm.address) as tracker:
        tracker.request("board")
        offer = tracker.offer(60)
    assert offer is not None
    stream = LentAgent(offer).start()
    stream.close()
    with pytest.raises(TicketError):
        LentAgent(offer).start()


# -- phones ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of an adb server of this module's own."""
    home = tmp_path_factory.mktemp("home")
    environment = {"HOME": str(home), "ANDROID_ADB_SERVER_PORT": str(free_port())}
    # The cache is the tests', also with another home.
    environment["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    run_adb(environment, "start-server")
    yield environment
    run_adb(environment, "kill-server")


def run_adb(environment: dict[str, str], *words: str) -> None:
    command, env = ["adb", *words], {**os.environ, **environment}
    subprocess.run(command, env=env, capture_output=True, check=True)


@pytest.fixture
def attach(adb_server: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., AdbDaemon]]:
    """A function that attaches a phone, by default a new one."""
    daemons: list[AdbDaemon] = []
    library = next(filter(None, opencl_libraries()), "")

    def attach(like: AdbDaemon | None = None) -> AdbDaemon:
        folder = tmp_path / f"phone{len(daemons)}"
        if like is None:
            set_celsius(folder / "sys", 30 + len(daemons))
            environment = {
                "TVMFLOW_AGENT_SYS": str(folder / "sys"),
                "TVMFLOW_OPENCL_LIBRARY": library,
                "POCL_WORK_GROUP_SPECIALIZATION": "0",
            }
            daemon = AdbDaemon(Phone(folder, environment=environment))
        else:
            # Otherwise adb tries the old connection again, after a while.
            run_adb(adb_server, "disconnect", f"{LOCAL}:{like.port}")
            daemon = AdbDaemon(like.phone, like.port)
        daemons.append(daemon)
        run_adb(adb_server, "connect", f"{LOCAL}:{daemon.port}")
        return daemon

    yield attach
    for daemon in daemons:
        subprocess.run(
            ["adb", "disconnect", f"{LOCAL}:{daemon.port}"],
            env={**os.environ, **adb_server},
            capture_output=True,
            check=False,
        )
        daemon.pull_cable()


@pytest.fixture(scope="module")
def phones(farm: Farm, adb_server: dict[str, str]) -> Iterator[Address]:
    """A server of all attached phones, with the key ``phones``."""
    address = farm.start_server("phones", SERVER, "--on", "adb:all", **adb_server)
    yield address
    assert farm.stop(address) == 130
    assert "Traceback" not in farm.log(address)


@pytest.mark.adb
def test_phones_come_and_go(farm: Farm, phones: Address, attach):
    eventually(lambda: not servers_of(farm, "phones"))
    first = attach()
    eventually(lambda: free_of(farm, "phones") == 1)
    second = attach()
    eventually(lambda: free_of(farm, "phones") == 2)
    before = {server.about["temperature_c"]: server for server in servers_of(farm, "phones")}
    assert before.keys() == {30, 31}
    with connect(farm, "phones") as phone:
        assert phone.sensors()["temperatures"].popitem()[1] in before
        second.pull_cable()
        eventually(lambda: len(servers_of(farm, "phones")) == 1)
    eventually(lambda: free_of(farm, "phones") == 1)
    (left,) = servers_of(farm, "phones")
    assert left.address == before[30].address
    attach(like=second)
    eventually(lambda: free_of(farm, "phones") == 2)
    assert {s.address for s in servers_of(farm, "phones")} == {s.address for s in before.values()}
    eventually(lambda: f"adb:{LOCAL}:{second.port} was unplugged." in farm.log(phones))
    assert len(first.phone.pushed) == 1
    eventually(lambda: not first.running())


@pytest.mark.adb
def test_a_session_on_an_unplugged_phone_ends_with_a_sentence(farm: Farm, phones: Address, attach):
    eventually(lambda: not servers_of(farm, "phones"))
    daemon = attach()
    eventually(lambda: free_of(farm, "phones") == 1)
    phone = connect(farm, "phones")
    daemon.pull_cable()
    with pytest.raises(AgentError, match="broke"):
        eventually(lambda: not phone.sensors())
    phone.close()
    eventually(lambda: not servers_of(farm, "phones"))
    with pytest.raises(AgentError, match="Nobody serves the key 'phones'"):
        connect(farm, "phones")


# -- tuning ----------------------------------------------------------------------------------------

QUICK = Config(StopRule(rounds=1, repeats=2), min_repeat_ms=0)


def candidate(folder: Path, body: str) -> tuple[Built, Case]:
    """Return a candidate that fills four numbers, with zeros if it is right, and its case."""
    source = f"__kernel void candidate(__global float* y) {{ int i = get_global_id(0); {body} }}\n"
    launch = CandidateLaunch("candidate", (0,), (4,), (4,))
    path = CandidateKernels(source, (launch,), ()).write(folder)
    np.savez(folder / "case.npz", r0=np.zeros(4, np.float32))
    return Built("task", {}, path.stem, path, (Argument((4,), "float32", ""),), None), Case(
        folder / "case.npz"
    )


@pytest.mark.adb
@pytest.mark.opencl
def test_phones_share_candidates_and_one_loses_its_agent(
    farm: Farm, phones: Address, attach, tmp_path: Path
):
    eventually(lambda: not servers_of(farm, "phones"))
    daemons = [attach(), attach()]
    eventually(lambda: free_of(farm, "phones") == 2)
    events: list[Event] = []
    runner = FarmRunner(farm.address, "phones", "opencl", QUICK, listener=events.append)
    try:
        slow = candidate(tmp_path, "y[i] = 1; for (int k = 0; k < 30000000; ++k) y[i] *= 0.5f;")
        futures = [runner.submit(*slow) for _ in range(8)]
        eventually(lambda: all(each.trials for each in runner.standings()))
        for process in daemons[0].running():
            os.killpg(process, signal.SIGKILL)
        assert [future.result(PATIENCE_S).error for future in futures] == [None] * len(futures)
        assert {event.details.get("error") for event in events} == {None, CRASH}
        crash = candidate(tmp_path, "y[i] = *(__global volatile float*)(8 + 0 * i);")
        assert runner.submit(*crash).result(PATIENCE_S).error == CRASH
        wrong, refused = (candidate(tmp_path, body) for body in ("y[i] = 1;", "y[i] = b;"))
        assert runner.submit(*wrong).result(PATIENCE_S).error == WRONG
        assert runner.submit(*refused).result(PATIENCE_S).error == DEVICE
        assert len(runner.devices()) == 2
        assert all(device.driver for device in runner.devices())
    finally:
        runner.close()
    eventually(lambda: free_of(farm, "phones") == 2)


@pytest.mark.slow
@pytest.mark.opencl
def test_the_command_tunes_for_what_a_driver_reports(
    farm: Farm, board: Address, tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    network, journal = tmp_path / "net.onnx", tmp_path / "net.journal"
    graph = Graph(1, 16, 12, 12)
    onnx.save(graph.model(graph.conv("x", 16, 1)), network)
    command = ["tune", network, "--journal", journal, "--trials", 1, "--workers", 1]
    command += ["--tracker", *farm_options(farm), "--key", "board"]
    done = CliRunner().invoke(app, list(map(str, command)))
    assert done.exit_code == 0, done.output
    with Journal.open(journal) as found:
        trials = list(found.trials())
    assert all(trial.costs for trial in trials)
    assert {trial.device.rpc_key for trial in trials} == {"board"}
    assert any("celsius_before" in dict(trial.provenance) for trial in trials)
    done = CliRunner().invoke(app, list(map(str, [*command, "--target", "llvm"])))
    assert done.exit_code == 2
    assert "agents measure OpenCL kernels" in done.output


def test_a_key_has_servers_of_one_kind():
    about = {"kind": "agent"}
    agent, other = (Server(Address(LOCAL, n), "k", a) for n, a in ((1, about), (2, {})))
    assert are_agents([agent, agent])
    assert not are_agents([other])
    with pytest.raises(FarmError, match="servers of two kinds"):
        are_agents([agent, other])


def test_sessions_with_tvm_are_refused(farm: Farm, board: Address):
    with pytest.raises(FarmError, match="they have agents") as error:
        borrow(farm.address, "board")
    assert f"`on=farm:{farm.address}/board`" in error.value.remedy


# -- who may use them ------------------------------------------------------------------------------


def test_only_clients_with_the_secret_get_an_agent(farm: Farm, board: Address, tmp_path: Path):
    wrong = write_secret(tmp_path / "wrong", "b")
    place = f"farm:{farm.address}/board"
    with pytest.raises(AgentError, match="refused the secret"):
        tvmflow.connect(place, secret_file=wrong.file)
    with pytest.raises(AgentError, match="asks for a secret"):
        tvmflow.connect(place)
    with pytest.raises(AgentError, match=r"The server at .* refused the secret"):
        LentAgent(Offer(Address(LOCAL, board.port, wrong), "board:0")).start()
    eventually(lambda: "(it gave a wrong secret) was refused" in farm.log(board))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--on", "farm:a:1/k"), "a farm lends it already"),
        (("--on", "usb"), "The place 'usb' is not known"),
        (("--on", "local", "--opencl-device", "0:0"), "--opencl-device does not go with --on"),
        (("--max-temp", "45"), "--max-temp goes with --on"),
    ],
)
def test_options_that_do_not_fit_are_refused(farm: Farm, options, message: str):
    command = ["farm", "serve", "--key", "k", "--tracker", *map(str, farm_options(farm)), *options]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
