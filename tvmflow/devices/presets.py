"""Device presets: the facts that schedules ask for, of each class of devices.

Vector width, register budget, work-group sizes, image limits, what textures and Winograd's
convolution cost.  All schedules read these facts and never the name of a device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .multiprocessors import Multiprocessors


@dataclass(frozen=True)
class TextureSpeed:
    """How fast textures are, relative to buffers of the same device.

    What is not measured is an assumption from the vendor's optimisation guide; see
    ``docs/texture.md``.
    """

    #: Writing texels.
    write: float
    #: Reading texels for the first time, from memory.
    stream: float
    #: Reading them again, from the cache.
    cached: float


@dataclass(frozen=True)
class WinogradCost:
    """What Winograd's convolution costs, in multiply-adds of vectors of the direct schedule.

    :mod:`tvmflow.graph.layout.algorithms` has the formula.
    """

    #: A multiply-add of the products: less where they suit the registers better than the direct
    #: convolution, more where they read more for each.
    product: float
    #: A vector of a transformed tile: written, read, and transformed.
    tile: float
    #: A vector of the transformed weights.
    weight: float


@dataclass(frozen=True)
class Device:
    """Facts about a class of devices that schedules depend on."""

    name: str
    #: Lanes of the blocked layout ``NCHW{c}c``: one vector register, or one RGBA texel.
    channel_block: int
    #: Vector accumulators that one work-item keeps in registers.
    accumulators: int
    #: Work-items in a work-group; 1 where a work-item is a whole CPU thread's worth of work.
    group_size: int
    #: Largest work-group the device accepts.
    max_group_size: int
    #: Whether a work-item should copy its padded input tile to private memory first.
    stage_input: bool
    #: Largest width and height of an image, in texels; 0 where there are no images.
    image_extent: int
    #: Largest number of layers of an image array.
    image_layers: int
    #: What a texture gains or costs.
    texture: TextureSpeed
    #: Whether kernels may compute in half precision (``cl_khr_fp16``); ``None`` where devices
    #: of the class differ, so that only loading a module on one tells.
    fp16: bool | None
    #: What Winograd's convolution costs.
    winograd: WinogradCost
    #: Known for the target ``cuda`` only.
    multiprocessors: Multiprocessors | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether one work-item is a whole thread's worth of work."""
        return self.group_size == 1


#: The presets of ``--device``.  Limits are the least that the devices of a class report (of CPUs:
#: work-groups of Mesa's rusticl).
PRESETS = {
    # A CPU core: wide vectors, many registers, caches instead of texture units. The block is
    # 512 bits of fp32; on narrower CPUs the compiler splits a vector in two.
    "cpu": Device(
        *("cpu", 16, 28, 1, 1024, True, 8192, 2048),
        texture=TextureSpeed(0.2, 0.2, 0.05),
        fp16=None,
        winograd=WinogradCost(0.7, 15.0, 9.0),
    ),
    # Qualcomm Adreno 6xx/7xx: RGBA texels, 64-wide waves, some 32 vec4 registers at full occupancy.
    # The L1 cache serves textures only.
    "adreno": Device(
        *("adreno", 4, 16, 64, 256, False, 16384, 2048),
        texture=TextureSpeed(1.0, 1.0, 3.0),
        fp16=True,
        winograd=WinogradCost(1.3, 44.0, 20.0),
    ),
    # Arm Mali Bifrost/Valhall: 16-wide warps and half the registers of Adreno.
    # Buffers and textures share their cache.
    "mali": Device(
        *("mali", 4, 8, 32, 256, False, 16384, 2048),
        texture=TextureSpeed(0.8, 1.0, 0.9),
        fp16=True,
        winograd=WinogradCost(1.3, 44.0, 20.0),
    ),
    # NVIDIA since Volta: scalar lanes, 255 registers a thread.
    # One L1 cache for both, but a texture read is one of a quarter of the rate. Its OpenCL
    # driver has no cl_khr_fp16.
    "nvidia": Device(
        *("nvidia", 4, 16, 64, 1024, False, 16384, 2048),
        texture=TextureSpeed(0.8, 1.0, 0.5),
        fp16=False,
        winograd=WinogradCost(1.3, 44.0, 20.0),
    ),
}


def preset_of(info: Any) -> Device:
    """Preset for a running OpenCL device, with its own limits in place of the class's."""
    vendor = f"{info.vendor} {info.name}".lower()
    if info.device_type == "cpu":
        base = PRESETS["cpu"]
    elif "nvidia" in vendor:
        base = PRESETS["nvidia"]
    elif "arm" in vendor or "mali" in vendor:
        base = PRESETS["mali"]
    else:
        base = PRESETS["adreno"]
    limits = {"max_group_size": info.max_work_group_size}
    limits["image_extent"] = min(info.image2d_max_width, info.image2d_max_height)
    limits["image_layers"] = info.image_max_array_size
    return replace(base, **limits, fp16=info.fp16)


def without_images(device: Device) -> Device:
    """The device as targets see it that have no images."""
    return replace(device, image_extent=0, image_layers=0)
