"""Pointwise convolution: a product of a matrix of weights with the pixels.

Computes, over the blocked layout of :mod:`.conv2d`::

    y[n, o', h, w, o] = sum_i x[n, i // c, h, w, i % c] * w[o', i, 0, 0, o]

Small maps (7×7 pixels) leave a GPU with few work-items, but with long sums.  There the sum
is split: ``split_i`` items of a work-group sum a part of the input channels each, leave it
in local memory, and add up the parts, each of them those of some of the outputs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import prod

from tvm import s_tir

from ..devices.target import Device
from . import conv2d
from .common import Block, Loop, Workload
from .conv2d import RegisterTile, Shape
from .family import GROUP_FITS, Value, knob, violated
from .sizes import LOCAL_BYTES, group_sizes, largest_divisor

NAME = "conv2d_1x1"
ORDER = 300


@dataclass(frozen=True)
class Knobs(RegisterTile):
    """The register tile of a work-item, and how many share its sum."""

    split_i: int = knob("Work-items that sum a part of the input channels each.")
    weights: str = knob(conv2d.WEIGHTS_KNOB)
    group_size: int = knob("Work-items of a work-group, at most.")


def _blocks(shape: Shape) -> int:
    """Whole blocks of input channels, which a split sum is made of; 1 where there is a part."""
    return shape.inputs // shape.input_block if shape.inputs % shape.input_block == 0 else 1


def _local_bytes(knobs: Knobs, shape: Shape) -> int:
    outputs = _group_outputs(knobs, shape) * knobs.tile_o
    return 4 * knobs.split_i * outputs * knobs.tile_h * knobs.tile_w * shape.lanes


def _group_outputs(knobs: Knobs, shape: Shape) -> int:
    """Tiles of output channels in a work-group whose sums are split."""
    return largest_divisor(shape.outputs // knobs.tile_o, max(1, knobs.group_size // knobs.split_i))


CONSTRAINTS = {
    **conv2d.TILE_CONSTRAINTS,
    "split_i must divide the whole blocks of input channels, and is 1 on a CPU.": lambda k, s, d: (
        k.split_i == 1 or (not d.is_cpu and _blocks(s) % k.split_i == 0)
    ),
    "A split sum needs tile_w to divide the width, weights as they are stored, and a group of "
    "at least split_i items.": lambda k, s, d: (
        k.split_i == 1
        or (s.width % k.tile_w == 0 and k.weights == "direct" and k.split_i <= k.group_size)
    ),
    "The parts of a split sum must fit 32 KiB of local memory.": lambda k, s, d: (
        k.split_i == 1 or _local_bytes(k, s) <= LOCAL_BYTES
    ),
    **conv2d.WEIGHT_CONSTRAINTS,
    **GROUP_FITS,
}

#: Work-items below which a GPU of a phone has too few to hide its latencies (an assumption:
#: some ten waves of 64 for each of two to six compute units).
FEW_ITEMS = 2048


def heuristic(shape: Shape, device: Device) -> Knobs:
    """The tile of a direct convolution; on GPUs, few items share their sums."""
    base = conv2d.heuristic(shape, device)
    tile = base.tile_o, base.tile_h, base.tile_w
    knobs = Knobs(*tile, base.unroll_i, split_i=1, weights="direct", group_size=base.group_size)
    items = shape.batch * shape.outputs * shape.height * shape.width // prod(tile)
    if device.is_cpu or items >= FEW_ITEMS or _blocks(shape) < 8:
        return knobs
    # A tile that divides the map, and parts of at least four blocks.
    tile_w = largest_divisor(shape.width, base.tile_w)
    for split in (8, 4, 2):
        split_up = replace(knobs, tile_w=tile_w, split_i=split)
        few = items * split < 2 * FEW_ITEMS or split == 2
        if (
            few
            and _blocks(shape) >= 4 * split
            and violated(CONSTRAINTS, split_up, shape, device) is None
        ):
            return split_up
    return knobs


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Tiles of every form that fits, deeper unrolling, split sums."""
    return {
        **conv2d.tile_space(shape, device),
        "split_i": (1,) if device.is_cpu else (1, 2, 4, 8),
        "weights": conv2d.weight_places(device),
        "group_size": group_sizes(device),
    }


