"""The first stage: a model's file to Relax."""

from __future__ import annotations

from ..frontend import load_model
from .compilation import Compilation


def import_model(job: Compilation) -> None:
    """ONNX to Relax, with static shapes and constant weights."""
    job.model = load_model(job.source, dict(job.options.shapes) or None)
    job.mod = job.model.mod
