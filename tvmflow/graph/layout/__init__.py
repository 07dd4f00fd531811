"""Layout pass: convert convolutions and the operators between them to ``NCHW{c}c``."""

from __future__ import annotations

from . import rules  # noqa: F401 (registers them)
