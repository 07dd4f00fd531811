"""The kernel lab: computations whose schedules go from the naive one to a fast one, step by step.

Each lab is one computation in TE with its size as a parameter; each step schedules it anew and
says what held the step before it back.  :mod:`tvmflow.explain.lab` runs and times them.
"""

from __future__ import annotations

from . import batch, elementwise, matmul, quantized
from .steps import Lab, Step

_ALL = (matmul.LAB, *elementwise.LABS, batch.LAB, *quantized.LABS)
#: Labs by name.
LABS: dict[str, Lab] = {lab.name: lab for lab in _ALL}

__all__ = ["LABS", "Lab", "Step"]
