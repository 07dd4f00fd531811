"""Model of a GPU: time of a kernel from its waves, issue slots, fetches and bytes.

A *wave* is 64 work-items that execute instructions together.  A shader core holds as many waves as
its registers allow, and runs one while another waits for texels.  A kernel then takes little more
than the longest of::

    busy     waves of the busiest core × steps × the slowest unit's clocks for a wave's step,
             which does multiply-adds, moves texels to registers, or the lines that they
             lie in from the second cache
    waiting  waves of the busiest core / waves that it holds × steps × latency
    memory   bytes / bandwidth

plus a launch.  Groups are assigned whole, so that the busiest core has ``ceil(groups / cores)``.

The constants are fitted to AutoTVM's measurements on an Adreno 660 and a 740, which are the logs
in `tuning_logs` (``benchmarks/device_model.py``, which also measures the errors of predictions for
a log that the fit excluded).  All fields of a kernel and results may be NumPy arrays, for many
kernels at a time.
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

#: Work-items in a wave, and most waves that a core holds (Mesa's tables).
WAVE, MOST_WAVES = 64, 16
#: Bytes of a line of the caches.
LINE = 64


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
    #: Whether products in half precision are added up in fp32, as AutoTVM's schedules do.
    is_mixed: bool | NDArray[np.bool_] = False


@dataclass(frozen=True)
class Constants:
    """Constants fitted to all logs, common to all Adreno GPUs, except for the launch."""

    #: Microseconds of a launch, on GPUs of the 6xx and of the 7xx series.
    launch_6xx_us: float = 10.3
    launch_7xx_us: float = 3.1
    #: Achieved share of the published memory bandwidth and multiply-add rate.
    memory_share: float = 0.644
    multiply_add_share: float = 0.631
    #: Issue slots of a product in half precision that is added up in fp32: multiply, convert, add.
    mixed_slots: float = 1.55
    #: Issue slots for the address of a fetch.
    fetch_slots: float = 1.13
    #: Bytes a clock of a core: texels to registers, and lines from the second cache.
    texel_bytes: float = 140.0
    line_bytes: float = 115.0
    #: Clocks that a step waits, and that each of its fetches adds.
    step_clocks: float = 98.4
    fetch_clocks: float = 37.6
    #: Clocks before a group's first step and after its last one.
    group_clocks: float = 479.0
    #: Registers of an item besides its sums, and for each texel of a step (of 16 bytes).
    base_registers: float = 2.37
    texel_registers: float = 1.07
    #: Registers of four sums in half precision.
    half_registers: float = 0.748
    #: Overlap of the units' work, as the exponent of the norm that combines their times: with 1
    #: they take turns, with large values only the longest time counts.
    overlap: float = 5.38


CONSTANTS = Constants()


@dataclass(frozen=True)
class Rates:
    """Published rates of a GPU."""

    cores: int
    ghz: float
    #: Multiply-adds in fp32 of one core.
    multiply_adds: int
    #: Registers of four 32-bit values that a work-item has if a core holds two waves.
    registers: int
    #: Memory bandwidth in 10⁹ bytes a second.
    memory_gb: float


def rates_of(gpu: Gpu) -> Rates:
    """Return the rates that the model uses.

    Raises `TargetError` if the GPU is no Adreno, the only kind with measurements, or a rate is
    unknown.
    """
    if (rates := _known(gpu)) is None:
        known = [other.name for other in GPUS.values() if _known(other) is not None]
        raise TargetError(
            f"Predicting times on {gpu.name} failed: the model knows Adreno GPUs whose rates are "
            "published.",
            remedy=f"Choose one of {', '.join(known)}.",
        )
    return rates


def _known(gpu: Gpu) -> Rates | None:
    cores, adds, held, clock, memory = (
        *(gpu.cores, gpu.multiply_adds, gpu.registers),
        *(gpu.clock_mhz, gpu.bandwidth_gbps),
    )
    if gpu.isa != "ir3" or not (cores and adds and held and clock and memory):
        return None
    return Rates(cores, clock / 1e3, adds, held // (4 * 2 * WAVE), memory)


def registers(kernel: Kernel, constants: Constants = CONSTANTS) -> Number:
    """Return the registers of a work-item, of four 32-bit values each."""
    sums = np.where(np.less(kernel.sum_bytes, 4), constants.half_registers, 1.0) * kernel.sums
    texels = kernel.fetches * kernel.texel_bytes / 16 * constants.texel_registers
    return constants.base_registers + sums + texels


def waves_held(registers: Number, rates: Rates) -> Number:
    """Return the waves that a core holds at a time, by the registers of a work-item."""
    return np.clip(np.floor(rates.registers / registers) * 2, 2, MOST_WAVES)


def seconds(
    kernel: Kernel, gpu: Gpu, constants: Constants = CONSTANTS, held: Number | None = None
) -> Number:
    """Predict the time of a launch in seconds; raises as `rates_of` does.

    ``held`` is the number of waves that a core holds, if a compiler has reported it.
    """
    rates, c = rates_of(gpu), constants
    is_half = np.less(kernel.sum_bytes, 4)
    slots = np.where(kernel.is_mixed, c.mixed_slots, np.where(is_half, 0.5, 1.0))
    issued = kernel.multiply_adds * slots + c.fetch_slots * kernel.fetches
    step = _together(
        c.overlap,
        issued * WAVE / (rates.multiply_adds * c.multiply_add_share),
        kernel.fetches * kernel.texel_bytes * WAVE / c.texel_bytes,
        kernel.lines * LINE / c.line_bytes,
    )
    if held is None:
        held = waves_held(registers(kernel, c), rates)
    waves = np.ceil(kernel.items / WAVE)
    groups = np.ceil(kernel.groups / rates.cores)
    # Groups run whole; a group with more waves than fit runs at the pace of those that do.
    together = np.maximum(1, held // waves)
    rounds = np.where(waves > held, groups * waves / held, np.ceil(groups / together))
    busy = groups * waves * kernel.steps * step
    wait = c.step_clocks + c.fetch_clocks * kernel.fetches
    waiting = rounds * (kernel.steps * wait + c.group_clocks)
    memory = kernel.bytes / (c.memory_share * rates.memory_gb * 1e9)
    clock = rates.ghz * 1e9
    return launch(gpu, c) + _together(c.overlap, busy / clock, waiting / clock, memory)


def _together(power: float, *times: Number) -> Number:
    """Return the time of units that work at the same time."""
    each = np.stack(np.broadcast_arrays(*times))
    longest = np.max(each, axis=0)
    shares = np.sum(np.power(each / longest, power), axis=0)
    return np.asarray(longest * shares ** (1 / power))


def launch(gpu: Gpu, constants: Constants = CONSTANTS) -> float:
    """Return the seconds of a launch alone."""
    is_old = gpu.name.removeprefix("adreno-") < "7"
    return 1e-6 * (constants.launch_6xx_us if is_old else constants.launch_7xx_us)


def copying(moved: Number, gpu: Gpu, constants: Constants = CONSTANTS) -> Number:
    """Return the seconds of a launch that copies ``moved`` bytes, which are read and written."""
    rates = rates_of(gpu)
    return launch(gpu, constants) + 2 * moved / (constants.memory_share * rates.memory_gb * 1e9)
