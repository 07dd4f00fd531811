"""Sizes of vectors, tiles, work-groups and memories, shared by all families."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import gcd, log2, prod

from ..devices.target import Device

#: Widths for which OpenCL has vector types.
LANES = (2, 4, 8, 16)

#: Share of its waves' lanes that a group should fill.
FULL = 0.75

#: Local memory that OpenCL 1.2 guarantees, in bytes.
LOCAL_BYTES = 32768


def largest_divisor(extent: int, limit: int) -> int:
    """Return the largest divisor of ``extent`` that is at most ``limit``."""
    return max(d for d in range(1, max(1, min(extent, limit)) + 1) if extent % d == 0)


def tile_of(extent: int, limit: int) -> int:
    """Return a tile of at most ``limit`` that wastes little of ``extent``.

    This is a divisor if a good one exists, else the tile whose last, partly empty tile leaves
    the fewest lanes idle (ties go to the larger tile).
    """
    limit = max(1, min(extent, limit))
    divisor = largest_divisor(extent, limit)
    if 2 * divisor >= limit:
        return divisor
    return min(range(limit, 0, -1), key=lambda t: -(-extent // t) * t - extent + limit // t)


def filled_group(
    extents: Sequence[int], size: int, widest: int | None = None, wave: int = 1
) -> tuple[int, ...]:
    """Return a work-group's extents along axes of these ``extents``, with about ``size`` items.

    The last axis is filled first, up to ``widest`` items: neighbours read neighbours.  But if a
    fifth of the lanes of its waves would be idle, another group of up to two waves may leave fewer
    idle: of 33 x 3 x 3 the group 7 x 3 x 3, and not 3 x 3 x 3, in a wave of 64.
    """
    group: list[int] = []
    limit = min(size, widest or size)
    for extent in reversed(extents):
        group.insert(0, tile_of(extent, limit))
        limit = size // prod(group)
    if lanes_filled(extents, group, wave) >= 0.8:
        return tuple(group)
    return _fullest_group(tuple(extents), tuple(group), size, widest or size, wave)


@cache
def _fullest_group(
    extents: tuple[int, ...], usual: tuple[int, ...], size: int, widest: int, wave: int
) -> tuple[int, ...]:
    """Return the group that leaves the fewest lanes idle; the usual one if it is as good.

    Of groups that are about as full, it is the one with most items along the last axis, and then
    along the axis before.
    """
    axes, leading = (1, 1, *extents)[-3:], (1,) * (len(extents) - 3)
    most = max(size, 2 * wave)
    groups = [
        (outer, inner, last)
        for last in _alongs(axes[2], min(size, widest))
        for inner in _alongs(axes[1], size // last)
        for outer in {*_alongs(axes[0], size), *(limit // (inner * last) for limit in (size, most))}
        if outer * inner * last <= most and outer <= min(axes[0], size)
    ]
    found = [(*leading, *group)[-len(extents) :] for group in groups]

    def worth(group: tuple[int, ...]) -> float:
        # The weights only decide between groups that are about as full (an assumption).
        along = 0.05 * log2(group[-1]) + 0.025 * log2((1, *group)[-2])
        far = 0.01 * abs(log2(prod(group) / size))
        return log2(lanes_filled(extents, group, wave)) + along - far

    return max([usual, *found], key=worth)


def _alongs(extent: int, limit: int) -> tuple[int, ...]:
    """Return the divisors of an extent, and the powers of 2, up to it and to a limit."""
    powers = (1 << shift for shift in range(min(extent, limit).bit_length()))
    return tuple(sorted({*divisors(extent, limit), *powers}))


def lanes_filled(extents: Sequence[int], group: Sequence[int], wave: int) -> float:
    """Return the share of lanes that have an item, over the waves of all groups."""
    groups = prod(-(-extent // along) for extent, along in zip(extents, group, strict=True))
    return prod(extents) / (groups * -(-prod(group) // wave) * wave)


def wave_filled(items: int, wave: int) -> float:
    """Return the share of lanes that have an item, in the waves of a group."""
    return items / (-(-items // wave) * wave)


def divisors(extent: int, limit: int) -> tuple[int, ...]:
    """Return the divisors of ``extent`` up to ``limit``."""
    return tuple(d for d in range(1, min(extent, limit) + 1) if extent % d == 0)


def tile_choices(extent: int, limit: int) -> tuple[int, ...]:
    """Return tiles of at most ``limit``, one for each number of tiles that they give."""
    counts = {-(-extent // tile): tile for tile in range(min(extent, limit), 0, -1)}
    return tuple(sorted(counts.values()))


def group_sizes(device: Device) -> tuple[int, ...]:
    """Return work-group sizes worth trying: half to four times the preset's; 1 on a CPU."""
    usual = device.group_size
    sizes = {usual} if usual == 1 else {usual // 2, usual, usual * 2, usual * 4}
    return tuple(sorted(size for size in sizes if 0 < size <= device.max_group_size))


def power_of_2(number: int) -> int:
    """Return the largest power of 2 that is at most a number, at least 1."""
    return 1 << max(0, number.bit_length() - 1)


def input_lanes(inputs: int, block: int) -> int:
    """Return how many input channels of one block each step of a sum takes; a divisor of all."""
    return inputs if inputs < block else gcd(inputs, block)
