"""Register tiles and work-groups of convolutions on GPUs: their knobs and heuristics.

The rules are those on which AutoTVM's trials on two phones (Adreno 660 and 740, 134 convolutions)
agree.  Their numbers (:class:`Tiling`) were fitted to trials on more phones
(:data:`tvmflow.devices.presets.SOURCES`), and validated on logs that were left out of a fit
(``docs/schedules.md``):

- A work-item computes few vectors, so that a core holds many waves and hides the latency of
  texels: four to eight vectors of a convolution, which read each weight once for all of them; two
  or three of a depthwise one, whose products share little.  Of tiles of that size the best has the
  fewest vectors beyond the end of the map, and then the fewest texels read.
- A work-group has many blocks of output channels and few tiles of the map: its items read the
  same texels of the input at the same time.  If channels do not share an input (depthwise),
  it has the fewer of them the larger the map is.
- A work-group is two waves, or one if there are few work-items: of groups near that size, the one
  that leaves the fewest lanes idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log2, prod

from ..devices.target import Device, Tiling
from .family import knob
from .sizes import divisors, filled_group, lanes_filled, wave_filled

#: Extents along output channels, rows and columns.
Extents = tuple[int, int, int]

#: Largest extent of a group along any axis, and most items in all, that are considered.
MOST_ITEMS = 256
#: Groups that keep the cores of a phone's GPU busy: two for each of up to eight.
GROUPS = 16


@dataclass(frozen=True)
class WorkGroup:
    """Knobs of a work-group: its items along each axis of tiles."""

    group_o: int = knob("Work-items of a work-group along the output channels.")
    group_h: int = knob("Work-items of a work-group along the rows.")
    group_w: int = knob("Work-items of a work-group along the columns, which are neighbours.")

    @property
    def group(self) -> Extents:
        """Return the work-group's extents."""
        return self.group_o, self.group_h, self.group_w


GROUP_CONSTRAINTS = {
    "group_o * group_h * group_w is at most what the device accepts, "
    "and 1 on a CPU.": lambda k, s, d: (
        prod(k.group) <= (1 if d.is_cpu else d.max_group_size) and k.group_o <= d.max_group_depth
    ),
}


def group_space(
    outputs: int, rows: int, columns: int, device: Device
) -> dict[str, tuple[int, ...]]:
    """Return extents of work-groups over these blocks of channels, rows and columns.

    They are powers of 2 up to the first that covers an axis, and divisors of the axis.
    """
    extents = {"group_o": outputs, "group_h": rows, "group_w": columns}
    if device.is_cpu:
        return dict.fromkeys(extents, (1,))
    limits = min(MOST_ITEMS, device.max_group_depth), MOST_ITEMS, MOST_ITEMS
    return {
        name: _choices(extent, limit)
        for (name, extent), limit in zip(extents.items(), limits, strict=True)
    }


def _choices(extent: int, limit: int) -> tuple[int, ...]:
    powers = (1 << exponent for exponent in range(limit.bit_length()))
    return tuple(sorted({*divisors(extent, limit), *(p for p in powers if p < 2 * extent)}))


@dataclass(frozen=True)
class Window:
    """Extents of a map and of the window that slides over it, which determine a tile's form."""

    height: int
    width: int
    kernel_h: int = 1
    kernel_w: int = 1
    stride_w: int = 1


@cache
def tile_form(window: Window, vectors: int) -> tuple[int, int]:
    """Return the rows and columns of a tile of about ``vectors`` vectors.

    A tile's cost is its products, including those beyond the map, and the texels that it reads: a
    row of them for each row of the window and of the tile.
    """
    height, width = window.height, window.width
    if height * width <= vectors:
        return height, width
    taps = window.kernel_h * window.kernel_w

    def cost(form: tuple[int, int]) -> tuple[float, int]:
        rows, columns = form
        computed = -(-height // rows) * rows * -(-width // columns) * columns
        texels = window.kernel_h * ((columns - 1) * window.stride_w + window.kernel_w) / columns
        size = abs(log2(rows * columns / vectors))
        return computed * (1 + 0.1 * texels / taps) * (1 + 0.1 * size), abs(rows - columns)

    least, most = 0.75 * vectors, 1.5 * vectors
    forms = [
        (rows, columns)
        for rows in range(1, min(height, int(most)) + 1)
        for columns in range(1, min(width, int(most)) + 1)
        if least <= rows * columns <= most
    ]
    return min(forms, key=cost) if forms else (1, min(width, vectors))


def group_of(tiles: Extents, device: Device, tiling: Tiling, widest: int | None = None) -> Extents:
    """Return the heuristic's work-group for these tiles; ``widest`` bounds its columns."""
    if device.is_cpu:
        return 1, 1, 1
    outputs, rows, columns = tiles
    if tiling.channels is None:
        outputs, rows, columns = filled_group(tiles, tiling.items, widest, device.wave)
        return outputs, rows, columns
    channels = tiling.channels
    if tiling.by_map:
        channels = max(2, round(8 * channels / (rows * columns) ** 0.5))
    # A small map allows more channels.
    channels = min(outputs, max(channels, tiling.items // (rows * columns)))
    return _fullest(tiles, channels, tiling.items, device, widest or MOST_ITEMS)


@cache
def _fullest(tiles: Extents, channels: int, items: int, device: Device, widest: int) -> Extents:
    """Return the group with the fewest idle lanes, near the wanted channels and items.

    It fills at least half of its waves' lanes if there are enough tiles.
    """
    wave, total = device.wave, prod(tiles)
    if total < GROUPS * items:
        items = max(wave, items // 2)
    most = min(MOST_ITEMS, device.max_group_size)
    limits = min(most, device.max_group_depth), most, min(widest, most)

    def score(group: Extents) -> tuple[float, float]:
        size = prod(group)
        filled = lanes_filled(tiles, group, wave)
        far = abs(log2(group[0] / channels)) + abs(log2(size / items))
        worth = log2(filled) - 0.3 * far - 0.01 * abs(log2(group[1] / group[2]))
        return min(0.5, wave_filled(size, wave)), worth

    outputs, rows, columns = (
        # A group that reaches beyond an axis has as many waves as one that does not.
        [along for along in _choices(count, limit) if along <= min(limit, count)]
        for count, limit in zip(tiles, limits, strict=True)
    )
    groups: Sequence[Extents] = [
        (o, h, w) for o in outputs for h in rows for w in columns if o * h * w <= most
    ]
    return max(groups, key=score)