def match(workload: Workload) -> Shape | None:
    """The shape of a pointwise convolution whose input is not padded."""
    shape = conv2d.match(workload)
    return shape if shape.is_pointwise and not shape.padded else None


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Tile by ``knobs``, with the sum split where they say so."""
    if knobs.split_i > 1:
        return apply_split(workload, knobs)
    form = asdict(knobs) | {"stage_input": False, "split_borders": False}
    del form["split_i"]
    return conv2d.apply(workload, conv2d.Knobs(**form, group_w=knobs.group_size))


def apply_split(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Schedule a sum that the items of a group split between them."""
    sch, anchor = workload.sch, workload.anchor(conv2d.NAME)
    shape = conv2d.match(workload)
    texels = workload.stage_texels(anchor, 0, None)
    weights = workload.stage_weights(anchor, 1)
    output = workload.merge_epilogue(anchor)
    *_, i, _p, _q = sch.get_loops(anchor)
    part, _ = sch.split(i, [knobs.split_i, None])
    partial = sch.rfactor(part, 0)
    group = _bind_output(workload, output, knobs, _group_outputs(knobs, shape), anchor)

    # Each part is summed in registers and then left where the whole group reads it.
    sch.set_scope(partial, 0, "shared")
    left = sch.cache_write(partial, 0, "local")
    sch.compute_at(left, group, preserve_unit_loops=True)
    s, n, o, h, w, lane = workload.loops_below(left, group)
    o, oi = sch.split(o, [None, knobs.tile_o])
    sch.reorder(s, o, n, oi, h, w, lane)
    sch.bind(s, "threadIdx.y")
    sch.bind(o, "threadIdx.x")
    workload.vectorize_last([n, oi, h, w, lane])
    sch.compute_at(partial, o, preserve_unit_loops=True)
    *tile, i, p, q = workload.loops_below(partial, o)
    lanes = shape.input_block
    unroll = knobs.unroll_i if texels is None else lanes
    i_block, i_outer, i_inner = workload.split_channels(i, lanes, unroll, [p, q], tile)
    workload.place_staged(texels, q)
    workload.place_staged(weights, i_outer)
    workload.unroll_all([i_outer, i_inner])
    workload.vectorize_last(tile)
    workload.split_init(partial, i_block, o)
    # Neighbouring items have neighbouring vectors: none of them waits for a bank.
    tile_o = knobs.tile_o
    sch.transform_layout(
        left, ("write", 0), lambda s, n, o, h, w, c: (s, n, o % tile_o, h, w, o // tile_o, c)
    )
    return sch


def _bind_output(
    workload: Workload, output: Block, knobs: Knobs, outputs: int, total: Block
) -> Loop:
    """Give a group its outputs, and its items the sums of parts; return the loop of groups."""
    sch = workload.sch
    n, o, h, w, lane = sch.get_loops(output)
    o, ot, oi = sch.split(o, [None, outputs, knobs.tile_o])
    h, hi = sch.split(h, [None, knobs.tile_h])
    w, wi = sch.split(w, [None, knobs.tile_w])
    sch.reorder(n, o, h, w, ot, oi, hi, wi, lane)
    rest, item = sch.split(wi, [None, knobs.split_i])
    sch.reorder(ot, item, oi, hi, rest, lane)
    workload.bind_batch([n, o])
    axes = {"blockIdx.y": h, "blockIdx.x": w, "threadIdx.x": ot, "threadIdx.y": item}
    workload.bind(axes.items())
    sch.compute_at(total, rest, preserve_unit_loops=True)
    part, *sums = workload.loops_below(total, rest)
    workload.vectorize_last(sums)
    workload.split_init(total, part, rest)
    workload.unroll_all([part, oi, hi, rest])
    sch.vectorize(lane)
    return w
