"""C interface apart from tensors: names, threads, events, priorities, memory."""

from __future__ import annotations

import ctypes
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support import runtime_build
from support import standalone_api as api
from support.commands import output
from support.fake_opencl import Fake, compile_c
from support.opencl_application import OpenCL
from support.small_plans import Plan, add_plan, cpu_plan, values
from support.threads import in_threads

from tvmflow.module.standalone.binding import LOG, MemoryInfo

HERE = Path(__file__).parent
X = values(64)
WEIGHT = add_plan()[1]
CANCELLED = 10


class RunOptions(ctypes.Structure):
    """`tvmflow_run_options`."""

    DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("wait_count", ctypes.c_uint32),
        ("wait_events", ctypes.POINTER(ctypes.c_void_p)),
        ("event", ctypes.POINTER(ctypes.c_void_p)),
        ("done", DONE),
        ("user", ctypes.c_void_p),
    )


class OpenClInfo(ctypes.Structure):
    """`tvmflow_opencl_info`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("context", ctypes.c_void_p),
        ("device", ctypes.c_void_p),
        ("queue", ctypes.c_void_p),
        ("library", ctypes.c_char_p),
    )


def run_async(model: api.Model, **options: object) -> None:
    """Call ``tvmflow_run_async``."""
    given = RunOptions(**{"struct_size": ctypes.sizeof(RunOptions), **options})
    model.call("run_async", ctypes.byref(given))


@pytest.fixture(scope="module")
def on_cpu(link) -> Path:
    """Return a CPU library: 50 kernels of 20 ms that count to 50, and then ``y = 2 * x + w``."""
    plan = Plan(" ")
    x, at, y, counted = (plan.buffer(256) for _ in range(4))
    plan.weight(at, WEIGHT)
    for _ in range(50):
        plan.launch("slow", [counted], (1,))
    plan.launch("add", [x, at, y], (1,))
    plan.input("x", (64,), x)
    plan.input("counted", (64,), counted)
    plan.output("y", (64,), y)
    plan.output("steps", (64,), plan.buffer(256))
    plan.launch("tvmflow_copy", [counted, 4], (1,))
    return link(None, cpu=plan, functions=("slow", "add"))


@pytest.fixture(scope="module")
def quick(link) -> Path:
    """Return a library for the CPU: ``y = 2 * x + w``."""
    return link(None, cpu=cpu_plan())


@pytest.fixture(scope="module")
def opencl(link) -> Path:
    """Return a library for OpenCL: ``y = 2 * x + w``."""
    return link(add_plan()[0])


# -- names and memory ------------------------------------------------------------------------


def test_inputs_and_outputs_by_name(on_cpu):
    found = ctypes.c_uint32(77)
    with api.Model(on_cpu) as model:
        for side, names in (("input", [b"x", b"counted"]), ("output", [b"y", b"steps"])):
            for index, name in enumerate(names):
                model.call(f"find_{side}", name, ctypes.byref(found))
                assert found.value == index
            message = f"Looking for {side} 'z': expected one of '{names[0].decode()}', '"
            with pytest.raises(api.CallError, match=message):
                model.call(f"find_{side}", b"z", ctypes.byref(found))
            with pytest.raises(api.CallError, match="expected one of"):
                model.call(f"find_{side}", None, None)


def test_memory_is_counted(quick, opencl, driver):
    for library, options, shared in (
        (quick, {}, 1), (opencl, {"opencl_library": driver}, 0),
    ):  # fmt: skip
        info = MemoryInfo(ctypes.sizeof(MemoryInfo))
        with api.Model(library, **options) as model:
            model.call("memory", ctypes.byref(info))
            with pytest.raises(api.CallError, match="struct_size is sizeof"):
                model.call("memory", ctypes.byref(MemoryInfo(8)))
        assert (info.weights, info.tensors, info.pictures) == (256, 512, 0)
        assert info.weights_shared == shared
        assert 8192 < info.host < 20_000


def test_the_application_is_told(quick, opencl, driver, tmp_path):
    lines: list[tuple[int, str]] = []
    log = LOG(lambda user, level, text: lines.append((user, level, text.decode())))
    (tmp_path / "file").touch()
    options = {"log": log, "log_user": 99, "cache_folder": tmp_path / "file"}
    with api.Model(opencl, opencl_library=driver, **options):
        pass
    assert all(user == 99 for user, _, _ in lines)
    told = [(level, text) for _, level, text in lines]
    assert told[0][0] == 0
    assert re.match(
        r"The network runs on 'Fake GPU' of 'Fake platform' \(.*, driver 1.0\)", told[0][1]
    )
    assert (0, "1 of 1 programs were built, 0 came with the library.") in told
    assert any(level == 1 and text.startswith("Programs are not kept: ") for level, text in told)


def test_statuses_have_names(quick):
    name = ctypes.CDLL(str(quick)).tvmflow_status_name
    name.restype = ctypes.c_char_p
    header = (runtime_build.BINDINGS / "tvmflow.h").read_text(encoding="utf-8")
    listed = re.findall(r"^  (TVMFLOW_(?:OK|ERROR_\w+)) = (\d+),", header, re.MULTILINE)
    assert len(listed) > 10
    assert [name(int(number)).decode() for _, number in listed] == [each for each, _ in listed]
    for unknown in (len(listed), -1, 2**31 - 1):
        assert name(unknown) == b"an unknown tvmflow_status"


# -- outputs without a copy ------------------------------------------------------------------


def output_data(model: api.Model, dtype: int = 0, size: int = 256) -> np.ndarray:
    found = ctypes.POINTER(ctypes.c_float)()
    model.call("output_data", 0, dtype, ctypes.byref(found), ctypes.c_size_t(size))
    return np.ctypeslib.as_array(found, (64,))


def test_an_output_is_read_where_it_is(quick):
    with api.Model(quick) as model:
        (copied,) = model(X)
        there = output_data(model)
        np.testing.assert_array_equal(there, copied)
        # The next run writes to the same place, and waits for the one before.
        model.set_input(0, 3 * X)
        model.call("start")
        again = output_data(model)
        np.testing.assert_allclose(again, 6 * X + WEIGHT, rtol=1e-6)
        assert again.ctypes.data == there.ctypes.data
        for dtype, size, text in ((1, 256, "expected float32"), (0, 255, "expected 256 bytes")):
            with pytest.raises(api.CallError, match=text) as caught:
                output_data(model, dtype, size)
            assert caught.value.status == api.ARGUMENT
        with pytest.raises(api.CallError, match="got NULL"):
            model.call("output_data", 0, 0, None, ctypes.c_size_t(256))


def test_an_output_in_the_application_s_memory_is_there(quick):
    room = np.zeros(64 + 16, np.float32)
    own = room[(-room.ctypes.data % 64) // 4 :][:64]
    with api.Model(quick) as model:
        model.call("use_output", 0, own.ctypes.data_as(ctypes.c_void_p))
        model(X)
        assert output_data(model).ctypes.data == own.ctypes.data


def test_an_output_on_a_device_is_copied(opencl, driver):
    with api.Model(opencl, opencl_library=driver) as model:
        model(X)
        with pytest.raises(api.CallError, match="runs on OpenCL") as caught:
            output_data(model)
    assert caught.value.status == api.UNSUPPORTED


# -- threads ---------------------------------------------------------------------------------


def test_eight_threads_on_one_model(quick):
    """A concurrent call is refused, and disturbs nothing."""
    statuses: set[int] = set()
    texts: set[str] = set()
    with api.Model(quick) as model:
        data = X.ctypes.data_as(ctypes.c_void_p)
        out = np.empty((8, 64), np.float32)

        def use(number: int) -> None:
            room = out[number].ctypes.data_as(ctypes.c_void_p)
            for _ in range(300):
                calls = [
                    lambda: model.library.tvmflow_set_input(
                        model.handle, 0, 0, data, ctypes.c_size_t(256)
                    ),
                    lambda: model.library.tvmflow_run(model.handle),
                    lambda: model.library.tvmflow_get_output(
                        model.handle, 0, 0, room, ctypes.c_size_t(256)
                    ),
                ]
                for call in calls:
                    status = call()
                    statuses.add(status)
                    if status == api.BUSY:
                        texts.add(model.library.tvmflow_message(model.handle).decode())

        in_threads(8, use)
        np.testing.assert_allclose(model(X), [2 * X + WEIGHT], rtol=1e-6)
    assert statuses <= {api.OK, api.BUSY}
    # Another thread may have entered since: the message is its own then.
    assert all(text == "" or "Another thread is in a call of this model" in text for text in texts)


def test_a_call_beside_a_run_is_refused(on_cpu):
    with api.Model(on_cpu) as model:
        thread = threading.Thread(target=lambda: model.library.tvmflow_run(model.handle))
        thread.start()
        time.sleep(0.2)
        with pytest.raises(api.CallError, match="Another thread is in a call") as caught:
            model.set_input(0, X)
        assert caught.value.status == api.BUSY
        model.library.tvmflow_cancel(model.handle)
        thread.join()


# -- runs that are started -------------------------------------------------------------------


@pytest.mark.parametrize("started", [False, True])
def test_a_run_is_cancelled(on_cpu, started):
    with api.Model(on_cpu) as model:
        # Without a run, cancelling does nothing.
        model.library.tvmflow_cancel(model.handle)
        model.set_input(0, X)
        model.set_input(1, np.zeros(64, np.float32))
        begin = time.monotonic()
        if started:
            model.call("start")
            time.sleep(0.1)
            model.library.tvmflow_cancel(model.handle)
        else:
            threading.Timer(0.1, lambda: model.library.tvmflow_cancel(model.handle)).start()
        with pytest.raises(api.CallError, match="cancelled: there is no result") as caught:
            model.call("wait" if started else "run")
        assert caught.value.status == CANCELLED
        assert time.monotonic() - begin < 0.9  # a whole run takes a second
        with pytest.raises(api.CallError, match="no whole result"):
            model.get_output(0)
        # The next run is complete.
        y, steps = model(X, np.zeros(64, np.float32))
        np.testing.assert_allclose(y, 2 * X + WEIGHT, rtol=1e-6)
        assert steps[0] == 50


def test_the_end_of_a_run_is_told(quick):
    told: list[tuple[int, int]] = []
    done = RunOptions.DONE(lambda user, status: told.append((user, status)))
    with api.Model(quick) as model:
        for number in range(1, 20):
            model.set_input(0, number * X)
            run_async(model, done=done, user=number)
            model.call("wait")
            np.testing.assert_allclose(model.get_output(0), number * 2 * X + WEIGHT, rtol=1e-6)
        event = ctypes.c_void_p()
        with pytest.raises(api.CallError, match="there are no cl_events"):
            run_async(model, event=ctypes.pointer(event))
        with pytest.raises(api.CallError, match="struct_size is 8"):
            run_async(model, struct_size=8)
        with pytest.raises(api.CallError, match="wait_events is NULL"):
            run_async(model, wait_count=1)
    assert told == [(number, 0) for number in range(1, 20)]


def test_the_end_of_a_run_that_fails_or_is_cancelled_is_told(on_cpu):
    told: list[int] = []
    done = RunOptions.DONE(lambda _, status: told.append(status))
    with api.Model(on_cpu) as model:
        run_async(model, done=done)
        model.library.tvmflow_cancel(model.handle)
        # Destroying a model waits for its run.
    assert told == [CANCELLED]


@pytest.mark.opencl
def test_events_of_opencl(opencl, application_library):
    cl = OpenCL(application_library)
    cl.library.clCreateUserEvent.restype = ctypes.c_void_p
    told = threading.Event()
    done = RunOptions.DONE(lambda _, status: None if status else told.set())
    with api.Model(opencl, opencl_library=application_library, **cl.options) as model:
        model.set_input(0, X)
        gate = ctypes.c_void_p(cl.library.clCreateUserEvent(ctypes.c_void_p(cl.context), None))
        ended = ctypes.c_void_p()
        run_async(
            model, wait_count=1, wait_events=ctypes.pointer(gate), event=ctypes.pointer(ended),
            done=done,
        )  # fmt: skip
        status = ctypes.c_int(0)

        def state() -> int:
            size = ctypes.c_size_t(4)
            cl.library.clGetEventInfo(ended, 0x11D3, size, ctypes.byref(status), None)
            return status.value

        time.sleep(0.1)
        assert state() != 0  # the run waits before its end
        assert not told.is_set()
        assert cl.library.clSetUserEventStatus(gate, 0) == 0
        assert cl.library.clWaitForEvents(1, ctypes.byref(ended)) == 0
        assert state() == 0
        np.testing.assert_allclose(model.get_output(0), 2 * X + WEIGHT, rtol=1e-6)
        assert told.wait(5)
        for event in (gate, ended):
            cl.library.clReleaseEvent(event)


def test_a_driver_without_events(opencl, driver):
    with api.Model(opencl, opencl_library=driver) as model:
        with pytest.raises(api.CallError, match="lacks OpenCL's functions for events"):
            run_async(model, done=RunOptions.DONE(lambda *_: None))
        run_async(model)
        model.call("wait")


# -- what models share -----------------------------------------------------------------------


@pytest.mark.opencl
def test_two_models_share_a_context(opencl, application_library):
    info = OpenClInfo(ctypes.sizeof(OpenClInfo))
    with api.Model(opencl, opencl_library=application_library) as first:
        first.call("opencl", ctypes.byref(info))
        assert info.library.decode() == application_library
        options = {"cl_context": info.context, "cl_device": info.device}
        with api.Model(opencl, opencl_library=info.library.decode(), **options) as second:
            # The second kernel reads the output of the first.
            cl = ctypes.CDLL(application_library)
            cl.clCreateBuffer.restype = ctypes.c_void_p
            shared = cl.clCreateBuffer(
                ctypes.c_void_p(info.context), ctypes.c_uint64(1), ctypes.c_size_t(256), None, None
            )
            first.call("use_output", 0, ctypes.c_void_p(shared))
            second.call("use_input", 0, ctypes.c_void_p(shared))
            first.set_input(0, X)
            first.call("run")
            second.call("run")
            wanted = 2 * (2 * X + WEIGHT) + WEIGHT
            np.testing.assert_allclose(second.get_output(0), wanted, rtol=1e-5)


def test_the_cpu_has_no_objects_of_opencl(quick):
    info = OpenClInfo(ctypes.sizeof(OpenClInfo), context=1, queue=1)
    with api.Model(quick) as model:
        model.call("opencl", ctypes.byref(info))
        assert (info.context, info.device, info.queue, info.library) == (None,) * 4
        with pytest.raises(api.CallError, match="struct_size is sizeof"):
            model.call("opencl", None)


@pytest.mark.parametrize("extension", ["cl_qcom_perf_hint", "cl_khr_fp16"])
@pytest.mark.parametrize("performance", [0, 1, 2, 3])
def test_hints_of_performance(opencl, driver, extension, performance):
    fake = Fake(driver)
    fake.set("EXTENSIONS", f"{extension} cl_qcom_priority_hint")
    lines: list[str] = []
    log = LOG(lambda _, level, text: lines.append(text.decode()) if level else None)
    options = {"opencl_library": driver, "priority": 1, "performance": performance, "log": log}
    try:
        with api.Model(opencl, **options) as model:
            np.testing.assert_allclose(model(X), [2 * X + WEIGHT], rtol=1e-6)
        has = extension == "cl_qcom_perf_hint"
        assert fake.fake_clocks() == (0x40C2 + performance if has and performance else 0)
        assert bool(lines) == (not has and performance > 0)
        assert not fake.violations
        with pytest.raises(api.CallError, match="performance is 4, expected one of"):
            api.Model(opencl, opencl_library=driver, performance=4)
    finally:
        fake.fake_priority()
        fake.set("EXTENSIONS", None)


@pytest.mark.parametrize("extension", ["cl_khr_priority_hints", "cl_qcom_priority_hint", ""])
@pytest.mark.parametrize(("priority", "wanted"), [(0, ""), (1, "low"), (2, "high")])
def test_priorities(opencl, driver, extension, priority, wanted):
    fake = Fake(driver)
    fake.fake_priority.restype = ctypes.c_char_p
    fake.set("EXTENSIONS", extension)
    lines: list[str] = []
    log = LOG(lambda _, level, text: lines.append(text.decode()) if level else None)
    try:
        with api.Model(opencl, opencl_library=driver, priority=priority, log=log) as model:
            np.testing.assert_allclose(model(X), [2 * X + WEIGHT], rtol=1e-6)
        assert fake.fake_priority().decode() == (wanted if extension else "")
        assert bool(lines) == (not extension and priority > 0)
        assert not fake.violations
        with pytest.raises(api.CallError, match="priority is 3, expected one of"):
            api.Model(opencl, opencl_library=driver, priority=3)
    finally:
        fake.set("EXTENSIONS", None)


def test_a_program_with_the_header_runs(quick, tmp_path):
    program = compile_c(
        tmp_path / "program", f"-I{runtime_build.BINDINGS}", HERE / "interface.c", quick,
        f"-Wl,-rpath,{quick.parent}", "-Wl,--unresolved-symbols=ignore-in-shared-libs",
    )  # fmt: skip
    output(program)
