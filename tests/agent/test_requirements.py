"""Requirements of libraries: refused here exactly when the library refuses the device."""

from __future__ import annotations

from itertools import count

import pytest
from support.fake_opencl import build_fake
from support.small_plans import add_plan, image_plan

from tvmflow.agent import executable
from tvmflow.agent.device import RemoteDevice
from tvmflow.agent.frames import Code
from tvmflow.agent.transports import Local
from tvmflow.devices.host import Host
from tvmflow.errors import AgentError
from tvmflow.module.standalone.format import Section
from tvmflow.module.standalone.link import link_library


def extension_plan(name="cl_khr_fp16"):
    """Return a plan that needs an extension."""
    plan, _ = add_plan()
    plan.rows[Section.EXTENSIONS].append(name)
    return plan


def link(plan, folder):
    """Return the plan's library for this machine."""
    weights, output = folder / "weights", folder / "libnet.so"
    weights.write_bytes(plan.weights())
    link_library(plan.encode(), weights, Host.native(), output, embed=True)
    return output


@pytest.fixture
def phone(tmp_path, monkeypatch):
    """Return a function that connects to an agent with a fake driver of some limits."""
    native = executable.agent_executable(Host.native())
    monkeypatch.setattr("tvmflow.agent.transports.agent_executable", lambda host: native)
    driver, devices = build_fake(tmp_path), []

    def connect(**limits):
        names = {f"FAKE_OPENCL_{name}": str(limit) for name, limit in limits.items()}
        transport = Local({"TVMFLOW_OPENCL_LIBRARY": str(driver), **names})
        transport.folder = tmp_path / "agent"
        devices.append(RemoteDevice(transport))
        return devices[-1]

    yield connect
    for device in devices:
        device.close()


FP32 = "Compile it with `dtype=fp32`."
BUFFERS = "Compile it with `storage=buffer`."
SMALLER = "Compile it with smaller `shapes`, or with `dtype=fp16`."
OWN = "Compile it for this device, with `device=FILE.json` (docs/phones.md)."
CASES = [
    (extension_plan, {"EXTENSIONS": "cl_khr_spir cl_khr_fp16x"}, "cl_khr_fp16", FP32),
    (lambda: extension_plan("cl_khr_fp64"), {}, "cl_khr_fp64, which Fake GPU lacks", OWN),
    (extension_plan, {"EXTENSIONS": "cl_khr_spir cl_khr_fp16"}, "", ""),
    (image_plan, {"IMAGES": 0}, "needs images, and Fake GPU has none", BUFFERS),
    (image_plan, {"IMAGE_WIDTH": 4}, "an image of 5×4×3", BUFFERS),
    (image_plan, {"IMAGE_HEIGHT": 3}, "have at most", BUFFERS),
    (image_plan, {"IMAGE_LAYERS": 2}, "×2", BUFFERS),
    (image_plan, {"IMAGE_WIDTH": 5, "IMAGE_HEIGHT": 4, "IMAGE_LAYERS": 3}, "", ""),
    (lambda: add_plan()[0], {"BUFFER_BYTES": 255}, "needs 256 B at once", SMALLER),
    (lambda: add_plan()[0], {"BUFFER_BYTES": 256}, "", ""),
    (lambda: add_plan()[0], {"MEMORY_BYTES": 767}, "needs 768 B in all", SMALLER),
    (lambda: add_plan()[0], {"MEMORY_BYTES": 768}, "", ""),
    (lambda: add_plan()[0], {"GROUP_SIZE": 15}, "'add' needs work-groups of 16, and those", OWN),
    (lambda: add_plan()[0], {"GROUP_SIZE": 16}, "", ""),
]


@pytest.mark.parametrize(("plan", "limits", "reason", "remedy"), CASES, ids=count())
def test_refused_before_anything_is_sent(
    phone, tmp_path, monkeypatch, plan, limits, reason, remedy
):
    library, device = link(plan(), tmp_path), phone(**limits)
    assert device.name == "Fake GPU"
    before = device.connection.sent_bytes
    if not reason:
        device.open(library, backend="opencl").close()
        return
    for backend in ("opencl", "auto"):
        with pytest.raises(AgentError, match=r"libnet\.so was not sent to Fake GPU: ") as refused:
            device.open(library, backend=backend)
        assert reason in refused.value.message
        assert refused.value.remedy == remedy
    assert device.connection.sent_bytes == before
    # The library itself says the same.
    monkeypatch.setattr(device, "_check_opencl", lambda *_: None)
    with pytest.raises(AgentError) as refused:
        device.open(library, backend="opencl")
    assert refused.value.code == Code.LIBRARY


def test_no_device(phone, tmp_path):
    device = phone()
    library = link(add_plan()[0], tmp_path)
    with pytest.raises(AgentError, match="has no OpenCL device 1"):
        device.open(library, device_index=1)


def test_libraries_with_a_fallback_are_sent(phone, library):
    """They choose it themselves."""
    device = phone(BUFFER_BYTES=1000)
    assert device.open(library).about["backend"] == "cpu"
    with pytest.raises(AgentError, match="was not sent"):
        device.open(library, backend="opencl")
    assert device.open(library, backend="cpu").about["backend"] == "cpu"
