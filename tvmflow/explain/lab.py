"""Kernel lab: build, check and analyse every step of a lab, and time it alongside NumPy.

The labs' computations and schedules are in :mod:`tvmflow.schedules.lab`.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from tvm import tirx

from ..devices.target import TargetSpec, check_target, resolve
from ..errors import InputError, VerificationError
from ..ir.units import counted
from ..module.session import find_device
from ..runtime.devices import DeviceInfo, list_devices
from ..runtime.json_types import JsonObject
from ..runtime.load import Watch, disturbance, is_disturbed
from ..runtime.plugin import translated
from ..runtime.threads import use_threads
from ..runtime.timing import Times, in_turn
from ..schedules.lab import ON_DEVICE, Lab, Layout, Step, check_size, lab_of, steps_of, with_blocks
from ..tuning.building import ENTRY, Memory, lower
from ..tuning.tasks import arguments_of
from ..verify.tolerance import compare
from .analysis import Finding, findings
from .profiling.ceilings import ceilings_above, is_above, peak_gbps, peak_gflops, roofline_share
from .profiling.record import Ceilings

logger = logging.getLogger(__name__)

_Found = tuple[Finding, ...]
#: TVM's thread affinity that starts with the processors of the highest clock.
_BIG_CORES = 1
#: Suffixes that schedules give to copies of a tensor.
_COPY = re.compile(r"(_pad|_local|_shared|_global)+$")


@dataclass(frozen=True)
class StepResult:
    """Measurement of one step of a lab."""

    #: Name, summary of the schedule, and the bottleneck of the previous step.
    step: str
    summary: str
    removes: str
    #: Times of calls, without copies between host and device.
    times: Times
    #: The first step's time divided by this one's.
    speedup: float
    #: Rate in 10^9 operations a second, as the lab counts them.
    gflops: float
    #: Rate in 10^9 bytes a second of arguments and result, each counted once.
    gbps: float
    #: NumPy's time divided by this one's; ``None`` if other programs disturbed both.
    of_numpy: float | None
    #: Share of the lower of the device's ceilings at the lab's intensity, at most 1; ``None`` if
    #: ceilings could not be measured.
    of_peak: float | None
    #: Largest difference from the reference, relative to the reference's largest value.
    error: float
    #: Findings in its kernels: the largest of each kind and line.
    found: _Found
    #: Findings that the next step does not have.
    removed: _Found


@dataclass(frozen=True)
class LabResult:
    """Measurements of a lab, on one device."""

    lab: str
    size: int
    #: Samples that a call computes, each with separate arguments.
    batch: int
    target: str
    device: str
    device_name: str
    #: Requested size of blocks and number of threads.
    block: int | None
    workers: int | None
    #: Ceilings of the device.
    ceilings: Ceilings | None
    operations: int
    bytes: int
    #: Versions of NumPy and its BLAS.
    numpy: str
    numpy_times: Times
    steps: tuple[StepResult, ...]
    #: Part of the host's processors' time that other programs took meanwhile, 0 to 1.
    others_share: float | None = None

    @property
    def of_batch(self) -> str:
        """Suffix of titles that names the batch; empty for a single sample."""
        return f", batch of {self.batch:,}" if self.batch > 1 else ""


def run_lab(
    name: str,
    *,
    size: int | None = None,
    target: str = "llvm",
    device: str = "auto",
    device_index: int = 0,
    steps: Sequence[str] | None = None,
    block: int | None = None,
    workers: int | None = None,
    batch: int = 1,
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
        Size of the computation, default the lab's.
    target, device
        Target and device preset, as for networks.  On ``llvm``, TVM starts threads for all
        processors, unless they run already, or ``TVM_NUM_THREADS`` or ``OMP_NUM_THREADS`` is set.
    device_index
        Index of the target's device.
    steps
        Names of the steps to run, default all.
    block
        Block size of the steps with blocks: :func:`tvmflow.schedules.lab.with_blocks`.
    workers
        Threads that share parallel loops, default all; for ``llvm`` only.
    batch
        Number of samples, each with separate arguments and result.  A call launches the kernels of
        one sample after the other, waits once for all, and is timed as a whole.
    seconds
        Time for the calls of each step, which has at least one call.
    seed
        Seed of the operands.
    fresh_ceilings
        Measure the device's ceilings even if they are known.

    Raises
    ------
    InputError
        If there is no such lab or step, the size or batch is not positive or exceeds the memory, or
        blocks or workers are not possible.
    TargetError, DeviceError
        If target and device do not match, or there is no such device.
    VerificationError
        If a step's result differs from the reference by more than the tolerance.
    """
    with limited_threads(workers, target):
        lab, attempt = lab_of(name), f"Running the lab {name}"
        size = lab.size if size is None else size
        if batch < 1:
            raise InputError(
                f"The lab {name} was asked for a batch of {counted(batch, 'sample')}; expected at "
                "least 1.",
                remedy="Give a positive `batch`, or none for a single sample.",
            )
        check_size(lab, size, host_bytes(), "this machine", lab.copies * batch)
        check_target(target)
        # Before the target is resolved: without a device, this error says how to get one.
        running = find_device(target, device_index, attempt)
        spec = resolve(target, device)
        chosen = with_blocks(lab, steps_of(lab, spec, steps), size, block, spec.device)
        info = next(i for i in list_devices() if (i.kind, i.index) == (target, device_index))
        if target == "llvm":
            prepare_threads(info.compute_units)
        else:
            copies = ON_DEVICE * batch * len({step.layout for step in chosen})
            check_size(lab, size, info.global_memory_bytes, info.name, copies)
        rng = np.random.default_rng(seed)
        operands = [lab.operands(size, rng) for _ in range(batch)]
        functions = [lab.schedule(step, size, spec) for step in chosen]
        with translated(attempt, target):
            calls, errors = _built_and_checked(
                lab, size, chosen, functions, spec, running, operands
            )
            baselines = [lab.baseline(*arrays) for arrays in operands]
            calls[""] = lambda: [baseline() for baseline in baselines]
            watch = Watch()
            times = in_turn(calls, seconds)
            share = watch.others_share()
    disturbed = is_disturbed(share)
    if (said := disturbance(share)) is not None:
        logger.warning("%s Comparisons with NumPy and with the ceilings are left out.", said)
    operations, moved = batch * lab.operations(size), batch * lab.bytes(size)
    most = max(operations / times[step.name].median_ms / 1e6 for step in chosen)
    peaks = _peaks(lab, target, info, most, fresh=fresh_ceilings)
    results = []
    analysed = found_and_removed(functions, spec)
    for step, error, (found, removed) in zip(chosen, errors, analysed, strict=True):
        took = times[step.name]
        gflops, gbps = (count / took.median_ms / 1e6 for count in (operations, moved))
        of_peak = None
        if peaks is not None and not disturbed:
            of_peak = roofline_share(
                gflops / peak_gflops(lab.arithmetic, peaks), gbps / peak_gbps("copy", peaks)
            )
        results.append(
            StepResult(
                step=step.name,
                summary=step.summary,
                removes=step.removes,
                times=took,
                speedup=times[chosen[0].name].median_ms / took.median_ms,
                gflops=gflops,
                gbps=gbps,
                of_numpy=None if disturbed else times[""].median_ms / took.median_ms,
                of_peak=of_peak,
                error=error,
                found=found,
                removed=removed,
            )
        )
    return LabResult(
        lab=name,
        size=size,
        batch=batch,
        target=target,
        device=spec.device.name,
        device_name=info.name,
        block=block,
        workers=workers,
        ceilings=peaks,
        operations=operations,
        bytes=moved,
        numpy=numpy_name(),
        numpy_times=times[""],
        steps=tuple(results),
        others_share=share,
    )


