"""Model of a GPU: time of a kernel from its waves, issue slots, fetches and bytes.

A *wave* has as many work-items as execute an instruction together.  A shader core holds as many
waves as its registers allow, and runs one while another waits for texels.  A kernel then takes
little more than the longest of::

    busy     waves of the busiest core × steps × the slowest unit's clocks for a wave's step,
             which does multiply-adds, moves texels to registers, or the lines that they
             lie in from the second cache
    waiting  waves of the busiest core / waves that it holds × steps × latency
    memory   bytes / bandwidth

plus a launch.  Groups are assigned whole: with few of them, the busiest core has
``ceil(groups / cores)``.  Values that do not fit the registers of a work-item go through memory in
each step, which takes many times as long.

The constants are fitted to measurements of phones: AutoTVM's best trials on Adreno 660, 730 and
740, whole spaces of trials on Adreno 630 and 640, and best trials on a Mali-G76
(``benchmarks/evidence.py``, which also measures the errors of predictions for GPUs and networks
that the fit excluded).  All fields of a kernel and results may be NumPy arrays, for many kernels at
a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..devices.gpus import GPUS, Gpu
from ..errors import TargetError

#: A number for one kernel, or one for each of many.
Number: TypeAlias = "float | NDArray[np.float64]"

#: Bytes of a line of the caches (an assumption).
LINE = 64
#: Waves that a core holds at least, whatever their registers (an assumption).
LEAST_WAVES = 2
#: Groups for each core, starting at which it does not matter that they are assigned whole (an
#: assumption).
MANY_GROUPS = 8


@dataclass(frozen=True)
class Kernel:
    """Facts of a launch; counts of a step are of one work-item."""

    #: Work-groups, and work-items of each.
    groups: Number
    items: Number
    #: Steps of an item, each of which waits for its fetches.
    steps: Number
    #: Multiply-adds of single numbers in a step.
    multiply_adds: Number
    #: Texels that a step reads, and the bytes of each.
    fetches: Number
    texel_bytes: Number
    #: Cache lines of a wave's texels, in a step.
    lines: Number
    #: Vectors of four sums, and bytes of each of their elements.
    sums: Number
    sum_bytes: Number
    #: Fewest bytes that memory has to move: inputs, weights and results.
    bytes: Number
    #: Texels of a step that an item keeps in registers at once.
    live: Number
    #: Whether products in half precision are added up in fp32, as AutoTVM's schedules do.
    is_mixed: bool | NDArray[np.bool_] = False


@dataclass(frozen=True)
class Constants:
    """Constants of the GPUs of one vendor; defaults are fitted to Adreno."""

    #: Achieved share of the published memory bandwidth and multiply-add rate, and of the texels
    #: that are filtered in a clock, with 16 bytes each.
    memory_share: float = 1.0
    multiply_add_share: float = 0.446
    texel_share: float = 1.23
    #: Issue slots of a product in half precision that is added up in fp32.
    mixed_slots: float = 1.01
    #: Bytes that a core reads from the second cache in a clock, in lines.
    line_bytes: float = 101.0
    #: Clocks that a step waits, and that each of its fetches adds.
    step_clocks: float = 69.7
    fetch_clocks: float = 39.1
    #: Clocks before a group's first step and after its last one.
    group_clocks: float = 335.0
    #: Registers of an item in addition to its sums, and for each texel of a step (of 16 bytes).
    base_registers: float = 2.08
    texel_registers: float = 0.398
    #: Registers of four sums in half precision.
    half_registers: float = 0.918
    #: Vectors of sums and texels of an item, of 16 bytes, beyond which they are spilled, and clocks
    #: of a wave's step for each further one.
    spill_registers: float = 41.0
    spill_clocks: float = 177.0
    #: Exponent with which a core's waves fall as the registers of an item grow.
    occupancy: float = 1.38
    #: Overlap of the units' work, as the exponent of the norm that combines their times: with 1
    #: they take turns, with large values only the longest time counts.
    overlap: float = 2.83


#: Constants of Mali.  Registers are Arm's: 64 of 32 bits for an item, or 32 if a core is full.
_MALI = Constants(
    memory_share=0.943,
    multiply_add_share=0.249,
    texel_share=0.52,
    line_bytes=102.0,
    step_clocks=72.3,
    fetch_clocks=44.0,
    base_registers=2.0,
    texel_registers=0.75,
    spill_registers=16.0,
)
#: Constants by instruction set.
CONSTANTS = {"ir3": Constants(), "bifrost": _MALI, "valhall": _MALI}


@dataclass(frozen=True)
class Rates:
    """Published rates of a GPU."""

    cores: int
    ghz: float
    #: Multiply-adds in fp32 of one core, and texels that it filters.
    multiply_adds: int
    texels: int
    #: Waves that a core holds, and registers of four 32-bit values that their items then have.
    waves: int
    registers: float
    #: Memory bandwidth in 10⁹ bytes a second.
    memory_gb: float
    #: Seconds of a launch.
    launch_s: float


def rates_of(gpu: Gpu) -> Rates:
    """Return the rates that the model uses.

    Raises `TargetError` if the GPU is no Adreno or Mali, the only kinds with measurements, or a
    rate is unknown.
    """
    if (rates := _known(gpu)) is None:
        known = [other.name for other in GPUS.values() if _known(other) is not None]
        raise TargetError(
            f"Predicting times on {gpu.name} failed: the model knows Adreno and Mali GPUs whose "
            "rates are published.",
            remedy=f"Choose one of {', '.join(known)}.",
        )
    return rates


def _known(gpu: Gpu) -> Rates | None:
    cores, adds, texels = gpu.cores, gpu.multiply_adds, gpu.texels
    waves, held, launch = gpu.waves, gpu.registers, gpu.launch_us
    clock, memory = gpu.clock_mhz, gpu.bandwidth_gbps
    if gpu.isa not in CONSTANTS or not (cores and adds and texels and waves and held):
        return None
    if not (clock and memory and launch):
        return None
    each = held / (4 * waves * gpu.wave)
    return Rates(cores, clock / 1e3, adds, texels, waves, each, memory, 1e-6 * launch)


def registers(kernel: Kernel, constants: Constants) -> Number:
    """Return the registers of a work-item, of four 32-bit values each."""
    sums = np.where(np.less(kernel.sum_bytes, 4), constants.half_registers, 1.0) * kernel.sums
    texels = kernel.fetches * kernel.texel_bytes / 16 * constants.texel_registers
    return constants.base_registers + sums + texels


def waves_held(registers: Number, rates: Rates, constants: Constants) -> Number:
    """Return the waves that a core holds at a time, by the registers of a work-item."""
    held = rates.waves * np.power(rates.registers / registers, constants.occupancy)
    return np.clip(held, LEAST_WAVES, rates.waves)


def seconds(kernel: Kernel, gpu: Gpu, constants: Constants | None = None) -> Number:
    """Predict the time of a launch in seconds; raises as `rates_of` does."""
    rates = rates_of(gpu)
    c = constants or CONSTANTS[gpu.isa]
    is_half = np.less(kernel.sum_bytes, 4)
    slots = np.where(kernel.is_mixed, c.mixed_slots, np.where(is_half, 0.5, 1.0))
    issued = kernel.multiply_adds * slots + kernel.fetches
    step = _overlapped(
        c.overlap,
        issued * gpu.wave / (rates.multiply_adds * c.multiply_add_share),
        kernel.fetches * kernel.texel_bytes * gpu.wave / (16 * rates.texels * c.texel_share),
        kernel.lines * LINE / c.line_bytes,
    )
    held = waves_held(registers(kernel, c), rates, c)
    live = kernel.sums * kernel.sum_bytes / 4 + kernel.live * kernel.texel_bytes / 16
    spilling = c.spill_clocks * np.maximum(0.0, live - c.spill_registers)
    waves = np.ceil(kernel.items / gpu.wave)
    each = np.asarray(kernel.groups / rates.cores)
    groups = np.where(each < MANY_GROUPS, np.ceil(each), each)
    # Groups run whole; a group with more waves than fit runs at the pace of those that do.
    rounds = np.maximum(1.0, groups * waves / held)
    busy = groups * waves * kernel.steps * (step + spilling)
    wait = c.step_clocks + c.fetch_clocks * kernel.fetches + spilling
    waiting = rounds * (kernel.steps * wait + c.group_clocks)
    memory = kernel.bytes / (c.memory_share * rates.memory_gb * 1e9)
    clock = rates.ghz * 1e9
    return rates.launch_s + _overlapped(c.overlap, busy / clock, waiting / clock, memory)


def _overlapped(power: float, *times: Number) -> Number:
    """Return the time of units that work at the same time: the ``power``-norm of their times."""
    each = np.stack(np.broadcast_arrays(*times))
    longest = np.max(each, axis=0)
    shares = np.sum(np.power(each / longest, power), axis=0)
    return np.asarray(longest * shares ** (1 / power))


def least_seconds(
    moved: float,
    multiply_adds: float,
    gpu: Gpu,
    slots: float = 1.0,
    constants: Constants | None = None,
) -> float:
    """Return the least seconds of a launch that moves some bytes and does some multiply-adds.

    ``slots`` are the issue slots of a multiply-add.  Raises as `rates_of` does.
    """
    rates, c = rates_of(gpu), constants or CONSTANTS[gpu.isa]
    memory = moved / (c.memory_share * rates.memory_gb * 1e9)
    rate = rates.cores * rates.multiply_adds * c.multiply_add_share * rates.ghz * 1e9
    return rates.launch_s + max(memory, slots * multiply_adds / rate)
