"""Comparison of results with ONNX Runtime, or ONNX's evaluator for custom operators.

The package is a function as well, :func:`.compare.verify`:

>>> tvmflow.verify("mobilenet_v2.onnx", module).passed
True
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import numpy as np

    from ..module.load import OtherMachine
    from ..module.module import Module
    from ..module.padding import Padding
    from .compare import Report


class _Callable(ModuleType):
    """Class of this package, which makes `tvmflow.verify` a package and a function."""

    def __call__(
        self,
        model: str | os.PathLike[str],
        module: Module | str | os.PathLike[str],
        inputs: Mapping[str, np.ndarray] | None = None,
        *,
        seed: int = 0,
        device: int | OtherMachine = 0,
        pad: Padding | None = None,
    ) -> Report:
        """Compare a module's results with ONNX Runtime's, as :func:`.compare.verify` does."""
        from .compare import verify

        return verify(model, module, inputs, seed=seed, device=device, pad=pad)


sys.modules[__name__].__class__ = _Callable
