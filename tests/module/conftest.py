"""Module files of the tiny network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.mock_library import build_mock
from support.tiny_network import build, write


@pytest.fixture(scope="session")
def executable() -> Any:
    return build()


@pytest.fixture(scope="session")
def original(executable: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a module file with its weight inside; tests copy it and do not change it."""
    path = tmp_path_factory.mktemp("module") / "tiny.so"
    write(executable, path)
    return path


@pytest.fixture
def module_file(original: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.so"
    path.write_bytes(original.read_bytes())
    return path


@pytest.fixture
def with_sidecar(executable: Any, tmp_path: Path) -> Path:
    """Return a module file with its weight in a sidecar."""
    path = tmp_path / "beside.so"
    write(executable, path, embed_limit_bytes=0)
    return path


@pytest.fixture(scope="session")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library whose output is the sum of its inputs; tests do not change it."""
    return build_mock(tmp_path_factory.mktemp("mock") / "libmock.so")
