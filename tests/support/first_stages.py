"""First stages of a compilation, run without generating code."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import onnx
from tvm import IRModule

from tvmflow.compiler.compilation import Compilation
from tvmflow.compiler.driver import run_stages
from tvmflow.compiler.options import CompileOptions
from tvmflow.devices.target import TargetSpec


def compiled_until(
    last: str,
    model: str | os.PathLike[str] | onnx.ModelProto,
    spec: TargetSpec | None = None,
    **options: Any,
) -> Compilation:
    """Return a compilation after a stage; `spec` replaces the device's facts."""
    job = Compilation(model, CompileOptions(**options), target=spec)
    run_stages(job, until=last)
    return job


def through(stage: str, mod: IRModule, **options: Any) -> IRModule:
    """Run one stage on a program that comes from no model."""
    job = Compilation(None, CompileOptions(**options))
    job.model, job.mod = SimpleNamespace(bindings={}), mod
    return run_stages(job, first=stage, until=stage)


def chosen_schedules(model: onnx.ModelProto, **options: Any) -> dict[str, dict[str, Any]]:
    """Return the schedules that the compiled module's ``metadata["schedules"]`` would hold."""
    job = compiled_until("schedule", model, **options)
    return {name: choice.report() for name, choice in job.schedules.items()}
