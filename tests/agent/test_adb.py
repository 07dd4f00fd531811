"""Phones by Debian's adb, against a daemon that runs the agent on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from support.adb_daemon import TMP, AdbDaemon, Phone

import tvmflow
from tvmflow.agent import adb, executable
from tvmflow.agent.adb import FOLDER, Adb
from tvmflow.devices.host import Host
from tvmflow.errors import AgentError

pytestmark = pytest.mark.adb


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The environment of an adb server of this module's own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    home = tmp_path_factory.mktemp("home")
    # The server writes its log to TMPDIR.
    environment = {"HOME": str(home), "TMPDIR": str(home), "ANDROID_ADB_SERVER_PORT": str(port)}
    subprocess.run(
        ["adb", "start-server"], env={**os.environ, **environment}, capture_output=True, check=True
    )
    yield environment
    subprocess.run(["adb", "kill-server"], env={**os.environ, **environment}, check=True)


@pytest.fixture
def attach(server, tmp_path, monkeypatch):
    """Return a function that attaches a phone."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    # The "phone" runs programs of this machine.
    native = executable.agent_executable(Host.native())
    monkeypatch.setattr(adb, "agent_executable", lambda host: native)
    daemons = []

    def attach(**settings):
        daemon = AdbDaemon(Phone(tmp_path / f"phone{len(daemons)}", **settings))
        daemons.append(daemon)
        subprocess.run(
            ["adb", "connect", f"127.0.0.1:{daemon.port}"], capture_output=True, check=True
        )
        return daemon

    yield attach
    for daemon in daemons:
        command = ["adb", "disconnect", f"127.0.0.1:{daemon.port}"]
        subprocess.run(command, capture_output=True, check=False)
        daemon.pull_cable()


def processes_of(daemon) -> list[str]:
    """Return the command lines of agents that run on the phone."""
    folder = str(daemon.phone.root)
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if folder in words and "agent-" in words:
            found.append(words)
    return found


def wait_until(condition, limit_s=5.0) -> bool:
    ends = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True


def refused(where="adb") -> AgentError:
    with pytest.raises(AgentError) as error:
        tvmflow.connect(where).close()
    return error.value


def test_an_agent_is_sent_once_and_nothing_is_left_but_its_folder(attach):
    daemon = attach()
    with tvmflow.connect("adb") as phone:
        assert phone.transport.name == f"adb:127.0.0.1:{daemon.port}"
        assert phone.facts["cpus"]
        assert len(processes_of(daemon)) >= 1
    with tvmflow.connect(f"adb:127.0.0.1:{daemon.port}") as phone:
        assert phone.connection.build == executable.agent_build()
    assert len(daemon.phone.pushed) == 1
    assert wait_until(lambda: not processes_of(daemon))
    assert [path.name for path in (daemon.phone.root / "tmp").iterdir()] == ["tvmflow"]
    assert Adb().clean() == FOLDER
    assert not list((daemon.phone.root / "tmp").iterdir())


def test_an_agent_of_another_version_is_replaced(attach):
    daemon = attach()
    folder = daemon.phone.root / "tmp" / "tvmflow"
    folder.mkdir(parents=True)
    (folder / "agent-0123456789abcdef").write_bytes(b"old")
    # The cable was pulled before this one had its name.
    (folder / f"agent-{executable.agent_build()}.01234567").write_bytes(b"part")
    tvmflow.connect("adb").close()
    assert [path.name for path in folder.glob("agent-*")] == [f"agent-{executable.agent_build()}"]


def test_bytes_are_carried_unchanged(attach):
    attach()
    content = np.random.default_rng(0).bytes(1_000_000)
    with tvmflow.connect("adb") as phone:
        memory = phone.allocate(len(content)) if phone.opencl_devices() else None
        digest = phone.connection.put(content)
        sent = phone.connection.sent_bytes
        assert phone.connection.put(content) == digest
        assert phone.connection.sent_bytes - sent < 100
        if memory is not None:
            phone.write(memory, content)
            assert phone.read(memory, len(content)) == content


def test_a_pulled_cable_is_reported_and_ends_the_agent(attach):
    daemon = attach()
    phone = tvmflow.connect("adb")
    daemon.pull_cable()
    with pytest.raises(AgentError, match=r"broke: .* is (offline|no longer attached)"):
        phone.sensors()
    phone.close()
    assert wait_until(lambda: not processes_of(daemon))


