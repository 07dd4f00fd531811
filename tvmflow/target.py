"""Targets and device presets: what code is generated, and what for.

A *target* is a code generator (``opencl``, ``cuda``, ``llvm``); a *device* is a
preset of the facts that schedules ask for (vector width, register budget,
work-group sizes, image limits); a *host* is the triple that host code is
compiled for.  All schedules read these facts and never the name of a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .deploy.link import Host
from .errors import TargetError
from .multiprocessors import Multiprocessors, first_gpu, multiprocessors

if TYPE_CHECKING:
    import tvm

TARGETS = ("opencl", "cuda", "llvm")
#: Where tensors between primary functions may be kept.
STORAGES = ("texture", "buffer", "auto")


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

    :mod:`.texture.algorithms` has the formula.
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


#: The presets of ``--device``.  Image limits are the least that the devices of a class report.
PRESETS = {
    # A CPU core: wide vectors, many registers, caches instead of texture units. The block is
    # 512 bits of fp32; on narrower CPUs the compiler splits a vector in two.
    "cpu": Device(
        *("cpu", 16, 28, 1, 4096, True, 8192, 2048),
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


@dataclass(frozen=True)
class TargetSpec:
    """A target, its device and its host, resolved and checked."""

    kind: str
    device: Device
    #: LLVM triple of the host code; ``None`` is this machine.
    host: str | None
    #: CUDA architecture such as ``sm_90``; ``None`` for other targets.
    arch: str | None = None

    @property
    def is_gpu_kernel(self) -> bool:
        """Whether kernels are launched with block and thread indices."""
        return self.kind in ("opencl", "cuda")

    @property
    def runs_here(self) -> bool:
        """Whether host code for this target can be loaded on this machine."""
        return self.host is None or Host.parse(self.host).is_native

    @cached_property
    def cpu(self) -> str | None:
        """LLVM's name of the CPU that host code needs; ``None`` for any of its architecture.

        Only code that carries the kernels uses every instruction of this machine.
        """
        if self.kind != "llvm" or self.host is not None:
            return None
        from tvm.target.codegen import llvm_get_system_cpu

        return str(llvm_get_system_cpu())

    @cached_property
    def tvm_target(self) -> tvm.target.Target:
        """The same as TVM's target object, with the host inside."""
        from tvm.target import Target

        host: dict[str, Any] = {"kind": "llvm"}
        if self.host is not None:
            machine = Host.parse(self.host)
            host["mtriple"] = machine.llvm_triple
            if machine.is_android and machine.architecture == "aarch64":
                # Android keeps a register for itself.
                host["mattr"] = ["+reserve-x18"]
        if self.cpu is not None:
            host["mcpu"] = self.cpu
        if self.kind == "llvm":
            return Target(host, host=host)
        spec: dict[str, Any] = {"kind": self.kind, "max_num_threads": self.device.max_group_size}
        if self.kind == "opencl":
            spec["texture_spatial_limit"] = self.device.image_extent
            spec["texture_depth_limit"] = self.device.image_layers
        if self.kind == "cuda":
            spec["arch"] = self.arch or "sm_80"
            spec["max_threads_per_block"] = spec.pop("max_num_threads")
        return Target(spec, host=host)


