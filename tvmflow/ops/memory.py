"""Store the tensors of compiled operators: in buffers of the device, or in OpenCL images.

With the storage ``texture``, floating-point tensors ``[..., 4]`` are images: four neighbouring
numbers, such as a box, are one RGBA texel.  The last axis but one is the image's width, and the
axes before it are its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..devices.presets import Device, preset_of
from ..devices.target import TargetSpec
from ..errors import InputError, OperatorError, TargetError
from ..ir.operator import Operator
from ..ir.scope import CHANNELS, HALF_BUFFER, PREFIX, extent_of, is_texture, with_half
from ..ir.tensors import TensorType
from ..module.values import address_of, tensor_of, type_of
from ..runtime.devices import opencl_devices
from .signature import Signature

STORAGES = ("buffer", "texture")


def in_half(dtype: str, target: TargetSpec) -> bool:
    """Return whether kernels compute with a tensor in fp32 and store it in 16 bits.

    Every OpenCL device converts halves, but only some have arithmetic in half.
    """
    return dtype == "float16" and target.kind == "opencl"


def scope_of(dtype: str, rank: int, last: int, target: TargetSpec, storage: str) -> str:
    """Return the memory scope of a tensor; ``last`` is its last extent, 0 or 1 if it is open."""
    half = in_half(dtype, target)
    if storage == "texture" and last == CHANNELS and "float" in dtype:
        scope = f"{PREFIX}:0.{max(rank - 2, 0)}"
        return with_half(scope) if half else scope
    return HALF_BUFFER if half else ""


def check_storage(
    operator: Operator, signature: Signature, target: TargetSpec, storage: str, index: int
) -> None:
    """Check that a target supports a storage for the tensors of a signature.

    Raises `OperatorError` if images have no channels of a dtype, and `TargetError` if there is no
    such storage, or the target or the device ``index`` has no images.
    """
    attempt = f"Compiling {operator.name} with the storage {storage!r} failed"
    remedy = 'Use storage="buffer".'
    if storage not in STORAGES:
        raise TargetError(
            f"{attempt}: expected {' or '.join(map(repr, STORAGES))}.",
            remedy="Choose one of them, or leave it out.",
        )
    if storage == "buffer":
        return
    if target.kind != "opencl":
        raise TargetError(
            f"{attempt}: textures are images of OpenCL, which the target {target.kind} has not.",
            remedy='Use target="opencl", or storage="buffer".',
        )
    for operand, kind in zip(operator.inputs, signature, strict=True):
        if kind is not None and kind.dtype == "bfloat16":
            raise OperatorError(
                f"{attempt}: its {operand.name} is {kind}, and images have channels of float32 "
                "and float16.",
                remedy=remedy,
            )
    device = opencl_devices()[index]
    if not preset_of(device).image_extent:
        raise TargetError(f"{attempt}: the device {device.name} has no images.", remedy=remedy)


@dataclass
class Memory:
    """The allocator of TVM's tensors on a device, for kernels of a target and a storage."""

    target: TargetSpec
    storage: str
    device: Any

    def check(self, what: str, kind: TensorType) -> None:
        """Raise `InputError` if a tensor's image is too large; ``what`` begins the message."""
        scope = self._scope(kind)
        if not is_texture(scope):
            return
        extent, limits = extent_of(kind.shape, scope), self._limits
        if not extent.fits(limits):
            raise InputError(
                f"{what} {kind}, an image of {extent} texels; the device's are at most "
                f"{limits.image_extent}x{limits.image_extent}.",
                remedy='Compile it with storage="buffer", or split the batch.',
            )

    def bring(self, value: Any, aligned: int) -> Any:
        """Return a tensor on the device, in the same memory if kernels can use it."""
        kind = type_of(value)
        if isinstance(value, np.ndarray):
            here = self.target.kind == "llvm" and value.size
            if here and address_of(value) % aligned == 0:
                return tensor_of(value)
            brought = self.empty(kind)
            if value.size:
                brought.copyfrom(value.astype(brought.dtype, copy=False))
            return brought
        in_place = value.device == self.device and kind.elements and self._is_stored(value, kind)
        # Tensors of OpenCL have a handle instead of an address.
        if in_place and (self.target.kind == "opencl" or address_of(value) % aligned == 0):
            return value
        # Only copies from or to the host convert between 16 and 32 bits.
        if in_half(kind.dtype, self.target) or self._stored(value).endswith("half"):
            return self.bring(value.numpy(), aligned)
        brought = self.empty(kind)
        if kind.elements:
            value.copyto(brought)
        return brought

    def empty(self, kind: TensorType) -> Any:
        """Allocate an input or output."""
        scope = self._scope(kind)
        dtype = "float32" if in_half(kind.dtype, self.target) else kind.dtype
        # An image has at least one texel, even if it has no elements.
        shape = tuple(max(n, 1) for n in kind.shape) if is_texture(scope) else kind.shape
        tensor = tvm.runtime.empty(shape, dtype, self.device, mem_scope=scope or None)
        return tensor if shape == kind.shape else tensor._create_view(kind.shape, dtype)

    @cached_property
    def _limits(self) -> Device:
        """Return the preset of the device, with its image limits."""
        return preset_of(opencl_devices()[self.device.index])

    def workspace(self, kind: TensorType) -> Any:
        """Allocate memory for values between kernels: a plain buffer, whatever its shape."""
        return tvm.runtime.empty(kind.shape, kind.dtype, self.device)

    def _scope(self, kind: TensorType) -> str:
        last = kind.shape[-1] if kind.shape else 1
        return scope_of(kind.dtype, len(kind.shape), last, self.target, self.storage)

    def _is_stored(self, value: Any, kind: TensorType) -> bool:
        """Return whether a tensor of the device is stored as kernels expect."""
        scope = self._scope(kind)
        image = str(extent_of(kind.shape, scope)) if is_texture(scope) else ""
        half = "half" if in_half(kind.dtype, self.target) else ""
        return self._stored(value) == f"{image} {half}".strip()

    def _stored(self, value: Any) -> str:
        """Return how a tensor is stored, as the plug-in describes it."""
        if self.target.kind != "opencl" or value.device != self.device:
            return ""
        return str(tvm_ffi.get_global_func("tvmflow.opencl.storage")(value))
