"""Device files: the facts about one device, each with its origin, in place of a preset.

``tvmflow probe`` writes them, and ``--device FILE.json`` compiles for them::

    {
      "format": "tvmflow device", "version": 1,
      "name": "pixel8", "preset": "mali",
      "identity": {"device": "Mali-G715", "driver": "3.0 v1.r44p1"},
      "facts": {
        "max_group_size": {"value": 512, "origin": "reported"},
        "texture.cached": {"value": 1.1, "origin": "measured"},
        "wave": {"value": 16, "origin": "preset"}
      },
      "rates": {"buffer_gbps": {"value": 31.5, "origin": "measured"}},
      "measurements": {}
    }

Facts that a file lacks are those of its preset.  Profiles and tuning read these rates:
``buffer_gbps`` (a copy's bytes, read and written), ``image_gbps`` (bytes read), ``fp32_gflops``,
``fp16_gflops`` and ``launch_us`` (an empty kernel in a queue of many).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TargetError, nearest
from ..runtime.json_types import JsonMapping, JsonObject
from ..runtime.regular_files import read_text
from .presets import ASSUMED, PRESETS, SOURCES, Device, preset_of

if TYPE_CHECKING:
    from ..runtime.devices import DeviceInfo

SUFFIX = ".json"
FORMAT, VERSION = "tvmflow device", 1
#: Longest file; a longer one was named by mistake.
LONGEST_BYTES = 4 << 20


class Origin(str, Enum):
    """Origin of a fact."""

    MEASURED = "measured"  #: Measured by `tvmflow probe` on the device.
    REPORTED = "reported"  #: Reported by the device's driver.
    PRESET = (
        "preset"  #: Taken from the preset of its class, which other devices' measurements support.
    )
    ASSUMED = "assumed"  #: Taken from the vendor's documents, or another class of devices.


#: Facts of the presets that no measurement supports, if `SOURCES` does not list them.
_ASSUMED = ("texture.", "wave", "max_group_depth")


@dataclass(frozen=True)
class Fact:
    """A value of a device, with its origin."""

    value: bool | int | float | None
    origin: Origin


@dataclass(frozen=True)
class Range:
    """Values that a fact may have."""

    least: float
    most: float
    #: Whether only whole numbers make sense.
    whole: bool = True


#: Ranges of facts, by the end of their names; a value outside cannot be a device's.
_RANGES = {
    "accumulators": Range(1, 256),
    "group_size": Range(1, 1 << 16),
    "max_group_size": Range(1, 1 << 16),
    "max_group_depth": Range(1, 1 << 16),
    "image_extent": Range(0, 1 << 20),
    "image_layers": Range(0, 1 << 20),
    "wave": Range(1, 1024),
    "vectors": Range(1, 256),
    "items": Range(1, 4096),
    "channels": Range(1, 4096),
    "write": Range(1e-3, 1e3, whole=False),
    "stream": Range(1e-3, 1e3, whole=False),
    "cached": Range(1e-3, 1e3, whole=False),
    "product": Range(1e-2, 1e2, whole=False),
    "tile": Range(0, 1e4, whole=False),
    "weight": Range(0, 1e4, whole=False),
    "launch": Range(0, 1e9, whole=False),
    "tall": Range(1, 1 << 20),
}
_RATES = Range(1e-6, 1e9, whole=False)
#: Facts that no file states: the layout is the class's, two belong to other targets, and one is
#: among the rates.
_NOT_IN_FILES = ("name", "channel_block", "multiprocessors", "signed_dots", "launch_us")


@dataclass(frozen=True)
class DeviceFile:
    """Contents of a device file."""

    name: str
    #: Preset of the device's class, which facts that are not listed come from.
    preset: str
    #: Texts that identify the device: its name, driver, platform, the system.
    identity: Mapping[str, str] = field(default_factory=dict)
    #: Facts that differ from the preset, or whose origin does, by name: ``texture.cached``.
    facts: Mapping[str, Fact] = field(default_factory=dict)
    #: Measured rates, by name with their unit.
    rates: Mapping[str, Fact] = field(default_factory=dict)
    #: Series of measurements, for readers.
    measurements: JsonMapping = field(default_factory=dict)

    @classmethod
    def of(cls, info: DeviceInfo, name: str, preset: str | None = None) -> DeviceFile:
        """Return the facts that a driver reports, over a preset or that of the device's class."""
        device = preset_of(info)
        base = PRESETS[preset or device.name]
        limits = ("max_group_size", "image_extent", "image_layers", "fp16")
        facts = {fact: Fact(getattr(device, fact), Origin.REPORTED) for fact in limits}
        about = {"device": info.name, "vendor": info.vendor, "driver": info.driver}
        about |= {"platform": info.platform, "version": info.version}
        return cls(name, base.name, {key: text for key, text in about.items() if text}, facts)

    @classmethod
    def read(cls, path: Path) -> DeviceFile:
        """Read a file.

        Raises `TargetError` if it cannot be read, has another format or version, or states what no
        device can be.
        """
        try:
            content = json.loads(read_text(path, LONGEST_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or error
            raise _refused(path, f"{reason}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise _refused(path, f"an object with the format {FORMAT!r} was expected")
        if (version := content.get("version")) != VERSION:
            raise TargetError(
                f"The device file {path} has version {version!r}; this tvmflow reads {VERSION}.",
                remedy="Measure the device again: tvmflow probe --on adb -o " + path.name,
            )
        return cls._checked(path, content)

    @classmethod
    def _checked(cls, path: Path, content: JsonObject) -> DeviceFile:
        preset = content.get("preset")
        if preset not in PRESETS:
            raise _refused(path, f"its preset is {preset!r}, expected one of {', '.join(PRESETS)}")
        known = dict(flattened(PRESETS[preset]))
        facts, rates = (_facts(path, content.get(part, {})) for part in ("facts", "rates"))
        for name, fact in facts.items():
            if name not in known:
                near = nearest(name, list(known), {})
                raise _refused(path, f"it has the fact {name!r}, which is unknown{near}")
            _check(path, name, fact.value, known[name], _RANGES.get(name.rpartition(".")[2]))
        for name, fact in rates.items():
            _check(path, name, fact.value, 1.0, _RATES)
        identity = content.get("identity", {})
        if not isinstance(identity, dict) or not all(isinstance(v, str) for v in identity.values()):
            raise _refused(path, "its identity is no object of texts")
        own_name = content.get("name")
        if not isinstance(own_name, str) or not own_name.isprintable():
            raise _refused(path, f"its name is {own_name!r}, expected a text")
        measurements = content.get("measurements", {})
        if not isinstance(measurements, dict):
            raise _refused(path, "its measurements are no object")
        found = cls(own_name, preset, identity, facts, rates, measurements)
        device = found.device()
        if bool(device.image_extent) != bool(device.image_layers):
            raise _refused(path, "images have an extent without layers, or layers without extent")
        if device.is_cpu != PRESETS[preset].is_cpu:
            raise _refused(path, f"group_size {device.group_size} is none of the preset {preset}")
        if device.group_size > device.max_group_size:
            raise _refused(
                path,
                f"its work-groups have {device.group_size} work-items, and at most "
                f"{device.max_group_size}",
            )
        return found

    def device(self) -> Device:
        """Return the device that schedules ask."""
        device = _replaced(PRESETS[self.preset], {n: fact.value for n, fact in self.facts.items()})
        launch = self.rates.get("launch_us")
        return device if launch is None else replace(device, launch_us=float(launch.value or 0))

    def all_facts(self) -> dict[str, Fact]:
        """Return every fact with its origin, also those of the preset."""
        found, sources = {}, SOURCES.get(self.preset, {})
        for name, value in flattened(PRESETS[self.preset]):
            # A source may be that of several facts, such as all costs of Winograd's convolution.
            source = sources.get(name) or sources.get(name.partition(".")[0], "")
            is_assumed = source.startswith(ASSUMED) if source else name.startswith(_ASSUMED)
            origin = Origin.ASSUMED if is_assumed else Origin.PRESET
            found[name] = self.facts.get(name, Fact(value, origin))
        return found

    def to_json(self) -> JsonObject:
        """Return the content of the file."""

        def listed(facts: Mapping[str, Fact]) -> JsonObject:
            return {n: {"value": f.value, "origin": f.origin.value} for n, f in facts.items()}

        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "preset": self.preset,
            "identity": dict(self.identity),
            "facts": listed(self.facts),
            "rates": listed(self.rates),
            "measurements": dict(self.measurements),
        }


def is_device_file(device: str) -> bool:
    """Return whether the text of ``--device`` names a file."""
    return device.endswith(SUFFIX)


def flattened(device: Device) -> Iterator[tuple[str, Any]]:
    """Yield the facts of a device that a file may state, by name; nested ones have a dot."""
    for each in fields(device):
        value = getattr(device, each.name)
        if each.name in _NOT_IN_FILES:
            continue
        if is_dataclass(value):
            for inner in fields(value):
                yield f"{each.name}.{inner.name}", getattr(value, inner.name)
        else:
            yield each.name, value


def _replaced(device: Device, values: Mapping[str, object]) -> Device:
    nested: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        group, _, inner = name.rpartition(".")
        nested.setdefault(group, {})[inner] = value
    flat: dict[str, Any] = nested.pop("", {})
    for group, inner_values in nested.items():
        flat[group] = replace(getattr(device, group), **inner_values)
    return replace(device, **flat)


def _facts(path: Path, given: object) -> dict[str, Fact]:
    found = {}
    entries: dict[str, Any] = given if isinstance(given, dict) else {"": given}
    for name, entry in entries.items():
        try:
            found[name] = Fact(entry["value"], Origin(entry["origin"]))
        except (TypeError, KeyError, ValueError):
            origins = ", ".join(origin.value for origin in Origin)
            raise _refused(
                path, f"the fact {name!r} needs a value, and an origin of {origins}"
            ) from None
    return found


def _check(path: Path, name: str, value: object, example: object, limits: Range | None) -> None:
    """Raise `TargetError` if a fact's value is of another kind, or outside its range."""
    if limits is None:
        # A fact that is true, false, or unknown.
        if value is None or isinstance(value, bool):
            return
        raise _refused(path, f"{name} is {value!r}, expected true, false or null")
    if value is None and example is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        not is_number
        or not math.isfinite(value)  # type: ignore[arg-type]
        or (limits.whole and value != int(value))  # type: ignore[call-overload]
        or not limits.least <= value <= limits.most  # type: ignore[operator]
    ):
        kind = "a whole number" if limits.whole else "a number"
        raise _refused(
            path, f"{name} is {value!r}, expected {kind} from {limits.least:g} to {limits.most:g}"
        )


def _refused(path: Path, reason: str) -> TargetError:
    return TargetError(
        f"The device file {path} was not used: {reason}.",
        remedy="Give a file that `tvmflow probe` wrote, or a preset.",
    )
