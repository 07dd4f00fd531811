"""Module files compared with ONNX Runtime on every OpenCL driver of this machine's processor."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from support.drivers import Driver, Runner, processor_drivers

import tvmflow
from tvmflow.verify.tolerance import Tolerance, assert_close


@pytest.fixture(scope="session")
def runners() -> Iterator[Callable[[Driver], Runner]]:
    """Return a function that gives a driver's process, the same while it lives."""
    started: dict[str, Runner] = {}

    def runner(driver: Driver) -> Runner:
        found = started.get(driver.name)
        if found is None or not found.alive:
            found = started[driver.name] = Runner(driver.variables(driver.path or driver.library))
        return found

    yield runner
    for found in started.values():
        found.close()


@pytest.fixture
def compare(
    request: pytest.FixtureRequest, runners: Callable[[Driver], Runner], every_driver: bool
) -> Callable[..., None]:
    """Return a function that runs a module on drivers, and names those where it is wrong.

    These are all or, where not every driver is wanted, one for each test in turn.  Its arguments
    are the module, the inputs, the outputs expected and the table of tolerances.
    Slow tests use Intel's runtime as it is, others without its vectoriser.
    """
    slow = request.node.get_closest_marker("slow") is not None
    drivers = processor_drivers(quick=not slow)
    if not drivers:
        pytest.skip("neither PoCL nor Intel's OpenCL runtime is installed")
    if not every_driver:
        turn = zlib.crc32(request.node.nodeid.encode()) % len(drivers)
        drivers = drivers[turn : turn + 1]

    def compare(
        module: tvmflow.Module,
        feeds: dict[str, np.ndarray],
        references: Sequence[np.ndarray],
        table: dict[str, Tolerance],
        on: Sequence[Driver] = drivers,
    ) -> None:
        wrong = []
        for driver in on:
            try:
                outputs = runners(driver)(module.path, feeds)
                for info, reference in zip(module.outputs, references, strict=True):
                    assert_close(outputs[info.name], reference, table, info.name)
            except AssertionError as error:
                wrong.append(f"on {driver.name}: {error}")
        assert not wrong, "\n".join(wrong)

    return compare
