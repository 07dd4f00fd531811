"""Targets: resolution and checks of target, device, host and precision.

A *target* is a code generator (``opencl``, ``cuda``, ``llvm``); a *device* is a
preset of the facts that schedules ask for (:mod:`.presets`); a *host* is
the triple that host code is compiled for.  Tensors are stored in one *precision*; products and
sums are computed in one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .._versions import install_command
from ..errors import TargetError
from .choices import ACCUMULATIONS, MIXED, PRECISIONS, STORAGES, TARGETS
from .device_file import DeviceFile, is_device_file
from .gpus import GPUS, gpu_named
from .host import Host

# Re-exported for users of this module.
from .presets import PRESETS as PRESETS
from .presets import Device as Device
from .presets import Tiling as Tiling
from .presets import device_of, first_gpu
from .presets import preset_of as preset_of

if TYPE_CHECKING:
    import tvm

#: Without LLVM's vectoriser of loops: the one in TVM's wheel (22) reads wrong elements where an
#: index holds ``i & 3`` for a loop ``i`` that it widens past 3, as `Tile` has.  Our schedules write
#: vectors out, and networks are as fast without it (docs/notes.md).
_LLVM_OPTIONS = ("-vectorize-loops:bool=false",)


@dataclass(frozen=True)
class Level:
    """A processor level that kernels may require; levels above include it."""

    #: LLVM's name, followed by features: ``x86-64-v4+avx512vnni``.
    cpu: str
    #: Features beyond the previous level, by LLVM's names, with spaces between them.
    adds: str = ""

    @property
    def needs(self) -> list[str]:
        """Return the features that the C runtime checks (`list_features` in cpu.c)."""
        return [word for word in self.cpu.split("+") if word not in ("x86-64", "generic")]


#: Levels by the host's architecture, lowest first; those of x86-64 are from its psABI (section
#: 3.1.1).  The last level of each has a byte dot product instruction.
LEVELS: dict[str, dict[str, Level]] = {
    "x86_64": {
        "x86-64": Level("x86-64"),
        "x86-64-v2": Level("x86-64-v2", "cx16 popcnt sahf sse4.2 ssse3"),
        "x86-64-v3": Level("x86-64-v3", "avx2 bmi bmi2 f16c fma lzcnt movbe"),
        "x86-64-v4": Level("x86-64-v4", "avx512bw avx512cd avx512dq avx512f avx512vl"),
        "avx512vnni": Level("x86-64-v4+avx512vnni", "avx512vnni"),
    },
    "aarch64": {
        "armv8-a": Level("generic"),
        "armv8.2-a+dotprod": Level("generic+dotprod", "dotprod"),
    },
}


@dataclass(frozen=True)
class TargetSpec:
    """A checked combination of target, device and host."""

    kind: str
    device: Device
    host: str | None  #: LLVM triple of the host code; ``None`` is this machine.
    arch: str | None = None  #: CUDA architecture such as ``sm_90``; ``None`` for other targets.
    #: Lowest processor level that kernels run on (`LEVELS`); ``None`` for this machine's
    #: processor, or any processor of another host.
    level: str | None = None

    @property
    def is_gpu_kernel(self) -> bool:
        """Return whether kernels are launched with block and thread indices."""
        return self.kind in ("opencl", "cuda")

    @cached_property
    def cpu(self) -> str | None:
        """Return the CPU and features that host code needs, in LLVM's names: ``x86-64-v3+f16c``.

        ``None`` means any CPU of the architecture.  Only host code that contains the kernels uses
        all instructions of this machine.
        """
        if self.level is not None:
            return self._levels[self.level].cpu
        if self.kind != "llvm" or self.host is not None:
            return None
        from tvm.target.codegen import llvm_get_system_cpu

        return str(llvm_get_system_cpu())

    @property
    def _levels(self) -> Mapping[str, Level]:
        return LEVELS.get(Host.parse(self.host).architecture, {})

    @property
    def needs(self) -> list[str]:
        """Return the features that kernels need beyond the architecture's lowest level."""
        return [] if self.level is None else self._levels[self.level].needs

    @cached_property
    def with_dots(self) -> TargetSpec | None:
        """Return the target at the level with byte dot products; ``None`` if it has them."""
        best = next(reversed(tuple(self._levels)), None)
        return None if self.level in (None, best) else replace(self, level=best)

    @cached_property
    def tvm_target(self) -> tvm.target.Target:
        """Return TVM's target object, including the host."""
        from tvm.target import Target

        host: dict[str, object] = {"kind": "llvm", "cl-opt": list(_LLVM_OPTIONS)}
        features: list[str] = []
        if self.host is not None:
            machine = Host.parse(self.host)
            host["mtriple"] = machine.llvm_triple
            if machine.is_android and machine.architecture == "aarch64":
                # Android reserves a register.
                features.append("reserve-x18")
        if self.cpu is not None:
            host["mcpu"], *more = self.cpu.split("+")
            features += more
        if features:
            host["mattr"] = [f"+{feature}" for feature in features]
        if (level := _llvm_opt_level()) is not None:
            host["opt-level"] = level
        if self.kind == "llvm":
            return Target(host, host=host)
        spec: dict[str, object] = {"kind": self.kind, "max_num_threads": self.device.max_group_size}
        if self.kind == "opencl":
            spec["texture_spatial_limit"] = self.device.image_extent
            spec["texture_depth_limit"] = self.device.image_layers
        if self.kind == "cuda":
            spec["arch"] = self.arch or "sm_80"
            spec["max_threads_per_block"] = spec.pop("max_num_threads")
        return Target(spec, host=host)


