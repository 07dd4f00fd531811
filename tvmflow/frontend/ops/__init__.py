"""Converters from ONNX operators to Relax, one operator family a file.

A converter takes a :class:`NodeContext` and returns Relax expressions that compute
exactly what the ONNX operator does, for static shapes; or it raises :class:`Refusal`
with the reason.  Importing this package registers them all.
"""

from __future__ import annotations

from . import (  # noqa: F401 - each registers its converters
    activation,
    convolution,
    deformable,
    elementwise,
    indexing,
    linear,
    normalization,
    padding,
    pooling,
    quantization,
    quantized,
    reduction,
    resize,
    shaping,
    spatial,
)
from .context import NodeContext, Refusal, bind, constant, dtype_of, shape_of
from .registry import CONVERTERS, converter_of

__all__ = [
    "CONVERTERS",
    "NodeContext",
    "Refusal",
    "bind",
    "constant",
    "converter_of",
    "dtype_of",
    "shape_of",
]
