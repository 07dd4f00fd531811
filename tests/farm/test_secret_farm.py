"""A farm with a secret, from end to end: only clients that know it measure."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import commands
from support.farm_candidates import Candidates
from support.farms import LOCAL, PATIENCE_S, Farm, eventually, free_port

from tvmflow.errors import FarmError
from tvmflow.farm import session
from tvmflow.farm.connect import borrow, connect, open_session
from tvmflow.farm.runner import FarmRunner
from tvmflow.farm.server_info import ABOUT_FUNCTION, ServerInfo
from tvmflow.runtime.secret import Address, Secret
from tvmflow.runtime.tracker import Offer, Tracker
from tvmflow.tuning.measure import Config
from tvmflow.tuning.timing import StopRule

pytestmark = pytest.mark.slow


def write_secret(folder: Path, name: str, content: str) -> Secret:
    file = folder / name
    file.write_text(content)
    file.chmod(0o600)
    return Secret.read(file)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Secret:
    return write_secret(tmp_path_factory.mktemp("wrong"), "wrong", "f" * 64)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    folder = tmp_path_factory.mktemp("secret-farm")
    farm = Farm(folder, write_secret(folder, "secret", "0123456789abcdef" * 4))
    yield farm
    farm.close()


@pytest.fixture(scope="module")
def served(farm: Farm) -> Address:
    address = farm.serve("board")
    eventually(lambda: farm.server(address).about)
    return address


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "tvmflow", *arguments)
    return commands.run(*command, status=None, timeout=PATIENCE_S, **environment)


def test_candidates_are_measured_by_who_knows_the_secret(
    farm: Farm, served: Address, tmp_path: Path
):
    candidates = Candidates(tmp_path)
    config = Config(StopRule(rounds=1, repeats=2), min_repeat_ms=0)
    runner = FarmRunner(farm.address, "board", "llvm", config)
    try:
        measured = runner.submit(candidates.right("a"), candidates.case).result(PATIENCE_S)
    finally:
        runner.close()
    assert (measured.error, measured.message) == (None, "")


def test_a_session_sends_files_and_ends(farm: Farm, served: Address, tmp_path: Path):
    offer = borrow(farm.address, "board")
    assert offer is not None
    remote, about = connect(offer, PATIENCE_S)
    assert about == ServerInfo.here()
    content = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(content)
    remote.upload(str(tmp_path / "file"))
    assert bytes(remote.download("file")) == content
    del remote
    eventually(lambda: farm.server(served).about["busy_s"] is None)


def test_a_wrong_secret_ends_with_a_sentence_and_is_logged(
    farm: Farm, served: Address, wrong: Secret
):
    done = run("farm", "status", "--tracker", str(farm.address), "--secret-file", str(wrong.file))
    assert done.returncode == 2
    assert f"it refused the secret of {wrong.file}" in done.stderr
    assert "Traceback" not in done.stderr
    eventually(lambda: "(it gave a wrong secret) was refused" in farm.log(farm.address))
    address = Address(served.host, served.port, wrong)
    with pytest.raises(FarmError, match=r"The server at .* refused the secret"):
        open_session(Offer(address, "board:0.5"), 10.0)
    eventually(lambda: "(it gave a wrong secret) was refused" in farm.log(served))
    # A tuning run shows the refusal in one line.
    with pytest.raises(RuntimeError, match=r"^The server at .* refused the secret of .*\.$"):
        session.begin(Offer(address, "board:0.5"), "llvm", Config(), 10.0, None)
    assert "0123456789abcdef" not in farm.log(served) + farm.log(farm.address)


def test_no_secret_ends_with_a_sentence_and_is_logged(farm: Farm, served: Address):
    done = run("farm", "status", "--tracker", str(farm.address))
    assert done.returncode == 2
    assert "it asks for a secret" in done.stderr
    assert "--secret-file" in done.stderr
    eventually(lambda: "(it gave no secret) was refused" in farm.log(farm.address))


def test_the_ticket_alone_lets_nobody_in(farm: Farm, served: Address):
    """TVM's own client is refused, even with a valid ticket."""
    from tvm import rpc

    offer = borrow(farm.address, "board")
    assert offer is not None
    with pytest.raises(Exception, match="RPC server"):
        rpc.connect(offer.address.host, offer.address.port, offer.ticket)
    # The ticket is still valid.
    remote, _ = connect(offer, PATIENCE_S)
    assert remote.get_function(ABOUT_FUNCTION)()


def test_an_environment_variable_names_the_secret(farm: Farm, served: Address):
    done = run(
        *("farm", "status", "--json", "--tracker", str(farm.address)),
        TVMFLOW_SECRET_FILE=str(farm.address.secret.file),
    )
    assert done.returncode == 0, done.stderr
    assert str(served) in [told["address"] for told in json.loads(done.stdout)["servers"]]


def test_a_server_whose_session_crashed_asks_for_the_secret_again(farm: Farm, wrong: Secret):
    address = farm.serve("fragile")
    eventually(lambda: (told := farm.server(address)) and told.about)
    for pid in farm.processes_of(address)[1:]:
        os.kill(pid, 9)
    eventually(lambda: (told := farm.server(address)) and told.about.get("crashes") == 1)
    with pytest.raises(FarmError, match="refused the secret"):
        open_session(Offer(Address(LOCAL, address.port, wrong), "fragile:0.5"), 10.0)
    assert farm.session("fragile")[0] == address


def test_a_server_waits_for_its_tracker(tmp_path: Path):
    """It starts first, reports that it waits, and serves when the tracker comes."""
    secret = write_secret(tmp_path, "secret", "0123456789abcdef")
    later = Address(LOCAL, free_port(), secret)
    options = ["--tracker", str(later), "--key", "early", "--secret-file", str(secret.file)]
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tvmflow", "farm", "serve", *options],
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: "Waiting for it." in (tmp_path / "log").read_text())
        tracker = subprocess.Popen(
            [
                *(sys.executable, "-m", "tvmflow", "farm", "tracker"),
                *("--port", str(later.port), "--secret-file", str(secret.file)),
            ]
        )
        try:
            eventually(lambda: _keys(later) == ["early"])
            assert (tmp_path / "log").read_text().count("Waiting for it.") == 1
        finally:
            tracker.terminate()
            tracker.wait(PATIENCE_S)
    finally:
        server.terminate()
        assert server.wait(PATIENCE_S) == 143


def _keys(address: Address) -> list[str]:
    try:
        with Tracker(address) as tracker:
            return [server.key for server in tracker.summary().servers]
    except FarmError:
        return []


def test_a_server_waits_no_longer_than_told():
    with socket.socket() as held:
        held.bind((LOCAL, 0))
        tracker = f"{LOCAL}:{held.getsockname()[1]}"
        done = run("farm", "serve", "--tracker", tracker, "--key", "k", "--wait", "1")
    assert done.returncode == 2
    assert done.stderr.count("Waiting for it.") == 1
    assert f"Error: The tracker at {tracker} cannot be reached" in done.stderr
