"""A lab from its name to its results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from ...devices.target import TargetSpec, check_target, resolve
from ...errors import DeviceError, VerificationError
from ...module.session import find_device
from ...runtime.boundary import translated
from ...runtime.devices import DeviceInfo, list_devices
from ...schedules.lab import ON_DEVICE, Lab, Step, check_size, lab_of, steps_of
from ...tuning.building import ENTRY, lower
from ...verify.tolerance import compare
from ..profiling.ceilings import ceilings
from ..profiling.record import Ceilings
from ..profiling.roofline import is_above, peak_gbps, peak_gflops, roofline_share
from .findings import found_and_removed
from .machine import host_bytes, numpy_name, prepare_threads
from .results import LabResult, StepResult
from .timing import in_turn

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """Steps of a lab, built and found right, and NumPy's call for the same work."""

    lab: Lab
    size: int
    target: TargetSpec
    device: DeviceInfo
    steps: tuple[Step, ...]
    functions: tuple[tirx.PrimFunc, ...]
    #: A call of each step on the device, to its end.
    calls: tuple[Callable[[], None], ...]
    #: How far each step's result is from the reference, as a part of its largest value.
    errors: tuple[float, ...]
    numpy: Callable[[], Any]


def prepare(
    name: str,
    *,
    size: int | None = None,
    target: str = "llvm",
    device: str = "auto",
    device_index: int = 0,
    steps: Sequence[str] | None = None,
    seed: int = 0,
) -> Prepared:
    """Build and check the steps of a lab; parameters and errors are those of :func:`run_lab`."""
    lab, attempt = lab_of(name), f"Running the lab {name}"
    size = lab.size if size is None else size
    check_size(lab, size, host_bytes(), "this machine", lab.copies)
    check_target(target)
    # Before the target is resolved: where there is no device, this says how to get one.
    running = find_device(target, device_index, attempt)
    spec = resolve(target, device)
    chosen = steps_of(lab, spec, steps)
    info = next(i for i in list_devices() if (i.kind, i.index) == (target, device_index))
    if target == "llvm":
        prepare_threads(info.compute_units)
    else:
        check_size(lab, size, info.global_memory_bytes, info.name, ON_DEVICE)
    operands = lab.operands(size, np.random.default_rng(seed))
    reference = lab.reference(*operands)
    functions = [lab.schedule(step, size, spec) for step in chosen]
    calls, errors = [], []
    with translated(attempt, target):
        result = tvm.runtime.empty(reference.shape, reference.dtype.name, running)
        arguments = [*(tvm.runtime.tensor(array, running) for array in operands), result]
        for step, function in zip(chosen, functions, strict=True):
            call = _built(function, spec, running, arguments)
            # What a step leaves out is not what the step before it has left there.
            result.copyfrom(_unlike(reference))
            call()
            calls.append(call)
            errors.append(_checked(lab, step.name, size, result.numpy(), reference))
    return Prepared(
        *(lab, size, spec, info, chosen, tuple(functions), tuple(calls), tuple(errors)),
        lab.baseline(*operands),
    )


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
    fresh_ceilings: bool = False,
) -> LabResult:
    """Build, check and time the steps of a lab.

    Parameters
    ----------
    name
        A key of ``tvmflow.schedules.lab.LABS``.
    size
        Default the lab's.
    target, device
        As for networks.  On ``llvm``, TVM's threads are started for all processors, unless they
        run already, or ``TVM_NUM_THREADS`` or ``OMP_NUM_THREADS`` says how many.
    device_index
        Which of the target's devices runs it.
    steps
        Names of those to run, default all.
    seconds
        Time for the calls of each step, which has one call at least.
    seed
        Of the operands.
    fresh_ceilings
        Measure what the device reaches at most, although it is known.

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
    ready = prepare(
        name, size=size, target=target, device=device, device_index=device_index, steps=steps,
        seed=seed,
    )  # fmt: skip
    lab, info = ready.lab, ready.device
    names = [step.name for step in ready.steps]
    with translated(f"Running the lab {name}", target):
        times = in_turn({**dict(zip(names, ready.calls, strict=True)), "": ready.numpy}, seconds)
    operations, moved = lab.operations(ready.size), lab.bytes(ready.size)
    most = max(operations / times[each].median_ms / 1e6 for each in names)
    peaks = _peaks(lab, target, info, most, fresh=fresh_ceilings)
    results = []
    analysed = found_and_removed(ready.functions, ready.target)
    for step, error, (found, removed) in zip(ready.steps, ready.errors, analysed, strict=True):
        took = times[step.name]
        gflops, gbps = (count / took.median_ms / 1e6 for count in (operations, moved))
        results.append(
            StepResult(
                *(step.name, step.summary, step.removes, took),
                speedup=times[names[0]].median_ms / took.median_ms,
                gflops=gflops,
                gbps=gbps,
                of_numpy=times[""].median_ms / took.median_ms,
                of_peak=None if peaks is None else _of_peak(lab, gflops, gbps, peaks),
                error=error,
                found=found,
                removed=removed,
            )
        )
    return LabResult(
        *(name, ready.size, target, ready.target.device.name, info.name, peaks, operations, moved),
        *(numpy_name(), times[""], tuple(results)),
    )


def _unlike(reference: np.ndarray) -> np.ndarray:
    """An array that differs from the reference in every element."""
    if reference.dtype.kind == "f":
        return np.full_like(reference, np.nan)
    return np.invert(reference)


def _peaks(
    lab: Lab, target: str, info: DeviceInfo, gflops: float, *, fresh: bool
) -> Ceilings | None:
    """The device's ceilings, measured anew where a step computes faster than they allow."""
    peaks = _ceilings(target, info, fresh=fresh)
    if peaks is not None and not fresh and is_above(gflops, lab.arithmetic, peaks):
        # The device was busy when they were measured, and they were kept.
        peaks = _ceilings(target, info, fresh=True)
    if peaks is not None and is_above(gflops, lab.arithmetic, peaks):
        logger.warning(
            "A step computes faster than the device's ceiling: it was busy when that was "
            "measured.  Measure it again, with `fresh_ceilings`."
        )
    return peaks


def _ceilings(target: str, info: DeviceInfo, *, fresh: bool) -> Ceilings | None:
    try:
        return ceilings(target, info, fresh=fresh)
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
    if np.array_equal(result, reference):
        return 0.0  # Most labs are exact, and comparing in double precision takes seconds.
    compared = compare(step, result, reference)
    if not compared.passed:
        raise VerificationError(
            f"The step {step} of the lab {lab.name} with {size} {lab.counts} differs from its "
            f"reference by {compared.max_rel_error:.3g} of the largest value, "
            f"{compared.used:.3g} times the tolerance.",
            remedy="Try another size or target, and report this one.",
        )
    return compared.max_rel_error
