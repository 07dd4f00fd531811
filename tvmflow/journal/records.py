"""Contents of a journal: trials with their workload, target and device, and events.

All of it is plain data.  Values in mappings are numbers, truth values and texts.
"""

from __future__ import annotations

import enum
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from ..runtime.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from ..devices.target import TargetSpec

#: Value of a knob, or of a fact of a shape or device.
Value = bool | int | float | str

#: Facts of a shape that describe how tensors are stored, not what is computed.
STORAGE_FACTS = ("texture", "weights")
#: Names of a feature map's extents; knobs for one size also suit a similar size.
MAP_FACTS = ("height", "width", "rows", "columns")


class Error(enum.IntEnum):
    """Reason why a trial has no cost.  The first nine have AutoTVM's numbers."""

    NONE = 0
    #: The knobs do not lead to a schedule.
    NO_SCHEDULE = 1
    HOST_BUILD = 2
    DEVICE_BUILD = 3
    RUNTIME = 4
    WRONG_RESULT = 5
    BUILD_TIMEOUT = 6
    RUN_TIMEOUT = 7
    UNKNOWN = 8
    #: The server was gone, or set aside, before it answered.
    DEVICE_LOST = 9
    #: Repetitions differed too much, or the device throttled.
    UNSTABLE = 10

    @classmethod
    def _missing_(cls, value: object) -> Error:
        return cls.UNKNOWN


