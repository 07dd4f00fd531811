"""Tensors of other libraries: NumPy's arrays, and any that has DLPack, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.tensors import TensorType
from .values import any_array, from_dlpack, writable_alias

#: A NumPy array or a tensor of TVM.
Shared = Any


def shared(name: str, value: Any) -> Shared:
    """A compact NumPy array or TVM's view of a tensor's memory, for the input ``name``.

    Raises
    ------
    InputError
        If it is neither, or a tensor that DLPack cannot hand over.
    """
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic):
        return from_dlpack(name, value)
    array = any_array(name, value)
    # Not `ascontiguousarray`, which makes one dimension of none.
    return array if array.flags.c_contiguous else array.copy(order="C")


def type_of(value: Shared) -> TensorType:
    """Shape and dtype."""
    dtype = value.dtype.name if isinstance(value, np.ndarray) else str(value.dtype)
    return TensorType(tuple(value.shape), dtype)


def is_on_host(value: Shared) -> bool:
    """Whether the processor can read it."""
    return isinstance(value, np.ndarray) or value.device.type == "cpu"


def on_host(value: Shared) -> np.ndarray:
    """An array of the values; the same memory where the host has them."""
    if isinstance(value, np.ndarray):
        return value
    if value.device.type == "cpu" and str(value.dtype) != "bfloat16":
        array: np.ndarray = np.from_dlpack(value)
        return array
    copied: np.ndarray = value.numpy()
    return copied


def tensor_of(array: np.ndarray) -> Any:
    """TVM's view of an array's memory, which must not be written."""
    import tvm_ffi

    array = writable_alias(array)
    if array.dtype.name != "bfloat16":
        return tvm_ffi.from_dlpack(array)
    # NumPy does not hand over what it knows from another package only.
    bits = tvm_ffi.from_dlpack(array.view(np.uint16))
    return bits._create_view(array.shape, "bfloat16")


def address_of(value: Shared) -> int:
    """Where its first element is; an empty one's may be nowhere."""
    if isinstance(value, np.ndarray):
        return int(value.__array_interface__["data"][0])
    return int(value.data_ptr())


def unknown(kind: TensorType) -> np.ndarray:
    """An array of a shape, for checks of other values beside it: NaNs, and no memory."""
    return np.broadcast_to(np.float32(np.nan), kind.shape)
