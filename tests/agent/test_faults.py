"""Faults of cables, agents, drivers, memory, clocks and links, as a user of Python sees them."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import raw_agent as raw
from support.commands import run
from support.farms import eventually
from support.onnx_models import model_of
from support.relay import Relay
from support.small_plans import add_plan

import tvmflow
from tvmflow.agent.device import RemoteDevice, RemoteLaunch
from tvmflow.agent.executable import agent_executable
from tvmflow.agent.frames import Code
from tvmflow.agent.transports import Tcp
from tvmflow.devices.host import Host
from tvmflow.errors import AgentError
from tvmflow.module.standalone.link import link_library
from tvmflow.runtime.secret import Address

MB = 1 << 20
#: More than the buffers of a connection hold.
BLOB = bytes(24 * MB)
COUNT = 64
OUTPUT = [("float32", (COUNT,))]
X = np.random.default_rng(2).normal(size=COUNT).astype(np.float32)
SOURCE = "__kernel void copy(__global const float* x, __global float* y) { y[0] = x[0]; }"


class There:
    """An agent that listens, a relay to it, and a device that is reached through the relay."""

    def __init__(self, listener: raw.Listener):
        self.listener, self.relay = listener, Relay(listener.address[1])
        self.device = RemoteDevice(Tcp(Address("127.0.0.1", self.relay.port)))

    @property
    def process(self) -> int:
        """Return the process of the connection."""
        (found,) = raw.children(self.listener.process.pid)
        return found

    @property
    def session(self) -> int:
        """Return the process of the session."""
        (found,) = raw.children(self.process)
        return found

    def stop(self) -> None:
        """End everything."""
        self.device.close()
        self.relay.close()
        self.listener.stop()


@pytest.fixture
def start(tmp_path):
    """Return a function that starts an agent with a fake driver, and connects to it."""
    started, numbers = [], count()

    def start(fault="", **environment):
        environment |= {"TVMFLOW_OPENCL_LIBRARY": raw.build_driver(), "TVMFLOW_TEST_FAULT": fault}
        program, folder = agent_executable(Host.native()), tmp_path / f"agent{next(numbers)}"
        started.append(There(raw.Listener(program, folder, **environment)))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    """Return a library of ``y = 2 * x + w``, and ``w``."""
    return link(tmp_path_factory.mktemp("added"))


def link(folder: Path, size: int = COUNT) -> tuple[Path, np.ndarray]:
    plan, w = add_plan(size)
    weights, library = folder / "weights", folder / "libadd.so"
    weights.write_bytes(plan.weights())
    link_library(plan.encode(), weights, Host.native(), library, embed=True)
    return library, w


def launch(device: RemoteDevice) -> list[list[RemoteLaunch]]:
    program, x, y = device.build(SOURCE), device.allocate(64), device.allocate(64)
    return [[RemoteLaunch(program.handle, "copy", (x, y), (16,))]]


# -- facts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "reason"), [("crash", "signal 7"), ("exit", "status 3")])
def test_a_driver_that_ends_while_devices_are_listed_leaves_the_processor(
    start, added, fault, reason
):
    device = start(fault=f"{fault} clGetDeviceIDs").device
    assert device.opencl_devices() == []
    assert device.facts["cpus"]
    with pytest.raises(AgentError, match="has no OpenCL device 0") as refused:
        device.open(added[0])
    assert reason in refused.value.details
    assert device.sensors()["time_ns"] > 0


# -- cables and agents -----------------------------------------------------------------------------

#: Requests by name: a fault that makes each last, a preparation, and the request.
LASTING = {
    "put": ("", lambda *_: None, lambda there, _: there.device.connection.put(BLOB)),
    "open": (
        "hang clBuildProgram",
        lambda *_: None,
        lambda there, library: there.device.open(library),
    ),
    "run": (
        "hang clEnqueueNDRangeKernel",
        lambda there, library: there.device.open(library),
        lambda _, opened: opened.run([X], OUTPUT),
    ),
    "time": (
        "",
        lambda there, library: there.device.open(library),
        lambda _, opened: opened.time(seconds=600),
    ),
    "launch": (
        "hang clFinish",
        lambda there, _: launch(there.device),
        lambda there, sequences: there.device.launch(sequences),
    ),
}


@pytest.mark.parametrize("request_name", LASTING)
@pytest.mark.parametrize("what", ["cable", "agent", "session"])
def test_what_breaks_during_a_request(start, added, what, request_name):
    fault, prepare, ask = LASTING[request_name]
    library, _ = added
    there = start(fault)
    made = prepare(there, library) or library
    assert there.device.facts
    process, session = there.process, there.session
    connection = there.device.connection
    before = connection.sent_bytes
    if request_name == "put":
        there.relay.bytes_per_s = 2e6
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, there, made)
        if request_name == "put":
            eventually(lambda: there.relay.sent > before + MB // 4)
        else:
            eventually(lambda: there.relay.sent == connection.sent_bytes > before)
            # Until it is in the driver.
            time.sleep(0.1)
        assert not asked.done()
        there.relay.bytes_per_s = None
        if what == "cable":
            there.relay.cut()
        else:
            os.kill(process if what == "agent" else session, signal.SIGKILL)
        if (what, request_name) == ("session", "put"):
            # Blobs do not need it.
            asked.result(30)
        else:
            with pytest.raises(AgentError) as error:
                asked.result(30)
    raw.wait_for_end(session)
    if what == "session":
        if request_name != "put":
            assert error.value.code == Code.LOST
            assert f"'{request_name}' on tcp:127.0.0.1" in error.value.message
            assert "signal 9 (SIGKILL)" in error.value.message
        assert there.device.allocate(64)
        return
    assert "broke" in error.value.message
    assert error.value.remedy.startswith("Check the cable or the network")
    raw.wait_for_end(process)
    there.device.reopen()
    if request_name == "put":
        # Only whole blobs are kept.
        before = there.relay.sent
        ask(there, made)
        assert there.relay.sent - before > len(BLOB)
    assert there.device.allocate(64)


# -- drivers ---------------------------------------------------------------------------------------

#: Requests by name: the function of OpenCL in which they fail, and the request.
FAILING = {
    "open": ("clBuildProgram", lambda device, library: device.open(library)),
    "run": (
        "clEnqueueNDRangeKernel",
        lambda device, library: device.open(library).run([X], OUTPUT),
    ),
    "time": (
        "clEnqueueNDRangeKernel",
        lambda device, library: device.open(library).time(runs=3, seconds=0.1),
    ),
}


@pytest.mark.parametrize("request_name", FAILING)
@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        ("hang", Code.TIMEOUT, "longer than its limit"),
        ("crash", Code.LOST, "signal 7 (SIGBUS)"),
        ("exit", Code.LOST, "status 3"),
    ],
)
def test_drivers_that_fail_in_libraries(
    start, added, monkeypatch, fault, code, reason, request_name
):
    function, ask = FAILING[request_name]
    library, _ = added
    device = start(f"{fault} {function}").device
    assert device.facts
    if fault == "hang":
        for name in ("device", "library"):
            monkeypatch.setattr(f"tvmflow.agent.{name}.OPEN_S", 0.5)
    with pytest.raises(AgentError) as error:
        ask(device, library)
    assert error.value.code == code
    assert f"The request '{request_name}' on tcp:127.0.0.1" in error.value.message
    assert reason in error.value.message
    assert "update the driver" in error.value.remedy
    # Nothing is sent again.
    before = device.connection.sent_bytes
    with pytest.raises(AgentError):
        ask(device, library)
    assert device.connection.sent_bytes - before < 2000
    assert device.allocate(64)


def test_a_driver_that_returns_wrong_results(start, added, tmp_path):
    """Its launches do nothing."""
    library, w = added
    twice = model_of(
        "t = Mul(x, k) y = Add(t, w)", {"x": (COUNT,)}, constants={"k": np.float32(2), "w": w}
    )
    onnx.save(twice, tmp_path / "net.onnx")
    assert tvmflow.verify(tmp_path / "net.onnx", library, device=start().device).passed
    device = start(FAKE_OPENCL_STUB=1).device
    report = tvmflow.verify(tmp_path / "net.onnx", library, device=device)
    assert not report.passed
    with pytest.raises(tvmflow.TvmflowError, match="'y'"):
        report.raise_if_failed()


def test_the_memory_of_a_device_runs_out(start, added):
    library, _ = added
    # A library takes 768 bytes.
    device = start(FAKE_OPENCL_MEMORY_BYTES=1000).device
    opened = device.open(library)
    with pytest.raises(AgentError, match=r"libadd\.so on Fake GPU failed: .*memory") as error:
        device.open(library)
    assert error.value.code == Code.LIBRARY
    memory = device.allocate(128)
    with pytest.raises(AgentError, match="CL_MEM_OBJECT_ALLOCATION_FAILURE") as error:
        device.allocate(128)
    assert error.value.code == Code.DEVICE
    device.free([memory])
    assert device.allocate(128)
    # The first one goes on.
    (y,), _ = opened.run([X], OUTPUT)
    opened.close()
    device.reset()
    (again,), _ = device.open(library).run([X], OUTPUT)
    np.testing.assert_array_equal(y, again)


# -- clocks ----------------------------------------------------------------------------------------

JUMPS = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void) {
  static long calls;
  return ++calls % 2 ? 100000000 : -100000000;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int code = (int)syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += jump();
  return code;
}

int gettimeofday(struct timeval* now, void* zone) {
  (void)zone;
  struct timespec fine;
  clock_gettime(CLOCK_REALTIME, &fine);
  *now = (struct timeval){fine.tv_sec, fine.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
"""


