"""ONNX to Relax: reads a model, gives it static shapes and imports it."""

from __future__ import annotations

from .load import ImportedModel, load_model

__all__ = ["ImportedModel", "load_model"]
