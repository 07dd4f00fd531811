"""Secrets: files that hold one, clients that pass the listener, and no way around it."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.farms import LOCAL, PATIENCE_S, eventually

from tvmflow.errors import FarmError
from tvmflow.farm import network
from tvmflow.farm.forward import lead_to
from tvmflow.farm.network import SecretListener, check_bind, is_loopback, listen
from tvmflow.runtime.secret import (
    BUSY,
    GREETING,
    SHORTEST_BYTES,
    Address,
    BusyError,
    Secret,
    UnprovenError,
)
from tvmflow.runtime.tracker import Tracker, TrackerAwayError

MakeSecret = Callable[..., Secret]


@pytest.fixture
def make_secret(tmp_path: Path) -> MakeSecret:
    def make(content: bytes = b"0123456789abcdef", name: str = "secret") -> Secret:
        file = tmp_path / name
        file.write_bytes(content)
        file.chmod(0o600)
        return Secret.read(file)

    return make


@pytest.fixture
def guarded(make_secret: MakeSecret) -> Iterator[tuple[SecretListener, Address]]:
    secret = make_secret()
    opened, port = listen(LOCAL, [0], secret)
    assert isinstance(opened, SecretListener)
    yield opened, Address(LOCAL, port, secret)
    opened.close()


def refused(opened: SecretListener) -> str:
    found: list[str] = []
    eventually(lambda: found.extend(opened.take_refused()) or found)
    return "\n".join(found)


def test_a_secret_is_what_a_file_holds_without_the_space_around_it(make_secret: MakeSecret):
    secret = make_secret(b"  0123456789abcdef\n")
    assert secret.value == b"0123456789abcdef"
    assert "0123456789" not in repr(secret)
    assert "0123456789" not in repr(Address("host", 1, secret))


@pytest.mark.parametrize("content", [b"", b"\n\n", b"x" * (SHORTEST_BYTES - 1) + b"\n"])
def test_what_can_be_guessed_is_no_secret(make_secret: MakeSecret, content: bytes):
    with pytest.raises(FarmError, match="at least 16 were expected") as caught:
        make_secret(content)
    assert "openssl rand" in caught.value.remedy


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_secret_that_others_can_reach_is_refused(make_secret: MakeSecret, mode: int):
    file = make_secret().file
    file.chmod(mode)
    with pytest.raises(FarmError, match=rf"other users .*mode {mode:o}") as caught:
        Secret.read(file)
    assert caught.value.remedy == f"chmod 600 {file}"


def test_a_secret_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(FarmError, match="No such file") as caught:
        Secret.read(tmp_path / "none")
    assert "umask 077" in caught.value.remedy


def test_strangers_are_only_listened_for_with_a_secret(make_secret: MakeSecret):
    for host in ("0.0.0.0", "::", "192.0.2.1", "no.such.host.invalid"):
        with pytest.raises(FarmError, match="can run any program") as caught:
            check_bind(host, None)
        assert "`secret_file" in caught.value.remedy
        check_bind(host, make_secret())
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert is_loopback(host)
        check_bind(host, None)


def test_who_knows_the_secret_passes(guarded: tuple[SecretListener, Address]):
    opened, address = guarded
    with address.connect(PATIENCE_S) as client:
        connection, (host, _) = opened.accept()
        with connection:
            assert host == LOCAL
            client.sendall(b"question")
            assert connection.recv(100) == b"question"
            connection.sendall(b"answer")
            assert client.recv(100) == b"answer"
    assert opened.take_refused() == []


def test_nothing_is_accepted_where_nobody_passed(guarded: tuple[SecretListener, Address]):
    opened, address = guarded
    opened.setblocking(False)
    with pytest.raises(BlockingIOError):
        opened.accept()
    with address.connect(PATIENCE_S):
        eventually(lambda: opened._passed)
        opened.accept()[0].close()


def test_a_wrong_secret_is_refused_on_both_sides(
    guarded: tuple[SecretListener, Address], make_secret: MakeSecret
):
    opened, address = guarded
    other = Address(address.host, address.port, make_secret(b"another secret..", "other"))
    with pytest.raises(UnprovenError, match=r"it refused the secret of .*other"):
        other.connect(PATIENCE_S)
    assert "127.0.0.1 (it gave a wrong secret) was refused" in refused(opened)
    assert not opened._passed


@pytest.mark.parametrize("said", [b"", b"\x71\xf2\x0f\x00", b"x" * 63, b"x" * 64, b"x" * 100_000])
def test_no_secret_is_refused(guarded: tuple[SecretListener, Address], said: bytes):
    """The bytes include those of TVM's clients."""
    opened, address = guarded
    with socket.create_connection((address.host, address.port)) as client:
        # The listener closes after enough bytes: shutdown may find no connection.
        with contextlib.suppress(OSError):
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
        assert "secret) was refused" in refused(opened)
    assert not opened._passed


