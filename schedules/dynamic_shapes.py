"""Data-parallel functions of unknown extents: any operator, compiled once for all sizes.

    y[i, ..., l] = f(i, ..., l)        i, ... of unknown extents; l of a known one, or not

Producers are inlined; every output is a kernel of its own.  All axes but a last one of a known,
small extent are one range, which is cut into equal parts: for work-items on a GPU, for threads
on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir, tirx

from ..devices.target import Device
from .common import FAMILY, Block, Workload, is_injective
from .family import GROUP_FITS, Value, knob
from .sizes import LANES, group_sizes

#: The name is also in journals.
NAME = "open_extents"
ORDER = 110


@dataclass(frozen=True)
class Shape:
    """The number of outputs, the only fact that knobs depend on."""

    outputs: int


@dataclass(frozen=True)
class Knobs:
    """Knobs of the parts into which the range is cut."""

    rows: int = knob("Positions of the open axes in a CPU's part, or in a GPU's work-item.")
    group_size: int = knob("Work-items of a work-group.")


CONSTRAINTS = GROUP_FITS


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return parts that are worth a work-item's launch on a CPU; single positions on a GPU."""
    return Knobs(1024, 1) if device.is_cpu else Knobs(1, device.group_size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return parts of several sizes."""
    rows = (256, 1024, 4096) if device.is_cpu else (1, 2, 4)
    return {"rows": rows, "group_size": group_sizes(device)}


def match(workload: Workload) -> Shape | None:
    """Return the shape of a function with open extents, without reductions and marked blocks."""
    sch = workload.sch
    extents = (extent for param in workload.function.params for extent in param.shape)
    if all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    if any(workload.annotation(b, FAMILY) or not is_injective(sch, b) for b in workload.blocks):
        return None
    outputs = [block for block in workload.blocks if not sch.get_consumers(block)]
    return Shape(len(outputs))


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Schedule each output separately."""
    sch = workload.sch
    workload.inline(*(block for block in workload.blocks if sch.get_consumers(block)))
    for block in workload.blocks:
        _bind_positions(workload, block, knobs)
    return sch


def _bind_positions(workload: Workload, block: Block, knobs: Knobs) -> None:
    sch = workload.sch
    loops = list(sch.get_loops(block)) or [sch.add_unit_loop(block)]
    last = sch.get(loops[-1]).extent
    lanes = int(last) if len(loops) > 1 and isinstance(last, tirx.IntImm) else 0
    vector = loops.pop() if lanes in LANES else None
    if vector is not None and workload.lanes_of(block):
        sch.vectorize(vector)
    rows = workload.fuse(loops)
    if not workload.target.is_gpu_kernel:
        # TVM's runtime cuts the range of a parallel loop itself.
        sch.parallel(rows)
        return
    groups, items, _ = sch.split(rows, [None, knobs.group_size, knobs.rows])
    sch.bind(groups, "blockIdx.x")
    sch.bind(items, "threadIdx.x")
