"""A farm on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.farms import FAULTY, PATIENCE_S, Farm, eventually

from tvmflow.runtime import tracker
from tvmflow.runtime.secret import Address


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker that other work keeps from answering is not one that is away."""
    monkeypatch.setattr(tracker, "_ANSWER_S", PATIENCE_S)


# Not for the session: idle servers ask their tracker and their sessions every second.
@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    farm = Farm(tmp_path_factory.mktemp("farm"))
    yield farm
    farm.close()


@pytest.fixture(scope="module")
def two_servers(farm: Farm) -> list[Address]:
    faults = {"FAULT_SLOW_S": "0.1", "FAULT_CRASH": "poison.so"}
    return [farm.start_server("pair", FAULTY, **faults) for _ in range(2)]


@pytest.fixture
def pair(farm: Farm, two_servers: list[Address]) -> list[Address]:
    """Two servers of one key, on which loading takes a moment."""
    # Each time: one that other work kept from its tracker registers again.
    for server in two_servers:
        eventually(lambda server=server: farm.server(server))
    return two_servers
