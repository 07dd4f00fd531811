"""Requirements of a library, which are compared with a device's facts before it is sent."""

from __future__ import annotations

import math
from pathlib import Path

from ..devices.choices import BACKENDS
from ..ir.units import bytes_text
from ..module.standalone.format import Kind, Section
from ..module.standalone.read import EncodedPlan, find_plans
from ..runtime.devices import DeviceInfo

_ANY_DEVICE = "Compile it for this device, with `device=FILE.json` (docs/phones.md)."
_FP16 = "cl_khr_fp16"


def needed_plan(path: Path, backend: str) -> EncodedPlan | None:
    """Return the plan that needs OpenCL; ``None`` if the library can do without.

    Raises `ArtifactError` if the file is damaged.
    """
    assert backend in BACKENDS
    plans = find_plans(path)
    if backend == "cpu" or (backend == "auto" and len(plans) > 1):
        return None
    found = (plan for plan in plans if plan.metadata.get("target") == "opencl")
    return next(found, None)


def find_obstacle(plan: EncodedPlan, device: DeviceInfo) -> tuple[str, str] | None:
    """Return what a plan needs that an OpenCL device lacks, and the remedy.

    Opening the library there would find the same, and more (native/standalone/find_device.c).
    """
    for offset in plan[Section.EXTENSIONS].tolist():
        if (extension := plan.text(offset)) not in device.extensions:
            remedy = "Compile it with `dtype=fp32`." if extension == _FP16 else _ANY_DEVICE
            return f"it needs {extension}, which {device.name} lacks", remedy
    return _memory_obstacle(plan, device) or _group_obstacle(plan, device)


def _memory_obstacle(plan: EncodedPlan, device: DeviceInfo) -> tuple[str, str] | None:
    allocations = plan[Section.ALLOCATIONS]
    images = allocations[allocations["kind"] == Kind.IMAGE]["image_size"]
    if len(images) and not device.images:
        return f"it needs images, and {device.name} has none", "Compile it with `storage=buffer`."
    limits = (device.image2d_max_width, device.image2d_max_height, device.image_max_array_size)
    for image in images.tolist():
        if any(extent > limit for extent, limit in zip(image, limits, strict=True)):
            wanted, most = ("×".join(map(str, size)) for size in (image, limits))
            obstacle = f"it needs an image of {wanted} (width, height, layers)"
            obstacle += f", and those of {device.name} have at most {most}"
            return obstacle, "Compile it with `storage=buffer`."
    sizes = [
        ("at once", int(allocations["bytes"].max(initial=0)), device.max_allocation_bytes),
        ("in all", int(allocations["bytes"].sum()), device.global_memory_bytes),
    ]
    for what, size, limit in sizes:
        if size > limit:
            has = f"and {device.name} has at most {bytes_text(limit)}"
            remedy = "Compile it with smaller `shapes`, or with `dtype=fp16`."
            return f"it needs {bytes_text(size)} {what}, {has}", remedy
    return None


def _group_obstacle(plan: EncodedPlan, device: DeviceInfo) -> tuple[str, str] | None:
    for launch in plan[Section.LAUNCHES]:
        local = launch["local"][: launch["dimensions"]].tolist()
        if math.prod(local) > device.max_work_group_size:
            kernel, group = plan.text(int(launch["kernel"])), "×".join(map(str, local))
            most = f"and those of {device.name} have at most {device.max_work_group_size}"
            return f"its kernel '{kernel}' needs work-groups of {group}, {most}", _ANY_DEVICE
    return None