def test_a_slow_link_is_slow_and_right(attach):
    daemon = attach(bytes_per_s=2e6)
    with tvmflow.connect("adb") as phone:
        began = time.monotonic()
        phone.connection.put(np.random.default_rng(1).bytes(1_000_000))
        assert time.monotonic() - began > 0.4
    assert daemon.phone.pushed


def test_two_hosts_at_one_phone(attach):
    attach()
    with tvmflow.connect("adb"):
        error = refused()
    assert "in use by another host: tvmflow" in error.message


def test_no_adb(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("ANDROID_HOME", "ANDROID_SDK_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    assert "adb was not found on the path" in refused().message
    tools = tmp_path / "sdk" / "platform-tools"
    tools.mkdir(parents=True)
    (tools / "adb").touch(0o755)
    monkeypatch.setenv("ANDROID_HOME", str(tmp_path / "sdk"))
    assert adb.find_adb() == str(tools / "adb")


def test_no_phone_and_several(attach):
    assert "no phone is attached" in refused().message
    first, second = attach(), attach(model="Other")
    error = refused()
    assert "2 phones are attached" in error.message
    assert "(Test Phone)" in error.message
    assert "(Other)" in error.message
    assert error.remedy.startswith("Name one, such as `on=adb:127.0.0.1:")
    assert sorted(Adb.all()) == sorted(f"127.0.0.1:{each.port}" for each in (first, second))
    error = refused("adb:X7")
    assert "no phone of this serial number" in error.message
    assert f"127.0.0.1:{first.port} (Test Phone)" in error.message
    tvmflow.connect(f"adb:127.0.0.1:{second.port}").close()


def test_an_unauthorized_phone(attach):
    attach(is_authorized=False)
    error = refused()
    assert "it is unauthorized" in error.message
    assert "Accept this computer's key" in error.remedy


def test_an_offline_phone(attach):
    daemon = attach()
    daemon.pull_cable()
    wait_until(lambda: not Adb.all())
    assert "is offline" in refused(f"adb:127.0.0.1:{daemon.port}").message


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_full_phone(attach, tmp_path, has_folder):
    folder = tmp_path / "phone0" / "tmp" / "tvmflow"
    if has_folder:
        folder.mkdir(parents=True)
    attach(is_full=True)
    error = refused()
    attempt = "Sending the agent" if has_folder else "Creating the agent's folder"
    assert error.message.startswith(attempt)
    assert "No space left on device" in error.message
    assert error.remedy == "Free space on the phone: its /data is full."
    assert not has_folder or not list(folder.iterdir())


def test_a_folder_without_programs(attach):
    daemon = attach(is_executable=False)
    error = refused()
    assert "Permission denied" in error.message
    assert "may not write or run programs" in error.remedy
    # A second start does not take the agent for one that runs.
    assert not list((daemon.phone.root / "tmp" / "tvmflow").iterdir())
    assert "Permission denied" in refused().message


def test_systems_without_an_agent(attach):
    properties = {"ro.product.cpu.abilist": "mips", "ro.build.version.sdk": "34"}
    attach(properties=properties)
    assert "runs programs for mips" in refused().message


def test_old_systems(attach):
    properties = {
        "ro.product.cpu.abilist": "arm64-v8a",
        "ro.build.version.sdk": "22",
        "ro.build.version.release": "5.1",
    }
    # Their shell has a terminal, which changes bytes.
    attach(properties=properties, features="cmd")
    assert "it has Android 5.1, and Android 7 or newer was expected" in refused().message


@pytest.fixture
def echo(attach, tmp_path, monkeypatch):
    """Return a stand-in for the agent that sends back what it receives."""
    program = tmp_path / "echo"
    program.write_text('#!/bin/sh\n[ "$1" = --help ] || exec cat\n')
    monkeypatch.setattr(adb, "agent_executable", lambda host: program)
    return program


def exchange(stream, content) -> bytes:
    """Send bytes to an echo, and return what comes back until it ends."""
    writer = threading.Thread(target=write_quietly, args=(stream, content))
    writer.start()
    try:
        return stream.read(len(content))
    finally:
        writer.join(10)
        assert not writer.is_alive()


def write_quietly(stream, content) -> None:
    with suppress(OSError):
        for begin in range(0, len(content), 1 << 16):
            stream.write(content[begin : begin + (1 << 16)])


def test_bytes_go_both_ways_unchanged(attach, echo):
    attach()
    content = bytes(range(256)) * 16 + np.random.default_rng(2).bytes(1 << 20) + b"\r\n\n\r\x04"
    stream = Adb().start()
    assert exchange(stream, content) == content
    stream.close()


@pytest.mark.parametrize("direction", ["most_received", "most_sent"])
def test_a_cable_pulled_in_the_middle_ends_everything(attach, echo, direction):
    daemon = attach()
    phone = Adb()
    stream = phone.start()
    limit = daemon.received if direction == "most_received" else daemon.sent
    setattr(daemon.phone, direction, limit + 300_000)
    content = np.random.default_rng(3).bytes(1 << 20)
    back = exchange(stream, content)
    assert len(back) < len(content)
    assert content.startswith(back)
    assert wait_until(phone.lost)
    assert phone.lost().startswith(f"the phone 127.0.0.1:{daemon.port} (Test Phone) is ")
    stream.close()
    assert wait_until(lambda: not daemon.running())


def test_a_cable_pulled_while_the_agent_is_sent(attach, echo):
    echo.write_bytes(echo.read_bytes() + b"#" * 1_000_000)
    daemon = attach()
    daemon.phone.most_received = 500_000
    error = refused()
    assert error.message.startswith("Sending the agent on the phone 127.0.0.1:")
    assert error.message.endswith(("is offline.", "is no longer attached."))
    assert error.remedy.startswith("Check the cable")
    assert not daemon.phone.pushed


def test_a_server_that_does_not_start(attach, monkeypatch):
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "99999")
    error = refused()
    assert error.message.startswith("Starting adb's server failed: ")
    assert "adb start-server" in error.remedy


def test_an_adb_that_does_not_answer(tmp_path, monkeypatch):
    (tmp_path / "adb").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "adb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(adb, "CONNECT_S", 0.3)
    error = refused()
    assert "no answer within" in error.message
    assert "adb devices -l" in error.message
    assert "adb kill-server" in error.remedy


def test_lists_of_phones(tmp_path):
    (tmp_path / "adb").write_text(
        "#!/bin/sh\ncat <<'END'\n"
        "* daemon not running; starting now at tcp:5037\n"
        "List of devices attached\n"
        "R58M12 device usb:1-2 product:a model:SM_G973F device:b transport_id:1\n"
        "adb-R5 (2)._adb-tls-connect._tcp device product:a model:Pixel_8 transport_id:2\n"
        "0123\tno permissions (user in plugdev group; are your udev rules wrong?); see [http://x]\n"
        "4567 no permissions; see [http://x] usb:1-1\n"
        "89AB newstate transport_id:3\n\nEND\n"
    )
    (tmp_path / "adb").chmod(0o755)
    assert [
        (each.serial, each.state, each.model) for each in adb.list_phones(tmp_path / "adb")
    ] == [
        ("R58M12", "device", "SM G973F"),
        ("adb-R5 (2)._adb-tls-connect._tcp", "device", "Pixel 8"),
        ("0123", "no permissions", ""),
        ("4567", "no permissions", ""),
        ("89AB", "newstate", ""),
    ]


def test_the_daemon_serves_other_commands(attach, tmp_path):
    """`exec-out`, `shell` without its second version, and `pull`."""
    daemon = attach(features="cmd")
    (daemon.phone.root / "tmp" / "file").write_bytes(b"\r\n\0" * 50_000)
    to = str(tmp_path / "pulled")
    serial = ("adb", "-s", f"127.0.0.1:{daemon.port}")
    subprocess.run([*serial, "pull", f"{TMP}/file", to], check=True, capture_output=True, timeout=5)
    assert Path(to).read_bytes() == b"\r\n\0" * 50_000
    for words in (["exec-out", f"cat {TMP}/file"], ["shell", f"cat {TMP}/file"]):
        done = subprocess.run(
            [*serial, *words], stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=5
        )
        assert done.stdout == b"\r\n\0" * 50_000


@pytest.mark.parametrize(
    ("abis", "host"),
    [
        ("arm64-v8a,armeabi-v7a,armeabi", "android-arm64"),
        ("armeabi-v7a,armeabi", "android-armv7"),
        ("x86_64,arm64-v8a", "android-x64"),
    ],
)
def test_the_host_follows_the_system(attach, abis, host):
    attach(properties={"ro.product.cpu.abilist": abis, "ro.build.version.sdk": "34"})
    assert Adb().host() == Host.parse(host)
