"""GPUs by name, for compilers that make their machine code without having one."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TargetError, nearest


@dataclass(frozen=True)
class Gpu:
    """A GPU, and how its compilers name it."""

    name: str
    #: Instruction set: ``ir3`` (Adreno), ``valhall`` (Mali since 2019), ``rdna`` (AMD) or ``sass``
    #: (NVIDIA).
    isa: str
    #: The compiler's own name: of Mesa's simulated devices, or an architecture of `ptxas`.
    chip: str
    #: The device preset that its modules are compiled with.
    preset: str
    #: Work-items that run one instruction together; some GPUs may double that.
    wave: int
    #: Shader cores (shader processors, compute units, multiprocessors), as far as published: of
    #: Adreno in Mesa's tables (``freedreno_devices``), of Mali in Arm's GPU data sheet for the
    #: largest configuration, of others in their vendors' white papers.
    cores: int | None = None

    @property
    def target(self) -> str:
        """The target whose kernels run on it."""
        return "cuda" if self.isa == "sass" else "opencl"


_GPUS = (
    Gpu("adreno-618", "ir3", "618", "adreno", 64, 1),
    Gpu("adreno-630", "ir3", "630", "adreno", 64, 2),
    Gpu("adreno-660", "ir3", "660", "adreno", 64, 3),
    Gpu("adreno-730", "ir3", "730", "adreno", 64, 4),
    Gpu("adreno-740", "ir3", "740", "adreno", 64, 6),
    Gpu("adreno-750", "ir3", "750", "adreno", 64, 6),
    Gpu("adreno-830", "ir3", "830", "adreno", 64),
    Gpu("mali-g57", "valhall", "9093", "mali", 16, 6),
    Gpu("mali-g610", "valhall", "a867", "mali", 16, 6),
    Gpu("amd-navi21", "rdna", "navi21", "nvidia", 32, 80),
    Gpu("amd-gfx1201", "rdna", "gfx1201", "nvidia", 32, 64),
    Gpu("sm_80", "sass", "sm_80", "nvidia", 32, 108),
    Gpu("sm_90", "sass", "sm_90", "nvidia", 32, 132),
)
GPUS = {gpu.name: gpu for gpu in _GPUS}


def find_gpu(name: str) -> Gpu:
    """Return the GPU of a name.

    Raises
    ------
    TargetError
        If there is none; it says which there are.
    """
    gpu = GPUS.get(name.lower())
    if gpu is None:
        raise TargetError(
            f"The GPU {name!r} is not known{nearest(name, list(GPUS), {})}.",
            remedy=f"Choose one of {', '.join(GPUS)}.",
        )
    return gpu


#: The GPU that stands for a preset's modules, by target and preset.
_TYPICAL = {
    ("opencl", "adreno"): "adreno-740",
    ("opencl", "mali"): "mali-g610",
    ("cuda", "nvidia"): "sm_90",
}


def typical_gpu(target: str, preset: str) -> Gpu:
    """Return a GPU for modules of a target and a device preset.

    Raises
    ------
    TargetError
        If there is none, as for CPUs.
    """
    if (target, preset) not in _TYPICAL:
        raise TargetError(
            f"No GPU is known for modules of the target {target} and the device {preset}.",
            remedy="Choose one with `gpu`, or compile the model with `device=adreno` or "
            "`device=mali`.",
        )
    return GPUS[_TYPICAL[target, preset]]
