"""Labs and their steps: one computation, and schedules of it from the naive to a fast one."""

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

#: What groups of several items remove.
LONE_ITEMS = "A group of one item leaves all lanes of a wave (16 to 64 of them) but one idle."


@dataclass(frozen=True)
class Layout:
    """How a step has a lab's arguments and result in memory, where it is not as the lab says."""

    #: Arguments and, last, the result for a size.
    compute: Callable[[int], Sequence[te.Tensor]]
    #: From the lab's arguments to those of the step, and from its result to the lab's.
    arguments: Callable[..., list[np.ndarray]]
    result: Callable[[np.ndarray], np.ndarray]
    #: From these tensors to memory scopes of textures on a device; ``None`` are buffers.
    scopes: Callable[[Sequence[te.Tensor], Device], list[str | None]] | None = None


@dataclass(frozen=True)
class Step:
    """One schedule of a lab."""

    name: str
    #: What the schedule does.
    summary: str
    #: What held the step before it back; empty for the first one.
    removes: str
    apply: Callable[[Workload], None]
    #: ``None`` is the lab's own.
    layout: Layout | None = None

    def runs_on(self, device: Device) -> bool:
        """True unless it needs textures, which the device has not."""
        return device.image_extent > 0 or self.layout is None or self.layout.scopes is None


@dataclass(frozen=True)
class Lab:
    """A computation with its size as a parameter, and its steps."""

    name: str
    summary: str
    #: What the size counts, and its default.
    counts: str
    size: int
    #: Arguments and, last, the result for a size.
    compute: Callable[[int], Sequence[te.Tensor]]
    #: Values of the arguments.
    operands: Callable[[int, np.random.Generator], list[np.ndarray]]
    #: What the result has to be; sums of floats are in double precision.
    reference: Callable[..., np.ndarray]
    #: NumPy's call that does the same work (for 8-bit numbers: in fp32), ready to be timed.
    baseline: Callable[..., Callable[[], object]]
    #: Additions, multiplications and comparisons for a size, of real numbers: what 8 bits take
    #: beside them, as a scale, does not count.
    operations: Callable[[int], int]
    #: The steps where an item is a thread of a CPU, and where it is one of a wave.
    on_cpu: tuple[Step, ...]
    on_gpu: tuple[Step, ...]
    #: Which of a device's ceilings is the operations': ``fp32`` or ``int8``.
    arithmetic: str = "fp32"
    #: Memory of the host that a run takes, in bytes of the arguments and the result: they are
    #: copied to the device, and the reference and the comparison are in double precision.
    copies: int = 10

    def steps(self, device: Device) -> tuple[Step, ...]:
        """The steps on a device."""
        steps = self.on_cpu if device.is_cpu else self.on_gpu
        return tuple(step for step in steps if step.runs_on(device))

    def bytes(self, size: int) -> int:
        """Bytes of the arguments and of the result, each once."""
        return sum(tensor_bytes(tensor) for tensor in self.compute(size))

    def schedule(self, step: Step, size: int, target: TargetSpec) -> tirx.PrimFunc:
        """The computation as a step schedules it."""
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
    """Normally distributed fp32 values of a lab's arguments."""
    return lambda size, rng: [
        rng.standard_normal([int(extent) for extent in tensor.shape], np.float32)
        for tensor in compute(size)[:-1]
    ]


def tensor_bytes(tensor: te.Tensor) -> int:
    """Bytes of a tensor of whole bytes."""
    return prod(int(extent) for extent in tensor.shape) * np.dtype(str(tensor.dtype)).itemsize


def bind_loops(workload: Workload, loops: Sequence[Loop], *, parallel: bool) -> Loop:
    """Give loops to the device, or all of them to one work-item; the innermost that is left."""
    if parallel:
        return workload.bind_outer(loops)
    if workload.target.is_gpu_kernel:
        workload.sch.bind(workload.sch.add_unit_loop(loops[0]), "blockIdx.x")
    return loops[-1]


def as_written(workload: Workload) -> None:
    """The loops of the definition, one after the other."""
    for block in workload.blocks:
        bind_loops(workload, workload.sch.get_loops(block), parallel=False)


def vectorize_block(workload: Workload, block: Block, above: Loop, lanes: int) -> None:
    """Make vectors of the last loop of a block under a loop, and unroll the others."""
    sch = workload.sch
    *rest, last = workload.loops_below(block, above)
    outer, inner = sch.split(last, [None, lanes])
    workload.unroll_all([*rest, outer])
    if lanes > 1:
        sch.vectorize(inner)
