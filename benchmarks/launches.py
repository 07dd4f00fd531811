"""Launches of the kernels with most of a network's arithmetic, and how they fill a GPU.

They are read from schedules, without the GPU's compiler, for any GPU of
:mod:`tvmflow.devices.gpus`::

    a group of 56 items:        1 wave of 64 lanes, 88 % of them with an item
    a launch of 8 groups:       8 waves; 6 shader cores have 1.3 each
    24 vectors of registers:    a core holds 8 waves at a time

A launch is large enough if every shader core has two waves: one computes while the other waits for
memory.  A group is full enough if it fills three quarters of its waves' lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

import tvm_ffi
from tvm import IRModule, tirx

from tvmflow.devices.gpus import Gpu
from tvmflow.devices.target import TargetSpec
from tvmflow.explain.analysis.accesses import CodeContext, Site
from tvmflow.explain.analysis.executions import executions, instructions
from tvmflow.explain.analysis.lowered import LoweredKernel, kernels_of
from tvmflow.explain.analysis.occupancy import registers
from tvmflow.explain.analysis.products import multiply_adds_of
from tvmflow.explain.isa.findings import WAVES_A_CORE
from tvmflow.ir.evaluate import variables
from tvmflow.ir.expressions import nodes_in
from tvmflow.ir.signatures import bindings_of, called_function, wants_schedule

#: Smallest share of the network's arithmetic of an examined kernel.
SMALL = 0.01


@dataclass(frozen=True)
class Launch:
    """Launch of a kernel, and its share of a network's arithmetic."""

    kernel: str
    #: Launches in a run of the network.
    calls: int
    #: Multiply-adds of a launch, as the layer defines them, and the share of all launches in those
    #: of the network, from 0 to 1.
    multiply_adds: int
    share: float
    #: Elements that a launch writes.
    outputs: int
    #: Work-items of a work-group along x, y and z, and work-groups of a launch.
    group: tuple[int, ...]
    groups: int
    #: Instructions that read and write global memory or textures, per multiply-add; unrolled
    #: copies of a read count once.
    reads: float
    writes: float
    #: Estimated 32-bit registers of a work-item, and bytes that do not fit them.
    registers: int
    spilled_bytes: int
    #: Share of the items' multiply-adds that the layer defines: less than 1 if tiles exceed the
    #: feature map, or lanes the channels.
    working: float

    @property
    def items(self) -> int:
        """Work-items of a launch."""
        return self.groups * prod(self.group)

    def waves(self, gpu: Gpu) -> int:
        """Return the waves of a launch."""
        return self.groups * ceil(prod(self.group) / gpu.wave)

    def waves_a_core(self, gpu: Gpu) -> float:
        """Return the waves of a launch for each shader core."""
        return self.waves(gpu) / (gpu.cores or 1)

    def lanes(self, gpu: Gpu) -> float:
        """Return the share of the waves' lanes that have a work-item, from 0 to 1."""
        return self.items / (self.waves(gpu) * gpu.wave)

    def held(self, gpu: Gpu) -> int:
        """Return the waves that a shader core holds, given the estimated registers."""
        each = ceil(self.registers / 4) * 4 * gpu.wave
        return min(gpu.waves or 1, (gpu.registers or each) // each)

    def why_few(self, gpu: Gpu, vector: int) -> str:
        """Return the reason why a launch has too few waves for a GPU; empty if it has enough.

        ``vector`` is the smallest number of elements that an item computes together.
        """
        if self.waves_a_core(gpu) >= WAVES_A_CORE:
            return ""
        vectors = self.outputs // vector
        most = ceil(vectors / gpu.wave) / (gpu.cores or 1)
        if most < WAVES_A_CORE:
            return (
                f"it writes {vectors} vectors, {most:.1f} waves a core with an item for each: "
                "items have to share sums"
            )
        return f"an item writes {vectors / self.items:.1f} vectors: smaller tiles, or shared sums"


def launches(
    unscheduled: IRModule, scheduled: Mapping[str, tirx.PrimFunc], target: TargetSpec
) -> list[Launch]:
    """Find how the kernels with most of a network's arithmetic are launched, the largest first.

    ``unscheduled`` has the network's calls, ``scheduled`` the functions of `with_arithmetic`.
    """
    counts = arithmetic(unscheduled)
    total = sum(calls * each for calls, each in counts.values())
    found = [
        launch
        for name in with_arithmetic(unscheduled)
        for launch in _launches(scheduled[name], target, *counts[name], total)
    ]
    return sorted(found, key=lambda launch: (-launch.share, launch.kernel))


def with_arithmetic(mod: IRModule) -> list[str]:
    """Return the primary functions with at least `SMALL` of a network's multiply-adds."""
    counts = arithmetic(mod)
    least = SMALL * sum(calls * each for calls, each in counts.values())
    return [name for name, (calls, each) in counts.items() if each and calls * each >= least]


def arithmetic(mod: IRModule) -> dict[str, tuple[int, int]]:
    """Return the number of calls of each primary function, and the multiply-adds of a call."""
    found: dict[str, tuple[int, int]] = {}
    for binding in bindings_of(mod["main"]):
        called = called_function(mod, binding.value)
        if called is not None and wants_schedule(called[0]):
            name = binding.value.args[0].name_hint
            calls, each = found.get(name, (0, multiply_adds_of(called[0])))
            found[name] = calls + 1, each
    return found


def _launches(
    function: tirx.PrimFunc, target: TargetSpec, calls: int, multiply_adds: int, total: int
) -> Iterator[Launch]:
    """Yield the launches of the kernels that accumulate a function's products."""
    for kernel in kernels_of(function, target):
        summed = _products(kernel)
        if not summed:
            continue
        (use,) = registers(kernel, target)
        written = {site.name: site.buffer for site in kernel.stores if _is_memory(site)}
        yield Launch(
            kernel=kernel.name,
            calls=calls,
            multiply_adds=multiply_adds,
            share=calls * multiply_adds / total,
            outputs=max(prod(map(int, buffer.shape)) for buffer in written.values()),
            group=tuple(extent for _, extent in reversed(kernel.items)),
            groups=kernel.groups,
            reads=_distinct(kernel, is_store=False) / multiply_adds,
            writes=_distinct(kernel, is_store=True) / multiply_adds,
            registers=use.registers,
            spilled_bytes=use.spilled_bytes + use.memory_bytes,
            working=min(1.0, multiply_adds / _possible_multiply_adds(kernel, summed)),
        )


def _is_memory(site: Site) -> bool:
    return site.is_global or site.is_image


def _products(kernel: LoweredKernel) -> list[Site]:
    """Return the stores that add products to sums."""
    return [
        site
        for site in kernel.stores
        if site.buffer in kernel.sums
        and site.value is not None
        and any(mul.ty.dtype == site.value.ty.dtype for mul in nodes_in(site.value, tirx.Mul))
    ]


def _possible_multiply_adds(kernel: LoweredKernel, summed: Sequence[Site]) -> int:
    """Count the multiply-adds of a launch if every item worked: its guards always hold."""
    items = {var for var, _ in kernel.items}
    possible = 0
    # The kernel keeps these contexts alive, because counts are cached by their ids.
    alike: dict[int, CodeContext] = kernel.memo.setdefault("alike for all items", {})
    for site in summed:
        context = site.context
        if id(context) not in alike:
            tests = (t for t in context.conditions if items.isdisjoint(variables([t])))
            alike[id(context)] = replace(context, conditions=tuple(tests))
        lanes = tvm_ffi.dtype(site.value.ty.dtype).lanes if site.value is not None else 1
        possible += executions(kernel, alike[id(context)]) * lanes
    return possible


def _distinct(kernel: LoweredKernel, *, is_store: bool) -> int:
    """Count the instructions that access memory; unrolled copies of one count once."""
    seen: dict[tuple[object, ...], Site] = {}
    for site in kernel.sites:
        if site.is_store == is_store and _is_memory(site):
            context = site.context
            tests = tuple(map(tvm_ffi.structural_hash, context.conditions))
            # Single channels of a texel are a read each.
            indices = site.indices if site.channel is None else (*site.indices, site.channel)
            places = tuple(map(tvm_ffi.structural_hash, indices))
            seen.setdefault((site.name, context.loops, tests, places), site)
    return sum(instructions(kernel, site) for site in seen.values())
