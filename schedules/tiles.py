"""Sizes of tiles: divisors, and tiles that waste little of what they do not divide."""

from __future__ import annotations

from ..devices.target import Device


def largest_divisor(extent: int, limit: int) -> int:
    """Largest divisor of ``extent`` that is at most ``limit``."""
    return max(d for d in range(1, max(1, min(extent, limit)) + 1) if extent % d == 0)


def tile_of(extent: int, limit: int) -> int:
    """A tile of at most ``limit`` that wastes little of ``extent``.

    A divisor where a good one exists; else the tile whose last, partly empty
    tile leaves the fewest lanes idle (ties go to the larger tile).
    """
    limit = max(1, min(extent, limit))
    divisor = largest_divisor(extent, limit)
    if 2 * divisor >= limit:
        return divisor
    return min(range(limit, 0, -1), key=lambda t: -(-extent // t) * t - extent + limit // t)


def divisors(extent: int, limit: int) -> tuple[int, ...]:
    """Divisors of ``extent`` up to ``limit``."""
    return tuple(d for d in range(1, min(extent, limit) + 1) if extent % d == 0)


def tile_choices(extent: int, limit: int) -> tuple[int, ...]:
    """Tiles of at most ``limit`` of which no two give the same number of tiles."""
    counts = {-(-extent // tile): tile for tile in range(min(extent, limit), 0, -1)}
    return tuple(sorted(counts.values()))


def group_sizes(device: Device) -> tuple[int, ...]:
    """Work-group sizes worth trying: the preset's, twice and half of it; 1 on a CPU."""
    usual = device.group_size
    sizes = {usual} if usual == 1 else {usual // 2, usual, usual * 2, usual * 4}
    return tuple(sorted(size for size in sizes if 0 < size <= device.max_group_size))


def group_widths(device: Device) -> tuple[int, ...]:
    """How many items of a work-group may lie along the innermost axis."""
    usual = device.group_size
    return tuple(sorted({min(4, usual), min(16, usual), usual}))
