"""Libraries of the mock model, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from mock_library import build_mock


@pytest.fixture(scope="session")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose output is the sum of its inputs; tests leave it as it is."""
    return build_mock(tmp_path_factory.mktemp("mock") / "libmock.so")


@pytest.fixture(scope="session")
def mock_tenfold(mock: Path) -> Path:
    """Beside it, one whose output is ten times the sum."""
    return build_mock(mock.with_name("libtenfold.so"), scale=10)
