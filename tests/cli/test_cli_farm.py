"""``tvmflow farm``: what it refuses, and what it prints."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.farms import closed_port

from tvmflow._versions import install_command
from tvmflow.runtime import tracker
from tvmflow.runtime.secret import Address
from tvmflow.runtime.tracker import Queue, Server, Summary


@pytest.mark.parametrize("command", [("status",), ("serve", "--key", "board", "--wait", "0")])
def test_an_unreachable_tracker_is_one_sentence(cli, monkeypatch, command):
    # A server sets it for its own process, which here is that of the tests.
    monkeypatch.setenv("TVMFLOW_CACHE", "0")
    with closed_port() as port:
        result = cli("farm", *command, "--tracker", f"127.0.0.1:{port}")
    result.refused(f"The tracker at 127.0.0.1:{port} cannot be reached", "tvmflow farm tracker")


@pytest.mark.parametrize("key", ["", "two words", "a:b", "x" * 65, "red\x1b[31m"])
def test_a_key_that_the_protocol_cannot_carry_is_refused(cli, key):
    result = cli("farm", "serve", "--key", key, "--tracker", "127.0.0.1:9190")
    result.refused("without spaces and colons, was expected", "pixel8")


def test_a_tracker_needs_a_free_port(cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = cli("farm", "tracker", "--port", str(port))
    result.refused(f"Listening at 127.0.0.1:{port} failed", "--port")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "farm.secret"
    file.write_text("0123456789abcdef")
    file.chmod(0o600)
    return file


def test_a_tracker_needs_an_address_of_this_machine(cli, secret):
    # 192.0.2.0/24 is kept for examples: no machine has it.
    result = cli("farm", "tracker", "--bind", "192.0.2.1", "--secret-file", secret)
    result.refused("Listening at 192.0.2.1:9190", "--bind")


@pytest.mark.parametrize("bind", ["0.0.0.0", "192.0.2.1", "::"])
@pytest.mark.parametrize(
    "command", [("tracker",), ("serve", "--key", "board", "--tracker", "127.0.0.1:9190")]
)
def test_strangers_are_not_listened_for_without_a_secret(cli, command, bind):
    result = cli("farm", *command, "--bind", bind)
    result.refused(f"Listening at {bind} was refused", "any program", "--secret-file", "tunnel")


def test_a_secret_that_others_can_read_is_refused(cli, secret):
    secret.chmod(0o644)
    result = cli("farm", "tracker", "--secret-file", secret)
    result.refused("other users of this machine have access (mode 644)", f"chmod 600 {secret}")


@pytest.mark.parametrize("command", ["status", "tune", "bench"])
def test_every_client_takes_the_secret(cli, secret, compiled, model, command):
    """Shown by one that is refused, before anybody is asked."""
    secret.chmod(0o644)
    arguments = {
        "status": ("farm", "status"),
        "tune": ("tune", model, "--device", "mali", "--journal", "a.journal", "--key", "board"),
        "bench": ("bench", compiled, "--scaling", "--key", "board"),
    }
    options = ("--tracker", "192.0.2.1:9190", "--secret-file", secret)
    cli(*arguments[command], *options).refused("other users of this machine have access")


def test_a_server_that_its_tracker_cannot_hand_out_is_refused(cli, secret):
    options = ["--key", "board", "--tracker", "192.0.2.1:9190", "--secret-file", secret]
    result = cli("farm", "serve", *options)
    result.refused("would listen at 127.0.0.1, which no other machine reaches", "--bind")
    # Behind a tunnel it is right; nobody answers at this address.
    result = cli("farm", "serve", *options, "--advertise", "127.0.0.1", "--wait", "0")
    assert "no other machine reaches" not in result.stderr


def test_what_is_not_installed_is_named(cli, monkeypatch):
    monkeypatch.setattr(tracker, "find_spec", lambda name: None if name == "tornado" else 1)
    result = cli("farm", "status", "--tracker", "127.0.0.1:9190")
    result.refused("needs the Python package tornado", install_command("tuning"))


class Answers:
    """Stands for a connection to a tracker with two busy servers, one of TVM alone."""

    def __init__(self, address: Address):
        self.address = address

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def summary(self) -> Summary:
        about: dict[str, Any] = {
            "tvmflow": "0.1.0",
            "devices": [{"name": "Mali-[G610]"}],
            "busy_s": 12.4,
            "crashes": 3,
            "temperature_c": 81.0,
            "throttled": True,
        }
        servers = (
            Server(Address("10.0.0.5", 9090), "rk3588", about),
            Server(Address("10.0.0.6", 9091), "phone", {}),
        )
        queues = {"rk3588": Queue(0, 2), "gone": Queue(0, 1)}
        malformed = ('{"key": "server:x", "addr": 5}',)
        return Summary(servers, queues, {"10.0.0.6:9091": "conv2d"}, malformed)


def test_the_status_shows_servers_and_queues(cli, monkeypatch):
    monkeypatch.setattr(tracker, "Tracker", Answers)
    shown = cli("farm", "status", "--tracker", "10.0.0.1:9190").stdout
    rows = [line.split() for line in shown.splitlines()]
    busy = "10.0.0.5:9090 rk3588 busy for 12 s 3 81 °C, throttled 0.1.0 Mali-[G610]"
    assert busy.split() in rows
    assert ["10.0.0.6:9091", "phone", "conv2d", "not", "of", "tvmflow"] in rows
    assert ["malformed", '{"key":', '"server:x",', '"addr":', "5}"] in rows
    assert ["rk3588", "1", "0", "2"] in rows
    assert ["gone", "0", "0", "1"] in rows


def test_the_status_as_json(cli, monkeypatch):
    monkeypatch.setattr(tracker, "Tracker", Answers)
    told = json.loads(cli("farm", "status", "--json", "--tracker", "10.0.0.1:9190").stdout)
    assert told["servers"][0]["address"] == "10.0.0.5:9090"
    assert told["servers"][0]["temperature_c"] == 81.0
    assert told["servers"][1] == {"address": "10.0.0.6:9091", "key": "phone", "measures": "conv2d"}
    assert told["malformed"] == ['{"key": "server:x", "addr": 5}']
    assert told["keys"]["rk3588"] == {"servers": 1, "free": 0, "waiting": 2}


@pytest.mark.parametrize("name", ["tvmflow-farm.service", "Containerfile"])
def test_examples_of_services_start_what_there_is(cli, name):
    text = (Path(__file__).parents[2] / "examples/farm" / name).read_text()
    command = text.partition("ExecStart=" if ".service" in name else "tvmflow-farm \\")[2]
    options = re.findall(r"--[a-z-]+", command.replace("FROM", "\n\n").partition("\n\n")[0])
    assert {"--tracker", "--key", "--bind"} <= set(options)
    known = cli("farm", "serve", "--help").stdout
    assert all(option in known for option in options)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_example_of_a_unit_is_understood(tmp_path):
    unit = tmp_path / "tvmflow-farm.service"
    text = (Path(__file__).parents[2] / "examples/farm" / unit.name).read_text()
    # The program and the user are not on this machine.
    unit.write_text(text.replace("/opt/tvmflow/bin/tvmflow", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []
