"""An argument's memory on a device: a buffer, or an image that its elements are brought into."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

from ..ir.tensors import TensorInfo
from ..module.blocked_layout import from_image, panels_of, to_image
from .tasks import Argument


class Memory:
    """Memory for one argument.

    An image has whole rows of panels, so that it may be larger than its tensor; images are copied
    as a whole.  It is reserved for a tensor with as many more blocks, and the kernel gets a view.

    Parameters
    ----------
    argument
        What is kept there.
    device
        TVM's device, which may be remote.
    """

    def __init__(self, argument: Argument, device: Any):
        self._blocks = argument.shape[1] if panels_of(argument.scope) > 1 else 0
        shape = list(argument.shape)
        if self._blocks:
            panels = panels_of(argument.scope)
            shape[1] = -(-self._blocks // panels) * panels
        self._info = TensorInfo("", tuple(shape), argument.dtype, scope=argument.scope or None)
        self._whole = tvm.runtime.empty(
            self._info.shape, argument.dtype, device, mem_scope=self._info.scope
        )
        #: What kernels are called with.
        self.tensor = self._whole
        if self._info.shape != argument.shape:
            self.tensor = self._whole._create_view(argument.shape)

    def write(self, array: np.ndarray) -> None:
        """Bring an array to the device."""
        array = array.astype(self._info.dtype, copy=False)
        if self._blocks:
            missing = self._info.shape[1] - self._blocks
            array = np.pad(array, [(0, 0), (0, missing)] + [(0, 0)] * 3)
            array = to_image(self._info, array)
        self._whole.copyfrom(array)

    def read(self) -> np.ndarray:
        """Bring it back."""
        array: np.ndarray = self._whole.numpy()
        return from_image(self._info, array)[:, : self._blocks] if self._blocks else array
