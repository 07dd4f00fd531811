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

from ._versions import __version__, check_tvm
from .errors import EnvironmentMismatchError, TvmflowError

if TYPE_CHECKING:
    from .compiler.pipeline import compile
    from .explain import analysis, lab
    from .explain.profiling.measure import profile
    from .ir.pictures import Image
    from .module.bench import bench
    from .module.module import Module, load
    from .tuning.tune import tune
    from .verify.compare import verify


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
    "bench": ".module.bench",
    "compile": ".compiler.pipeline",
    "load": ".module.module",
    "Image": ".ir.pictures",
    "Module": ".module.module",
    "profile": ".explain.profiling.measure",
    "tune": ".tuning.tune",
    # A package that is a function, too.
    "verify": ".verify",
    # Packages with functions for users.
    "analysis": ".explain.analysis",
    "lab": ".explain.lab",
}
__all__ = [
    "Image", "Module", "TvmflowError", "__version__", "analysis", "bench", "compile", "lab", "load",
    "profile", "tune", "verify",
]  # fmt: skip


def __dir__() -> list[str]:
    """Names for users, also those that were not imported yet."""
    return sorted({*__all__, "errors", *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LAZY[name], __name__)
    return getattr(module, name, module)
