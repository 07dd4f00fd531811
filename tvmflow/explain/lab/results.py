"""What a lab measured."""

from __future__ import annotations

from dataclasses import dataclass

from ...runtime.timing import Times
from ..analysis import Finding
from ..profiling.record import Ceilings


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
        10^9 operations a second, as the lab counts them.
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
        What an analysis of its kernels finds, of each kind the largest of a line.
    removed
        Of these, what is not found in the next step that ran.
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
