"""Memory scopes of textures, and the extents of the image that holds a tensor.

A texture is an OpenCL ``image2d_array_t`` of RGBA texels.  The last axis of its
tensor has extent 4, the channels of a texel.  The scope's name says how the other axes map to
columns, rows and layers, in one of two forms:

``global.texture:p8``, *panels*, for tensors between functions, ``[N, C', H, W, 4]``:
    8 channel blocks are next to each other, and the next 8 below them::

        column = (c' % 8) * W + w        row = (n * ceil(C' / 8) + c' // 8) * H + h

    Tensors of all sizes get images of about the same width, so that they can share
    memory; pixels that are near in the tensor are near in the image.

``global.texture:1.2``, *cuts*, for constants of any rank:
    axes before the first number are layers, those before the second rows, the others
    columns, each part flattened in row-major order.  The texels, in the order
    (layer, row, column), are then the elements in the order of a buffer, as on the host.

``global.texture-half:p8`` and ``global.texture-half:1.2`` are the same with channels of
16 bits: an image of ``CL_HALF_FLOAT``, which kernels read and write as fp32.  Every
OpenCL device with images converts between the two, also without ``cl_khr_fp16``; arithmetic is
in fp32, and the tensor's dtype stays ``float32``.

The runtime reads the same names (``native/tvm_plugin/texture_shape.cc``), and TVM's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx

from ..devices.target import Device
from ..runtime.json_types import JsonObject

PREFIX = "global.texture"
#: The prefix of textures whose channels are stored in 16 bits.
HALF = "global.texture-half"
#: The scope of buffers whose elements are stored in 16 bits (see :mod:`tvmflow.codegen.half`).
HALF_BUFFER = "global.half"
#: Channels of a texel.
CHANNELS = 4

_PANELS = re.compile(r"global\.texture(?:-half)?:p(\d+)$")
_CUTS = re.compile(r"global\.texture(?:-half)?:(\d+)\.(\d+)$")


@dataclass(frozen=True)
class Extent:
    """Extent of an image array, in texels and layers."""

    width: int
    height: int
    layers: int = 1

    def fits(self, device: Device) -> bool:
        """Return whether a device has images of this size."""
        longest = max(self.width, self.height)
        return longest <= device.image_extent and self.layers <= device.image_layers

    @property
    def texels(self) -> int:
        """Return the number of texels."""
        return self.width * self.height * self.layers

    def __str__(self) -> str:
        layers = f"x{self.layers}" if self.layers > 1 else ""
        return f"{self.width}x{self.height}{layers}"


def is_texture(scope: str) -> bool:
    """Return whether a memory scope is a texture."""
    return scope.startswith(PREFIX)


def is_half(scope: str) -> bool:
    """Return whether a memory scope, texture or buffer, stores fp32 tensors in 16 bits."""
    return scope.startswith(HALF) or scope == HALF_BUFFER


def with_half(scope: str) -> str:
    """Return the scope of the same image with 16-bit channels."""
    return scope.replace(PREFIX + ":", HALF + ":")


def texel_bytes(scope: str) -> int:
    """Return the size of a texel in bytes."""
    return CHANNELS * (2 if is_half(scope) else 4)


class Stored:
    """Storage of a tensor in memory: shape, dtype and memory scope."""

    shape: tuple[int, ...]
    dtype: str
    #: ``None`` for a buffer of its dtype.
    scope: str | None

    @property
    def is_image(self) -> bool:
        """Return whether the tensor is a texture."""
        return self.scope is not None and is_texture(self.scope)

    @property
    def extent(self) -> Extent | None:
        """Return the extent of its image; ``None`` for a buffer."""
        return extent_of(self.shape, str(self.scope)) if self.is_image else None

    @property
    def storage(self) -> str:
        """Return ``texture`` or ``buffer``."""
        return "texture" if self.is_image else "buffer"

    @property
    def stored_as(self) -> str:
        """Return the dtype of its elements in memory."""
        return "float16" if is_half(self.scope or "") else self.dtype

    def place(self) -> JsonObject:
        """Return shape and storage as JSON."""
        return {
            "shape": list(self.shape),
            "storage": self.storage,
            "stored_as": self.stored_as,
            "image": None if self.extent is None else str(self.extent),
        }


def extent_of(shape: Sequence[int], scope: str) -> Extent:
    """Return the extent of the image that holds a tensor of ``shape``."""
    if match := _PANELS.match(scope):
        panels = int(match.group(1))
        n, blocks, height, width, _ = shape
        return Extent(panels * width, n * -(-blocks // panels) * height)
    rows, columns = _cuts(scope)
    return Extent(prod(shape[columns:-1]), prod(shape[rows:columns]), prod(shape[:rows]))


def coordinates(
    shape: Sequence[tirx.Expr], scope: str, indices: Sequence[tirx.Expr]
) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
    """Return column, row and layer of a texel, as expressions of the tensor's indices."""
    if match := _PANELS.match(scope):
        panels = int(match.group(1))
        _, blocks, height, width, _ = (int(d) for d in shape)
        n, block, y, x, _ = indices
        below = n * -(-blocks // panels) + tirx.floordiv(block, panels)
        column = tirx.floormod(block, panels) * width + x
        return column, below * height + y, tirx.const(0, "int32")
    rows, columns = _cuts(scope)

    def flat(begin: int, end: int) -> tirx.Expr:
        offset = tirx.const(0, "int32")
        for axis in range(begin, end):
            offset = offset * shape[axis] + indices[axis]
        return offset

    return flat(columns, len(shape) - 1), flat(rows, columns), flat(0, rows)


def panel_scope(shape: Sequence[int], device: Device, width: int) -> str | None:
    """Return the scope of a tensor ``[N, C', H, W, 4]`` in an image of about this width.

    The number of panels is a power of 2, so that dividing by it is a shift, and no
    larger than ``C'``.  ``None`` if no image of the device holds the tensor.
    """
    _, blocks, _, columns, _ = shape
    panels = 1
    while 2 * panels * columns <= width and panels < blocks:
        panels *= 2
    while not extent_of(shape, f"{PREFIX}:p{panels}").fits(device):
        panels *= 2
        if panels >= 2 * blocks or panels * columns > device.image_extent:
            return None
    return f"{PREFIX}:p{panels}"


def interface_scope(shape: Sequence[int], device: Device, half: bool = False) -> str | None:
    """Return the scope of an input or output of the model that is a texture; ``None`` if none fits.

    The number of panels is the least that fits and fills the last row: the image then has no unused
    texels, and with one panel it has the order of a buffer.
    """
    _, blocks, _, _, _ = shape
    panels = 1
    while blocks % panels == 0:
        scope = f"{PREFIX}:p{panels}"
        if extent_of(shape, scope).fits(device):
            return with_half(scope) if half else scope
        panels *= 2
    return None


def constant_scope(shape: Sequence[int], device: Device) -> str | None:
    """Return the scope of a constant; ``None`` if no image of the device holds it.

    Prefers a row for each block of output channels, the first axis of weights, and few layers.
    """
    fitting = [
        ((extent.layers > 1, abs(columns - 1), extent.layers), scope)
        for rows in range(len(shape) - 1)
        for columns in range(rows, len(shape))
        if (extent := extent_of(shape, scope := f"{PREFIX}:{rows}.{columns}")).fits(device)
    ]
    return min(fitting)[1] if fitting else None


def _cuts(scope: str) -> tuple[int, int]:
    match = _CUTS.match(scope)
    if match is None:
        raise ValueError(f"the scope {scope!r} does not say where axes go in the image")
    return int(match.group(1)), int(match.group(2))


def is_half_buffer(buffer: tirx.Var) -> bool:
    """True for a TIR buffer that is kept in 16 bits."""
    return tirx.is_buffer_var(buffer) and buffer.scope() == HALF_BUFFER
