"""Device presets: the facts about a class of devices that schedules depend on.

Vector width, register budget, work-group sizes, image limits, costs of textures and of Winograd's
convolution.  Schedules read these facts and never the name of a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .gpus import Gpu

if TYPE_CHECKING:
    from ..runtime.devices import DeviceInfo


@dataclass(frozen=True)
class TextureSpeed:
    """Speeds of textures, relative to buffers of the same device; :data:`SOURCES` has sources."""

    write: float  #: Writing texels.
    stream: float  #: Reading texels for the first time, from memory.
    cached: float  #: Reading them again, from the cache.
    tall: int = 1 << 20  #: Rows of an image of weights above which a buffer is faster.


@dataclass(frozen=True)
class WinogradCost:
    """Costs of Winograd's convolution, in multiply-adds of vectors of the direct schedule.

    :mod:`tvmflow.graph.layout.algorithms` has the formula.
    """

    #: A multiply-add of the products: less than 1 if they use registers better than the direct
    #: convolution, more if they read more per multiply-add.
    product: float
    tile: float  #: Write, read and transform of a vector of a transformed tile.
    weight: float  #: Read of a vector of the transformed weights.
    launch: float = 0.0  #: A launch, of which Winograd's algorithm has two more.


@dataclass(frozen=True)
class Tiling:
    """Tile and work-group sizes of convolutions (:mod:`tvmflow.schedules.work_groups`)."""

    vectors: int  #: Vectors of a register tile.
    items: int  #: Work-items of a work-group.
    #: Blocks of output channels of a work-group; ``None`` if columns and rows come first.
    channels: int | None = None
    by_map: bool = False  #: Whether `channels` is for a map of 64 tiles, and less for larger ones.


@dataclass(frozen=True)
class Multiprocessors:
    """Facts about a GPU's multiprocessors, which CUDA reports and OpenCL does not."""

    count: int
    shared_bytes: int  #: Shared memory that one work-group may have.
    tensor_cores: bool  #: Whether 16×16 fp16 matrix products are one instruction.
    #: Whether memory is copied to shared memory while the group computes (``cp.async``).
    async_copies: bool


@dataclass(frozen=True)
class Device:
    """Facts about a class of devices that schedules depend on."""

    name: str
    #: Lanes of the blocked layout ``NCHW{c}c``: one vector register, or one RGBA texel.
    channel_block: int
    accumulators: int  #: Vector accumulators that one work-item keeps in registers.
    #: Work-items in a work-group; 1 where a work-item is a whole CPU thread's worth of work.
    group_size: int
    max_group_size: int  #: Largest work-group the device accepts.
    max_group_depth: int  #: Largest extent of a work-group along the third axis.
    #: Whether a work-item first copies its padded input tile to private memory.
    stage_input: bool
    #: Largest width and height of an image, in texels; 0 where there are no images.
    image_extent: int
    image_layers: int  #: Largest number of layers of an image array.
    texture: TextureSpeed
    #: Whether kernels may compute in half precision (``cl_khr_fp16``); ``None`` if devices of the
    #: class differ, which is checked when a module is loaded.
    fp16: bool | None
    winograd: WinogradCost
    wave: int  #: Work-items that run one instruction together.
    convolution: Tiling
    depthwise: Tiling
    multiprocessors: Multiprocessors | None = None  #: Known for the target ``cuda`` only.
    #: Whether the byte dot product instruction takes two signed factors.
    signed_dots: bool | None = None
    #: Microseconds that a launch adds to the time of its kernel.  The default was measured with
    #: PoCL, as the extra time per launch of ten layers in three kernels each.
    launch_us: float = 2.0

    @property
    def is_cpu(self) -> bool:
        """Return whether one work-item is a whole thread's worth of work."""
        return self.group_size == 1


# Limits are the least that devices of a class report (for CPUs: work-groups of Mesa's rusticl).

# A CPU core: wide vectors, many registers, caches instead of texture units. The block is
# 512 bits of fp32; on narrower CPUs the compiler splits a vector in two.
_CPU = Device(
    name="cpu",
    channel_block=16,
    accumulators=28,
    group_size=1,
    max_group_size=1024,
    max_group_depth=1024,
    stage_input=True,
    image_extent=8192,
    image_layers=2048,
    texture=TextureSpeed(write=0.2, stream=0.2, cached=0.05),
    fp16=None,
    winograd=WinogradCost(product=0.7, tile=15.0, weight=9.0),
    wave=1,
    convolution=Tiling(vectors=28, items=1),
    depthwise=Tiling(vectors=28, items=1),
)
# Qualcomm Adreno 6xx/7xx: RGBA texels, 64-wide waves, some 32 vec4 registers at full occupancy.
# The L1 cache serves textures only.
_ADRENO = Device(
    name="adreno",
    channel_block=4,
    accumulators=16,
    group_size=64,
    max_group_size=1024,
    max_group_depth=256,
    stage_input=False,
    image_extent=16384,
    image_layers=2048,
    texture=TextureSpeed(write=1.0, stream=1.7, cached=2.0, tall=2048),
    fp16=True,
    winograd=WinogradCost(product=0.56, tile=113.0, weight=8.0, launch=1e5),
    wave=64,
    convolution=Tiling(vectors=6, items=112, channels=32),
    depthwise=Tiling(vectors=3, items=112, channels=8, by_map=True),
    launch_us=6.1,
)
# Arm Mali Bifrost/Valhall: 16-wide warps and half the registers of Adreno.
_MALI = replace(
    _ADRENO,
    name="mali",
    accumulators=8,
    group_size=32,
    max_group_size=256,
    texture=TextureSpeed(write=0.8, stream=1.0, cached=1.29),
    wave=16,
    convolution=Tiling(vectors=4, items=32, channels=8),
    depthwise=Tiling(vectors=2, items=32, channels=8, by_map=True),
    launch_us=25.2,
)
# NVIDIA since Volta: scalar lanes, 255 registers a thread.
# Buffers and textures share the L1 cache, but texture reads have a quarter of its rate. The OpenCL
# driver has no cl_khr_fp16.
_NVIDIA = replace(
    _ADRENO,
    name="nvidia",
    max_group_depth=64,
    texture=TextureSpeed(write=0.8, stream=1.0, cached=0.5),
    fp16=False,
    wave=32,
    launch_us=2.0,
    winograd=WinogradCost(product=1.3, tile=100.0, weight=20.0),
    convolution=Tiling(vectors=16, items=64),
    depthwise=Tiling(vectors=4, items=64),
)
#: The presets of ``--device``.
PRESETS = {device.name: device for device in (_CPU, _ADRENO, _MALI, _NVIDIA)}

