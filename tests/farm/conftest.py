"""A farm on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from farms import Farm


@pytest.fixture(scope="session")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    farm = Farm(tmp_path_factory.mktemp("farm"))
    yield farm
    farm.close()
