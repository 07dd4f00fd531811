"""Import of ONNX models: read a model, give it static shapes, convert it to Relax."""

from __future__ import annotations

from .load import ImportedModel, load_model

__all__ = ["ImportedModel", "load_model"]