def _built_and_checked(
    lab: Lab,
    size: int,
    steps: Sequence[Step],
    functions: Sequence[tirx.PrimFunc],
    target: TargetSpec,
    device: tvm.runtime.Device,
    operands: Sequence[Sequence[np.ndarray]],
) -> tuple[dict[str, Callable[[], object]], list[float]]:
    """Return each step's synchronous call for all samples, and its difference from the reference.

    The difference is relative to the reference's largest value.
    """
    references = [lab.reference(*arrays) for arrays in operands]
    calls: dict[str, Callable[[], object]] = {}
    errors = []
    held: dict[Layout | None, list[list[Memory]]] = {}
    for step, function in zip(steps, functions, strict=True):
        layout = step.layout
        if layout not in held:
            held[layout] = [_in_memory(step, function, device, each) for each in operands]
        samples = held[layout]
        call = _built(function, target, device, [[m.tensor for m in each] for each in samples])
        # Wrong values, so that elements that a step does not write are noticed.
        for (*_, result), reference in zip(samples, references, strict=True):
            is_float = reference.dtype.kind == "f"
            wrong = np.full(result.tensor.shape, np.nan) if is_float else np.invert(reference)
            result.write(wrong)
        call()
        calls[step.name] = call
        distances = []
        for number, ((*_, result), reference) in enumerate(
            zip(samples, references, strict=True), 1
        ):
            array = result.read() if layout is None else layout.result(result.read())
            sample = f", sample {number} of {len(operands)}," if len(operands) > 1 else ""
            what = f"{size} {lab.counts}{sample}"
            distances.append(_checked(lab, step.name, what, array, reference))
        errors.append(max(distances))
    return calls, errors


