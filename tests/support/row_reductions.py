"""Modes and scheduled functions for tests of reductions and row functions."""

from __future__ import annotations

import onnx
import pytest

from support.first_stages import compiled_until
from tvmflow.schedules import Scheduled

#: Modes that take turns: those of CPUs, and those of GPUs.
TURNS = (("llvm", "cpu"), ("texture", "half-buffer"))
MODES = [
    pytest.param(("llvm", "cpu", "buffer", "fp32"), id="llvm"),
    pytest.param(("opencl", "cpu", "buffer", "fp32"), id="cpu"),
    pytest.param(("opencl", "adreno", "texture", "fp32"), id="texture"),
    pytest.param(("opencl", "mali", "buffer", "fp16"), id="half-buffer"),
    pytest.param(
        ("opencl", "nvidia", "texture", "fp16"), id="half-texture", marks=pytest.mark.slow
    ),
]


def schedules(
    model: onnx.ModelProto, device: str, target: str = "opencl", storage: str = "auto"
) -> dict[str, Scheduled]:
    """Return the scheduled primary functions of a model, without generating code."""
    job = compiled_until("schedule", model, target=target, device=device, storage=storage)
    return job.schedules


def schedule_of(model: onnx.ModelProto, device: str, target: str = "opencl") -> Scheduled:
    """Return the schedule of a model of one primary function."""
    (only,) = schedules(model, device, target).values()
    return only


def scheduled_text(model: onnx.ModelProto, device: str, target: str = "opencl") -> str:
    """Return the scheduled function of a model of one primary function, as text."""
    return str(schedule_of(model, device, target).schedule.mod["main"])


__all__ = ["MODES", "TURNS", "schedule_of", "scheduled_text", "schedules"]
