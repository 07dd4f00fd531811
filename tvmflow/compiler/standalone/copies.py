"""Kernels that copy a tensor: to a result that would otherwise share another one's memory."""

from __future__ import annotations

from math import gcd

from ...module.standalone.plan import Allocation, Launch, Operand, Tensor

#: OpenCL's types by their size: the widest that divides a buffer is copied by each work-item.
_UNITS = {16: "uint4", 8: "uint2", 4: "uint", 2: "ushort", 1: "uchar"}
_GROUP = 64

_BUFFER = """\
__kernel void {name}(__global const {unit}* restrict from, __global {unit}* restrict to) {{
  const size_t i = get_global_id(0);
  to[i] = from[i];
}}
"""
#: Without a sampler: such coordinates are whole texels.
_IMAGE = """\
__kernel void {name}(__read_only image2d_array_t from, __write_only image2d_array_t to) {{
  const int4 at = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);
  write_image{suffix}(to, at, read_image{suffix}(from, at));
}}
"""


def copy_launch(source: Tensor, target: Tensor, allocation: Allocation) -> tuple[Launch, str]:
    """The launch that copies a tensor to another allocation of its kind, and its source."""
    if allocation.extent is not None:
        suffix = {"f": "f", "i": "i", "u": "ui"}[allocation.channels[0]]
        name = f"tvmflow_copy_image{suffix}_kernel"
        text = _IMAGE.format(name=name, suffix=suffix)
        extent = allocation.extent
        size: tuple[int, ...] = (extent.width, extent.height, extent.layers)
        local: tuple[int, ...] = (1, 1, 1)
    else:
        unit = next(unit for unit in _UNITS if allocation.bytes % unit == 0)
        name = f"tvmflow_copy{unit}_kernel"
        text = _BUFFER.format(name=name, unit=_UNITS[unit])
        size = (allocation.bytes // unit,)
        local = (gcd(size[0], _GROUP),)
    arguments = Operand(source, True, False), Operand(target, False, True)
    return Launch(name, "tvmflow_copy", arguments, size, local), text
