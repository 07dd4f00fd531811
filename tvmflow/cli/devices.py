"""``tvmflow devices``: what can run modules here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from .formats import bytes_text, facts, print_section
from .options import Debug, Json, Quiet, Verbose
from .session import command, note, out_console, print_json, state

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
def list_all(
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """List the devices that TVM sees, with their images, fp16, limits and drivers."""
    from ..runtime.devices import list_devices

    devices = list_devices()
    if as_json:
        print_json([asdict(device) for device in devices])
        return
    console = out_console()
    for device in devices:
        print_section(console, f"{device.kind}:{device.index}  {device.name}", facts(_rows(device)))
    note_missing_opencl(device.kind for device in devices)


def note_missing_opencl(kinds: Iterable[str]) -> None:
    """Say why there is no OpenCL device among those listed."""
    from ..runtime.devices import why_no_opencl

    if "opencl" not in kinds and (reason := why_no_opencl()):
        message, _, rest = reason.partition("\n")
        note((message, "yellow"), "\n", rest)


def _rows(device: DeviceInfo) -> list[tuple[str, str]]:
    """Describe a device; what it does not tell is left out."""
    rows = [
        ("type", device.device_type),
        ("platform", device.platform),
        ("driver", device.driver),
        ("version", device.version),
        ("library", device.library),
        ("compute units", _count(device.compute_units)),
        ("memory", _size(device.global_memory_bytes)),
        ("largest buffer", _size(device.max_allocation_bytes)),
        ("local memory", _size(device.local_memory_bytes)),
        ("work-group", f"up to {device.max_work_group_size}" if device.max_work_group_size else ""),
        ("images", _images(device)),
        ("fp16", _yes(device.fp16) if device.kind != "llvm" else ""),
        ("compiled for", device.assumed_processor),
    ]
    if device.kind == "opencl":
        from ..devices.target import preset_of

        rows.append(("--device auto", preset_of(device).name))
    if state.verbose:
        rows.append(("extensions", " ".join(device.extensions)))
    return [(name, value) for name, value in rows if value]


def _images(device: DeviceInfo) -> str:
    if device.kind != "opencl":
        return ""
    if not device.images:
        return "no: textures cannot be used"
    size = f"{device.image2d_max_width}×{device.image2d_max_height}"
    from_buffer = "from buffers, too" if device.image2d_from_buffer else "not from buffers"
    return f"up to {size} texels in {device.image_max_array_size} layers, {from_buffer}"


def _count(value: int) -> str:
    return str(value) if value else ""


def _size(count: int) -> str:
    return bytes_text(count) if count else ""


def _yes(value: bool) -> str:
    return "yes" if value else "no"
