"""The kernel lab at work: every step of a lab built, checked, timed beside NumPy, and analysed.

The labs themselves, computations and schedules, are in :mod:`tvmflow.schedules.lab`.
"""

from __future__ import annotations

from ...runtime.timing import Times
from .running import LabResult, StepResult, run_lab

__all__ = ["LabResult", "StepResult", "Times", "run_lab"]
