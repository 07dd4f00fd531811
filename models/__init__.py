"""Builders of the example networks: ONNX files with seeded random weights.

>>> from tvmflow import models
>>> models.build("mobilenet_v2", "mobilenet_v2.onnx", width=0.5, size=96)
PosixPath('mobilenet_v2.onnx')

``BUILDERS`` lists every network with its parameters; ``build`` writes one to a file,
``make`` returns it as an ``onnx.ModelProto``.
"""

from __future__ import annotations

from .registry import BUILDERS, Builder, Parameter, build, make

__all__ = ["BUILDERS", "Builder", "Parameter", "build", "make"]
