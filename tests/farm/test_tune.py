"""Tuning a network on a farm, from the command line to the journal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
from farms import PATIENCE_S, Farm
from networks import squeeze_and_excite

from tvmflow.tuning.journal import Journal

#: The command; measurements that other work disturbed are repeated at once.
PROGRAM = """
from tvmflow.cli import main
from tvmflow.tuning import contest

contest.PAUSE_S = 0.0
main()
"""


def tune(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    onnx.save(squeeze_and_excite(), folder / "net.onnx")
    options = ["net.onnx", "--target", "llvm", "--device", "cpu", "--journal", "new.journal"]
    command = [sys.executable, "-c", PROGRAM, "tune", *options, *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_a_network_is_tuned_on_the_devices_of_a_key(farm: Farm, pair, tmp_path: Path):
    done = tune(
        *("--tracker", str(farm.address), "--key", "pair", "--trials", "3", "--workers", "1"),
        *("--search", "random"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    with Journal.open(tmp_path / "new.journal") as journal:
        trials, events = list(journal.trials()), list(journal.events())
    assert {trial.device.rpc_key for trial in trials} == {"pair"}
    assert all(trial.costs for trial in trials)
    assert {event.device.facts["address"] for event in events if event.kind == "joined"} == {
        str(server) for server in pair
    }


def test_a_key_that_nobody_serves_ends_tuning_with_a_sentence(farm: Farm, tmp_path: Path):
    done = tune("--tracker", str(farm.address), "--key", "pixel8", folder=tmp_path)
    assert done.returncode == 2
    assert "Nobody serves the key 'pixel8'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new.journal").exists()
