"""``tvmflow devices``: the devices that can run modules on this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..ir.units import bytes_text
from .output import note, print_facts, print_json, print_table, state
from .places import Place
from .session import command

if TYPE_CHECKING:
    from ..devices.device_file import DeviceFile
    from ..runtime.devices import DeviceInfo
    from ..runtime.json_types import JsonObject

#: Units of rates, by the ends of their names.
_UNITS = {"gbps": "GB/s", "gflops": "GFLOP/s", "us": "µs"}
EXAMPLES = """
[bold]Examples[/bold]
  tvmflow devices
  tvmflow devices -v
      with OpenCL extensions
  tvmflow devices --on adb
      those of the attached phone, its system, temperatures and battery
  tvmflow devices --clean --on adb
      remove what tvmflow has left on the phone
  tvmflow devices --show pixel8.json
      the facts of a device file, each with its origin

[bold]Choosing an OpenCL device[/bold]
  TVMFLOW_OPENCL_DEVICE=1:0 tvmflow bench net.so
      the first device of the second platform
  TVMFLOW_OPENCL_LIBRARY=/path/to/libOpenCL.so tvmflow devices
      another OpenCL library
"""


@command
def list_all(
    on: str | None = None,
    secret_file: Path | None = None,
    clean: Annotated[bool, "With --on: remove the agent and its folder from the device."] = False,
    show: Annotated[Path | None, "FILE.json", "Print a device file instead."] = None,
) -> None:
    """List the devices that TVM sees, with their images, fp16, limits and drivers.

    With --on: those of a phone or board, which needs nothing installed.
    """
    if show is not None:
        if on is not None or clean:
            raise typer.BadParameter("--show goes without --on and --clean.")
        _show_file(show)
        return
    if on is not None:
        _list_there(Place(on, secret_file), clean=clean)
        return
    if clean:
        raise typer.BadParameter("--clean goes with --on.")
    from ..runtime.devices import list_devices

    devices = list_devices()
    if print_json(devices):
        return
    for device in devices:
        print_facts(f"{device.kind}:{device.index}  {device.name}", _rows(device))
    note_missing_opencl(device.kind for device in devices)


def _list_there(place: Place, *, clean: bool) -> None:
    if clean:
        from ..agent.places import parse_place

        assert place.on is not None
        transport = parse_place(place.on, place.secret_file)
        folder = transport.clean()
        if not print_json({"removed": folder, "on": transport.name}):
            note(f"Removed {folder} on {transport.name}.")
        return
    with place.connect() as device:
        facts, sensors = device.facts, device.sensors()
        devices = device.opencl_devices()
    if print_json({**facts, "sensors": sensors}):
        return
    print_facts(device.name, _system_rows(facts, sensors))
    for each in devices:
        print_facts(f"{each.kind}:{each.index}  {each.name}", _rows(each))
    if not devices:
        note(("No OpenCL device was found there.", "yellow"), "\n", facts.get("opencl_tried", ""))


def _system_rows(facts: JsonObject, sensors: JsonObject) -> Iterator[tuple[str, str | None]]:
    """Yield facts about the system of a phone or board."""
    release = facts.get("release", "")
    yield "system", f"Android {release}" if facts.get("system") == "android" else release or None
    for name in ("soc", "kernel"):
        yield name, facts.get(name)
    cpus = Counter(
        " ".join(
            filter(None, (cpu.get("part", ""), _clock(cpu.get("max_khz")))),
        )
        for cpu in facts.get("cpus", [])
    )
    yield "processors", ", ".join(f"{count} × {cpu}" for cpu, count in cpus.items()) or None
    yield "memory", bytes_text(facts["memory_bytes"]) if "memory_bytes" in facts else None
    celsius = sensors.get("temperatures", {}).values()
    yield "hottest sensor", f"{max(celsius):.1f} °C" if celsius else None
    yield "throttled", ", ".join(sensors.get("throttled", [])) or None
    battery = sensors.get("battery", {})
    charging = ", charging" if battery.get("charging") else ""
    yield "battery", f"{battery['percent']:.0f} %{charging}" if battery else None


def _clock(khz: float | None) -> str:
    return "" if khz is None else f"({khz / 1e6:.2f} GHz)"


def _show_file(path: Path) -> None:
    from ..devices.device_file import DeviceFile

    described = DeviceFile.read(path)
    facts = {**described.all_facts(), **described.rates}
    values = {name: {"value": f.value, "origin": f.origin.value} for name, f in facts.items()}
    if print_json({**described.to_json(), "facts": values}):
        return
    print_device_file(described)


def print_device_file(file: DeviceFile) -> None:
    """Print the facts and rates of a device file, each with its unit and origin."""
    print_facts(file.name, [("preset", file.preset), *file.identity.items()])
    rows = []
    for name, fact in {**file.all_facts(), **file.rates}.items():
        value = "none" if fact.value is None else f"{fact.value:g}"
        if isinstance(fact.value, bool):
            value = "yes" if fact.value else "no"
        unit = "× buffer" if name.startswith("texture.") else _UNITS.get(name.rpartition("_")[2])
        rows.append((name, value, unit, fact.origin.value))
    print_table(None, ["fact", ">value", "unit", "origin"], rows)


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
