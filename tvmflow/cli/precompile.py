"""``tvmflow precompile``: binaries for a library's first start on devices that are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import check_farm
from .output import bytes_text, ms_text, note, note_file, print_json, print_table
from .session import command

if TYPE_CHECKING:
    from ..module.standalone.precompile import Precompiled
    from ..runtime.json_types import JsonMapping, JsonObject

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow precompile libmobilenet.so
      on this machine's first OpenCL device
  tvmflow precompile libmobilenet.so --tracker 192.168.1.10:9190 --key rk3588
      --secret-file farm.secret
      on every free server of a farm that has this key
  tvmflow inspect libmobilenet.so
      whose binaries there are

[bold]What is written[/bold]
  OUT.so.programs, beside the library: ship both. A device or driver that it does not know
  compiles the kernels as before.

[bold]Safety[/bold]
  Binaries are machine code, taken as the devices give them: use devices that you trust.
"""


@command
def precompile_library(
    library: Annotated[Path, typer.Argument(), "OUT.so", "A library of `compile --standalone`."],
    tracker: Annotated[
        str | None,
        "HOST:PORT",
        "Ask the devices that this tracker has for --key; they run `tvmflow farm serve`.",
    ] = None,
    key: str | None = None,
    secret_file: Path | None = None,
    device_index: int = 0,
    as_json: bool = False,
) -> None:
    """Put the binaries that devices' drivers build beside a standalone library.

    The library then starts on these devices without compiling its kernels.
    """
    from ..errors import FarmError
    from ..farm.network import Address
    from ..farm.precompile import precompile_on_farm
    from ..module.standalone.format import Section
    from ..module.standalone.precompile import Source, precompile
    from ..module.standalone.programs import beside, update

    check_farm(tracker, key)
    source = Source.open(library)
    found: dict[str, Precompiled] = {}
    failed: dict[str, str] = {}
    changed: Counter[str] = Counter()
    answers: Iterator[tuple[str, Precompiled | str]]
    if tracker is None or key is None:
        answers = iter([("this machine", precompile(source, device_index))])
    else:
        address = Address.parse(tracker, secret_file)
        answers = precompile_on_farm(source, address, key, device_index)
    for where, answer in answers:
        if isinstance(answer, str):
            note((f"{where} gave nothing.", "yellow"))
            failed[where] = answer
            continue
        note((where, "bold"), f" gave {bytes_text(answer.binary_bytes)}.")
        found[where] = answer
        # At once: what ends the others later ends nothing of this.
        changed.update(asdict(update(beside(library), answer.programs)))
    devices: list[JsonObject] = [
        {
            "where": where,
            "device": answer.device,
            "platform": answer.platform,
            "driver": answer.driver,
            "programs": len(answer.programs),
            "bytes": answer.binary_bytes,
            "start_without_ms": answer.without_ms,
            "start_with_ms": answer.with_ms,
        }
        for where, answer in found.items()
    ]
    if as_json:
        refused = [{"where": where, "reason": reason} for where, reason in failed.items()]
        path = str(beside(library))
        print_json({"path": path, "devices": devices, "failed": refused, **changed})
    elif devices:
        _print(library, len(source.plan[Section.PROGRAMS]), devices)
        if changed["damaged_bytes"]:
            size = bytes_text(changed["damaged_bytes"])
            note((f"The file was damaged: {size} of it are lost, the rest is kept.", "yellow"))
        done = [f"{changed[w]} {w}" for w in ("added", "replaced", "dropped") if changed[w]]
        note_file(beside(library), f": {', '.join(done)}")
    if failed:
        raise FarmError(
            f"Precompiling {library} gave the binaries of {len(found)} of "
            f"{len(found) + len(failed)} devices.",
            remedy="Run it again when the others are free or repaired: what was written stays.",
            details="\n".join(f"{where}: {reason}" for where, reason in failed.items()),
        )


def _print(library: Path, programs: int, devices: Sequence[JsonMapping]) -> None:
    rows = [
        (
            *(told["where"], told["device"], told["driver"]),
            str(programs) if told["programs"] == programs else f"{told['programs']} of {programs}",
            bytes_text(told["bytes"]),
            *map(ms_text, (told["start_without_ms"], told["start_with_ms"])),
        )
        for told in devices
    ]
    columns = ["where", "device", "driver", ">programs", ">size", ">start without", ">start with"]
    print_table(str(library), columns, rows)
