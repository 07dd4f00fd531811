"""``tvmflow devices``: the devices that can run modules on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..ir.units import bytes_text
from .output import note, print_facts, print_json, state
from .session import command

if TYPE_CHECKING:
    from ..runtime.devices import DeviceInfo

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow devices
  tvmflow devices -v
      with OpenCL extensions

[bold]Choosing an OpenCL device[/bold]
  TVMFLOW_OPENCL_DEVICE=1:0 tvmflow bench net.so
      the first device of the second platform
  TVMFLOW_OPENCL_LIBRARY=/path/to/libOpenCL.so tvmflow devices
      another OpenCL library
"""


@command
def list_all() -> None:
    """List the devices that TVM sees, with their images, fp16, limits and drivers."""
    from ..runtime.devices import list_devices

    devices = list_devices()
    if print_json(devices):
        return
    for device in devices:
        print_facts(f"{device.kind}:{device.index}  {device.name}", _rows(device))
    note_missing_opencl(device.kind for device in devices)


def note_missing_opencl(kinds: Iterable[str]) -> None:
    """Print why there is no OpenCL device, if none is listed."""
    from ..runtime.devices import why_no_opencl

    if "opencl" not in kinds and (reason := why_no_opencl()):
        message, _, rest = reason.partition("\n")
        note((message, "yellow"), "\n", rest)


def _rows(device: DeviceInfo) -> Iterator[tuple[str, str | int | None]]:
    """Yield facts of a device; unknown ones have no value."""

    def size(count: int) -> str | None:
        return bytes_text(count) if count else None

    yield "type", device.device_type or None
    yield "platform", device.platform or None
    yield "driver", device.driver or None
    yield "version", device.version or None
    yield "library", device.library or None
    yield "compute units", device.compute_units or None
    yield "memory", size(device.global_memory_bytes)
    yield "largest buffer", size(device.max_allocation_bytes)
    yield "cache", size(device.global_cache_bytes)
    yield "local memory", size(device.local_memory_bytes)
    if device.max_work_group_size:
        yield "work-group", f"up to {device.max_work_group_size}"
    if device.kind == "opencl":
        size_of_images = f"{device.image2d_max_width}×{device.image2d_max_height}"
        from_buffer = "from buffers, too" if device.image2d_from_buffer else "not from buffers"
        layers = f"{device.image_max_array_size} layers, {from_buffer}"
        can = f"up to {size_of_images} texels in {layers}"
        yield "images", can if device.images else "no: textures cannot be used"
    if device.kind != "llvm":
        yield "fp16", "yes" if device.fp16 else "no"
    if device.kind == "opencl":
        from ..devices.target import preset_of

        yield "--device auto", preset_of(device).name
    if state.verbose:
        yield "extensions", " ".join(device.extensions) or None