def _in_memory(
    step: Step,
    function: tirx.PrimFunc,
    device: tvm.runtime.Device,
    operands: Sequence[np.ndarray],
) -> list[Memory]:
    """Copy a lab's arguments to a device in the layout of a step, and allocate its result."""
    memory = [Memory(argument, device) for argument in arguments_of(function)]
    arrays = operands if step.layout is None else step.layout.arguments(*operands)
    for each, array in zip(memory[:-1], arrays, strict=True):
        each.write(array)
    return memory


def _peaks(
    lab: Lab, target: str, info: DeviceInfo, gflops: float, *, fresh: bool
) -> Ceilings | None:
    """Return the device's ceilings; measure them again if a step exceeds them."""

    def exceeds(found: Ceilings) -> bool:
        return is_above(gflops, lab.arithmetic, found)

    peaks = ceilings_above(target, info, exceeds, fresh=fresh, report=logger.warning)
    if peaks is not None and exceeds(peaks):
        logger.warning(
            "A step computes faster than the device's ceiling: it was busy when that was "
            "measured.  Measure it again, with `fresh_ceilings`."
        )
    return peaks


def _built(
    function: tirx.PrimFunc,
    target: TargetSpec,
    device: tvm.runtime.Device,
    samples: Sequence[Sequence[tvm.runtime.Tensor]],
) -> Callable[[], None]:
    """Build a scheduled function, and return its synchronous call for all samples."""
    with target.tvm_target:
        library = lower(function, target)
    entry = tvm.runtime.Executable(library).jit()[ENTRY]

    def call() -> None:
        for arguments in samples:
            entry(*arguments)
        device.sync()

    return call


def _checked(lab: Lab, step: str, what: str, result: np.ndarray, reference: np.ndarray) -> float:
    """Return a step's difference from the reference, relative to the reference's largest value."""
    if np.array_equal(result, reference):
        return 0.0  # Most labs are exact, and comparing in double precision takes seconds.
    compared = compare(step, result, reference)
    if not compared.passed:
        raise VerificationError(
            f"The step {step} of the lab {lab.name} with {what} differs from its "
            f"reference by {compared.max_rel_error:.3g} of the largest value, "
            f"{compared.used:.3g} times the tolerance.",
            remedy="Try another size or target, and report this one.",
        )
    return compared.max_rel_error


