"""How long a module takes: the first call, then the spread of many."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import InputError
from .blocked_layout import all_to_blocked
from .samples import Described, random_inputs

#: Runs and time that are measured unless the caller says otherwise, whichever is reached first.
DEFAULT_RUNS = 100
DEFAULT_SECONDS = 10.0


class Measured(Described, Protocol):
    """A module, or several that take a batch together."""

    def prepare(self) -> object:
        """Import what opening needs."""

    def open(self) -> object:
        """Load the library, and bring the weights to the device."""

    def __call__(self, inputs: Mapping[str, Any], /) -> object:
        """Run the network."""


@dataclass(frozen=True)
class Timing:
    """Times of a module's calls, in milliseconds.

    A call includes copying the inputs to the device and the outputs back.

    Parameters
    ----------
    load_ms
        Loading the library and bringing the weights to the device.
    first_ms
        The first call, in which a driver builds the kernels or finds them built.
    median_ms, p10_ms, p90_ms, min_ms, max_ms, mean_ms
        Of the measured runs.
    runs, warmup
        How many calls were measured, and how many before them were not.
    """

    load_ms: float
    first_ms: float
    median_ms: float
    p10_ms: float
    p90_ms: float
    min_ms: float
    max_ms: float
    mean_ms: float
    runs: int
    warmup: int


def benchmark(
    module: Measured,
    inputs: Mapping[str, Any] | None = None,
    *,
    runs: int | None = None,
    seconds: float | None = None,
    warmup: int = 5,
    seed: int = 0,
) -> Timing:
    """Measure a module's calls.

    Parameters
    ----------
    module
        A module that has not run yet (or its first call is not a first one).
    inputs
        Values by name, default random ones.
    runs
        Measure this many calls.
    seconds
        Measure calls for this long.  With `runs`, whichever is reached first; with
        neither, `DEFAULT_RUNS` and `DEFAULT_SECONDS`.
    warmup
        Calls between the first one and the measured ones.
    seed
        Seeds the random inputs.

    Raises
    ------
    InputError
        If an input or a number does not fit.
    DeviceError
        If there is no device.
    """
    if (runs is not None and runs < 1) or (seconds is not None and seconds <= 0) or warmup < 0:
        raise InputError(
            f"Measuring {runs} runs for {seconds} seconds after {warmup} is not possible.",
            remedy="Give at least one run, more than 0 seconds, and no negative warm-up.",
        )
    if runs is None and seconds is None:
        runs, seconds = DEFAULT_RUNS, DEFAULT_SECONDS
    values = dict(inputs) if inputs is not None else random_inputs(module, seed)
    # An application has them so: packing them is no part of a call.
    values = all_to_blocked(module.inputs, values)
    # Importing packages is not part of loading the module.
    module.prepare()
    load_ms = _measure(module.open)
    first_ms = _measure(lambda: module(values))
    for _ in range(warmup):
        module(values)
    times: list[float] = []
    end = time.perf_counter() + seconds if seconds is not None else float("inf")
    while len(times) < (runs or len(times) + 1):
        times.append(_measure(lambda: module(values)))
        if time.perf_counter() >= end:
            break
    p10, median, p90 = np.percentile(times, [10, 50, 90])
    return Timing(
        load_ms=load_ms,
        first_ms=first_ms,
        median_ms=float(median),
        p10_ms=float(p10),
        p90_ms=float(p90),
        min_ms=min(times),
        max_ms=max(times),
        mean_ms=float(np.mean(times)),
        runs=len(times),
        warmup=warmup,
    )


def _measure(function: Any) -> float:
    """Return how many milliseconds a call takes."""
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3