def test_who_waits_keeps_nobody_else_out(guarded: tuple[SecretListener, Address]):
    opened, address = guarded
    with socket.create_connection((address.host, address.port)) as silent:
        assert silent.recv(len(GREETING)) == GREETING
        with address.connect(PATIENCE_S):
            opened.accept()[0].close()


def test_who_does_not_answer_is_refused_in_time(
    guarded: tuple[SecretListener, Address], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(network, "ASK_S", 0.2)
    opened, address = guarded
    with socket.create_connection((address.host, address.port)) as silent:
        assert "did not answer for the secret in time" in refused(opened)
        silent.settimeout(PATIENCE_S)
        silent.recv(1000)
        assert silent.recv(1) == b""


@pytest.mark.parametrize("limit", ["_UNPROVEN", "_UNPROVEN_FROM_ONE"])
def test_silent_connections_shut_nobody_out(
    guarded: tuple[SecretListener, Address], monkeypatch: pytest.MonkeyPatch, limit: str
):
    """The oldest are dropped, with a reason; clients that answer still pass."""
    monkeypatch.setattr(network, limit, 4)
    opened, address = guarded
    with contextlib.ExitStack() as stack:
        silent = []
        for _ in range(6):
            silent.append(
                stack.enter_context(socket.create_connection((address.host, address.port)))
            )
            assert silent[-1].recv(1000).startswith(GREETING)
        for dropped in silent[:2]:
            dropped.settimeout(PATIENCE_S)
            assert dropped.recv(1000) == BUSY
        with address.connect(PATIENCE_S):
            opened.accept()[0].close()
        assert re.search("dropped: 4 connections.* had not given the secret", refused(opened))
        # The newest may still answer.
        assert address.secret is not None
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)


def test_one_address_does_not_drop_those_of_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network, "_UNPROVEN", 4)
    listener = SecretListener.__new__(SecretListener)
    pairs = [socket.socketpair() for _ in range(4)]
    hosts = ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.2"]
    waiting = [
        network._Unproven(ours, host, 1) for (ours, _), host in zip(pairs, hosts, strict=True)
    ]
    listener._unproven = [*waiting]
    listener._make_room("10.0.0.3")
    assert listener._unproven == [waiting[0], *waiting[2:]]
    assert waiting[1].dropped
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_a_client_that_is_dropped_does_not_blame_its_secret(make_secret: MakeSecret):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(GREETING + bytes(32) + BUSY)
        with pytest.raises(BusyError, match="too many connections"):
            make_secret().prove(ours, PATIENCE_S)


def answer(secret: Secret, hello: bytes, change: int | None = None) -> bytes:
    """Return the answer of a client that knows the secret, with one byte of the proof changed."""
    challenge = bytes(range(32))
    proof = bytearray(secret._proof(b"client", hello[len(GREETING) :], challenge))
    if change is not None:
        proof[change] ^= 1
    return challenge + bytes(proof)


def test_an_answer_that_was_overheard_is_of_no_use(guarded: tuple[SecretListener, Address]):
    opened, address = guarded
    assert address.secret is not None
    with socket.create_connection((address.host, address.port)) as client:
        first = answer(address.secret, client.recv(1000))
        client.sendall(first)
        opened.accept()[0].close()
    with socket.create_connection((address.host, address.port)) as client:
        client.recv(1000)
        client.sendall(first)
        told: list[str] = []
        eventually(lambda: told.extend(opened.take_refused()) or told or opened._passed)
        assert not opened._passed
        assert "it gave a wrong secret" in told[0]


@pytest.mark.parametrize("change", [0, 15, 31])
def test_every_byte_of_a_proof_counts(make_secret: MakeSecret, change: int):
    secret = make_secret()
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def respond() -> None:
            theirs.sendall(answer(secret, theirs.recv(1000), change))

        threading.Thread(target=respond, daemon=True).start()
        with pytest.raises(UnprovenError, match="wrong secret"):
            secret.demand(ours, PATIENCE_S)
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def pretend() -> None:
            challenge = bytes(32)
            theirs.sendall(GREETING + challenge)
            theirs_challenge = theirs.recv(1000)[:32]
            proof = bytearray(secret._proof(b"server", challenge, theirs_challenge))
            proof[change] ^= 1
            theirs.sendall(proof)

        threading.Thread(target=pretend, daemon=True).start()
        with pytest.raises(UnprovenError, match="does not know the secret"):
            secret.prove(ours, PATIENCE_S)