def found_and_removed(
    functions: Iterable[tirx.PrimFunc], target: TargetSpec
) -> list[tuple[_Found, _Found]]:
    """Return the findings of each scheduled function, and those that the next one lacks.

    Each kind and line has only its largest finding, since a line may be unrolled.
    """
    found = []
    for function in functions:
        largest: dict[tuple[str, int], Finding] = {}
        for finding in sorted(findings(function, target), key=lambda finding: -finding.share):
            largest.setdefault((finding.kind, finding.line), finding)
        found.append(tuple(largest.values()))
    still = [{_subject(finding) for finding in step} for step in found[1:]]
    removed = [
        tuple(finding for finding in step if _subject(finding) not in subjects)
        for step, subjects in zip(found, still, strict=False)
    ]
    return list(zip(found, [*removed, ()], strict=True))


def _subject(finding: Finding) -> tuple[str, str]:
    """Return a finding's kind and tensor; no tensor if it is about the whole kernel."""
    tensor, bracket, _index = finding.access.partition("[")
    return finding.kind, _COPY.sub("", tensor) if bracket else ""


def host_bytes() -> int:
    """Return the bytes of memory that are available without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def prepare_threads(cores: int) -> None:
    """Make TVM use as many threads as OpenBLAS, and let them sleep while they have no work.

    By default TVM's threads spin for 0.1 s before they sleep, on processors that NumPy's next call
    needs.  Settings of the user, and running threads, are not changed.
    """
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    use_threads(cores)


@contextmanager
def limited_threads(workers: int | None, target: str) -> Iterator[None]:
    """Limit the threads of parallel loops on ``llvm``; ``None`` leaves them as they are."""
    if workers is None:
        yield
        return
    if target != "llvm":
        raise InputError(
            f"The lab was asked for {counted(workers, 'worker')} on {target}; only the target llvm "
            "has threads to choose: how many cores a kernel gets is the driver's decision.",
            remedy="Leave `workers` out, or choose the target llvm.",
        )
    allowed = os.sched_getaffinity(0)
    cores = len(allowed)
    if not 1 <= workers <= cores:
        raise InputError(
            f"The lab was asked for {counted(workers, 'worker')}; this machine has 1 to {cores}.",
            remedy="Give fewer `workers`, or none for all.",
        )
    # Before the first query starts the threads.
    prepare_threads(cores)
    threads = tvm.runtime.num_threads()
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(_BIG_CORES, workers)
    try:
        if (got := tvm.runtime.num_threads()) != workers:
            raise InputError(
                f"The lab was asked for {counted(workers, 'worker')}; TVM has started {got} in "
                "this process.",
                remedy="Set TVM_NUM_THREADS to at least as many, or start anew without it.",
            )
        yield
    finally:
        configure(_BIG_CORES, threads)
        # TVM binds the calling thread to one core, which child processes would inherit.
        os.sched_setaffinity(0, allowed)


def numpy_name() -> str:
    """Return NumPy and its BLAS with their versions, and the BLAS's kernels for this CPU."""
    config: JsonObject = np.show_config(mode="dicts")  # type: ignore[assignment]
    blas = config.get("Build Dependencies", {}).get("blas", {})
    parts = [f"NumPy {np.__version__}", f"{blas.get('name', '')} {blas.get('version', '')}".strip()]
    return ", ".join(filter(None, [*parts, _openblas()]))


def _openblas() -> str:
    """Describe kernels and threads of the OpenBLAS in NumPy's wheels; empty for another BLAS."""
    # OpenBLAS's symbols are found through the module that is linked with it.
    module = sys.modules.get("numpy._core._multiarray_umath")
    if module is None or module.__file__ is None:
        return ""
    library = ctypes.CDLL(module.__file__)
    try:
        name = library.scipy_openblas_get_corename64_
        threads = library.scipy_openblas_get_num_threads64_
    except AttributeError:
        return ""
    name.restype = ctypes.c_char_p
    return f"{name().decode()} kernels, {counted(int(threads()), 'thread')}"
