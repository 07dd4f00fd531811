"""Rules of single operators (:mod:`..layout`), one family of operators a file.

Importing this package imports all files in its folder, which register their rules.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
