"""Devices of this machine, as TVM and its runtimes see them."""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path

from . import forks, plugin
from .json_types import JsonObject
from .tvm_devices import cuda_gpus

#: OpenCL extensions for arithmetic in half and double precision.
FP16_EXTENSION, FP64_EXTENSION = "cl_khr_fp16", "cl_khr_fp64"


@dataclass(frozen=True)
class DeviceInfo:
    """Facts about one device; facts that a kind of device does not report are empty, 0 or False."""

    kind: str  #: ``"opencl"``, ``"cuda"`` or ``"llvm"`` (the host's CPU).
    index: int  #: Index in TVM: ``tvm.device(kind, index)``.
    name: str  #: Name in the driver's spelling, like the following facts.
    vendor: str = ""
    version: str = ""  #: Version of the interface.
    driver: str = ""
    device_type: str = "cpu"  #: ``"gpu"``, ``"accelerator"``, ``"cpu"`` or ``"other"``.
    platform: str = ""  #: OpenCL platform.
    library: str = ""  #: Path of the OpenCL library that provides the device.
    compute_units: int = 0  #: Compute units, multiprocessors or CPU cores.
    max_work_group_size: int = 0  #: Work-items (threads) of the largest work-group.
    local_memory_bytes: int = 0  #: Local (shared) memory of a work-group.
    #: Cache of global memory that the driver reports, of whichever level; on CUDA the L2.
    global_cache_bytes: int = 0
    global_memory_bytes: int = 0
    max_allocation_bytes: int = 0  #: Size of the largest buffer.
    native_vector_width_float: int = 0  #: Lanes of fp32 that the device prefers in a vector.
    fp16: bool = False  #: Whether kernels may compute in half precision.
    images: bool = False  #: Whether there are images, which texture storage needs.
    image2d_max_width: int = 0  #: Limits of an image array: texels, texels, layers.
    image2d_max_height: int = 0
    image_max_array_size: int = 0
    image2d_from_buffer: bool = False  #: Whether a buffer can become an image.
    extensions: tuple[str, ...] = field(default=(), repr=False)  #: OpenCL extensions, sorted.


def list_devices() -> list[DeviceInfo]:
    """Return every device of this machine: OpenCL's, then CUDA's, then the host's CPU.

    Opens the OpenCL library, but creates nothing on the devices.
    """
    return [*opencl_devices(), *cuda_devices(), host_device()]


#: Names of facts in the plug-in's description that differ from the names here.
_OF_THE_PLUGIN = {
    "device_type": "type",
    "max_work_group_size": "max_work_group",
    "image2d_max_width": "image_max_width",
    "image2d_max_height": "image_max_height",
    "image_max_array_size": "image_max_array",
}


def opencl_devices() -> list[DeviceInfo]:
    """Return the OpenCL devices in the order of their indices; empty without any."""
    import tvm_ffi

    forks.use("opencl", "Looking for OpenCL devices")
    plugin.load()
    described: list[JsonObject] = json.loads(tvm_ffi.get_global_func("tvmflow.opencl.describe")())
    names = [fact.name for fact in fields(DeviceInfo) if fact.name not in ("kind", "extensions")]
    return [
        DeviceInfo(
            "opencl",
            extensions=tuple(item["extensions"]),
            **{n: item[_OF_THE_PLUGIN.get(n, n)] for n in names},
        )
        for item in described
    ]


def why_no_opencl() -> str | None:
    """Return why there is no OpenCL device and what was tried; ``None`` if there is one."""
    import tvm_ffi

    plugin.load()
    return tvm_ffi.get_global_func("tvmflow.opencl.failure")() or None


def cuda_devices() -> list[DeviceInfo]:
    """Return the CUDA devices; empty where TVM's CUDA runtime or the driver is missing."""
    return [
        DeviceInfo(
            kind="cuda",
            index=gpu.index,
            name=str(gpu.device_name),
            vendor="NVIDIA Corporation",
            version=f"compute capability {gpu.compute_version}",
            device_type="gpu",
            compute_units=int(gpu.multi_processor_count or 0),
            max_work_group_size=int(gpu.max_threads_per_block or 0),
            local_memory_bytes=int(gpu.max_shared_memory_per_block or 0),
            global_cache_bytes=int(gpu.l2_cache_size_bytes or 0),
            global_memory_bytes=int(gpu.total_global_memory or 0),
            max_allocation_bytes=int(gpu.total_global_memory or 0),
            native_vector_width_float=1,
            fp16=True,
        )
        for gpu in cuda_gpus()
    ]


def host_device() -> DeviceInfo:
    """Return the host's CPU as the target ``llvm`` sees it."""
    import tvm
    from tvm.target.codegen import llvm_get_system_cpu, llvm_version_major

    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceInfo(
        "llvm",
        0,
        _processor_name(),
        vendor=llvm_get_system_cpu(),
        version=f"LLVM {llvm_version_major()}",
        driver=f"TVM {tvm.__version__}",
        compute_units=len(os.sched_getaffinity(0)),
        global_memory_bytes=memory_bytes,
        max_allocation_bytes=memory_bytes,
    )


def _processor_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
