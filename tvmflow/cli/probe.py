"""``tvmflow probe``: measure what schedules assume about a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..devices.device_file import SUFFIX
from ..devices.presets import PRESETS
from .devices import print_device_file
from .options import words
from .output import note, print_json
from .places import Place
from .session import command

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow probe --on adb -o pixel8.json
      measure the attached phone
  tvmflow compile net.onnx --standalone --host android-arm64 --device pixel8.json -o libnet.so
      compile for what was measured
  tvmflow probe -o here.json
      measure this machine's OpenCL device, through an agent
"""


@command
def probe_device(
    output: Annotated[Path, typer.Option("-o", "--output"), "FILE.json", "Device file to write."],
    on: str = "local",
    secret_file: Path | None = None,
    device_index: int = 0,
    preset: Annotated[
        str | None,
        words(*PRESETS),
        "Preset of the facts that are not measured. Default: that of the device's class.",
    ] = None,
) -> None:
    """Measure an OpenCL device, and write a device file that --device takes.

    It measures rates of buffers and images from memory and caches, arithmetic, launches and
    registers, for two minutes at most. What the driver refuses, or computes wrong, is left out.
    """
    from ..module.files import TEXT, check_writable, write_file
    from ..probe.measure import probe

    if output.suffix != SUFFIX:
        raise typer.BadParameter(f"{output} does not end with {SUFFIX}, as --device expects.")
    if preset is not None and preset not in PRESETS:
        raise typer.BadParameter(f"--preset {preset}: expected one of {', '.join(PRESETS)}.")
    check_writable(output, TEXT)
    with Place(on, secret_file).connect() as device:
        file = probe(device, device_index, preset=preset, report=_report)
    write_file(output, json.dumps(file.to_json(), indent=2) + "\n", TEXT)
    if print_json(file.to_json()):
        return
    print_device_file(file)
    for what, reason in file.measurements["not_measured"].items():
        note((f"Not measured: {what}. ", "yellow"), reason)
    note(f"Wrote {output}.")


def _report(what: str) -> None:
    note(f"Measuring {what} …")