def test_clocks_that_jump_change_nothing(start, added, tmp_path, monkeypatch):
    (tmp_path / "jumps.c").write_text(JUMPS)
    run("cc", "-shared", "-fPIC", "-o", tmp_path / "jumps.so", tmp_path / "jumps.c")
    real, calls = time.time, count()
    monkeypatch.setattr(time, "time", lambda: real() + (1e8 if next(calls) % 2 else -1e8))
    preload = {"LD_PRELOAD": tmp_path / "jumps.so"}
    device = start(**preload).device
    before = device.sensors()["time_ns"]
    times = device.open(added[0]).time(runs=100)
    elapsed_ms = (device.sensors()["time_ns"] - before) * 1e-6
    assert 0 < sum(times.ms) < elapsed_ms < 100_000
    # A request's time limit is kept.
    device = start("hang clFinish", **preload).device
    sequences = launch(device)
    with pytest.raises(AgentError, match="longer than its limit") as error:
        device.launch(sequences, limit_s=0.3)
    assert error.value.code == Code.TIMEOUT


# -- links -----------------------------------------------------------------------------------------


def test_a_slow_link_makes_nothing_wrong(start, tmp_path):
    size = 4000
    library, w = link(tmp_path, size)
    x = np.random.default_rng(3).normal(size=size).astype(np.float32)
    there = start()
    assert there.device.facts
    there.relay.bytes_per_s = 50e3
    opened = there.device.open(library)
    (y,), _ = opened.run([x], [("float32", (size,))])
    np.testing.assert_allclose(y, 2 * x + w, rtol=1e-6)
    # The runs that are timed use the link for one request and its answers only.
    sent, received = there.relay.sent, there.relay.received
    timed = opened.time(runs=1000)
    assert (len(timed.ms), timed.reason) == (1000, "runs")
    assert there.relay.sent - sent < 500
    assert there.relay.received - received < 1000 * 8 + 500
