"""A tiny ONNX network, compiled for the CPU, and a way to run commands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.tiny_model import tiny_model
from typer.testing import CliRunner

from tvmflow.cli.app import app


@dataclass
class Result:
    """Exit status and output of a command."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Return standard output parsed as JSON."""
        return json.loads(self.stdout)

    def succeeded(self) -> Result:
        """Check the exit status; return the result."""
        assert self.status == 0, self.stdout + self.stderr
        return self

    def refused(self, *words: str, status: int = 2) -> None:
        """Check for a message with `words` and a remedy, without a traceback."""
        assert self.status == status, self.stdout + self.stderr
        assert "Traceback" not in self.stdout + self.stderr
        text = " ".join(self.stderr.split())
        for word in words:
            assert word in text


Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command in this process, in its own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")

    def run(*arguments: str | os.PathLike[str]) -> Result:
        result = CliRunner().invoke(app, [os.fspath(a) for a in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Result(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="session")
def model(folder: Path) -> Path:
    path = folder / "tiny.onnx"
    onnx.save(tiny_model(), path)
    return path


@pytest.fixture(scope="session")
def compiled(model: Path) -> Path:
    """Return the network compiled for the CPU; tests must not change it."""
    import tvmflow

    path = model.with_name("tiny.so")
    with tvmflow.compile(model, target="llvm", shapes={"x/in": (1, 3, 8, 8)}) as module:
        module.save(path)
    return path


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(6)
    return {
        "x/in": generator.standard_normal((1, 3, 8, 8)).astype(np.float32),
        "z": generator.standard_normal((4, 1, 1)).astype(np.float32),
    }
