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
from typing import TYPE_CHECKING, Any

from ._versions import __version__, check_tvm
from .errors import EnvironmentMismatchError, TvmflowError

if TYPE_CHECKING:
    from . import analysis, lab
    from .deploy.module import Module, load
    from .pipeline import compile
    from .profiling.measure import profile


def _check_packages() -> None:
    """Check the TVM wheels; the command line says so without a traceback."""
    try:
        check_tvm()
    except EnvironmentMismatchError as error:
        if os.path.basename(sys.argv[0]) != "tvmflow":
            raise
        sys.stderr.write(f"Error: {error}\n")
        raise SystemExit(error.exit_status) from None


_check_packages()

#: Public names and the modules that define them, imported on first use.
_LAZY = {
    "compile": ".pipeline",
    "load": ".deploy.module",
    "Module": ".deploy.module",
    "profile": ".profiling.measure",
}
#: Packages with functions for users.
_PACKAGES = ("analysis", "lab")

__all__ = [
    "Module",
    "TvmflowError",
    "__version__",
    "analysis",
    "compile",
    "lab",
    "load",
    "profile",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    if name in _PACKAGES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