def check_choice(option: str, value: str, choices: Collection[str], what: str = "") -> None:
    """Raise a `TargetError` unless the value of an option is one of its choices."""
    if value not in choices:
        raise TargetError(
            f"The {what or option} {value!r} is not known; expected one of {', '.join(choices)}.",
            remedy=f"Leave `{option}` out, or choose one of them.",
        )


def check_target(target: str) -> None:
    """Raise a `TargetError` unless this is one of :data:`TARGETS`."""
    check_choice("target", target, TARGETS)


def resolve(target: str, device: str = "auto", host: str | None = None) -> TargetSpec:
    """Check the user's choice and fill in what ``auto`` leaves open.

    The target is one of :data:`TARGETS`; the device ``auto``, a name in :data:`PRESETS`, a GPU
    (`gpus`), which refines its preset, or a device file (`device_file`); the host the LLVM triple
    of the machine that loads the module, this one by default.  ``auto`` queries the running device
    for ``opencl``, and means ``nvidia`` for ``cuda`` and ``cpu`` for ``llvm``.

    Raises `TargetError` if a name is unknown, a combination impossible, ``auto`` finds no device,
    or ``auto`` is asked for another host, or if a device file is refused.
    """
    check_target(target)
    if is_device_file(device):
        described = DeviceFile.read(Path(device)).device()
        if target == "opencl":
            return TargetSpec("opencl", described, host)
        device = described.name
    if (named := gpu_named(device)) is not None:
        if target == "opencl":
            return TargetSpec("opencl", device_of(named), host)
        device = named.preset
    check_choice("device", device, ("auto", *PRESETS, *GPUS))
    machine = Host.parse(host)
    if target == "llvm":
        if device not in ("auto", "cpu"):
            raise TargetError(
                f"The target llvm compiles for CPUs, but the device {device!r} was asked for.",
                remedy="Use `target=opencl` (or cuda) for a GPU, or `device=cpu`.",
            )
        arm = machine.architecture == "aarch64"
        cpu = replace(PRESETS["cpu"], image_extent=0, image_layers=0, signed_dots=arm or None)
        return TargetSpec("llvm", cpu, host)
    if target == "cuda":
        if device not in ("auto", "nvidia"):
            raise TargetError(
                f"The target cuda compiles for NVIDIA GPUs, but {device!r} was asked for.",
                remedy="Use `device=nvidia`, or `target=opencl`.",
            )
        arch, facts = first_gpu()
        gpu = replace(PRESETS["nvidia"], image_extent=0, image_layers=0, multiprocessors=facts)
        return TargetSpec("cuda", gpu, host, arch)
    if device == "auto":
        if machine.is_android or machine.architecture != Host.native().architecture:
            raise TargetError(
                "The device 'auto' stands for the OpenCL device of this machine, but the host "
                f"{host} is another one.",
                remedy="Name the device to compile for, for example `device=adreno`.",
            )
        return TargetSpec("opencl", _running_opencl_device(), host)
    return TargetSpec("opencl", PRESETS[device], host)


def with_storage(
    spec: TargetSpec,
    storage: str,
    overrides: Mapping[str, str] | None = None,
    keep_layout: Mapping[str, str] | None = None,
) -> TargetSpec:
    """Check the choice of storage, and set the channel block that it needs.

    Textures hold blocks of four channels.  A device that prefers wider blocks uses them unless
    textures, or inputs and outputs in blocks of four, are asked for.
    Raises a `TargetError` if the storage is unknown, or the target has no textures.
    """
    check_choice("storage", storage, STORAGES)
    kept = list((keep_layout or {}).values())
    textures = "texture" in (storage, *(overrides or {}).values(), *kept)
    if not textures and not kept:
        return spec
    if textures and spec.kind != "opencl":
        raise TargetError(
            f"The target {spec.kind} has no texture storage; textures are images of OpenCL.",
            remedy="Use `target=opencl`, or `storage=auto` without overrides or kept textures.",
        )
    return replace(spec, device=replace(spec.device, channel_block=4))


def with_level(spec: TargetSpec, level: str | None = None) -> TargetSpec:
    """Return the target ``llvm`` for processors of at least a level.

    The default is the highest level of this machine, or ``x86-64-v3`` for another x86-64 host.
    Raises a `TargetError` if the host's architecture has no such level.
    """
    levels = spec._levels
    if level is None:
        level = _default_level(spec.host is None, levels)
    elif level not in levels:
        raise TargetError(
            f"The processor {level!r} is not known for the host {Host.parse(spec.host).triple}; "
            f"expected one of {', '.join(levels) or 'none'}.",
            remedy="Choose one of them, leave `cpu` out, or name another `host`.",
        )
    return replace(spec, level=level)


