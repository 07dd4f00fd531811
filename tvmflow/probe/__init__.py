"""Measuring what schedules and cost models assume about an OpenCL device behind an agent.

:mod:`.kernels` has the kernels, :mod:`.bench` runs and checks them, and :mod:`.measure` makes a
device file of what they reach.
"""

from __future__ import annotations