def resolve(target: str, device: str = "auto", host: str | None = None) -> TargetSpec:
    """Check the user's choice and fill in what ``auto`` leaves open.

    Parameters
    ----------
    target
        One of :data:`TARGETS`.
    device
        ``auto`` or a name in :data:`PRESETS`.  ``auto`` asks the running device
        for ``opencl``, and is ``nvidia`` for ``cuda`` and ``cpu`` for ``llvm``.
    host
        LLVM triple of the machine that loads the module, default this one.

    Raises
    ------
    TargetError
        If a name is unknown, a combination impossible, or ``auto`` finds no device.
    """
    if target not in TARGETS:
        raise TargetError(
            f"The target {target!r} is not known; expected one of {', '.join(TARGETS)}.",
            remedy="Choose one of them with --target.",
        )
    if device != "auto" and device not in PRESETS:
        raise TargetError(
            f"The device {device!r} is not known; expected auto or one of {', '.join(PRESETS)}.",
            remedy="Choose one of them with --device.",
        )
    if host is not None:
        Host.parse(host)
    arch = None
    if target == "llvm":
        if device not in ("auto", "cpu"):
            raise TargetError(
                f"The target llvm compiles for CPUs, but the device {device!r} was asked for.",
                remedy="Use --target opencl (or cuda) for a GPU, or --device cpu.",
            )
        return TargetSpec("llvm", _without_images(PRESETS["cpu"]), host)
    if target == "cuda":
        if device not in ("auto", "nvidia"):
            raise TargetError(
                f"The target cuda compiles for NVIDIA GPUs, but {device!r} was asked for.",
                remedy="Use --device nvidia, or --target opencl.",
            )
        arch, count = first_gpu()
        preset = _without_images(PRESETS["nvidia"])
        gpu = replace(preset, multiprocessors=multiprocessors(arch, count))
        return TargetSpec("cuda", gpu, host, arch)
    if device == "auto":
        return TargetSpec("opencl", _running_opencl_device(), host)
    return TargetSpec("opencl", PRESETS[device], host)


def check_cuda_graph(spec: TargetSpec) -> None:
    """Check that kernels can be launched as a CUDA graph.

    Raises
    ------
    TargetError
        If the target is not CUDA.
    """
    if spec.kind != "cuda":
        raise TargetError(
            f"A CUDA graph was asked for the target {spec.kind}; only cuda has them.",
            remedy="Use --target cuda, or leave --cuda-graph out.",
        )


def with_storage(
    spec: TargetSpec,
    storage: str,
    overrides: Mapping[str, str] | None = None,
    keep_layout: Mapping[str, str] | None = None,
) -> TargetSpec:
    """Check the choice of storage, and make the layout fit it.

    Textures hold blocks of four channels; a device that prefers wider blocks has them
    as long as nobody insists on textures, for all tensors or for one, or on such blocks.

    Raises
    ------
    TargetError
        If the storage is unknown, or the target has no textures.
    """
    if storage not in STORAGES:
        raise TargetError(
            f"The storage {storage!r} is not known; expected one of {', '.join(STORAGES)}.",
            remedy="Leave --storage out, or choose one of them.",
        )
    kept = list((keep_layout or {}).values())
    textures = "texture" in (storage, *(overrides or {}).values(), *kept)
    if not textures and not kept:
        return spec
    if textures and spec.kind != "opencl":
        raise TargetError(
            f"The target {spec.kind} has no texture storage; textures are images of OpenCL.",
            remedy="Use --target opencl, or --storage auto without overrides or kept textures.",
        )
    return replace(spec, device=replace(spec.device, channel_block=4))


def _without_images(device: Device) -> Device:
    """The device as targets see it that have no images."""
    return replace(device, image_extent=0, image_layers=0)


def with_dtype(spec: TargetSpec, dtype: str) -> TargetSpec:
    """The target as it is for tensors that are stored in ``dtype``, ``fp32`` or ``fp16``.

    On CUDA a block of channels is one access of 16 bytes: four in fp32, eight in fp16.
    """
    device = spec.device
    if dtype != "fp16" or spec.kind != "cuda":
        return spec
    block, accumulators = 2 * device.channel_block, device.accumulators // 2
    narrow = replace(device, channel_block=block, accumulators=accumulators)
    return replace(spec, device=narrow)


def _running_opencl_device() -> Device:
    from .runtime.devices import opencl_devices, why_no_opencl
    from .runtime.plugin import split_message

    if devices := opencl_devices():
        return preset_of(devices[0])
    reason, _, tried = split_message(why_no_opencl() or "")
    raise TargetError(
        "The device 'auto' stands for the OpenCL device of this machine, but there is none.",
        remedy="Name the device to compile for, for example --device adreno, or install one: "
        "python -m pip install 'tvmflow[cpu-opencl]'",
        details="\n".join(filter(None, (reason, tried))),
    )


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
