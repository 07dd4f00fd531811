"""A lab from its name to its results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from ..deploy.boundary import translate
from ..deploy.session import find_device
from ..errors import DeviceError, VerificationError
from ..profiling.ceilings import ceilings
from ..profiling.record import Ceilings
from ..profiling.roofline import peak_gbps, peak_gflops, roofline_share
from ..runtime.devices import DeviceInfo, list_devices
from ..schedules.lab import Lab
from ..schedules.lab.choice import ON_DEVICE, check_size, lab_of, steps_of
from ..target import TargetSpec, resolve
from ..tolerance import compare
from ..tuning.building import ENTRY, lower
from .findings import found_and_removed
from .machine import host_bytes, numpy_name, prepare_threads
from .results import LabResult, StepResult
from .timing import in_turn

logger = logging.getLogger(__name__)


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
    check_size(lab, size, host_bytes(), "this machine", lab.copies)
    running = find_device(target, device_index, attempt)
    spec = resolve(target, device)
    chosen = steps_of(lab, spec, steps)
    info = next(i for i in list_devices() if (i.kind, i.index) == (target, device_index))
    if target == "llvm":
        prepare_threads()
    else:
        check_size(lab, size, info.global_memory_bytes, info.name, ON_DEVICE)
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
        times = in_turn({**calls, "": numpy}, seconds)
    except Exception as error:
        if (translated := translate(error, attempt, target)) is not None:
            raise translated from error
        raise
    operations, moved = lab.operations(size), lab.bytes(size)
    results = []
    analysed = found_and_removed(functions.values(), spec)
    for step, (found, removed) in zip(chosen, analysed, strict=True):
        took = times[step.name]
        gflops, gbps = (count / took.median_ms / 1e6 for count in (operations, moved))
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
        *(numpy_name(), times[""], tuple(results)),
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
