"""Texture locality: reuse of texels in a work-group, and distance of texels in a wave.

Images are stored in blocks that fill a cache line, so that near texels in both directions are
fetched together.  Vendors do not publish how they tile images; the assumption here is a block as
square as possible, of 2 x 2 texels of 16 bytes in a line of 64::

    image[y, x]     items along a row: 64 items use half of each block
    image[y, x]     items in squares of 8 x 8: whole blocks

CPU drivers store images row by row, where a line is a part of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from tvm import tirx

from ...devices.target import TargetSpec
from ...ir.evaluate import Array, Axis, UnknownError, all_hold, evaluate, values_at
from ..grouping import grouped
from ..profiling.record import Finding
from .accesses import Site
from .deadline import check_time
from .executions import distinct, instructions, waves_at
from .hardware import hardware_of
from .lowered import InKernel, LoweredKernel, of_kernels

#: Smallest possible over fetched blocks, below which there is a finding.
_GOOD = 0.6
#: Largest number of groups whose texels are enumerated.
_GROUPS = 4
#: Largest number of accesses of a group that are enumerated.
_POINTS = 1 << 19
#: Bits of a coordinate in an image.
_EXTENT_BITS = 20


@dataclass(frozen=True)
class TextureUse(InKernel):
    """Reads or writes of an image by a kernel; the text shows the first access."""

    is_store: bool
    #: Texels that all work-items access; common texels count for each item.
    texels: int
    #: Accesses to each different texel of a work-group.
    reuse: float
    #: Different texels that a work-group accesses, averaged over some groups.
    group_texels: float
    #: Cache blocks of these texels, and blocks that as many adjacent texels would need.
    group_blocks: float
    least_group_blocks: float
    #: Cache blocks that waves fetch, counted for each wave and instruction.
    blocks: int
    #: Blocks that adjacent texels would need, per fetched block.
    efficiency: float


@of_kernels
def texture_locality(kernel: LoweredKernel, target: TargetSpec) -> Iterator[TextureUse]:
    """Find how near each other, and how often again, kernels access texels.

    There is one record for each image and direction in a kernel.
    """
    hardware, tiled = hardware_of(target), not target.device.is_cpu
    accesses = (site for site in kernel.sites if site.is_image)
    for sites in grouped(accesses, lambda site: (site.buffer, site.is_store)).values():
        first = sites[0]
        width, height = block_of(first.element_bytes, hardware.line_bytes, is_tiled=tiled)
        texels, blocks, least = 0, 0.0, 0.0
        for site in sites:
            count = instructions(kernel, site)
            texels += count
            try:
                waves = waves_at(kernel, site.context, hardware.wave, site.variables)
            except UnknownError:
                blocks += count
                least += count / (width * height)
                continue
            column, row, layer = (waves.compute(index)[:, :, 0] for index in site.indices)
            lines = distinct(_number(column // width, row // height, layer), waves.active)
            wanted = distinct(_number(column, row, layer), waves.active)
            blocks += lines.sum() * waves.weight
            least += np.ceil(wanted / (width * height)).sum() * waves.weight
        reads, seen = _in_groups(kernel, sites)
        different = [len(places) for places in seen]
        together = [len(np.unique(_block(places, width, height))) for places in seen]
        yield TextureUse(
            *kernel.at(first, *sites),
            is_store=first.is_store,
            texels=texels,
            reuse=reads / max(1, sum(different)),
            group_texels=sum(different) / len(seen),
            group_blocks=sum(together) / len(seen),
            least_group_blocks=sum(ceil(n / (width * height)) for n in different) / len(seen),
            blocks=round(blocks),
            efficiency=float(least / blocks) if blocks else 1.0,
        )


def block_of(texel_bytes: int, line_bytes: int, *, is_tiled: bool = True) -> tuple[int, int]:
    """Return width and height of the texels in a cache line."""
    texels = max(1, line_bytes // texel_bytes)
    height = 1 << ((texels.bit_length() - 1) // 2) if is_tiled else 1
    return texels // height, height


def _number(column: Array, row: Array, layer: Array) -> Array:
    """Encode a position in an image as one number."""
    return (((layer << _EXTENT_BITS) + row) << _EXTENT_BITS) + column


def _block(places: Array, width: int, height: int) -> Array:
    """Return the encoded blocks of encoded positions."""
    low = (1 << _EXTENT_BITS) - 1
    column, row, layer = places & low, places >> _EXTENT_BITS & low, places >> 2 * _EXTENT_BITS
    return _number(column // width, row // height, layer)


def _in_groups(kernel: LoweredKernel, sites: Sequence[Site]) -> tuple[int, list[Array]]:
    """Return the accesses of some work-groups, and the different texels of each group."""
    groups = np.linspace(0, kernel.groups - 1, min(kernel.groups, _GROUPS)).astype(np.int64)
    numbers = {var: values[:, None] for var, values in values_at(groups, kernel.blocks).items()}
    found = [_texels_of(site, numbers, len(groups), kernel.items) for site in sites]
    seen = zip(*(places for _, places in found), strict=True)
    accesses = sum(times for times, _ in found)
    return accesses, [np.unique(np.concatenate(places)) for places in seen]


def _texels_of(
    site: Site, groups: dict[tirx.Var, Array], count: int, items: Sequence[Axis]
) -> tuple[int, list[Array]]:
    """Return the accesses of groups at a site, and the different texels of each group."""
    check_time()
    needed = site.variables | site.context.variables
    again = prod(extent for var, extent in (*items, *site.context.loops) if var not in needed)
    axes = [axis for axis in items if axis[0] in needed]
    loops = [axis for axis in site.context.loops if axis[0] in needed]
    axes += _first_steps(loops, _POINTS // prod(extent for _, extent in axes))
    points = prod(extent for _, extent in axes)
    shape = count, points
    values = {**groups, **values_at(np.arange(points), axes)}
    try:
        mask = all_hold(site.context.conditions, values, shape)
        places = np.broadcast_to(_number(*(evaluate(i, values) for i in site.indices)), shape)
    except UnknownError:
        return 0, [np.empty(0, np.int64)] * count
    found = [np.unique(row[holds]) for row, holds in zip(places, mask, strict=True)]
    return int(mask.sum()) * again, found


def _first_steps(loops: Sequence[Axis], most: int) -> list[Axis]:
    """Shorten the outer loops to ``most`` points, since sampled steps would have no neighbours."""
    found = []
    inner = prod(extent for _, extent in loops)
    for var, extent in loops:
        inner //= extent
        steps = max(1, min(extent, most // inner))
        most //= steps
        found.append((var, steps))
    return found


def texture_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find images whose fetched blocks work-groups use only in part."""
    uses = texture_locality(kernel, target)
    for use in uses:
        if use.least_group_blocks >= _GOOD * use.group_blocks:
            continue
        extra = use.group_blocks - use.least_group_blocks
        verb = "writes" if use.is_store else "reads"
        yield use.finding(
            "texture-locality",
            {"bytes": extra * kernel.groups * hardware_of(target).line_bytes},
            extra / sum(other.group_blocks for other in uses),
            f"A work-group {verb} {use.group_texels:,.0f} texels of {use.buffer}, each "
            f"{use.reuse:.1f} times, in {use.group_blocks:,.0f} blocks of the cache where "
            f"{use.least_group_blocks:,.0f} would do.",
            "Let a work-group be nearly square in the image: split its items over columns and "
            "rows, with threadIdx.x along columns.",
        )
