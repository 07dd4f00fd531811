"""Libraries and kernels on an agent of this machine."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import tvmflow
from tvmflow.agent.device import RemoteLaunch
from tvmflow.agent.frames import Code, Fields, Kind
from tvmflow.agent.library import NEW_CACHE
from tvmflow.compiler.remote import options_for
from tvmflow.errors import AgentError, InputError, TargetError
from tvmflow.module.standalone import binding

OUTPUT = [("float32", (1, 7, 17, 19))]
SOURCE = "__kernel void add(__global float* a, float b) { a[get_global_id(0)] += b; }"
HANG = "__kernel void hang(__global int* a) { while (a[0] == 1) a[1] += 1; }"


@pytest.mark.opencl
@pytest.mark.parametrize("backend", ["opencl", "cpu"])
def test_results_are_those_of_the_library_here(local, library, image, backend):
    expected = tvmflow.load(library, backend=backend)(x=image)["y"]
    opened = local.open(library, backend=backend)
    assert opened.about["backend"] == backend
    (got,), ms = opened.run([image], OUTPUT)
    np.testing.assert_array_equal(got, expected)
    assert ms > 0
    assert opened.self_test().tolerance_used < 1
    opened.close()
    with pytest.raises(AgentError, match="names no object") as closed:
        opened.describe()
    assert closed.value.code == Code.MISSING


@pytest.mark.opencl
def test_a_library_is_tuned_there(local, library, network, image, tmp_path):
    with tvmflow.compile(network, target="opencl", format="standalone", choices=2) as module:
        with_choices = module.save(tmp_path / "libchoices.so")
    shares: list[float] = []
    with local.load(with_choices) as module:
        tuned = module.tune(600_000, shares.append)
        assert tuned.is_complete
        assert shares == sorted(shares)
        assert shares[-1] == 1
        expected = tvmflow.load(library)(x=image)["y"]
        np.testing.assert_allclose(module(x=image)["y"], expected, rtol=1e-4, atol=1e-4)
        with pytest.raises(InputError, match="budget_ms=0"):
            module.tune(0)
    # The agent's cache keeps the result.
    with local.load(with_choices) as module:
        again = module.tune(1)
        assert again.report["times"] == []
        assert (again.used, again.is_complete) == (tuned.used, True)
    with local.load(library) as module, pytest.raises(AgentError, match="has no choices"):
        module.tune()


@pytest.mark.opencl
def test_a_second_opening_sends_only_requests(local, library):
    local.open(library)
    before = local.connection.sent_bytes
    local.open(library)
    assert local.connection.sent_bytes - before < 0.01 * library.stat().st_size


@pytest.mark.opencl
def test_times_end_for_each_reason(local, library, image):
    opened = local.open(library, backend="cpu")
    opened.run([image], OUTPUT)
    assert len(opened.time(runs=7).ms) == 7
    assert opened.time(runs=7).reason == "runs"
    assert opened.time(seconds=0.05).reason == "time"
    sure = opened.time(share=0.5, seconds=20)
    assert sure.reason == "sure"
    assert len(sure.ms) >= 6
    assert all(ms > 0 for ms in sure.ms)


@pytest.mark.opencl
def test_modules_are_measured_on_the_device(local, library, image):
    with local.load(library) as module:
        expected = tvmflow.load(library)(x=image)["y"]
        np.testing.assert_array_equal(module(x=image)["y"], expected)
        timing = tvmflow.bench(module, {"x": image}, runs=30)
        assert timing.runs == 30
        assert timing.setting.format == "standalone"
        assert module.conditions.before["time_ns"] < module.conditions.after["time_ns"]
        kernels = module.profile({"x": image}, runs=3)
        assert [k.kernel for k in kernels] == [
            k.kernel for k in tvmflow.load(library).profile({"x": image}, runs=1)
        ]
        assert all(k.median_us > 0 for k in kernels)
        with pytest.raises(InputError, match="stay on the device"):
            module.run({"x": image}, output="dlpack")


@pytest.mark.opencl
def test_binaries_are_those_of_a_first_start(local, library, image):
    opened = local.open(library, backend="opencl", cache=NEW_CACHE)
    opened.run([image], OUTPUT)
    files = opened.binaries()
    assert files
    assert all(name.endswith(".program") and content for name, content in files.items())
    with pytest.raises(AgentError, match="names no object"):
        opened.describe()
    with pytest.raises(AgentError, match="without a new cache"):
        local.open(library).binaries()


@pytest.mark.opencl
def test_profiles_need_their_flag(local, library):
    opened = local.open(library)
    with pytest.raises(AgentError, match="without the flag for profiles"):
        opened.profile(1)
    assert local.open(library, flags=binding.PROFILE).profile(2)


def test_what_is_no_library_here_is_refused(local, tmp_path, network):
    text = tmp_path / "text.so"
    text.write_text("no library")
    with pytest.raises(AgentError, match="needs TVM there"):
        local.load(text)
    with pytest.raises(TargetError, match="target cuda is not possible"):
        options_for(local, target="cuda")


@pytest.mark.opencl
def test_options_follow_the_facts(local):
    options = options_for(local)
    assert (options.target, options.format, options.fallback) == ("opencl", "standalone", "cpu")
    device = options.resolve().device
    info = local.require_opencl()
    assert device.max_group_size == info.max_work_group_size
    assert options.dtype == "fp32"  # a CPU


@pytest.mark.opencl
def test_kernels_run_in_buffers_and_images(local):
    program = local.build(SOURCE)
    memory = local.allocate(4096)
    local.fill(memory, np.float32(1).tobytes())
    launch = RemoteLaunch(program.handle, "add", (memory, np.float32(2).tobytes()), (1024,), (64,))
    assert local.launch([[launch]]) == []
    np.testing.assert_array_equal(np.frombuffer(local.read(memory, 4096), "f4"), np.full(1024, 3.0))
    times = local.launch([[launch], [launch, launch]], repeats=2, rounds=3)
    assert [len(each) for each in times] == [2, 2, 2]
    # 3 rounds × 2 runs × 3 launches, after the first one.
    np.testing.assert_array_equal(np.frombuffer(local.read(memory, 4), "f4"), [3 + 2 * 18])
    size = (5, 3, 2)
    texels = np.arange(5 * 3 * 2 * 4, dtype="f4").tobytes()
    image = local.allocate(image=size, channel_type=0x10DE)
    local.write(image, texels, size)
    assert local.read(image, len(texels), size) == texels
    local.free([program.handle, memory, image])
    with pytest.raises(AgentError, match="names no"):
        local.read(memory, 4)


@pytest.mark.opencl
def test_recorded_launches_run_as_often_as_others(local):
    """Each with its own argument."""
    if "cl_khr_command_buffer" not in local.require_opencl().extensions:
        pytest.skip("the driver has no cl_khr_command_buffer")
    program, memory = local.build(SOURCE), local.allocate(4096)
    local.fill(memory, bytes(4))
    two, five = (
        RemoteLaunch(program.handle, "add", (memory, np.float32(value).tobytes()), (1024,), local_)
        for value, local_ in ((2, (64,)), (5, ()))
    )
    times = local.launch([[two], [two, five, two]], warmup=1, repeats=2, rounds=3, recorded=True)
    assert [len(each) for each in times] == [2, 2, 2]
    assert all(each.wall_s > 0 == each.kernels_s == each.span_s for row in times for each in row)
    assert local.launch([[], [five] * 4096], recorded=True) == []
    # 3 rounds × 2 runs after the first one, and the long sequence.
    expected = 7 * (2 + 9) + 5 * 4096
    np.testing.assert_array_equal(np.frombuffer(local.read(memory, 4096), "f4"), expected)


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("attempt", "code", "reason"),
    [
        (lambda d: d.build("__kernel void f(__global float* a) { a[0] = b; }"), Code.DEVICE, "b"),
        (lambda d: d.allocate(1 << 60), Code.ARGUMENT, "does not fit"),
        (lambda d: d.allocate(0), Code.ARGUMENT, "does not fit"),
        (lambda d: d.allocate(image=(1 << 19, 1, 1), channel_type=0x10DE), Code.ARGUMENT, "fit"),
        (lambda d: d.allocate(image=(4, 4, 1), channel_type=3), Code.ARGUMENT, "does not fit"),
        (lambda d: d.read(d.allocate(64), 65), Code.ARGUMENT, "no part of memory"),
        (lambda d: d.fill(d.allocate(64), b"abc"), Code.ARGUMENT, "1, 2, 4, 8 or 16"),
        (lambda d: d.launch([[_launch(d, global_size=(63,))]]), Code.ARGUMENT, "not possible"),
        (lambda d: d.launch([[_launch(d, kernel="none")]]), Code.DEVICE, "CL_INVALID_KERNEL_NAME"),
        (lambda d: d.launch([[_launch(d)]], repeats=70_000), Code.ARGUMENT, "outside the limits"),
        (lambda d: d.require_opencl(99), 0, "has no OpenCL device 99"),
        (lambda d: d.free([77]), Code.MISSING, "names no memory"),
    ],
)
def test_requests_outside_the_limits_are_refused(local, attempt, code, reason):
    with pytest.raises(AgentError) as refused:
        attempt(local)
    assert refused.value.code == code
    assert reason in str(refused.value)
    # The session goes on.
    assert local.sensors()["time_ns"] > 0


def _launch(device, kernel="add", global_size=(64,)):
    program, memory = device.build(SOURCE), device.allocate(256)
    return RemoteLaunch(program.handle, kernel, (memory, bytes(4)), global_size, (64,))


@pytest.mark.opencl
def test_a_hanging_kernel_costs_its_session_only(local):
    program, memory = local.build(HANG), local.allocate(64)
    local.fill(memory, np.int32(1).tobytes())
    launch = RemoteLaunch(program.handle, "hang", (memory,), (1,), (1,))
    began = time.monotonic()
    with pytest.raises(AgentError, match="longer than its limit") as error:
        local.launch([[launch]], limit_s=1.0)
    assert error.value.code == Code.TIMEOUT
    assert time.monotonic() - began < 10
    with pytest.raises(AgentError, match="names no object"):
        local.read(memory, 4)
    assert local.build(SOURCE).handle > memory


@pytest.mark.opencl
def test_a_crashing_session_is_reported_by_its_signal(local):
    local.build(SOURCE)
    (session,) = _children(local.connection.process_id)
    os.kill(session, signal.SIGSEGV)
    # Whether the agent has noticed already or not, the handle is gone.
    with pytest.raises(AgentError) as error:
        local.connection.request(Kind.CLOSE, Fields().u32(1))
    assert error.value.code in (Code.LOST, Code.MISSING)
    assert local.build(SOURCE).handle > 1


def test_nothing_is_left_of_an_agent(local):
    process = local.connection.process_id
    assert local.facts
    sessions = _children(process)
    assert sessions
    local.close()
    ends = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}") for pid in (process, *sessions)):
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_a_killed_agent_takes_its_session_along(local):
    process = local.connection.process_id
    assert local.facts
    sessions = _children(process)
    os.kill(process, signal.SIGKILL)
    with pytest.raises(AgentError, match="broke"):
        local.sensors()
    ends = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}") for pid in sessions):
        assert time.monotonic() < ends
        time.sleep(0.02)


def _children(process: int) -> list[int]:
    with open(f"/proc/{process}/task/{process}/children") as file:
        return [int(word) for word in file.read().split()]
