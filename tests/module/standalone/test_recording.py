"""Launches that are recorded once and replayed, with both extensions."""

from __future__ import annotations

from ctypes import c_size_t, c_uint64, c_void_p
from itertools import pairwise

import numpy as np
import pytest
from support import drivers
from support.fake_opencl import Application, Fake, build_fake
from support.small_plans import ADD, Plan
from support.standalone_api import NO_COMMAND_BUFFER, PROFILE, CallError, Model

SIZE, LAUNCHES = 16, 5
EXTENSIONS = {"khr": "cl_khr_command_buffer", "qcom": "cl_qcom_recordable_queues"}
MAKES = {"khr": "clCreateCommandBufferKHR", "qcom": "clNewRecordingQCOM"}
RNG = np.random.default_rng(3)
W, X = (RNG.normal(size=SIZE).astype(np.float32) for _ in range(2))


def network() -> Plan:
    """Return a plan of ``y = 2 x + w``, five times in a row."""
    plan = Plan(ADD)
    tensors = [plan.buffer(4 * SIZE) for _ in range(LAUNCHES + 1)]
    weight = plan.buffer(4 * SIZE)
    plan.weight(weight, W)
    for x, y in pairwise(tensors):
        plan.launch("add", [x, weight, y, np.float32(2)], (SIZE,))
    plan.input("x", (SIZE,), tensors[0])
    plan.output("y", (SIZE,), tensors[-1])
    return plan


@pytest.fixture(scope="module")
def built(link, tmp_path_factory):
    """Return the library and the driver."""
    return link(network()), build_fake(tmp_path_factory.mktemp("recording"))


@pytest.fixture
def fake(built):
    fake = Fake(built[1])
    fake.fake_reset()
    yield fake
    fake.fake_reset()
    for name in ("EXTENSIONS", "RECORDABLE", "DEVICES"):
        fake.set(name, None)


def expected(x: np.ndarray) -> np.ndarray:
    y = x.astype(np.float64)
    for _ in range(LAUNCHES):
        y = 2 * y + W
    return y


def check(model: Model, fake: Fake | None = None, runs: int = 3) -> None:
    """Run with different inputs and compare."""
    for index in range(runs):
        np.testing.assert_allclose(model(X + index)[0], expected(X + index), rtol=1e-5, atol=1e-4)
    assert fake is None or not fake.violations


@pytest.mark.parametrize("kind", EXTENSIONS)
@pytest.mark.parametrize("limit", [1, 2, 5, 64])
def test_launches_are_recorded_once(built, fake, kind, limit):
    fake.set("EXTENSIONS", EXTENSIONS[kind])
    fake.set("RECORDABLE", str(limit))
    parts = 1 if kind == "khr" else -(-LAUNCHES // limit)
    with Model(built[0], opencl_library=built[1]) as model:
        check(model, fake)
        assert model.describe()["recording"] == EXTENSIONS[kind]
    assert fake.fake_count(MAKES[kind].encode()) == parts
    assert fake.fake_count(b"replays") == 3 * parts
    # Qualcomm's extension records commands that are enqueued on a separate queue.
    enqueued = LAUNCHES if kind == "qcom" else 0
    assert fake.fake_count(b"clEnqueueNDRangeKernel") == enqueued
    assert not fake.live


@pytest.mark.parametrize("flags", [NO_COMMAND_BUFFER, PROFILE])
def test_options_turn_it_off(built, fake, flags):
    fake.set("EXTENSIONS", " ".join(EXTENSIONS.values()))
    with Model(built[0], opencl_library=built[1], flags=flags) as model:
        check(model, fake)
        assert model.describe()["recording"] == ""
    assert fake.fake_count(b"replays") == 0


def test_nothing_is_recorded_on_a_cpu(built, fake):
    fake.set("EXTENSIONS", EXTENSIONS["khr"])
    fake.set("DEVICES", "cpu")
    with Model(built[0], opencl_library=built[1]) as model:
        check(model, fake)
    assert fake.fake_count(b"replays") == 0


@pytest.mark.opencl
def test_pocl_repeats_what_it_recorded(link):
    path = drivers.POCL.path
    if not path:
        pytest.skip("PoCL is not installed")
    library = link(network(), "-DTF_RECORD_ON_CPUS=1")
    with Model(library, opencl_library=path) as model:
        check(model)
        assert model.describe()["recording"] == EXTENSIONS["khr"]


def test_a_driver_without_extensions_is_not_asked(built, fake):
    with Model(built[0], opencl_library=built[1]) as model:
        check(model, fake)
    assert fake.fake_count(b"clGetExtensionFunctionAddressForPlatform") == 0


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        *(
            ("khr", name)
            for name in (
                "clCreateCommandBufferKHR",
                "clCommandNDRangeKernelKHR",
                "clFinalizeCommandBufferKHR",
                "clEnqueueCommandBufferKHR",
            )
        ),
        *(
            ("qcom", name)
            for name in ("clNewRecordingQCOM", "clEndRecordingQCOM", "clEnqueueRecordingQCOM")
        ),
    ],
)
def test_kernels_are_enqueued_one_by_one_after_a_failure(built, fake, kind, call):
    fake.set("EXTENSIONS", EXTENSIONS[kind])
    fake.fake_fail(call.encode(), c_uint64(1), -59, True)
    with Model(built[0], opencl_library=built[1]) as model:
        check(model, fake)
        assert model.describe()["recording"] == ""
        assert fake.fake_failed() == call.encode()
    # Recording is tried once.
    assert fake.fake_count(MAKES[kind].encode()) == 1
    assert not fake.live


def test_what_was_begun_is_not_begun_again(built, fake):
    fake.set("EXTENSIONS", EXTENSIONS["qcom"])
    fake.set("RECORDABLE", "2")
    with Model(built[0], opencl_library=built[1]) as model:
        model.set_input(0, X)
        fake.fake_fail(b"clEnqueueRecordingQCOM", c_uint64(2), -5, False)
        with pytest.raises(CallError, match="CL_OUT_OF_RESOURCES"):
            model.call("run")
        # Running launches ended before their recording was released.
        assert not fake.violations
        check(model, fake)


@pytest.mark.parametrize("kind", EXTENSIONS)
def test_launches_are_recorded_again_for_other_memory(built, fake, kind):
    fake.set("EXTENSIONS", EXTENSIONS[kind])
    application = Application(fake)
    mine = application.buffer(size=4 * SIZE)
    found = np.zeros(SIZE, np.float32)
    with Model(built[0], opencl_library=built[1], **application.options) as model:
        check(model, fake, 2)
        for memory, runs in ((mine, 2), (None, 1)):
            model.call("use_output", 0, memory)
            for index in range(runs):
                model.set_input(0, X - index)
                model.call("run")
                if memory:
                    fake.clEnqueueReadBuffer(
                        *(application.queue, mine, 1, c_size_t(0), c_size_t(4 * SIZE)),
                        *(found.ctypes.data_as(c_void_p), 0, None, None),
                    )
                else:
                    found = model.get_output(0)
                np.testing.assert_allclose(found, expected(X - index), rtol=1e-5, atol=1e-4)
        assert model.describe()["recording"] == EXTENSIONS[kind]
    assert fake.fake_count(MAKES[kind].encode()) == 3
    assert not fake.violations
    fake.clReleaseMemObject(mine)
    application.close()
    assert not fake.live
