"""How the launches of a network's kernels fill a GPU, of those that have most of its arithmetic.

From schedules alone, without a compiler of the GPU's and for any GPU of
:mod:`tvmflow.devices.gpus`::

    a group of 56 items:        1 wave of 64 lanes, 88 % of which have an item
    a launch of 8 groups:       8 waves; 6 shader cores have 1.3 each
    24 vectors of registers:    a core holds 8 waves at a time

A launch gives a GPU enough where every shader core has two waves: one computes while the other one
waits for memory.  Groups are whole where they fill three quarters of their waves' lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

import tvm_ffi
from tvm import IRModule, tirx

from ...devices.gpus import Gpu
from ...devices.target import TargetSpec
from ...ir.evaluate import variables
from ...ir.expressions import nodes_in
from ...ir.signatures import bindings_of, called_function, wants_schedule
from .accesses import CodeContext, Site
from .executions import executions, instructions
from .lowered import LoweredKernel, kernels_of
from .occupancy import registers
from .products import multiply_adds_of

#: Waves that a launch should give each shader core, and of their lanes how many have an item.
WAVES_A_CORE, LANES_FILLED = 2, 0.75
#: Kernels of a smaller share of the network's arithmetic are not looked at.
SMALL = 0.01


@dataclass(frozen=True)
class Launch:
    """A kernel with a share of a network's arithmetic, and how it is launched."""

    kernel: str
    #: How often a run of the network launches it.
    calls: int
    #: Multiply-adds of a launch, as the layer defines them, and the share of all of the network's
    #: that all launches have, from 0 to 1.
    multiply_adds: int
    share: float
    #: Elements that a launch writes.
    outputs: int
    #: Work-items of a work-group along x, y and z, and work-groups of a launch.
    group: tuple[int, ...]
    groups: int
    #: Instructions of a work-item that read and write global memory or textures, for each of its
    #: multiply-adds; a vector that is read twice at one place counts once.
    reads: float
    writes: float
    #: 32-bit registers of a work-item, by estimate, and bytes that do not fit them.
    registers: int
    spilled_bytes: int
    #: Part of the multiply-adds that items have room for which the layer defines: less than 1 where
    #: tiles reach beyond the map, or lanes beyond the channels.
    working: float

    @property
    def items(self) -> int:
        """Work-items of a launch."""
        return self.groups * prod(self.group)

    def waves(self, gpu: Gpu) -> int:
        """Waves of a launch."""
        return self.groups * ceil(prod(self.group) / gpu.wave)

    def waves_a_core(self, gpu: Gpu) -> float:
        """Waves of a launch for each shader core."""
        return self.waves(gpu) / (gpu.cores or 1)

    def lanes(self, gpu: Gpu) -> float:
        """Part of its waves' lanes that have a work-item, from 0 to 1."""
        return self.items / (self.waves(gpu) * gpu.wave)

    def held(self, gpu: Gpu) -> int:
        """Waves that a shader core holds at a time, by the estimated registers."""
        each = ceil(self.registers / 4) * 4 * gpu.wave
        return min(gpu.waves or 1, (gpu.registers or each) // each)

    def why_few(self, gpu: Gpu, vector: int) -> str:
        """Say why a launch has too few waves for a GPU, empty if it has enough.

        ``vector`` is the elements that an item computes together at least.
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
    """Names of the primary functions with at least `SMALL` of a network's multiply-adds."""
    counts = arithmetic(mod)
    least = SMALL * sum(calls * each for calls, each in counts.values())
    return [name for name, (calls, each) in counts.items() if each and calls * each >= least]


def arithmetic(mod: IRModule) -> dict[str, tuple[int, int]]:
    """How often a network calls each primary function, and the multiply-adds of a call."""
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
    """The kernels of a function that sum up its products."""
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
            working=min(1.0, multiply_adds / _room(kernel, summed)),
        )


def _is_memory(site: Site) -> bool:
    return site.is_global or site.is_image


def _products(kernel: LoweredKernel) -> list[Site]:
    """Where it adds products to sums."""
    return [
        site
        for site in kernel.stores
        if site.buffer in kernel.sums
        and site.value is not None
        and any(mul.ty.dtype == site.value.ty.dtype for mul in nodes_in(site.value, tirx.Mul))
    ]


def _room(kernel: LoweredKernel, summed: Sequence[Site]) -> int:
    """Multiply-adds of a launch if no item sat out: tests that tell items apart always hold."""
    items = {var for var, _ in kernel.items}
    room = 0
    # Of the kernel's contexts, and kept as long: counts are known by them.
    alike: dict[int, CodeContext] = kernel.memo.setdefault("alike for all items", {})
    for site in summed:
        context = site.context
        if id(context) not in alike:
            tests = (t for t in context.conditions if items.isdisjoint(variables([t])))
            alike[id(context)] = replace(context, conditions=tuple(tests))
        lanes = tvm_ffi.dtype(site.value.ty.dtype).lanes if site.value is not None else 1
        room += executions(kernel, alike[id(context)]).times * lanes
    return room


def _distinct(kernel: LoweredKernel, *, is_store: bool) -> int:
    """Instructions that access memory; what unrolled code says again is one of them."""
    seen: dict[tuple[object, ...], Site] = {}
    for site in kernel.sites:
        if site.is_store == is_store and _is_memory(site):
            context = site.context
            tests = tuple(map(tvm_ffi.structural_hash, context.conditions))
            # The channels of a texel that are read one by one are a read each.
            indices = site.indices if site.channel is None else (*site.indices, site.channel)
            places = tuple(map(tvm_ffi.structural_hash, indices))
            seen.setdefault((site.name, context.loops, tests, places), site)
    return sum(instructions(kernel, site).times for site in seen.values())
