"""Interface of ONNX Runtime for programs that call it: the same names, run by tvmflow.

>>> import tvmflow.onnxruntime as onnxruntime
>>> session = onnxruntime.InferenceSession("ocr.onnx", providers=["tvmflow-opencl"])
>>> (scores,) = session.run(None, {"x": image})

A package that imports ONNX Runtime by itself uses tvmflow after this line, before its import:

>>> sys.modules["onnxruntime"] = tvmflow.onnxruntime

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
    from .options import (
        ExecutionMode,
        GraphOptimizationLevel,
        RunOptions,
        SessionOptions,
        disable_telemetry_events,
        enable_telemetry_events,
        set_default_logger_severity,
        set_default_logger_verbosity,
    )
    from .providers import (
        get_all_providers,
        get_available_providers,
        get_device,
        set_default_provider,
    )
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
    "disable_telemetry_events": ".options",
    "enable_telemetry_events": ".options",
    "get_all_providers": ".providers",
    "get_available_providers": ".providers",
    "get_device": ".providers",
    "set_default_logger_severity": ".options",
    "set_default_logger_verbosity": ".options",
    "set_default_provider": ".providers",
}
__all__ = [
    "ExecutionMode", "Fail", "GraphOptimizationLevel", "IOBinding", "InferenceSession",
    "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "ModelMetadata", "NoSuchFile", "NodeArg",
    "NotImplemented", "OrtValue", "RunOptions", "SessionOptions", "__version__",
    "disable_telemetry_events", "enable_telemetry_events", "get_all_providers",
    "get_available_providers", "get_device", "set_default_logger_severity",
    "set_default_logger_verbosity", "set_default_provider",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name], __name__), name)
