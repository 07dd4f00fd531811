"""Boards by ssh, against Debian's sshd on the loopback with a home folder of its own."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.farms import eventually
from support.raw_agent import children
from support.relay import Relay
from typer.testing import CliRunner

import tvmflow
from tvmflow.agent import connection
from tvmflow.agent.executable import agent_build
from tvmflow.agent.transports import Ssh
from tvmflow.cli.app import app
from tvmflow.errors import AgentError

SSHD = "/usr/sbin/sshd"
SERVER = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
SetEnv HOME={home} PATH={home}/bin:/usr/bin:/bin
Banner {folder}/banner
ForceCommand cd "$HOME" && eval "$SSH_ORIGINAL_COMMAND"
"""
#: The user's configuration, in which both names are the server; the key of one is known.
CLIENT = """
Host board
  HostKeyAlias board
Host stranger
  HostKeyAlias stranger
Host board stranger
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""

pytestmark = [pytest.mark.ssh, pytest.mark.slow]


class Board:
    """A server, the configuration of a client, and the home folder of its sessions."""

    def __init__(self, folder: Path):
        self.home = folder / "home"
        self.home.mkdir()
        self.folder = self.home / Ssh.FOLDER
        for name in ("host_key", "key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
            subprocess.run(command, check=True)
        if os.geteuid() == 0:
            # Where Debian's service starts it, the system has made this folder.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        (folder / "sshd_config").write_text(SERVER.format(port=port, folder=folder, home=self.home))
        (folder / "banner").write_text("For the lab's members only.\n")
        with open(folder / "sshd.log", "wb") as log:
            command = [SSHD, "-D", "-e", "-f", folder / "sshd_config"]
            self.process = subprocess.Popen(command, stderr=log)
        self.relay = Relay(port)
        (folder / "known_hosts").write_text(f"board {(folder / 'host_key.pub').read_text()}")
        user = getpass.getuser()
        (folder / "config").write_text(
            CLIENT.format(port=self.relay.port, folder=folder, user=user)
        )
        # ssh reads the configuration of the account, not of HOME.
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(
            f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n'
        )
        (folder / "bin" / "ssh").chmod(0o755)
        eventually(lambda: b"listening" in (folder / "sshd.log").read_bytes())

    def processes(self) -> list[int]:
        """Return the agents that run there, with their sessions."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes()
            except OSError:
                continue
            if b"agent-" in words and os.fsencode(self.home) in words:
                found.append(int(path.parent.name))
        return found

    def connections(self) -> list[int]:
        """Return the server's processes, one for each connection, and theirs in turn."""
        first = children(self.process.pid)
        return first + [pid for each in first for pid in children(each)]

    def stop(self) -> None:
        """End the server."""
        self.relay.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def board(tmp_path, monkeypatch):
    """Start a server that the name ``board`` reaches."""
    made = Board(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield made
    eventually(lambda: not made.processes())
    made.stop()


def refused(where="ssh:board") -> AgentError:
    with pytest.raises(AgentError) as error:
        tvmflow.connect(where).close()
    return error.value


def command(*words):
    """Run a command of tvmflow, and return its JSON."""
    done = CliRunner().invoke(app, [*map(str, words), "--on", "ssh:board", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_commands_need_nothing_but_the_name(board, library, image, tmp_path):
    facts = command("devices")
    assert facts["system"] == "linux"
    assert facts["kernel"] == os.uname().release
    assert len(facts["cpus"]) == os.cpu_count()
    np.savez(tmp_path / "in.npz", x=image)
    out = tmp_path / "out.npz"
    given = (library, "--inputs", tmp_path / "in.npz", "--backend", "cpu")
    command("run", *given, "--outputs", out)
    expected = tvmflow.load(library, backend="cpu")(x=image)["y"]
    np.testing.assert_array_equal(np.load(out)["y"], expected)
    timing = command("bench", *given, "--runs", 20, "--kernels")
    assert timing["runs"] == 20
    assert 0 < timing["min_ms"] <= timing["median_ms"] <= timing["max_ms"]
    assert timing["kernels"]
    assert command("devices", "--clean")["removed"] == f"~/{Ssh.FOLDER}"
    assert not board.folder.exists()


def test_the_agent_and_libraries_are_sent_once(board, library, image):
    outputs = [("float32", (1, 7, 17, 19))]
    sent = []
    for _ in range(2):
        before = board.relay.sent
        with tvmflow.connect("ssh:board") as there:
            assert there.connection.build == agent_build()
            there.open(library, backend="cpu").run([image], outputs)
        sent.append(board.relay.sent - before)
        # The agent's own processes end with the connection.
        eventually(lambda: not board.processes())
    (agent,) = board.folder.glob("agent-*")
    assert sent[0] > agent.stat().st_size + library.stat().st_size
    # Each connection exchanges keys.
    assert sent[1] < 40_000


def test_an_agent_of_another_version_is_replaced(board):
    board.folder.mkdir(parents=True)
    (board.folder / "agent-0123456789abcdef").write_bytes(b"old")
    tvmflow.connect("ssh:board").close()
    assert [path.name for path in board.folder.glob("agent-*")] == [f"agent-{agent_build()}"]


@pytest.mark.parametrize("who", ["client", "server", "network"])
def test_connections_that_break_leave_no_process(board, who):
    with tvmflow.connect("ssh:board") as there:
        assert there.facts
        assert len(board.processes()) == 2
        if who == "client":
            os.kill(there.connection._stream._process.pid, signal.SIGKILL)
        elif who == "server":
            for pid in board.connections():
                os.kill(pid, signal.SIGKILL)
        else:
            board.relay.cut()
        with pytest.raises(AgentError, match="agent on ssh:board broke: ") as broken:
            there.sensors()
        assert broken.value.remedy.startswith("Check the cable or the network")
        eventually(lambda: not board.processes())
    tvmflow.connect("ssh:board").close()


def test_a_network_that_falls_silent_leaves_no_process(board, monkeypatch):
    monkeypatch.setattr(connection, "SILENCE_S", 1.5)
    with tvmflow.connect("ssh:board") as there:
        assert there.facts
        board.relay.silent_after = 0
        with pytest.raises(AgentError, match="nothing was heard from it for 3 s"):
            there.sensors()
        # Nobody tells the agent, either.
        eventually(lambda: not board.processes())


def test_two_hosts_at_one_board(board):
    with tvmflow.connect("ssh:board"):
        assert "in use by another host: tvmflow" in refused().message


def test_a_key_of_the_host_that_is_not_known(board):
    error = refused("ssh:stranger")
    assert error.message.startswith("Asking for the system on ssh:stranger failed: ")
    assert "Host key verification failed" in error.message
    assert error.remedy == "Try it by hand: ssh -o BatchMode=yes stranger true"


def test_a_user_without_a_key(board, tmp_path):
    (tmp_path / "key").unlink()
    error = refused()
    assert "Permission denied (publickey" in error.message
    assert "For the lab's members only" in error.details
    assert error.message.startswith("Asking for the system on ssh:board failed: ")


def test_a_host_that_does_not_exist(board):
    error = refused("ssh:nobody@no-such-host.invalid")
    assert "Could not resolve hostname no-such-host.invalid" in error.message


def test_a_host_without_a_server(board):
    board.relay.close()
    assert "Connection refused" in refused().message


def test_no_ssh(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refused()
    assert "the program ssh was not found" in error.message
    assert "openssh-client" in error.remedy


def test_another_system(board):
    (board.home / "bin").mkdir()
    (board.home / "bin" / "uname").write_text("#!/bin/sh\necho Darwin arm64\n")
    (board.home / "bin" / "uname").chmod(0o755)
    assert "its system is Darwin, Linux was expected" in refused().message


def test_a_file_in_the_folders_place(board):
    board.folder.parent.write_text("")
    error = refused()
    assert error.message.startswith("Sending the agent on ssh:board failed: mkdir: ")
    assert "Not a directory" in error.message


@pytest.mark.parametrize(
    ("option", "reason"), [("noexec", "Permission denied"), ("ro", "Read-only file system")]
)
def test_folders_where_agents_cannot_run(board, option, reason):
    disk = board.folder.parent
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size=1m,{option}", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"A small disk cannot be mounted: {mounted.stderr.strip()}")
    try:
        for _ in range(2):
            error = refused()
            assert error.message.startswith("Sending the agent on ssh:board failed: ")
            assert reason in error.message
            # A second start does not take the agent for one that runs.
            assert not list(board.folder.glob("agent-*"))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