#: Source of a number that no measurement supports.
ASSUMED = "assumption, not measured"
#: Source of each number that decisions on phones' GPUs rest on, by preset and fact;
#: ``docs/gpu.md`` has their addresses.
SOURCES: Mapping[str, Mapping[str, str]] = {
    "adreno": {
        "texture.write": ASSUMED,
        "texture.stream": "adreno-llms on an Adreno 620: 13.46 and 7.85 GB/s",
        "texture.cached": "ArchProbe on an Adreno 640: 194.6 and 96.3 GB/s",
        "texture.tall": "adreno-llms on a 620: 1024 rows gain 8 %, 4096 lose 8 %",
        "winograd": "201 convolutions tuned both ways on Adreno 660, 730, 740",
        "convolution": "AutoTVM's best on 660, 730, 740; all trials on 630, 640",
        "depthwise": "AutoTVM's best on 660, 730, 740, by the device model",
        "launch_us": "geometric mean of fits to kernels: 12.2 on Adreno 6xx, 3.06 on 7xx",
    },
    "mali": {
        "texture.write": ASSUMED,
        "texture.stream": "ArchProbe on a Mali-G76: equal; 78 of 80 best trials read images",
        "texture.cached": "ArchProbe on a Mali-G76: 30 and 23.3 GB/s",
        "texture.tall": ASSUMED,
        "winograd": ASSUMED + "; Adreno's",
        "convolution": "80 best trials on a Mali-G76: 4 vectors, 32 items, 8 channels",
        "depthwise": "80 best trials on a Mali-G76",
        "launch_us": "fitted to 80 kernels on a Mali-G76",
    },
}
#: Vectors of a convolution's tile by series of Adreno GPUs, the best ones by the device model.  The
#: phones' best trials have 4 on 6xx, and 8 to 16 on 7xx, where more than 8 would spill texels of
#: strided windows.  That 8xx is like 7xx is an assumption.
_VECTORS = {"adreno-6": 5, "adreno-7": 8, "adreno-8": 8}


def device_of(gpu: Gpu) -> Device:
    """Return the preset of a GPU, refined by facts of the GPU and its series."""
    device = PRESETS[gpu.preset]
    vectors = next((v for name, v in _VECTORS.items() if gpu.name.startswith(name)), None)
    if vectors is not None:
        device = replace(device, convolution=replace(device.convolution, vectors=vectors))
    return device if gpu.launch_us is None else replace(device, launch_us=gpu.launch_us)


def preset_of(info: DeviceInfo) -> Device:
    """Return the preset for a running OpenCL device, with the device's own limits."""
    vendor = f"{info.vendor} {info.name}".lower()
    if info.device_type == "cpu":
        base = _CPU
    elif "nvidia" in vendor:
        base = _NVIDIA
    else:
        base = _MALI if "arm" in vendor or "mali" in vendor else _ADRENO
    return replace(
        base,
        max_group_size=info.max_work_group_size,
        image_extent=min(info.image2d_max_width, info.image2d_max_height),
        image_layers=info.image_max_array_size,
        fp16=info.fp16,
    )


def first_gpu() -> tuple[str, Multiprocessors]:
    """Return architecture and facts of the first CUDA GPU, or those of an A100 if there is none.

    The facts are from the CUDA C++ Programming Guide's table of capabilities; shared memory is the
    least of the GPUs that run the architecture's code: 99 KiB since 8.0.
    """
    import tvm

    from ..runtime.tvm_devices import exists

    gpu = tvm.cuda(0)
    version, count = 80, 108
    if exists(gpu):
        version = int(str(gpu.compute_version).replace(".", ""))
        count = int(gpu.multi_processor_count)
    kib = 99 if version >= 80 else 64 if version >= 75 else 96 if version >= 70 else 48
    return f"sm_{version}", Multiprocessors(
        count, kib * 1024, tensor_cores=version >= 70, async_copies=version >= 80
    )
