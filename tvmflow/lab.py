"""The kernel lab at work: every step of a lab built, checked, and timed beside NumPy.

The labs themselves, computations and schedules, are in :mod:`.schedules.lab`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from .analysis import Finding, findings
from .deploy.boundary import translate
from .deploy.session import find_device
from .errors import DeviceError, VerificationError
from .profiling.ceilings import ceilings
from .profiling.record import Ceilings
from .profiling.roofline import peak_gbps, peak_gflops, roofline_share
from .runtime.devices import DeviceInfo, list_devices
from .schedules.lab import Lab
from .schedules.lab.choice import check_size, lab_of, steps_of
from .target import TargetSpec, resolve
from .tolerance import compare
from .tuning.building import ENTRY, lower

logger = logging.getLogger(__name__)

#: Calls that take less than this are made once more before they are timed.
_SHORT_S = 0.2
_ROUNDS = 30


@dataclass(frozen=True)
class Times:
    """Times of calls, in milliseconds, by the host's clock."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    runs: int


@dataclass(frozen=True)
class StepResult:
    """One step of a lab as it was measured.

    Parameters
    ----------
    step, summary, removes
        Its name, what its schedule does, and what held the step before it back.
    times
        Of calls, without copies between host and device.
    speedup
        The first step's time divided by this one's.
    gflops
        Operations of 10^9 a second (for 8-bit numbers integer ones).
    gbps
        10^9 bytes a second of arguments and result, each counted once.
    of_numpy
        NumPy's time divided by this one's.
    of_peak
        Part of what the lower of the device's ceilings allows at the lab's operations for a byte,
        at most 1; ``None`` where ceilings could not be measured.
    error
        Largest difference from the reference, as a part of its largest value.
    found
        What an analysis of its kernels finds, of each kind the largest of a line; nothing on
        ``llvm``, which has no work-items.
    removed
        What was found in the step before it that ran, and is not found in this one.
    """

    step: str
    summary: str
    removes: str
    times: Times
    speedup: float
    gflops: float
    gbps: float
    of_numpy: float
    of_peak: float | None
    error: float
    found: tuple[Finding, ...]
    removed: tuple[Finding, ...]


@dataclass(frozen=True)
class LabResult:
    """What a lab measured, on one device."""

    lab: str
    size: int
    target: str
    device: str
    device_name: str
    #: What the device reaches in kernels that do one thing only.
    ceilings: Ceilings | None
    operations: int
    bytes: int
    #: NumPy, with the library that multiplies for it.
    numpy: str
    numpy_times: Times
    steps: tuple[StepResult, ...]


def run_lab(
    name: str,
    *,
    size: int | None = None,
    target: str = "llvm",
    device: str = "auto",
    device_index: int = 0,
    steps: Sequence[str] | None = None,
    seconds: float = 2.0,
    seed: int = 0,
) -> LabResult:
    """Build, check and time the steps of a lab.

    Parameters
    ----------
    name
        A key of ``tvmflow.schedules.lab.LABS``.
    size
        Default the lab's.
    target, device
        As for networks.
    device_index
        Which of the target's devices runs it.
    steps
        Names of those to run, default all.
    seconds
        Time for the calls of each step, which has one call at least.
    seed
        Of the operands.

    Raises
    ------
    InputError
        If there is no such lab or step, or the size is none or beyond the memory.
    TargetError
        If target and device do not go together.
    DeviceError
        If there is no such device.
    VerificationError
        If a step's result is not the reference's within the tolerance.
    """
    lab, attempt = lab_of(name), f"Running the lab {name}"
    size = lab.size if size is None else size
    check_size(lab, size, _host_bytes(), "this machine")
    running = find_device(target, device_index, attempt)
    spec = resolve(target, device)
    chosen = steps_of(lab, spec, steps)
    info = next(i for i in list_devices() if (i.kind, i.index) == (target, device_index))
    if target != "llvm":
        check_size(lab, size, info.global_memory_bytes, info.name)
    peaks = _ceilings(target, info)
    operands = lab.operands(size, np.random.default_rng(seed))
    reference = lab.reference(*operands)
    numpy = lab.baseline(*operands)
    functions = {step.name: lab.schedule(step, size, spec) for step in chosen}
    result = tvm.runtime.empty(reference.shape, reference.dtype.name, running)
    arguments = [*(tvm.runtime.tensor(array, running) for array in operands), result]
    try:
        calls, errors = {}, {}
        for each, function in functions.items():
            calls[each] = _built(function, spec, running, arguments)
            calls[each]()
            errors[each] = _checked(lab, each, size, result.numpy(), reference)
        times = _in_turn({**calls, "": numpy}, seconds)
    except Exception as error:
        if (translated := translate(error, attempt, target)) is not None:
            raise translated from error
        raise
    operations, moved = lab.operations(size), lab.bytes(size)
    results: list[StepResult] = []
    for step in chosen:
        took = times[step.name]
        gflops, gbps = (count / took.median_ms / 1e6 for count in (operations, moved))
        found = _largest(findings(functions[step.name], spec))
        removed = _missing(results[-1].found, found) if results else ()
        results.append(
            StepResult(
                *(step.name, step.summary, step.removes, took),
                speedup=times[chosen[0].name].median_ms / took.median_ms,
                gflops=gflops,
                gbps=gbps,
                of_numpy=times[""].median_ms / took.median_ms,
                of_peak=None if peaks is None else _of_peak(lab, gflops, gbps, peaks),
                error=errors[step.name],
                found=found,
                removed=removed,
            )
        )
    return LabResult(
        *(name, size, target, spec.device.name, info.name, peaks, operations, moved),
        *(_numpy_name(), times[""], tuple(results)),
    )


