"""GPUs by name: their names in offline compilers, and the facts that analyses use.

Sources of the facts; none of them is measured here:

- Adreno's shader processors, registers and waves: Mesa's ``freedreno_devices.py`` (``num_ccu``,
  ``reg_size_vec4`` x 4 x 128 lanes; of 830 two processors in each of three slices, as Chips and
  Cheese says of its series in "Diving into Qualcomm's Upcoming Adreno X2 GPU"). Multiply-adds:
  two micro processors of 128 lanes in each ("Inside Snapdragon 8+ Gen 1's iGPU", the same). Texels:
  4 a micro processor of the 6xx ("Inside the Snapdragon 855's iGPU"), 8 since ("The Qualcomm
  Snapdragon X Architecture Deep Dive", AnandTech). Clocks and memory: Qualcomm's product briefs of
  Snapdragon 888 (LPDDR5-6400), 8 Gen 2 (LPDDR5X-8400) and 8 Elite (LPDDR5X-10600), 64 bits wide.
- Mali's multiply-adds, texels and warps: Arm's "GPU Datasheet" and "The Valhall Shader Core" (1024
  work-items of up to 32 registers in a core). Clocks and memory: MediaTek's product pages of
  Dimensity 8100 (G610 with six cores, LPDDR5-6400) and Helio G96 (G57 with two cores, of the six
  that it may have; LPDDR4X-4266, 32 bits wide).
- Adreno 620, 630 and 640: shader processors as above; clocks and memory of Snapdragon 765G, 845 and
  855. Multiply-adds and texels of 630 and 640 agree with ArchProbe's measurements: 640 reaches 890
  GFLOP/s, half as many multiply-adds a core again as 630, and reads 166 bytes of images a clock and
  core, where 630 reads 102. Those of 620 are an assumption.
- Mali-G76, G710 and G720: the same datasheet; clocks and memory of Exynos 9820 (12 cores,
  LPDDR4X-4266), Dimensity 9000 (10 cores, LPDDR5X-7500) and 9300 (12 cores, LPDDR5T-9600).
- Launches: 620's is measured (10,000 empty kernels in a queue, see ``docs/gpu.md``); the others
  are fitted with the constants of :mod:`tvmflow.tuning.device_model`, one for Adreno 6xx, one for
  7xx and 8xx, and one for Mali.
- Shader cores of AMD's and NVIDIA's: their white papers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TargetError, nearest


@dataclass(frozen=True)
class Gpu:
    """Names and facts of a GPU."""

    name: str
    #: Instruction set: ``ir3`` (Adreno), ``bifrost`` and ``valhall`` (Mali since 2016 and 2019),
    #: ``rdna`` (AMD), ``xe`` (Intel) or ``sass`` (NVIDIA).
    isa: str
    #: Name in the offline compiler: a simulated device of Mesa, a device of `ocloc`, or an
    #: architecture of `ptxas`; empty if no compiler is known.
    chip: str
    #: Device preset that its modules are compiled with.
    preset: str
    #: Work-items that run one instruction together; some GPUs may double that, and Intel's
    #: compiler chooses up to 32: the width of a register, in 32-bit values.
    wave: int
    #: Shader cores (shader processors, compute units, multiprocessors, vector engines) of the
    #: largest configuration. This and the following facts are ``None`` if not published.
    cores: int | None = None
    #: fp32 multiply-adds that a core starts per cycle; fp16 twice as many.
    multiply_adds: int | None = None
    #: Texels of four bytes that a core filters per cycle.
    texels: int | None = None
    #: 32-bit registers of a core, and its largest number of resident waves.
    registers: int | None = None
    waves: int | None = None
    #: Highest clock in MHz and memory bandwidth in GB/s, in one system on chip.
    clock_mhz: int | None = None
    bandwidth_gbps: float | None = None
    #: Microseconds that a launch adds to the time of its kernel.
    launch_us: float | None = None

    @property
    def target(self) -> str:
        """Return the target whose kernels run on this GPU."""
        return "cuda" if self.isa == "sass" else "opencl"


#: Registers of an Adreno shader processor: 64 or 96 vectors of four for 128 work-items.
_REGISTERS_64, _REGISTERS_96 = 64 * 4 * 128, 96 * 4 * 128
#: Microseconds of a launch, fitted to kernels on Adreno 6xx, on 7xx, and on a Mali-G76.
_US_6XX, _US_7XX, _US_MALI = 12.2, 3.06, 25.2
#: Adreno GPUs that Mesa's simulated devices lack.
_NOT_SIMULATED = (620, 640)


def _adreno(
    number: int,
    cores: int,
    multiply_adds: int,
    texels: int,
    registers: int,
    clock_mhz: int | None = None,
    bandwidth_gbps: float | None = None,
    launch_us: float | None = None,
) -> Gpu:
    """Return an Adreno, whose cores hold up to 16 waves of 64 work-items."""
    chip = "" if number in _NOT_SIMULATED else str(number)
    return Gpu(
        *(f"adreno-{number}", "ir3", chip, "adreno", 64, cores, multiply_adds, texels),
        *(registers, 16, clock_mhz, bandwidth_gbps, launch_us),
    )


_GPUS = (
    Gpu("adreno-618", "ir3", "618", "adreno", 64, 1),
    _adreno(620, 1, 256, 8, _REGISTERS_64, 625, 17.1, 18.7),
    _adreno(630, 2, 256, 8, _REGISTERS_64, 710, 29.9, _US_6XX),
    _adreno(640, 2, 384, 12, _REGISTERS_64, 585, 34.1, _US_6XX),
    _adreno(660, 3, 256, 8, _REGISTERS_64, 840, 51.2, _US_6XX),
    _adreno(730, 4, 256, 16, _REGISTERS_96, 818, 51.2, _US_7XX),
    _adreno(740, 6, 256, 16, _REGISTERS_96, 680, 67.2, _US_7XX),
    _adreno(750, 6, 256, 16, _REGISTERS_96),
    _adreno(830, 6, 256, 16, _REGISTERS_96, 1100, 84.8, _US_7XX),
    Gpu("mali-g76", "bifrost", "", "mali", 8, 12, 24, 2, 24 << 10, 96, 702, 34.1, _US_MALI),
    Gpu("mali-g57", "valhall", "9093", "mali", 16, 6, 32, 4, 32 << 10, 64, 950, 17.1, _US_MALI),
    Gpu("mali-g610", "valhall", "a867", "mali", 16, 6, 64, 8, 32 << 10, 64, 860, 51.2, _US_MALI),
    Gpu("mali-g710", "valhall", "a862", "mali", 16, 10, 64, 8, 32 << 10, 64, 850, 60.0, _US_MALI),
    Gpu("mali-g720", "valhall", "", "mali", 16, 12, 128, 8, 64 << 10, 128, 1300, 76.8, _US_MALI),
    Gpu("amd-navi21", "rdna", "navi21", "nvidia", 32, 80),
    Gpu("amd-gfx1201", "rdna", "gfx1201", "nvidia", 32, 64),
    # Iris Xe of Tiger Lake, Arc A770 and Arc B580.
    Gpu("intel-tgl", "xe", "tgl", "nvidia", 8, 96),
    Gpu("intel-dg2", "xe", "acm-g10", "nvidia", 8, 512),
    Gpu("intel-bmg", "xe", "bmg-g21", "nvidia", 16, 160),
    Gpu("sm_80", "sass", "sm_80", "nvidia", 32, 108),
    Gpu("sm_90", "sass", "sm_90", "nvidia", 32, 132),
)
GPUS = {gpu.name: gpu for gpu in _GPUS}


def gpu_named(name: str) -> Gpu | None:
    """Return the GPU of a name, with or without its hyphen; ``None`` if unknown."""
    spelt = name.lower().replace("-", "")
    return next((gpu for gpu in _GPUS if gpu.name.replace("-", "") == spelt), None)


def find_gpu(name: str) -> Gpu:
    """Return the GPU of a name; `TargetError`, which lists all GPUs, if there is none."""
    gpu = gpu_named(name)
    if gpu is None:
        raise TargetError(
            f"The GPU {name!r} is not known{nearest(name, list(GPUS), {})}.",
            remedy=f"Choose one of {', '.join(GPUS)}.",
        )
    return gpu


#: The GPU that represents a preset in analyses, by target and preset.
_TYPICAL = {
    ("opencl", "adreno"): "adreno-740",
    ("opencl", "mali"): "mali-g610",
    ("cuda", "nvidia"): "sm_90",
}


def typical_gpu(target: str, preset: str) -> Gpu:
    """Return the GPU for modules of a target and a preset; `TargetError` if none, as for CPUs."""
    if (target, preset) not in _TYPICAL:
        raise TargetError(
            f"No GPU is known for modules of the target {target} and the device {preset}.",
            remedy="Choose one with `gpu`, or compile the model with `device=adreno` or "
            "`device=mali`.",
        )
    return GPUS[_TYPICAL[target, preset]]
