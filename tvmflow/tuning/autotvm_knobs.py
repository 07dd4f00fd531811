"""Translation of knobs of AutoTVM's texture schedules for Adreno to our convolutions.

Relay's schedules split the output's channel blocks, rows and columns in three: work-groups,
virtual threads (the register tile of a work-item) and work-items of a group::

    tile_fc [-1, a, A]   tile_y [-1, b, B]   tile_x [-1, c, C]

    tile_o = a   tile_h = b   tile_w = c   group_o = A   group_h = B   group_w = C

If a schedule's steps were larger than the map, tiles are clipped to the map.
``tile_rcc [-1, r]`` takes ``r`` blocks of four input channels at once; ours are taken one by
one, ``unroll_i = 4``.  Loops over a window, and how far they are unrolled (``tile_ry``,
``tile_rx``, ``auto_unroll_max_step``, ``unroll_explicit``), have no corresponding knobs.  Our knobs
without a counterpart are off, because they were off when the time was measured.

For Winograd's convolution, knobs and time are of the whole; the product's knobs are used::

    tile_y [-1, a, A]: blocks of output channels     tile_x [-1, c, C]: tiles, row after row
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..compiler.lookup import SHORT
from ..devices.target import PRESETS
from ..journal.records import Workload
from ..runtime.json_types import JsonMapping
from ..schedules import conv2d, conv2d_1x1, depthwise, winograd
from ..schedules.conv2d import Shape
from ..schedules.family import facts_of, refusal
from ..schedules.sizes import input_lanes
from .tasks import Knobs

#: Channels in a texel.
BLOCK = 4
#: Knobs that correspond to Relay's splits.
_TILES = ("tile_o", "tile_h", "tile_w", "group_o", "group_h", "group_w")
#: Layout of each AutoTVM task, and its kind if it is not a plain convolution.
_TASKS = {
    "conv2d_nchwc.image2d": ("nchw", ""),
    "conv2d_nhwc.image2d": ("nhwc", ""),
    "depthwise_conv2d_nchwc.image2d": ("nchw", "depthwise"),
    "depthwise_conv2d_nhwc.image2d": ("nhwc", "depthwise"),
    "conv2d_nchw_winograd.image2d": ("nchw", "winograd"),
    # A misspelling in a published log, whose line has Winograd's knobs.
    "conv2d_nchw_winAgrad.image2d": ("nchw", "winograd"),
    "conv2d_nhwc_winograd.image2d": ("nhwc", "winograd"),
}


def meaning_of(task: str, arguments: list, entity: JsonMapping) -> tuple[Workload, Knobs] | None:
    """Return our workload and knobs for a task and its configuration's entities by name.

    The result is ``None`` if none of our families computes the same.
    Raises `ValueError`, `TypeError`, `KeyError` or `IndexError` if the arguments or the entities
    have another form.
    """
    if task not in _TASKS:
        return None
    layout, kind = _TASKS[task]
    is_depthwise = kind == "depthwise"
    (_, data, dtype), (_, kernel, _), strides, padding, dilation, sums = arguments
    if layout == "nhwc":
        data = [data[0], data[3], data[1], data[2]]
        # HWIO, or HWOI for depthwise convolutions.
        order = (2, 3, 0, 1) if is_depthwise else (3, 2, 0, 1)
        kernel = [kernel[axis] for axis in order]
    outputs, inputs, kernel_h, kernel_w = (int(extent) for extent in kernel)
    if is_depthwise and (outputs != data[1] or inputs != 1):
        return None
    height = _extent(data[2], padding[0] + padding[2], kernel_h, strides[0], dilation[0])
    width = _extent(data[3], padding[1] + padding[3], kernel_w, strides[1], dilation[1])
    if min(height, width, outputs, inputs, kernel_h, kernel_w, *data) < 1:
        raise ValueError("a convolution of nothing")
    blocks, padded = -(-outputs // BLOCK), any(padding)
    loops = (int(data[0]), blocks, height, width, BLOCK)
    family: Any = depthwise
    shape: Any
    if is_depthwise:
        shape = depthwise.Shape(
            *(*loops, kernel_h, kernel_w),
            stride_h=int(strides[0]),
            stride_w=int(strides[1]),
            span_h=int(dilation[0]) * (kernel_h - 1) + 1,
            span_w=int(dilation[1]) * (kernel_w - 1) + 1,
            padded=padded,
            texture=True,
        )
    elif kind:
        # Relay's rule for the number of outputs in a tile.
        side = 4 if int(data[2]) % 8 == 0 else 2
        rows, columns = winograd.tiles(height, side), winograd.tiles(width, side)
        points = (side + winograd.TAPS - 1) ** 2
        family = winograd.Product
        shape = family.Shape(
            *(points, blocks, int(data[0]) * rows, columns, BLOCK, inputs), texture=True
        )
    else:
        window = (inputs, kernel_h, kernel_w)
        stored: dict[str, Any] = {"texture": True, "weights": "texture", "input_block": BLOCK}
        shape = Shape(*loops, *window, padded=padded, **stored)
        family = conv2d_1x1 if shape.is_pointwise and not padded else conv2d
    text = "{} * {} stride {} padding {} dilation {}".format(
        *("x".join(map(str, part)) for part in (data, kernel, strides, padding, dilation))
    )
    workload = Workload(family.NAME, facts_of(shape), SHORT[dtype], "texture", SHORT[sums], text)
    return workload, _knobs(family, shape, entity)


def _extent(size: int, padding: int, kernel: int, stride: int, dilation: int) -> int:
    return (size + padding - dilation * (kernel - 1) - 1) // stride + 1


def _knobs(family: Any, shape: Any, entity: JsonMapping) -> Knobs:
    if family is winograd.Product:
        wanted = _product_knobs(shape, entity)
    else:
        splits = [entity[name][1] for name in ("tile_fc", "tile_y", "tile_x")]
        (_, blocks, group_o), (_, rows, group_h), (_, columns, group_w) = splits
        tile = blocks, min(rows, shape.height), min(columns, shape.width)
        wanted = dict(zip(_TILES, (*tile, group_o, group_h, group_w), strict=True))
    if min(wanted.values()) < 1:
        raise ValueError("a tile of nothing")
    window = {"stage_input": False, "split_borders": False}
    if family is depthwise:
        # Keep all rows of a tile in registers at once, as in Relay, if there are enough registers.
        tile_h, tile_w = wanted["tile_h"], wanted["tile_w"]
        fits = shape.inputs(tile_h, tile_w) <= 3 * PRESETS["adreno"].accumulators
        wanted |= window | {"reuse_rows": tile_h > 1 and shape.is_small and fits}
    else:
        wanted["unroll_i"] = input_lanes(shape.inputs, BLOCK)
    if family in (conv2d, conv2d_1x1):
        wanted |= {"weights": "direct", "split_i": 1}
    if family is conv2d:
        wanted |= window
    knobs = family.Knobs(**wanted)
    if (reason := refusal(family, knobs, shape, PRESETS["adreno"])) is not None:
        raise ValueError(f"its knobs do not fit {family.NAME}: {reason}")
    return asdict(knobs)


def _product_knobs(shape: winograd.ProductShape, entity: JsonMapping) -> dict[str, Any]:
    """Return the knobs of a product whose tiles are in rows; items beyond a row go to the next."""
    # A direct convolution's record, which may have a product's name, lacks tile_rc.
    names = "tile_y", "tile_x", "tile_rc"
    (_, blocks, group_o), (_, tiles, neighbours), _ = (entity[name][1] for name in names)
    tile_w = min(tiles, shape.columns)
    group_w = min(neighbours, -(-shape.columns // max(1, tile_w)))
    group_h = round(neighbours / max(1, group_w))
    return dict(zip(_TILES, (blocks, 1, tile_w, group_o, group_h, group_w), strict=True))
