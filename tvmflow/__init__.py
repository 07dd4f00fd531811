"""tvmflow: ONNX networks to deployable GPU modules, on Apache TVM.

>>> import tvmflow
>>> module = tvmflow.compile("mobilenet_v2.onnx", target="opencl")
>>> module.save("mobilenet_v2.so")
>>> outputs = tvmflow.load("mobilenet_v2.so")(input=image)

Importing this package does not import TVM; the first use of a name that needs
it does.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from . import errors
from ._versions import __version__, check_tvm
from .errors import EnvironmentMismatchError, TvmflowError

if TYPE_CHECKING:
    from . import models, ops
    from .agent.device import connect
    from .compiler.options import CompileOptions
    from .compiler.pipeline import compile
    from .devices.target import resolve
    from .explain import analysis, lab
    from .explain.profiling.measure import profile
    from .explain.profiling.page.write import write_page
    from .explain.profiling.reading import read_profile
    from .explain.profiling.record import Profile
    from .ir.pictures import Image
    from .journal.journal import Journal
    from .module.bench import Benchmark, bench
    from .module.link import native_folder
    from .module.load import load
    from .module.module import Module
    from .onnxruntime.session import InferenceSession
    from .runtime.devices import list_devices
    from .tuning.predict_network import predict
    from .tuning.tune import tune
    from .verify.compare import Report, verify


try:
    check_tvm()
except EnvironmentMismatchError as error:
    # The command line says so without a traceback, as `python -m tvmflow` too.
    is_module = ("-m", __name__) in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    if os.path.basename(sys.argv[0]) != "tvmflow" and not (sys.argv[0] == "-m" and is_module):
        raise
    sys.stderr.write(f"Error: {error}\n")
    raise SystemExit(error.exit_status) from None

#: Public names and the modules that define, or are, them; imported on first use.
_LAZY = {
    "Benchmark": ".module.bench",
    "CompileOptions": ".compiler.options",
    "Image": ".ir.pictures",
    "InferenceSession": ".onnxruntime.session",
    "Journal": ".journal.journal",
    "Module": ".module.module",
    "Profile": ".explain.profiling.record",
    "Report": ".verify.compare",
    "bench": ".module.bench",
    "compile": ".compiler.pipeline",
    "connect": ".agent.device",
    "list_devices": ".runtime.devices",
    "load": ".module.load",
    "native_folder": ".module.link",
    "predict": ".tuning.predict_network",
    "profile": ".explain.profiling.measure",
    "read_profile": ".explain.profiling.reading",
    "resolve": ".devices.target",
    "tune": ".tuning.tune",
    # A package that is a function, too.
    "verify": ".verify",
    "write_page": ".explain.profiling.page.write",
    # Packages with functions for users.
    "analysis": ".explain.analysis",
    "lab": ".explain.lab",
    "models": ".models",
    "ops": ".ops",
}
__all__ = [
    "Benchmark", "CompileOptions", "Image", "InferenceSession", "Journal", "Module", "Profile",
    "Report", "TvmflowError", "__version__", "analysis", "bench", "compile", "connect", "errors",
    "lab", "list_devices", "load", "models", "native_folder", "ops", "predict", "profile",
    "read_profile", "resolve", "tune", "verify", "write_page",
]  # fmt: skip


def __dir__() -> list[str]:
    """Names for users, also those that were not imported yet."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LAZY[name], __name__)
    return getattr(module, name, module)
