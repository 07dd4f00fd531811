"""Interface of ONNX Runtime for programs that call it: the same names, run by tvmflow.

>>> import tvmflow.onnxruntime as onnxruntime
>>> session = onnxruntime.InferenceSession("ocr.onnx", providers=["tvmflow-opencl"])
>>> (scores,) = session.run(None, {"x": image})

ONNX Runtime itself is not imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .._versions import __version__

if TYPE_CHECKING:
    from .binding import IOBinding, OrtValue
    from .errors import (
        Fail,
        InvalidArgument,
        InvalidGraph,
        InvalidProtobuf,
        NoSuchFile,
        NotImplemented,
    )
    from .interface import ModelMetadata, NodeArg
    from .options import ExecutionMode, GraphOptimizationLevel, RunOptions, SessionOptions
    from .providers import get_all_providers, get_available_providers, get_device
    from .session import InferenceSession

#: Public names and the modules that define them; imported on first use.
_LAZY = {
    "ExecutionMode": ".options",
    "Fail": ".errors",
    "GraphOptimizationLevel": ".options",
    "IOBinding": ".binding",
    "InferenceSession": ".session",
    "InvalidArgument": ".errors",
    "InvalidGraph": ".errors",
    "InvalidProtobuf": ".errors",
    "ModelMetadata": ".interface",
    "NoSuchFile": ".errors",
    "NodeArg": ".interface",
    "NotImplemented": ".errors",
    "OrtValue": ".binding",
    "RunOptions": ".options",
    "SessionOptions": ".options",
    "get_all_providers": ".providers",
    "get_available_providers": ".providers",
    "get_device": ".providers",
}
__all__ = [
    "ExecutionMode", "Fail", "GraphOptimizationLevel", "IOBinding", "InferenceSession",
    "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "ModelMetadata", "NoSuchFile", "NodeArg",
    "NotImplemented", "OrtValue", "RunOptions", "SessionOptions", "__version__",
    "get_all_providers", "get_available_providers", "get_device",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name], __name__), name)
