"""The agent compiled for each host, and run there: Android's on glibc, Arm's under QEMU."""

from __future__ import annotations

import lzma
import os
import platform
from contextlib import closing
from pathlib import Path
from shutil import which

import numpy as np
import onnx
import pytest
from elftools.elf.elffile import ELFFile
from support.cross import Cross
from support.small_plans import add_plan

import tvmflow
from tvmflow.agent import executable
from tvmflow.agent.device import RemoteDevice
from tvmflow.agent.executable import agent_build, agent_executable
from tvmflow.agent.frames import Code
from tvmflow.agent.transports import ProcessStream, Transport
from tvmflow.devices.host import HOSTS, Host
from tvmflow.errors import AgentError, TargetError
from tvmflow.module.link import SYMBOLS
from tvmflow.module.standalone.link import link_library
from tvmflow.verify.reference import run_reference
from tvmflow.verify.tolerance import compare

SIZE_LIMIT_BYTES = 400_000
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64", "armv7a": "EM_ARM"}
#: Source of the faults that a fake driver can have.
FAULTS = Path(__file__).with_name("faulty_driver.c")
LOADERS = {"linux-x64": "/lib64/ld-linux-x86-64.so.2", "linux-arm64": "/lib/ld-linux-aarch64.so.1"}


@pytest.mark.cross
@pytest.mark.parametrize("host", HOSTS)
def test_the_agent_is_an_executable_for_each_host(host):
    parsed = Host.parse(host)
    path = agent_executable(parsed)
    assert path.stat().st_size < SIZE_LIMIT_BYTES
    assert os.access(path, os.X_OK)
    with path.open("rb") as file:
        elf = ELFFile(file)
        assert elf.header.e_machine == MACHINES[parsed.architecture]
        assert elf.header.e_type == "ET_DYN"
        segments = {segment.header.p_type: segment for segment in elf.iter_segments()}
        linker = "/system/bin/linker" + "64" * (not parsed.is_32_bit)
        expected = linker if parsed.is_android else LOADERS[host]
        assert segments["PT_INTERP"].get_interp_name() == expected
        assert "PT_GNU_RELRO" in segments
        needed = {tag.needed for tag in segments["PT_DYNAMIC"].iter_tags("DT_NEEDED")}
        names = {symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()}
    if parsed.is_android:
        assert needed <= SYMBOLS.keys()
        assert names <= {"", *(name for library in SYMBOLS.values() for name in library)}
    else:
        assert needed <= {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0"}
    assert agent_executable(parsed) == path


def test_a_wheels_executable_is_used_if_it_has_the_same_sources(tmp_path, monkeypatch):
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(executable, "__file__", str(tmp_path / "executable.py"))
    name = f"agent-{executable.host_name(Host.native())}-"
    (tmp_path / "bin").mkdir()
    for build, content in ((agent_build(), b"right"), ("0123456789abcdef", b"wrong")):
        (tmp_path / "bin" / f"{name}{build}.xz").write_bytes(lzma.compress(content))
    found = agent_executable(Host.native())
    assert found.read_bytes() == b"right"
    assert os.access(found, os.X_OK)
    assert agent_executable(Host.native()) == found


def test_hosts_without_an_agent():
    with pytest.raises(TargetError, match="asked for the host riscv64-linux-gnu"):
        executable.check_agent_host(Host.parse("riscv64-linux-gnu"))


class Command(Transport):
    """A command that runs the agent."""

    name = "command"

    def __init__(self, words: list[str], environment: dict[str, str]):
        self._words, self._environment = words, environment

    def start(self) -> ProcessStream:
        return ProcessStream(self._words, self._environment)

    def clean(self) -> str:
        return ""


#: Linux with the calling convention of each Android host: Zig's target, folder of the loader and C
#: library, name of the loader, emulator.
SYSTEMS = {
    "android-x64": ("x86_64-linux-gnu.2.36", "/lib64", "ld-linux-x86-64.so.2", ""),
    "android-armv7": (
        *("arm-linux-gnueabi.2.36", "/usr/arm-linux-gnueabi/lib", "ld-linux.so.3"),
        "qemu-arm-static",
    ),
    "android-arm64": (
        *("aarch64-linux-gnu.2.36", "/usr/aarch64-linux-gnu/lib", "ld-linux-aarch64.so.1"),
        "qemu-aarch64-static",
    ),
}


@pytest.fixture
def connect(tmp_path):
    """Return a function that connects to the agent for an Android host."""
    devices = []

    def connect(host, fault=""):
        devices.append(RemoteDevice(android(host, tmp_path, fault)))
        return devices[-1]

    yield connect
    for device in devices:
        device.close()


def android(host, folder, fault) -> Command:
    """Return a transport to the agent for an Android host, with a driver that may have a fault."""
    target, libraries, loader, emulator = SYSTEMS[host]
    if emulator and (which(emulator) is None or not Path(libraries, loader).is_file()):
        pytest.skip("Arm needs Debian's qemu-user-static, libc6-armel-cross and libc6-arm64-cross")
    if not emulator and platform.machine() != "x86_64":
        pytest.skip("this processor is no x86-64")
    cross = Cross(target, folder)
    cross.android()
    words = [*filter(None, [emulator]), f"{libraries}/{loader}"]
    words += ["--library-path", f"{folder}:{libraries}", "--preload", str(folder / "libc.so")]
    words += [str(agent_executable(Host.parse(host))), "--folder", str(folder / "agent")]
    faults = (FAULTS, "-Wl,--wrap=fake_enter") if fault else ()
    driver = cross.driver(*faults)
    return Command(words, {"TVMFLOW_OPENCL_LIBRARY": str(driver), "TVMFLOW_TEST_FAULT": fault})


@pytest.mark.cross
@pytest.mark.parametrize("host", SYSTEMS)
def test_androids_agents_run_libraries(connect, host, tmp_path):
    phone = connect(host)
    assert phone.connection.build == agent_build()
    assert phone.host == Host.parse(phone.connection.host_name)
    assert phone.facts["bits"] == (32 if phone.host.is_32_bit else 64)
    plan, w = add_plan(48, 1.5)
    library = tmp_path / "libnet.so"
    (tmp_path / "weights").write_bytes(plan.weights())
    link_library(plan.encode(phone.host), tmp_path / "weights", phone.host, library, embed=False)
    opened = phone.open(library)
    x = np.random.default_rng(6).normal(size=48).astype(np.float32)
    (y,), _ = opened.run([x], [("float32", (48,))])
    np.testing.assert_allclose(y, 1.5 * x + w, rtol=1e-6)
    assert len(opened.time(warmup=1, runs=3).ms) == 3
    # The library of another machine is refused before it is sent.
    before = phone.connection.sent_bytes
    other = Host.parse("linux-x64" if phone.host.architecture == "x86_64" else "android-x64")
    link_library(plan.encode(other), tmp_path / "weights", other, library, embed=True)
    with pytest.raises(AgentError, match="was not sent") as refused:
        phone.open(library)
    assert refused.value.remedy == f"Compile it with `host={phone.connection.host_name}`."
    assert phone.connection.sent_bytes == before


@pytest.mark.cross
def test_a_network_on_the_cpu_of_an_android_phone(connect, network, image, tmp_path):
    """A crash of its OpenCL driver costs the session only."""
    phone = connect("android-arm64", "crash clFinish")
    assert phone.require_opencl().name == "Fake GPU"
    library = tmp_path / "libnet.so"
    with closing(tvmflow.compile(network, device=phone)) as module:
        module.save(library)
    onnx.save(network, tmp_path / "net.onnx")
    (expected,) = run_reference(tmp_path / "net.onnx", {"x": image}, ["y"])[0].values()
    with phone.load(library, backend="cpu") as module:
        assert compare("y", module(x=image)["y"], expected).passed
        assert module.self_test().tolerance_used < 1
        timing = module.time_calls({"x": image}, runs=3, warmup=1)
        assert (timing.runs, module.setting().backend) == (3, "cpu")
    with pytest.raises(AgentError, match=r"was ended by signal 7 \(SIGBUS\)") as crash:
        phone.load(library, backend="opencl")(x=image)
    assert crash.value.code == Code.LOST
    with phone.load(library, backend="cpu") as module:
        assert compare("y", module(x=image)["y"], expected).passed
