"""What the first stages of a compilation make of a network, without code for it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import onnx

import tvmflow
from tvmflow.compilation import Compilation
from tvmflow.stages import STAGES


class _StopError(Exception):
    """The last stage that is needed has run."""


def compiled_until(
    last: str, model: str | os.PathLike[str] | onnx.ModelProto, **options: Any
) -> Compilation:
    """Return a compilation after a stage, which is in half of the time that all of them take."""
    jobs: list[Compilation] = []

    def run(job: Compilation, **_: object) -> None:
        jobs.append(job)
        for name, stage in STAGES:
            stage(job)
            if name == last:
                raise _StopError

    with patch("tvmflow.pipeline.run_stages", run), suppress(_StopError):
        tvmflow.compile(model, **options)
    return jobs[0]


def chosen_schedules(model: onnx.ModelProto, **options: Any) -> dict[str, dict[str, Any]]:
    """Return what ``metadata["schedules"]`` of the compiled module is."""
    job = compiled_until("schedule", model, **options)
    return {name: choice.report() for name, choice in job.schedules.items()}
