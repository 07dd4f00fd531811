"""What a tensor costs in a texture and in a buffer.

A tensor is written once, streamed from memory once, and then read again from the
cache as often as its readers' loops say.  With W texels written, U different texels,
R texel reads of all readers, and speeds relative to a buffer of the same device::

    cost(buffer)  =  W         +  U          +  max(0, R - U)
    cost(texture) =  W / write +  U / stream +  max(0, R - U) / cached

The three speeds are facts of the device (:class:`tvmflow.devices.target.TextureSpeed`).
Register tiles reduce R alike in both, so that they do not change which is larger.

A primary function can be made for any combination of storage, so that nothing is
converted between them.  Only where one side of a tensor must have a buffer (an input or
output of the model, say) a texture for the others costs a copy of U texels::

    into a texture:  U  +  U / write          into a buffer:  U / stream  +  U
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import tvm_ffi
from tvm import s_tir, tirx

from ...devices.target import Device
from ...ir.scope import CHANNELS


@dataclass
class Traffic:
    """Texels of one tensor that are written, that exist, and that are read."""

    writes: int = 0
    unique: int = 0
    reads: int = 0

    def written(self, shape: Sequence[int]) -> None:
        """Count the one write of a tensor."""
        self.writes += prod(shape) // CHANNELS

    def read(self, function: tirx.PrimFunc, index: int) -> None:
        """Count what a function reads of its parameter ``index``."""
        param = function.params[index]
        self.unique = prod(int(d) for d in param.shape) // CHANNELS
        self.reads += count_reads(function, param) // CHANNELS

    def cost(self, write: float, stream: float, cached: float) -> float:
        """The formula above, in texels read from a buffer."""
        again = max(0, self.reads - self.unique)
        return self.writes / write + self.unique / stream + again / cached


def count_reads(function: tirx.PrimFunc, param: tirx.Var) -> int:
    """Elements of a parameter that a function reads, as often as its loops say.

    A block whose result stays in the function (padding, say) is computed where it is read,
    and reads its sources as often: the padded input of a 3x3 convolution nine times.
    """
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, blocks.append))

    def reads_of(tensor: tirx.Var) -> int:
        total = 0
        for block in blocks:
            if not any(region.source.same_as(tensor) for region in block.reads):
                continue
            if _is_inlined(block, function):
                total += reads_of(block.writes[0].source)
            elif block.iter_vars:
                total += prod(int(v.dom.extent) for v in block.iter_vars)
        return total

    return reads_of(param)


def _is_inlined(block: s_tir.SBlock, function: tirx.PrimFunc) -> bool:
    """Whether schedules compute a block where its result is read: one inner tensor, no sums."""
    if not block.iter_vars or len(block.writes) != 1:
        return False
    written = block.writes[0].source
    parallel = all(v.iter_type == tirx.IterVar.DataPar for v in block.iter_vars)
    return parallel and not any(written.same_as(p) for p in function.params)


def prefers_texture(traffic: Traffic, device: Device, copy: str = "") -> tuple[bool, str]:
    """Whether a texture costs less, and the two costs in words.

    ``copy`` is ``texture`` or ``buffer``, if a texture means a copy of the tensor into one
    of them.  Equal costs go to the texture on a device that reads textures faster.
    """
    speed = device.texture
    buffer = traffic.cost(1.0, 1.0, 1.0)
    texture = traffic.cost(speed.write, speed.stream, speed.cached)
    if copy == "texture":
        texture += traffic.unique + traffic.unique / speed.write
    elif copy == "buffer":
        texture += traffic.unique / speed.stream + traffic.unique
    better = texture < buffer or (texture == buffer and speed.cached > 1)
    order = "<" if texture < buffer else "=" if texture == buffer else ">"
    how = "as texture, with its copy," if copy else "as texture"
    return better, f"cost {texture:,.0f} {how} {order} {buffer:,.0f} as buffer"
