"""Servers and the tracker: what they tell, that they go on after a crash, that they end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, replace

import psutil
import pytest
from support.commands import run
from support.farms import PATIENCE_S, STOCK, Farm, eventually

from tvmflow import __version__
from tvmflow.devices.host import Host
from tvmflow.errors import FarmError
from tvmflow.farm.server import is_throttled, model_of_machine, temperature_c
from tvmflow.farm.server_info import ABOUT_FUNCTION, ServerInfo, check_host
from tvmflow.runtime.secret import Address
from tvmflow.runtime.tracker import Queue, Server, Tracker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(farm: Farm) -> Address:
    address = farm.serve("board")
    eventually(lambda: farm.server(address).about)
    return address


def test_a_server_tells_its_versions_and_devices(farm: Farm, served: Address):
    told = ServerInfo.read(farm.server(served).about)
    assert told == ServerInfo.here()
    assert told.tvmflow == __version__
    address, session = farm.session("board")
    assert address == served
    assert ServerInfo.read(json.loads(session.get_function(ABOUT_FUNCTION)())) == told


def test_a_session_makes_its_server_busy(farm: Farm, served: Address):
    eventually(lambda: farm.server(served).about["busy_s"] is None)
    with Tracker(farm.address) as tracker:
        eventually(lambda: tracker.summary().queues["board"] == Queue(free=1, waiting=0))
        _, session = farm.session("board")
        assert tracker.summary().queues["board"] == Queue(free=0, waiting=0)
        eventually(lambda: farm.server(served).about["busy_s"] is not None)
        del session
        eventually(lambda: tracker.summary().queues["board"] == Queue(free=1, waiting=0))


def test_a_request_that_nobody_serves_waits_no_longer_than_told(farm: Farm):
    with Tracker(farm.address) as tracker:
        tracker.request("nothing")
        assert tracker.offer(0.2) is None


def test_a_server_whose_session_crashed_serves_again(farm: Farm, served: Address):
    eventually(lambda: farm.server(served).about["busy_s"] is None)
    crashes = farm.server(served).about["crashes"]
    before = set(farm.processes_of(served))
    _, session = farm.session("board")
    (child,) = eventually(lambda: set(farm.processes_of(served)) - before)
    os.kill(child, signal.SIGSEGV)
    eventually(
        lambda: (server := farm.server(served)) and server.about.get("crashes") == crashes + 1
    )
    eventually(lambda: farm.server(served).about["busy_s"] is None)
    address, session = farm.session("board")
    assert address == served
    assert session.get_function(ABOUT_FUNCTION)()


def test_a_log_names_sessions_with_the_time(farm: Farm):
    served = farm.serve("logged")
    assert f"connected to the tracker at {farm.address}" in " ".join(farm.log(served).split())
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S* "
    pattern = stamp + r"Session (127\.0\.0\.1:\d+) connected\.\n"
    _, session = farm.session("logged")
    (name,) = eventually(lambda: re.findall(pattern, farm.log(served)))
    del session
    ended = stamp + rf"Session {name} ended after \d+\.\d s\."
    eventually(lambda: re.search(ended, farm.log(served)))


def test_ctrl_c_ends_a_server_and_leaves_nothing_behind(farm: Farm):
    address = farm.serve("other")
    processes = [psutil.Process(pid) for pid in farm.processes_of(address)]
    assert len(processes) > 1
    assert farm.stop(address) == 130
    assert psutil.wait_procs(processes, timeout=PATIENCE_S)[1] == []
    assert eventually(lambda: farm.server(address) is None)
    assert "Traceback" not in farm.log(address)


def test_a_server_whose_parent_is_killed_ends(farm: Farm):
    address = farm.serve("other")
    first, *others = (psutil.Process(pid) for pid in farm.processes_of(address))
    first.kill()
    assert psutil.wait_procs(others, timeout=PATIENCE_S)[1] == []


def test_an_opencl_device_that_is_not_there_is_refused(farm: Farm):
    options = ["--tracker", str(farm.address), "--key", "k", "--opencl-device", "no:such"]
    command = (sys.executable, "-m", "tvmflow", "farm", "serve", *options)
    done = run(*command, status=2, timeout=PATIENCE_S)
    assert "The OpenCL device 'no:such' cannot be served" in done.stderr
    assert "tvmflow devices" in done.stderr


def server_on(host: str | None) -> Server:
    about = {} if host is None else asdict(replace(ServerInfo.here(), host=host))
    return Server(Address("board", 9090), "board", about)


def test_candidates_for_another_processor_are_refused():
    laptop = Host.parse("x86_64-linux-gnu")
    arm, same, stock = map(server_on, ("aarch64-linux-gnu", "x86_64-linux-musl", None))
    with pytest.raises(FarmError, match=r"compiled for the host x86_64.* run on aarch64") as caught:
        check_host([arm], laptop)
    assert "`host=aarch64-linux-gnu`" in caught.value.remedy
    check_host([arm, same], laptop)
    check_host([arm, stock], laptop)
    check_host([arm], Host.parse("aarch64-linux-gnu"))


def test_a_server_of_tvm_alone_is_listed(farm: Farm):
    address = farm.serve("stock", "-m", STOCK)
    assert farm.server(address).about == {}


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x"])
def test_an_address_of_another_form_is_refused(text: str):
    with pytest.raises(FarmError, match="HOST:PORT"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["pi:9190", "10.0.0.1:1", "[::1]:9190"])
def test_an_address_is_printed_as_it_is_read(text: str):
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"ab"])
def test_something_else_than_a_tracker_is_refused(answer: bytes):
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(FarmError, match="cannot be reached"):
            Tracker(Address(*listening.getsockname()))


def test_what_is_not_of_the_form_is_no_description():
    assert ServerInfo.read({"tvmflow": "1", "devices": [{"name": "x"}]}) is None


@pytest.fixture
def thermal(tmp_path) -> Callable[[str, str], None]:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    return write


def test_the_hottest_sensor_counts(tmp_path, thermal):
    assert temperature_c(tmp_path) is None
    for index, text in enumerate(["41500\n", "73250\n", "-273000\n", "", "999000\n"]):
        thermal(f"thermal_zone{index}/temp", text)
    assert temperature_c(tmp_path) == 73.25


def test_the_first_file_with_a_name_is_the_model(tmp_path):
    board, product = tmp_path / "board", tmp_path / "product"
    assert model_of_machine((board, product)) == ""
    product.write_text("Laptop 14\n")
    assert model_of_machine((board, product)) == "Laptop 14"
    board.write_bytes(b"Board 5B\0")
    assert model_of_machine((board, product)) == "Board 5B"


def test_a_fan_does_not_throttle(tmp_path, thermal):
    assert is_throttled(tmp_path) is None
    thermal("cooling_device0/type", "pwm-fan\n")
    thermal("cooling_device0/cur_state", "3\n")
    assert is_throttled(tmp_path) is None
    thermal("cooling_device1/type", "thermal-devfreq-0\n")
    thermal("cooling_device1/cur_state", "0\n")
    assert is_throttled(tmp_path) is False
    thermal("cooling_device1/cur_state", "2\n")
    assert is_throttled(tmp_path) is True