def test_refusals_are_counted_and_bounded(guarded: tuple[SecretListener, Address]):
    opened, _ = guarded
    for number in range(3 * network._REMEMBERED):
        ours, _theirs = socket.socketpair()
        opened._refuse(ours, f"10.0.0.{number}", "it gave no secret")
    ours, _theirs = socket.socketpair()
    opened._refuse(ours, "10.0.0.0", "it gave no secret")
    told = opened.take_refused()
    assert len(told) == network._REMEMBERED + 1
    assert told[0] == "2 connections from 10.0.0.0 (it gave no secret) were refused."
    assert told[-1] == f"{2 * network._REMEMBERED} connections from other addresses were refused."


def test_a_gate_that_does_not_know_the_secret_is_refused(make_secret: MakeSecret):
    """A program in the place of a server gets no kernels."""
    secret, other = make_secret(), make_secret(b"another secret..", "other")
    assert secret.value != other.value
    with socket.create_server((LOCAL, 0)) as listening:

        def pretend() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(GREETING + bytes(32))
                connection.recv(64)
                connection.sendall(bytes(32))

        threading.Thread(target=pretend, daemon=True).start()
        address = Address(LOCAL, listening.getsockname()[1], secret)
        with pytest.raises(UnprovenError, match="does not know the secret"):
            address.connect(PATIENCE_S)


def repeat_an_answer(peer: socket.socket) -> None:
    hello = peer.recv(1000)
    peer.sendall(hello[len(GREETING) :] * 2)


def repeat_a_proof(peer: socket.socket) -> None:
    peer.sendall(GREETING + bytes(32))
    peer.sendall(peer.recv(1000)[32:])


@pytest.mark.parametrize(
    ("repeat", "ask", "message"),
    [
        (repeat_an_answer, "demand", "wrong secret"),
        (repeat_a_proof, "prove", "does not know the secret"),
    ],
    ids=["answer", "proof"],
)
def test_echoing_what_was_received_proves_nothing(
    make_secret: MakeSecret, repeat: Callable[[socket.socket], None], ask: str, message: str
):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        threading.Thread(target=repeat, args=[theirs], daemon=True).start()
        with pytest.raises(UnprovenError, match=message):
            getattr(make_secret(), ask)(ours, PATIENCE_S)


def test_what_asks_for_no_secret_is_not_told_anything(make_secret: MakeSecret):
    with socket.create_server((LOCAL, 0)) as listening:
        address = Address(LOCAL, listening.getsockname()[1], make_secret())
        with pytest.raises(UnprovenError, match="asks for no secret"):
            address.connect(0.2)
        connection, _ = listening.accept()
        with connection:
            assert connection.recv(1000) == b""


def test_a_tracker_says_that_it_asks_for_a_secret(guarded: tuple[SecretListener, Address]):
    _, address = guarded
    with pytest.raises(FarmError, match="it asks for a secret") as caught:
        Tracker(Address(address.host, address.port))
    assert "`secret_file" in caught.value.remedy
    assert not isinstance(caught.value, TrackerAwayError)


def test_a_way_to_a_server_takes_one_connection_and_carries_it(make_secret: MakeSecret):
    sent = bytes(range(256)) * 40_000
    with socket.create_server((LOCAL, 0)) as listening:
        server = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
        where = lead_to(server)
        with far, socket.create_connection(where, PATIENCE_S) as client:
            # Reset: the connection was queued when listening ended.
            with pytest.raises((ConnectionRefusedError, ConnectionResetError)):
                eventually(lambda: socket.create_connection(where, PATIENCE_S).close())

            def echo() -> None:
                while piece := far.recv(1 << 16):
                    far.sendall(piece)

            echoing = threading.Thread(target=echo, daemon=True)
            echoing.start()
            threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
            received = b""
            while len(received) < len(sent):
                received += client.recv(1 << 20)
            assert received == sent
            client.close()
            # Closing one side closes the other.
            echoing.join(PATIENCE_S)
            assert not echoing.is_alive()
