"""Converters from ONNX operators to Relax, one family of operators per file.

Importing this package imports all files in its folder, which register their converters.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from ..converter import CONVERTERS, RESULT_TYPES

__all__ = ["CONVERTERS", "RESULT_TYPES"]

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
