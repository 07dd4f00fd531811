"""What all sliding windows have: padding, its copy in private memory, groups beside borders."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, te, tirx

from ..devices.target import Device
from .blocks import gathers_bytes
from .common import LANES, PAD, ROLE, Workload
from .family import Constraint, Value
from .tiles import group_sizes, group_widths

#: The block annotation with strides and dilation.
STEPS = "tvmflow.steps"


def steps_text(strides: tuple[int, int], dilation: tuple[int, int]) -> str:
    """The annotation's value."""
    return ",".join(map(str, (*strides, *dilation)))


def window_steps(workload: Workload, anchor: s_tir.schedule.SBlockRV) -> list[int]:
    """Strides and dilation, each along height and width."""
    return [int(step) for step in str(workload.annotation(anchor, STEPS)).split(",")]


def pad_spatial(x: te.Tensor, padding: tuple[int, int, int, int], value: float = 0) -> te.Tensor:
    """Pad axes 2 and 3 of ``x`` by (top, left, bottom, right); ``x`` itself where all are 0."""
    top, left, bottom, right = padding
    if not any(padding):
        return x
    shape = list(x.shape)
    height, width = shape[2], shape[3]
    shape[2], shape[3] = height + top + bottom, width + left + right

    def body(*index: tirx.PrimExpr) -> tirx.PrimExpr:
        h, w = index[2], index[3]
        inside = tirx.all(h >= top, h < height + top, w >= left, w < width + left)
        source = (*index[:2], h - top, w - left, *index[4:])
        return tirx.if_then_else(inside, x(*source), tirx.const(value, x.dtype))

    return te.compute(shape, body, name="pad", attrs={ROLE: PAD})


#: Of families with the knobs ``stage_input``, ``split_borders``, ``group_w`` and ``group_size``.
WINDOW_CONSTRAINTS = (
    Constraint(
        "split_borders is for GPUs, and inputs that are padded and not copied first.",
        lambda k, s, d: not k.split_borders or (s.padded and not k.stage_input and not d.is_cpu),
    ),
    Constraint(
        "group_w is at most group_size, and that at most what the device accepts.",
        lambda k, s, d: k.group_w <= k.group_size <= d.max_group_size,
    ),
)


def window_space(shape: Any, device: Device) -> dict[str, tuple[Value, ...]]:
    """Values of these knobs that are worth trying."""
    return {
        "stage_input": (True, False) if shape.padded and not shape.texture else (False,),
        "split_borders": (False, True) if shape.padded and not device.is_cpu else (False,),
        "group_w": group_widths(device),
        "group_size": group_sizes(device),
    }


def group_form(shape: Any, tile_w: int, device: Device) -> tuple[int, bool]:
    """Items of a group along the width, and whether groups inside the picture go without tests.

    A group as wide as the picture is never inside it.  Narrow ones are worth it where at least
    half of those in a row are (an assumption).
    """
    narrow = min(4, device.group_size)
    split = shape.padded and not device.stage_input and shape.width > 3 * narrow * tile_w
    return (narrow if split else device.group_size), split


def stage_padded(workload: Workload, pad: s_tir.schedule.SBlockRV, above: object) -> None:
    """Copy a padded input tile to private memory under a loop, in vectors where it has lanes."""
    workload.sch.compute_at(pad, above)
    workload.sch.set_scope(pad, 0, "local")
    loops = workload.loops_below(pad, above)
    if len(loops) < 3:
        return
    extent = int(workload.sch.get(loops[-1]).extent)
    block = workload.sch.get(pad)
    if extent in LANES and len(block.writes[0].region) == 5:
        if gathers_bytes(block, block.iter_vars[-1].var):
            workload.unroll_all(loops[-1:])
        else:
            workload.sch.vectorize(loops[-1])