def canonical(content: object) -> bytes:
    """Return the canonical JSON from which keys are computed."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def digest(what: str, data: bytes) -> bytes:
    """Return the 16-byte key of a definition; ``what`` separates the kinds of definitions."""
    return blake2b(data, digest_size=16, person=what.encode()).digest()


class ContentAddressed:
    """A definition that a journal stores once, addressed by the hash of its content."""

    @classmethod
    def kind_of_definition(cls) -> str:
        """Return ``workload``, ``target`` or ``device``."""
        return cls.__name__.lower()

    def check(self) -> None:
        """Check the types of all fields, so that they can be read again; raises `TypeError`."""
        types = {field.name: field.type for field in fields(self)}  # type: ignore[arg-type]
        for name, value in vars_of(self).items():
            what = f"the {name} of a {self.kind_of_definition()} must"
            if types[name] == "str" and not isinstance(value, str):
                raise TypeError(f"{what} be a text, not {value!r}")
            if types[name] != "str" and not isinstance(value, dict):
                raise TypeError(f"{what} be names and values, not {value!r}")
            if isinstance(value, dict) and {*map(type, value.values())} - {bool, int, float, str}:
                raise TypeError(f"{what} hold numbers, truth values and texts: {value!r}")

    @cached_property
    def data(self) -> bytes:
        """Return the canonical form."""
        self.check()
        return canonical(vars_of(self))

    @cached_property
    def key(self) -> bytes:
        """Return the hash of the canonical form, which is the same in every process."""
        return digest(*self.definition)

    @property
    def definition(self) -> tuple[str, bytes]:
        """Return the kind and the canonical form."""
        return self.kind_of_definition(), self.data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContentAddressed) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def vars_of(record: ContentAddressed | Trial | Event) -> JsonObject:
    """Return the fields of a record by name, with plain dictionaries."""
    values = ((field.name, getattr(record, field.name)) for field in fields(record))  # type: ignore[arg-type]
    return {name: dict(v) if isinstance(v, Mapping) else v for name, v in values}


@dataclass(frozen=True, eq=False)
class Workload(ContentAddressed):
    """The subject of tuning: the shape that a schedule family sees, and its storage."""

    #: A schedule family's ``NAME``.
    family: str
    #: The family's ``Shape`` as a dictionary.
    shape: Mapping[str, Value]
    #: Storage type of tensors: ``fp32``, ``fp16`` or another dtype's name.
    dtype: str = "fp32"
    #: ``texture`` if any tensor that is read or written is one, else ``buffer``.
    storage: str = "buffer"
    #: Precision of products and sums.
    accumulate: str = "fp32"
    #: Text that distinguishes functions with equal ``shape``, such as the tensors' extents.
    signature: str = ""

    @cached_property
    def compatibility_key(self) -> bytes:
        """Return 8 bytes of a hash of family and loops; with equal keys knobs can be shared."""
        # "kin" is part of the file format.
        return digest("kin", canonical([self.family, dict(self._loops)]))[:8]

    def is_like(self, other: Workload) -> bool:
        """Return whether both differ in storage and, by up to a factor of 2, in the map only."""
        if self.family != other.family or self.shape.keys() != other.shape.keys():
            return False
        pairs = ((name, v, other.shape[name]) for name, v in self._loops)
        return all(
            a == b or (name in MAP_FACTS and 0.5 <= float(a) / float(b) <= 2)
            for name, a, b in pairs
        )

    @property
    def _loops(self) -> list[tuple[str, Value]]:
        return [(name, v) for name, v in sorted(self.shape.items()) if name not in STORAGE_FACTS]

    def distance(self, other: Workload) -> tuple[float, ...]:
        """Return the distance to a compatible or similar workload; the least is the nearest.

        A difference in feature-map extents outweighs all differences in storage.
        """
        maps = ((self.shape.get(name), other.shape.get(name)) for name in MAP_FACTS)
        return (
            sum(abs(math.log(float(a) / float(b))) for a, b in maps if a and b and a != b),
            self.dtype != other.dtype,
            self.accumulate != other.accumulate,
            *(self.shape.get(name) != other.shape.get(name) for name in STORAGE_FACTS),
            self.storage != other.storage,
            self.signature != other.signature,
        )


@dataclass(frozen=True, eq=False)
class Target(ContentAddressed):
    """The target that a trial was compiled for."""

    #: ``opencl``, ``cuda`` or ``llvm``.
    kind: str
    #: Name of the device preset, such as ``adreno``.
    device: str
    #: Facts of the device that schedules depend on.
    facts: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: TargetSpec) -> Target:
        """Return the target of a compilation."""
        facts = {k: v for k, v in asdict(spec.device).items() if isinstance(v, (bool, int))}
        return cls(spec.kind, spec.device.name, facts)

    @cached_property
    def predicted(self) -> Target:
        """Return the same target for trials whose costs are predicted, without a run."""
        return replace(self, facts={**self.facts, "predicted": True})

    @property
    def is_predicted(self) -> bool:
        """Return whether the costs of its trials are predicted."""
        return bool(self.facts.get("predicted"))

    @cached_property
    def compatibility_key(self) -> bytes:
        """Return 8 bytes of a hash of kind and preset; equal keys mean that knobs can be shared.

        Predicted and measured targets are not compatible: neither replaces the other.
        """
        apart = ["predicted"] if self.is_predicted else []
        return digest("kin", canonical([self.kind, self.device, *apart]))[:8]


@dataclass(frozen=True, eq=False)
class Device(ContentAddressed):
    """The machine that a trial ran on."""

    #: The key of its registration at a tracker, or any name.
    rpc_key: str
    #: Name that the driver reports.
    name: str
    driver: str = ""
    #: Further facts: vendor, host, system.
    facts: Mapping[str, Value] = field(default_factory=dict)


class Original(NamedTuple):
    """A trial as it was in the file that it was imported from."""

    #: ``autotvm`` or ``metaschedule``.
    format: str
    #: Parsed JSON.
    document: Any


@dataclass(frozen=True)
class Trial:
    """Knobs that were tried for a workload, and the result."""

    workload: Workload
    target: Target
    device: Device
    knobs: Mapping[str, Value]
    #: Seconds of each repetition; empty after an error.
    costs: tuple[float, ...]
    error: Error = Error.NONE
    message: str = ""
    #: End of the trial, in seconds since 1970.
    timestamp: float = 0.0
    #: Seconds that building and measuring took.
    seconds: float = 0.0
    #: Versions of the software that built and ran it, by name.
    toolchain: Mapping[str, str] = field(default_factory=dict)
    #: Origin of the knobs: ``measured``, ``heuristic``, ``autotvm``, ``metaschedule`` …
    source: str = "measured"
    #: Origin of the record, for people: file, line, licence, temperatures of the device.
    provenance: Mapping[str, Value] = field(default_factory=dict)
    original: Original | None = None

    @property
    def cost(self) -> float:
        """Return the median of its costs in seconds; infinite if it failed."""
        return cost_of(self.costs, self.error)


def cost_of(costs: tuple[float, ...], error: int) -> float:
    """Return the cost for comparisons: the median, which tolerates a disturbed repetition."""
    if error or not costs:
        return math.inf
    cost = costs[0] if len(costs) == 1 else statistics.median(costs)
    return cost if cost > 0 else math.inf


@dataclass(frozen=True)
class Event:
    """An occurrence other than a trial: a session began, a device was set aside."""

    #: One word, such as ``session`` or ``set_aside``.
    kind: str
    #: Seconds since 1970.
    timestamp: float
    device: Device | None = None
    #: JSON: a reason, a seed, a budget.
    details: JsonMapping = field(default_factory=dict)
