"""Pointwise convolution: a product of a matrix of weights with the pixels.

Computes, over the blocked layout of :mod:`.conv2d`::

    y[n, o', h, w, o] = sum_i x[n, i // c, h, w, i % c] * w[o', i, 0, 0, o]

Small maps (7×7 pixels) leave a GPU with few work-items, but with long sums.  There the sum
is split: ``split_i`` items of a work-group sum a part of the input channels each, store it
in local memory, and then each item adds up the parts of some of the outputs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from tvm import s_tir

from ..devices.target import Device
from . import conv2d
from .common import Workload
from .conv2d import RegisterTile, Shape
from .family import Value, knob
from .work_groups import GROUP_CONSTRAINTS, WorkGroup, group_space

NAME = "conv2d_1x1"
ORDER = 300


@dataclass(frozen=True)
class Knobs(WorkGroup, RegisterTile):
    """Knobs of a work-item's register tile, and of the split sum."""

    split_i: int = knob(conv2d.SPLIT_KNOB)
    weights: str = knob(conv2d.WEIGHTS_KNOB)


CONSTRAINTS = {
    **conv2d.TILE_CONSTRAINTS,
    **conv2d.SPLIT_CONSTRAINTS,
    **conv2d.WEIGHT_CONSTRAINTS,
    **GROUP_CONSTRAINTS,
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return the knobs of a direct convolution."""
    chosen = asdict(conv2d.heuristic(shape, device))
    return Knobs(**{field.name: chosen[field.name] for field in fields(Knobs)})


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return tiles of every form that fits, deeper unrolling, split sums."""
    return {
        **conv2d.tile_space(shape, device),
        "split_i": conv2d.split_space(device),
        "weights": conv2d.weight_places(device),
        **group_space(shape.outputs, shape.height, shape.width, device),
    }


def match(workload: Workload) -> Shape | None:
    """Return the shape of a pointwise convolution whose input is not padded."""
    shape = conv2d.match(workload)
    return shape if shape.is_pointwise and not shape.padded else None


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Tile by ``knobs``, and split the sum if they say so."""
    form = asdict(knobs) | {"stage_input": False, "split_borders": False}
    return conv2d.apply(workload, conv2d.Knobs(**form))
