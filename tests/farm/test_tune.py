"""Tuning a network on a farm, from the command line to the journal."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import onnx
import pytest
from support.farms import PATIENCE_S, Farm
from support.forks import run_command
from support.networks import Graph

from tvmflow.journal.journal import Journal


def tune(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    graph = Graph(1, 16, 12, 12)
    onnx.save(graph.model(graph.conv("x", 16, 3)), folder / "net.onnx")
    options = ["--target", "llvm", "--device", "cpu", "--journal", str(folder / "new.journal")]
    command = ["tune", str(folder / "net.onnx"), *options, *arguments]
    return run_command(command, os.environ, PATIENCE_S)


@pytest.mark.slow
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
