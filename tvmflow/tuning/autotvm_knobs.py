"""What the knobs of AutoTVM's texture schedules for Adreno mean for our convolutions.

Relay's schedules split the output's channel blocks, rows and columns in three: work-groups,
virtual threads (the register tile of a work-item) and work-items of a group::

    tile_fc [-1, a, A]   tile_y [-1, b, B]   tile_x [-1, c, C]

    tile_o = a    tile_h = b    tile_w = c    group_w = C    group_size = A * B * C

``tile_rcc [-1, r]`` takes ``r`` blocks of four input channels together: ``unroll_i = 4 * r``.
Loops over a window, and how far they are unrolled (``tile_ry``, ``tile_rx``,
``auto_unroll_max_step``, ``unroll_explicit``), are no knobs of ours.  What of ours has no
counterpart is off, because it was off when the time was measured.  Where a constraint forbids a
value, the nearest smaller one that it allows is taken.
"""

from __future__ import annotations

from dataclasses import asdict
from math import prod
from typing import Any

from ..compiler.lookup import SHORT
from ..devices.target import PRESETS
from ..journal.records import Workload
from ..runtime.json_types import JsonMapping
from ..schedules import conv2d, conv2d_1x1, depthwise
from ..schedules.conv2d import Shape
from ..schedules.family import facts_of, refusal
from ..schedules.sizes import input_lanes, largest_divisor
from .tasks import Knobs

#: Channels of a texel.
BLOCK = 4
#: Names of tasks: layout, and whether each channel has a filter of its own.
_TASKS = {
    f"{depthwise}conv2d_{layout}.image2d": (layout, bool(depthwise))
    for depthwise in ("", "depthwise_")
    for layout in ("nchwc", "nhwc")
}


def meaning_of(task: str, arguments: list, entity: JsonMapping) -> tuple[Workload, Knobs] | None:
    """Our workload and knobs for a task and the entities of its configuration by name.

    It is ``None`` where none of our families computes the same.

    Raises `ValueError`, `TypeError`, `KeyError`, `IndexError` if the arguments or the entities are
    not those of such a task.
    """
    if task not in _TASKS:
        return None
    layout, is_depthwise = _TASKS[task]
    (_, data, dtype), (_, kernel, _), strides, padding, dilation, sums = arguments
    if layout == "nhwc":
        data = [data[0], data[3], data[1], data[2]]
        # HWIO, or HWOI where channels have filters of their own.
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
    splits = [entity[name][1] for name in ("tile_fc", "tile_y", "tile_x")]
    (_, blocks, _), (_, rows, _), (_, columns, group_w) = splits
    if min(blocks, rows, columns, *(split[2] for split in splits)) < 1:
        raise ValueError("a tile of nothing")
    group_size = prod(split[2] for split in splits)
    device = PRESETS["adreno"]
    size = min(group_size, device.max_group_size)
    wanted: dict[str, Any] = {
        "tile_h": min(rows, shape.height),
        "tile_w": min(columns, shape.width, device.accumulators),
        "group_size": size,
    }
    window = {"stage_input": False, "split_borders": False, "group_w": min(group_w, size)}
    if family is depthwise:
        wanted |= window | {"reuse_rows": False}
    else:
        # Rows and columns first: blocks of outputs are what a register tile can do without.
        wanted["tile_h"] = largest_divisor(
            shape.height, min(rows, device.accumulators // wanted["tile_w"])
        )
        left = device.accumulators // (wanted["tile_h"] * wanted["tile_w"])
        lanes = input_lanes(shape.inputs, BLOCK)
        wanted |= {
            "tile_o": largest_divisor(shape.outputs, min(blocks, left)),
            "unroll_i": largest_divisor(lanes, BLOCK * entity["tile_rcc"][1][1]),
            "weights": "direct",
            **({"split_i": 1} if family is conv2d_1x1 else window),
        }
    knobs = family.Knobs(**wanted)
    if (reason := refusal(family, knobs, shape, device)) is not None:
        raise ValueError(f"its knobs do not fit {family.NAME}: {reason}")
    return asdict(knobs)
