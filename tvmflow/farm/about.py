"""What a server of tvmflow tells about itself: in its sessions, and in the tracker's summary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._versions import __version__
from ..errors import FarmError

#: The function that a session of a server of tvmflow has, and of a stock server has not.
ABOUT_FUNCTION = "tvmflow.farm.about"

_THERMAL = Path("/sys/class/thermal")


@dataclass(frozen=True)
class ServedDevice:
    """A device of a server: ``tvm.device(kind, index)``, but ``cpu`` for the kind ``llvm``."""

    kind: str
    index: int
    name: str
    driver: str


@dataclass(frozen=True)
class About:
    """Versions and devices of a server.

    Parameters
    ----------
    tvmflow, tvm
        Versions.
    host
        Triple of the machine, which host code must be compiled for.
    devices
        What can be measured on.
    """

    tvmflow: str
    tvm: str
    host: str
    devices: tuple[ServedDevice, ...]

    @classmethod
    def here(cls) -> About:
        """Describe this machine; opens the OpenCL library."""
        import tvm

        from ..devices.host import Host
        from ..runtime.devices import list_devices

        devices = (ServedDevice(d.kind, d.index, d.name, d.driver) for d in list_devices())
        return cls(__version__, str(tvm.__version__), Host.native().triple, tuple(devices))

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> About | None:
        """Read what another server told, ``None`` if it is of another form."""
        try:
            devices = tuple(ServedDevice(**device) for device in facts["devices"])
            about = cls(facts["tvmflow"], facts["tvm"], facts["host"], devices)
        except (KeyError, TypeError):
            return None
        texts = [about.tvmflow, about.tvm, about.host]
        texts += [text for device in devices for text in (device.kind, device.name, device.driver)]
        numbers = [device.index for device in devices]
        is_fine = all(isinstance(text, str) for text in texts)
        return about if is_fine and all(isinstance(number, int) for number in numbers) else None

    @classmethod
    def parse(cls, text: str) -> About | None:
        """Read the JSON that another server told, ``None`` if it is of another form."""
        try:
            facts = json.loads(text)
        except ValueError:
            return None
        return cls.read(facts) if isinstance(facts, dict) else None

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as JSON has them."""
        return json.loads(json.dumps(asdict(self)))


def check_version(address: object, about: About) -> None:
    """Refuse a server of another version.

    Raises
    ------
    FarmError
        If its version of tvmflow or TVM is not the one that runs here.
    """
    import tvm

    here = (__version__, str(tvm.__version__))
    there = (about.tvmflow, about.tvm)
    if there != here:
        raise FarmError(
            f"The server at {address} has tvmflow {there[0]} with TVM {there[1]}, "
            f"where {here[0]} with {here[1]} was expected.",
            remedy="Install the same version on both machines and restart the server.",
        )


def temperature_c(folder: Path = _THERMAL) -> float | None:
    """Return the temperature of the machine's hottest sensor, if Linux shows any."""
    found = [int(text) / 1000 for text in _read(folder, "thermal_zone*/temp") if _is_int(text)]
    # Sensors that are switched off report nonsense.
    return max((value for value in found if 0 < value < 200), default=None)


def is_throttled(folder: Path = _THERMAL) -> bool | None:
    """Whether the machine is being slowed down to cool it, if Linux shows that."""
    # Fans cool, too, but slow nothing down.
    states = [
        text
        for device in folder.glob("cooling_device*")
        if "fan" not in next(_read(device, "type"), "").lower()
        for text in _read(device, "cur_state")
        if _is_int(text)
    ]
    return any(int(text) > 0 for text in states) if states else None


def _read(folder: Path, pattern: str) -> Iterator[str]:
    """The contents of files; those that cannot be read are left out."""
    for path in sorted(folder.glob(pattern)):
        try:
            yield path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            continue


def _is_int(text: str) -> bool:
    return text.removeprefix("-").isdigit()
