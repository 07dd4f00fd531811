"""The kernel lab at work: every step of a lab built, checked, timed beside NumPy, and analysed.

The labs themselves, computations and schedules, are in :mod:`tvmflow.schedules.lab`.
"""

from __future__ import annotations

from .results import LabResult, StepResult
from .running import run_lab
from .timing import Times

__all__ = ["LabResult", "StepResult", "Times", "run_lab"]
