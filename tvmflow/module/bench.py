"""Benchmarks of a module: the time of its first call, and the distribution of later ones."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ..errors import InputError
from ..ir.units import counted
from ..runtime.load import Watch, disturbance
from ..runtime.timing import Spread, Times, elapsed_ms, repeat
from .blocked_layout import all_to_blocked
from .samples import Described, random_inputs

if TYPE_CHECKING:
    from .load import OtherMachine
    from .module import Module
    from .setting import Setting

logger = logging.getLogger(__name__)

#: Default limits of a measurement, which ends when either is reached.
DEFAULT_RUNS = 100
DEFAULT_SECONDS = 10.0


class Measured(Described, Protocol):
    """A module, or several modules that share a batch."""

    def prepare(self) -> object:
        """Import the packages that opening needs."""

    def open(self) -> object:
        """Load the library, and copy the weights to the device."""

    def __call__(self, inputs: Mapping[str, Any], /) -> object:
        """Run the network."""


@dataclass(frozen=True)
class Timing(Times):
    """Times of a module's calls, in milliseconds.

    A call includes copying the inputs to the device and the outputs back.
    """

    load_ms: float  #: Loading the library and copying the weights to the device.
    first_ms: float  #: The first call, in which the driver builds kernels or reads its cache.
    min_ms: float
    max_ms: float
    mean_ms: float
    p99_ms: float
    runs_per_s: float  #: Throughput of calls one after the other, from their mean time.
    warmup: int  #: Number of unmeasured calls before the measured ones.
    #: Share of the processors' time that other programs used meanwhile, from 0 to 1, if known.
    others_share: float | None


@runtime_checkable
class TimesItself(Protocol):
    """A module on another machine, which measures its calls there."""

    def time_calls(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        runs: int | None = None,
        seconds: float | None = None,
        warmup: int = 5,
        seed: int = 0,
    ) -> Timing:
        """Measure calls, with parameters as for `bench`."""

    def setting(self) -> Setting:
        """Return the setting in which the module runs."""

    def remarks(self) -> list[str]:
        """Return sentences on the last measurement: temperatures, throttling, sleep."""


@dataclass(frozen=True)
class Benchmark(Timing):
    """Times of a module's calls, with the setting in which they were measured."""

    setting: Setting

    def __repr__(self) -> str:
        where, threads = self.setting, self.setting.threads
        on = f"{where.target}, {counted(threads, 'thread')}" if threads else where.target
        return (
            f"<Benchmark: {self.median_ms:.3g} ms a call, {self.p10_ms:.3g} to {self.p90_ms:.3g} "
            f"in {counted(self.runs, 'run')}, on {where.device} ({on})>"
        )


def bench(
    module: Module | str | os.PathLike[str],
    inputs: Mapping[str, Any] | None = None,
    *,
    runs: int | None = None,
    seconds: float | None = None,
    warmup: int = 5,
    seed: int = 0,
    device: int | OtherMachine = 0,
) -> Benchmark:
    """Measure a module's calls, and warn if other programs disturbed the measurement.

    Parameters
    ----------
    module
        A module, or its file.  For a module that has run before, opening takes no time and the
        first call is as fast as the others.
    inputs
        Values by name, default random ones of `seed`.
    runs, seconds
        Measure this many calls, or for this long, whichever is reached first; with
        neither, `DEFAULT_RUNS` and `DEFAULT_SECONDS`.
    warmup
        Calls between the first one and the measured ones.
    device
        Device for a module file, as for `tvmflow.load`.

    Raises `InputError` if an input or a number does not fit, `DeviceError` if there is no device,
    and `ArtifactError` if the module file cannot be read, or is for another machine.

    Examples
    --------
    >>> tvmflow.bench("mobilenet_v2.so").median_ms
    5.87
    """
    from .load import load
    from .setting import setting_of

    if isinstance(module, str | os.PathLike):
        with closing(load(module, device=device)) as opened:
            return bench(opened, inputs, runs=runs, seconds=seconds, warmup=warmup, seed=seed)
    _check_numbers(runs, seconds, warmup)
    if isinstance(module, TimesItself):
        timing = module.time_calls(inputs, runs=runs, seconds=seconds, warmup=warmup, seed=seed)
        return Benchmark(**vars(timing), setting=module.setting())
    timing = benchmark(module, inputs, runs=runs, seconds=seconds, warmup=warmup, seed=seed)
    if (sentence := disturbance(timing.others_share)) is not None:
        logger.warning("%s", sentence)
    return Benchmark(**vars(timing), setting=setting_of(module))


def benchmark(
    module: Measured,
    inputs: Mapping[str, Any] | None = None,
    *,
    runs: int | None = None,
    seconds: float | None = None,
    warmup: int = 5,
    seed: int = 0,
) -> Timing:
    """Measure the calls of a module that has not run yet, with parameters as for `bench`.

    Raises `InputError` if an input or a number does not fit, and `DeviceError` if there is no
    device.
    """
    _check_numbers(runs, seconds, warmup)
    if runs is None and seconds is None:
        runs, seconds = DEFAULT_RUNS, DEFAULT_SECONDS
    given = inputs if inputs is not None else random_inputs(module, seed)
    # Applications have inputs in the module's layout, so packing them is not measured.
    values = all_to_blocked(module.inputs, given)
    # Importing packages is not part of loading the module.
    module.prepare()
    watch = Watch()
    load_ms = elapsed_ms(module.open)
    first_ms = elapsed_ms(lambda: module(values))
    for _ in range(warmup):
        module(values)
    most = float("inf") if runs is None else runs
    times = repeat(lambda: elapsed_ms(lambda: module(values)), most=most, seconds=seconds)
    mean_ms = float(np.mean(times))
    return Timing(
        **vars(Spread.of(times)),
        runs=len(times),
        load_ms=load_ms,
        first_ms=first_ms,
        min_ms=min(times),
        max_ms=max(times),
        mean_ms=mean_ms,
        p99_ms=float(np.percentile(times, 99)),
        runs_per_s=1e3 / mean_ms,
        warmup=warmup,
        others_share=watch.others_share(),
    )


def _check_numbers(runs: int | None, seconds: float | None, warmup: int) -> None:
    if (runs is not None and runs < 1) or (seconds is not None and seconds <= 0) or warmup < 0:
        raise InputError(
            f"Measuring {runs} runs for {seconds} seconds after {warmup} is not possible.",
            remedy="Give at least one run, more than 0 seconds, and no negative warm-up.",
        )
