"""Labs and their steps: one computation, and its schedules from a naive to a fast one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import te, tirx

from ...devices.presets import Device
from ...devices.target import TargetSpec
from ...ir.signatures import with_scopes
from ..common import Block, Loop, Workload

#: The limit that groups of several items remove.
LONE_ITEMS = "A group of one item leaves all lanes of a wave (16 to 64 of them) but one idle."


@dataclass(frozen=True)
class Layout:
    """A step's form of a lab's arguments and result in memory, if it differs from the lab's."""

    #: Function from a size to the arguments and, last, the result.
    compute: Callable[[int], Sequence[te.Tensor]]
    #: Functions from the lab's arguments to those of the step, and from its result to the lab's.
    arguments: Callable[..., list[np.ndarray]]
    result: Callable[[np.ndarray], np.ndarray]
    #: Function from these tensors to memory scopes on a device; ``None`` stands for a buffer.
    scopes: Callable[[Sequence[te.Tensor], Device], list[str | None]] | None = None


@dataclass(frozen=True)
class Step:
    """One schedule of a lab."""

    name: str
    #: Description of the schedule.
    summary: str
    #: The limit of the step before, which this one removes; empty for the first one.
    removes: str
    apply: Callable[[Workload], None]
    #: Form of the data in memory; ``None`` is the lab's own.
    layout: Layout | None = None


@dataclass(frozen=True)
class Lab:
    """A computation with its size as a parameter, and its steps."""

    name: str
    summary: str
    #: Unit of the size, and its default.
    counts: str
    size: int
    #: Function from a size to the arguments and, last, the result.
    compute: Callable[[int], Sequence[te.Tensor]]
    #: Function that returns values of the arguments.
    operands: Callable[[int, np.random.Generator], list[np.ndarray]]
    #: Function that returns the expected result; sums of floats are in double precision.
    reference: Callable[..., np.ndarray]
    #: NumPy's call that does the same work (for 8-bit numbers: in fp32), ready to be timed.
    baseline: Callable[..., Callable[[], object]]
    #: Additions, multiplications and comparisons of real numbers for a size; operations that only
    #: 8-bit numbers need, such as scaling, do not count.
    operations: Callable[[int], int]
    #: The steps if an item is a CPU's thread, and if it is one of a wave.
    on_cpu: tuple[Step, ...]
    on_gpu: tuple[Step, ...]
    #: The ceiling of a device that bounds the operations: ``fp32`` or ``int8``.
    arithmetic: str = "fp32"
    #: Memory of the host that a run takes, in multiples of the arguments and the result: they are
    #: copied to the device, and the reference and the comparison are in double precision.
    copies: int = 10

    def steps(self, device: Device) -> tuple[Step, ...]:
        """Return the steps on a device; those with textures only if it has them."""
        steps = self.on_cpu if device.is_cpu else self.on_gpu
        if device.image_extent > 0:
            return steps
        return tuple(step for step in steps if step.layout is None or step.layout.scopes is None)

    def bytes(self, size: int) -> int:
        """Return the bytes of the arguments and of the result, each counted once."""
        return sum(tensor_bytes(tensor) for tensor in self.compute(size))

    def schedule(self, step: Step, size: int, target: TargetSpec) -> tirx.PrimFunc:
        """Return the computation as a step schedules it."""
        layout = step.layout
        tensors = list((self if layout is None else layout).compute(size))
        function = te.create_prim_func(tensors)
        if layout is not None and layout.scopes is not None:
            function = with_scopes(function, layout.scopes(tensors, target.device))
        workload = Workload.of(function, target)
        step.apply(workload)
        return workload.sch.mod["main"]


def normal_operands(
    compute: Callable[[int], Sequence[te.Tensor]],
) -> Callable[[int, np.random.Generator], list[np.ndarray]]:
    """Return a function that draws normally distributed fp32 values of a lab's arguments."""
    return lambda size, rng: [
        rng.standard_normal([int(extent) for extent in tensor.shape], np.float32)
        for tensor in compute(size)[:-1]
    ]


def tensor_bytes(tensor: te.Tensor) -> int:
    """Return the bytes of a tensor whose elements are whole bytes."""
    return prod(int(extent) for extent in tensor.shape) * np.dtype(str(tensor.dtype)).itemsize


def bind_loops(workload: Workload, loops: Sequence[Loop], *, parallel: bool) -> Loop:
    """Distribute loops over the device, or give all to one work-item; return the innermost."""
    if parallel:
        return workload.bind_outer(loops)
    if workload.target.is_gpu_kernel:
        workload.sch.bind(workload.sch.add_unit_loop(loops[0]), "blockIdx.x")
    return loops[-1]


def as_written(workload: Workload) -> None:
    """Keep the loops of the definition, one after the other."""
    for block in workload.blocks:
        bind_loops(workload, workload.sch.get_loops(block), parallel=False)


def vectorize_block(workload: Workload, block: Block, above: Loop, lanes: int) -> None:
    """Vectorise the last loop of a block under a loop, and unroll the others."""
    sch = workload.sch
    *rest, last = workload.loops_below(block, above)
    outer, inner = sch.split(last, [None, lanes])
    workload.unroll_all([*rest, outer])
    if lanes > 1:
        sch.vectorize(inner)
