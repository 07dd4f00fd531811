"""Errors and providers, where ONNX Runtime's binary module has them."""

# Absolute names: where this package stands for `onnxruntime` in `sys.modules`, relative ones would
# import everything a second time, with other classes of errors.
from __future__ import annotations

from tvmflow.onnxruntime.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,
)
from tvmflow.onnxruntime.providers import (
    get_all_providers,
    get_available_providers,
    get_device,
)

__all__ = [
    "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented",
    "get_all_providers", "get_available_providers", "get_device",
]  # fmt: skip