def _ceilings(target: str, info: DeviceInfo) -> Ceilings | None:
    try:
        return ceilings(target, info)
    except DeviceError as error:
        logger.warning("The device's ceilings could not be measured: %s", error.message)
        return None


def _of_peak(lab: Lab, gflops: float, gbps: float, peaks: Ceilings) -> float:
    computing = gflops / peak_gflops(lab.arithmetic, peaks)
    return roofline_share(computing, gbps / peak_gbps("copy", peaks))


def _built(
    function: tirx.PrimFunc, target: TargetSpec, device: Any, arguments: Sequence[Any]
) -> Callable[[], None]:
    """A scheduled function ready to be called."""
    with target.tvm_target:
        library = lower(function, target)
    entry = tvm.runtime.Executable(library).jit()[ENTRY]

    def call() -> None:
        entry(*arguments)
        device.sync()

    return call


def _checked(lab: Lab, step: str, size: int, result: np.ndarray, reference: np.ndarray) -> float:
    """How far a step's result is from the reference, as a part of its largest value."""
    compared = compare(step, result, reference)
    if not compared.passed:
        raise VerificationError(
            f"The step {step} of the lab {lab.name} with {size} {lab.counts} differs from its "
            f"reference by {compared.max_rel_error:.3g} of the largest value, "
            f"{compared.used:.3g} times the tolerance.",
            remedy="Try another size or target, and report this one.",
        )
    return compared.max_rel_error


def _largest(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Of each kind and line the finding of the largest share: a line may be unrolled."""
    by_share = sorted(found, key=lambda finding: -finding.share)
    first: dict[tuple[str, int], Finding] = {}
    for finding in by_share:
        first.setdefault((finding.kind, finding.line), finding)
    return tuple(first.values())


def _missing(before: Sequence[Finding], now: Sequence[Finding]) -> tuple[Finding, ...]:
    """What was found of a tensor, or of a whole kernel, and is not any more."""

    def of(finding: Finding) -> tuple[str, str]:
        tensor, bracket, _index = finding.access.partition("[")
        return finding.kind, tensor if bracket else ""

    still = {of(finding) for finding in now}
    return tuple(finding for finding in before if of(finding) not in still)


def _in_turn(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, Times]:
    """Time calls in turn, so that what disturbs the machine disturbs all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _round in range(_ROUNDS):
        for name, call in calls.items():
            if times[name] and sum(times[name]) >= seconds:
                continue
            if not times[name] or times[name][-1] < _SHORT_S:
                # Threads of the one before it (NumPy's BLAS keeps its own awake for a while) rest,
                # and the caches are this one's.
                call()
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {name: _summary(taken) for name, taken in times.items()}


def _summary(taken: Sequence[float]) -> Times:
    p10, median, p90 = np.percentile(taken, [10, 50, 90]) * 1e3
    return Times(float(median), float(p10), float(p90), len(taken))


def _host_bytes() -> int:
    """Memory that can be had without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _numpy_name() -> str:
    """NumPy and its BLAS with their versions."""
    config: dict[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
    blas = config.get("Build Dependencies", {}).get("blas", {})
    parts = [f"NumPy {np.__version__}", f"{blas.get('name', '')} {blas.get('version', '')}".strip()]
    return ", ".join(filter(None, parts))