def _default_level(here: bool, levels: Mapping[str, Level]) -> str | None:
    if not here:
        return "x86-64-v3" if "x86-64-v3" in levels else next(iter(levels), None)
    from tvm.target.codegen import llvm_get_system_cpu

    features = features_of(str(llvm_get_system_cpu()))
    there = (name for name, level in levels.items() if features_of(level.cpu) <= features)
    return max(there, key=[*levels].index, default=None)


def features_of(cpu: str) -> set[str]:
    """Return the features of a CPU that LLVM or a level names, by LLVM's names."""
    for levels in LEVELS.values():
        names = [level.cpu for level in levels.values()]
        if cpu in names:
            below = [*levels.values()][: names.index(cpu) + 1]
            return {feature for level in below for feature in level.adds.split()}
    from tvm.target import Target
    from tvm.target.codegen import llvm_get_cpu_features

    return set(map(str, llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": cpu}))))


def with_dtype(spec: TargetSpec, dtype: str) -> TargetSpec:
    """Return the target for tensors that are stored in ``dtype``, ``fp32`` or ``fp16``.

    On CUDA a block of channels is one access of 16 bytes: four in fp32, eight in fp16.
    """
    if dtype != "fp16" or spec.kind != "cuda":
        return spec
    block, accumulators = 2 * spec.device.channel_block, spec.device.accumulators // 2
    device = replace(spec.device, channel_block=block, accumulators=accumulators)
    return replace(spec, device=device)


def check_dtype(spec: TargetSpec, dtype: str) -> None:
    """Raise a `TargetError` unless the target stores tensors in this precision."""
    check_choice("dtype", dtype, PRECISIONS)
    if dtype != "fp32" and spec.kind == "llvm":
        raise TargetError(
            f"Storage in {dtype} was asked for the target {spec.kind}; only opencl and cuda have "
            "it.",
            remedy="Use `target=opencl` or cuda, or `dtype=fp32`.",
        )


def check_accumulate(spec: TargetSpec, accumulate: str, dtype: str, device: str) -> None:
    """Raise a `TargetError` unless products and sums can be computed in this precision.

    Tensors are stored in ``dtype``, and ``device`` is what the user asked for.
    """
    check_choice("accumulate", accumulate, ACCUMULATIONS, "accumulation")
    if accumulate in ("auto", "fp32"):
        return
    if dtype != "fp16":
        what = f"tensors stored in {dtype}; they are for tensors stored in fp16"
        remedy = "Add `dtype=fp16`, or leave `accumulate` out."
    elif spec.kind != "opencl":
        what = f"the target {spec.kind}; only opencl has them"
        remedy = f"Leave `accumulate={accumulate}` out, or use `target=opencl`."
    elif spec.device.fp16 is False:
        from ..runtime.devices import opencl_devices

        name = opencl_devices()[0].name if device == "auto" else device
        what = f"the device {name}, whose OpenCL lacks cl_khr_fp16"
        remedy = f"Leave `accumulate={accumulate}` out, or name another device with `device`."
    else:
        return
    raise TargetError(f"Sums in {accumulate} were asked for {what}.", remedy=remedy)


def accumulation(spec: TargetSpec, accumulate: str, dtype: str) -> str:
    """Resolve ``auto`` to a precision of products and sums; return other choices unchanged.

    Phones' GPUs compute fp16 at twice the rate of fp32; CPUs do not.
    """
    if accumulate != "auto":
        return accumulate
    device = spec.device
    fast = spec.kind == "opencl" and not device.is_cpu and device.fp16
    return MIXED if fast and dtype == "fp16" else "fp32"


def _llvm_opt_level() -> int | None:
    """Return LLVM's optimisation level from the environment; ``None`` leaves it to TVM."""
    given = os.environ.get("TVMFLOW_LLVM_OPT_LEVEL", "")
    if given in ("", "0", "1", "2", "3"):
        return int(given) if given else None
    raise TargetError(
        f"The environment variable TVMFLOW_LLVM_OPT_LEVEL is {given!r}; expected 0, 1, 2 or 3.",
        remedy="Unset it, or give it one of them.",
    )


def _running_opencl_device() -> Device:
    from ..runtime.devices import opencl_devices, why_no_opencl
    from ..runtime.plugin import split_message

    if devices := opencl_devices():
        return preset_of(devices[0])
    reason, _, tried = split_message(why_no_opencl() or "")
    raise TargetError(
        "The device 'auto' stands for the OpenCL device of this machine, but there is none.",
        remedy="Name the device to compile for, for example `device=adreno`, or install one: "
        + install_command("cpu-opencl"),
        details="\n".join(filter(None, (reason, tried))),
    )
