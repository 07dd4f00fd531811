"""Module files compared with ONNX Runtime on every OpenCL driver of this machine's processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from drivers import Driver, Runner, processor_drivers

import tvmflow
from tvmflow.tolerance import Tolerance, assert_close


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
    request: pytest.FixtureRequest, runners: Callable[[Driver], Runner]
) -> Callable[..., None]:
    """Return a function that runs a module on every driver, and names those where it is wrong.

    Its arguments are the module, the inputs, the outputs expected and the table of tolerances.
    Slow tests use Intel's runtime as it is, others without its vectoriser.
    """
    slow = request.node.get_closest_marker("slow") is not None
    drivers = processor_drivers(quick=not slow)
    if not drivers:
        pytest.skip("neither PoCL nor Intel's OpenCL runtime is installed")

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
