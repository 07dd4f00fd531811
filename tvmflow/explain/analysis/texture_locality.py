"""Texture locality: how many texels a work-group reads again, and how near those of a wave are.

Images are stored in blocks that fill a line of the cache: what is near in both directions is
fetched together.  How vendors tile images is not published; blocks as square as possible are
assumed here, of 2 x 2 texels of 16 bytes in a line of 64::

    image[y, x]     an item a column: 64 items are a row of texels, half of each block is wanted
    image[y, x]     items in squares of 8 x 8: whole blocks

Drivers for CPUs keep images row by row: a line is a part of a row.
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

#: Less than this share of the blocks that are fetched would do: a finding.
_GOOD = 0.6
#: Groups that are looked at for texels that are read again, at most.
_GROUPS = 4
#: Accesses of a group that are looked at, at most.
_POINTS = 1 << 19
#: Images are smaller than this, in every direction.
_EXTENT_BITS = 20


@dataclass(frozen=True)
class TextureUse(InKernel):
    """Reads or writes of an image by a kernel; the text is the first of them."""

    image: str
    is_store: bool
    #: Texels that all work-items access; what several of them access counts for each.
    texels: int
    #: Accesses to each different texel of a work-group.
    reuse: float
    #: Different texels that a work-group accesses, on average of some groups.
    group_texels: float
    #: Cache blocks that these are in, and blocks that would do for as many side by side.
    group_blocks: float
    least_group_blocks: float
    #: Cache blocks that waves fetch, each for itself at each instruction.
    blocks: int
    #: Blocks that would do for as many texels side by side, per block that is fetched.
    efficiency: float
    #: Whether all is counted; what groups access is counted in a few, of long loops' first steps.
    exact: bool


@of_kernels
def texture_locality(kernel: LoweredKernel, target: TargetSpec) -> Iterator[TextureUse]:
    """Find how near the texels are that kernels access together, and how often they do again.

    There is one record for each image of a kernel.
    """
    hardware, tiled = hardware_of(target), not target.device.is_cpu
    accesses = (site for site in kernel.sites if site.is_image)
    for sites in grouped(accesses, lambda site: (site.buffer, site.is_store)).values():
        first = sites[0]
        width, height = block_of(first.element_bytes, hardware.line_bytes, is_tiled=tiled)
        texels, blocks, least, exact = 0, 0.0, 0.0, True
        for site in sites:
            count = instructions(kernel, site)
            texels += count.times
            exact &= count.exact
            try:
                waves = waves_at(kernel, site.context, hardware.wave, site.variables)
            except UnknownError:
                blocks, exact = blocks + count.times, False
                least += count.times / (width * height)
                continue
            column, row, layer = (waves.compute(index)[:, :, 0] for index in site.indices)
            lines = distinct(_number(column // width, row // height, layer), waves.active)
            wanted = distinct(_number(column, row, layer), waves.active)
            blocks += lines.sum() * waves.weight
            least += np.ceil(wanted / (width * height)).sum() * waves.weight
            exact &= waves.exact
        reads, seen = _in_groups(kernel, sites)
        different = [len(places) for places in seen]
        together = [len(np.unique(_block(places, width, height))) for places in seen]
        yield TextureUse(
            *kernel.at(first, *sites),
            image=first.name,
            is_store=first.is_store,
            texels=texels,
            reuse=reads / max(1, sum(different)),
            group_texels=sum(different) / len(seen),
            group_blocks=sum(together) / len(seen),
            least_group_blocks=sum(ceil(n / (width * height)) for n in different) / len(seen),
            blocks=round(blocks),
            efficiency=float(least / blocks) if blocks else 1.0,
            exact=exact,
        )


def block_of(texel_bytes: int, line_bytes: int, *, is_tiled: bool = True) -> tuple[int, int]:
    """Width and height of the texels in a line of the cache."""
    texels = max(1, line_bytes // texel_bytes)
    height = 1 << ((texels.bit_length() - 1) // 2) if is_tiled else 1
    return texels // height, height


def _number(column: Array, row: Array, layer: Array) -> Array:
    """A place in an image as one number."""
    return (((layer << _EXTENT_BITS) + row) << _EXTENT_BITS) + column


def _block(places: Array, width: int, height: int) -> Array:
    """Blocks that places are in, as numbers."""
    low = (1 << _EXTENT_BITS) - 1
    column, row, layer = places & low, places >> _EXTENT_BITS & low, places >> 2 * _EXTENT_BITS
    return _number(column // width, row // height, layer)


def _in_groups(kernel: LoweredKernel, sites: Sequence[Site]) -> tuple[int, list[Array]]:
    """Number of accesses of some work-groups to texels, and which each of them accesses."""
    groups = np.linspace(0, kernel.groups - 1, min(kernel.groups, _GROUPS)).astype(np.int64)
    numbers = {var: values[:, None] for var, values in values_at(groups, kernel.blocks).items()}
    found = [_texels_of(site, numbers, len(groups), kernel.items) for site in sites]
    seen = zip(*(places for _, places in found), strict=True)
    accesses = sum(times for times, _ in found)
    return accesses, [np.unique(np.concatenate(places)) for places in seen]


def _texels_of(
    site: Site, groups: dict[tirx.Var, Array], count: int, items: Sequence[Axis]
) -> tuple[int, list[Array]]:
    """Number of accesses of groups at a site, and to which texels."""
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
    """Outer loops cut to as many steps as are looked at: drawn ones would have no neighbours."""
    found = []
    inner = prod(extent for _, extent in loops)
    for var, extent in loops:
        inner //= extent
        steps = max(1, min(extent, most // inner))
        most //= steps
        found.append((var, steps))
    return found


def texture_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Images of whose blocks work-groups leave much unused."""
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
            f"A work-group {verb} {use.group_texels:,.0f} texels of {use.image}, each "
            f"{use.reuse:.1f} times, in {use.group_blocks:,.0f} blocks of the cache where "
            f"{use.least_group_blocks:,.0f} would do.",
            "Let a work-group be nearly square in the image: split its items over columns and "
            "rows, with threadIdx.x along columns.",
        )
