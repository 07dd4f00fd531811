"""The kernel lab: computations whose schedules go from the naive one to a fast one, step by step.

Each lab is one computation in TE with its size as a parameter; each step schedules it anew and
says what held the step before it back.  :mod:`tvmflow.lab` runs and times them.
"""

from __future__ import annotations

from . import matmul
from .steps import Lab, Step

#: Labs by name.
LABS: dict[str, Lab] = {lab.name: lab for lab in (matmul.LAB,)}

__all__ = ["LABS", "Lab", "Step"]
