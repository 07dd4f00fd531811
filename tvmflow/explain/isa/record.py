"""Records of a network's machine code, and their JSON.

All counts are of the code, not of an execution: an instruction in a loop counts once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path

from ...errors import InputError
from ...runtime.json_types import JsonObject
from ...runtime.regular_files import MOST_CONTENT_BYTES, read_text
from ..profiling.reading import typed
from ..profiling.record import Finding
from ..yardstick.measured import Operator, Yardstick

#: Version of the JSON form.
FORMAT = 1
#: Properties of a kernel's code that its JSON contains although they follow from the rest.
DERIVED = ("lanes_filled", "launched_waves", "multiply_add_share")


@dataclass(frozen=True)
class KernelSource:
    """A kernel as input of its compiler."""

    name: str
    #: The primary function that it belongs to.
    function: str
    #: Complete OpenCL C or CUDA C++ source.
    text: str
    #: Work-items of a work-group along x, y and z; empty if unknown.
    group: tuple[int, ...] = ()
    #: Work-groups of a launch; 0 if unknown.
    groups: int = 0
    #: Operations on elements in all of its launches in a run, as a profile counts them; ``None``
    #: if unknown.
    flops: int | None = None
    #: The operator of its function, at the first kernel of the function; ``None`` if unknown.
    operator: Operator | None = None


@dataclass(frozen=True)
class Slots:
    """Issue slots of a piece of code by category; the remaining ones are other arithmetic."""

    issue: int
    #: Multiply-add instructions; a packed one, or one of a tensor core, counts once.
    multiply_adds: int
    #: Reads through the texture unit.
    fetches: int
    #: Loads and stores of buffers, and stores of images.
    loads: int
    stores: int
    #: Loads and stores of local memory.
    local: int
    #: Loads and stores of private memory: spilled registers, and indexed arrays.
    spills: int
    #: Conversions between types.
    conversions: int
    #: Slots that do nothing.
    idle: int
    #: Waits for memory or for other units.
    waits: int

    @property
    def multiply_add_share(self) -> float:
        """Share of the slots that are multiply-adds, from 0 to 1."""
        return self.multiply_adds / self.issue if self.issue else 0.0


@dataclass(frozen=True)
class KernelCode:
    """Machine code of a kernel."""

    kernel: str
    function: str
    group: tuple[int, ...]
    groups: int
    #: Registers of a work-item: vectors of four 32-bit values on Adreno, else 32-bit values.
    registers: int
    #: Waves that a shader core holds at a time.
    waves: int
    #: Work-items of a wave.
    wave: int
    loops: int
    #: Whether most multiply-adds are outside of loops, so that `hot` is the whole code.
    is_straight: bool
    #: The innermost loop with most multiply-adds.
    hot: Slots
    whole: Slots
    #: Spilled registers if the compiler counts them, else accesses to private memory in the code.
    spills: int
    #: Cycles of each unit for one work-item, if the compiler models them (Mali).
    cycles: Mapping[str, float] = field(default_factory=dict)
    #: Operations on elements, as in `KernelSource`.
    flops: int | None = None
    #: The compiler's listing.
    listing: str = ""
    #: Times of another engine for its operator, if they were asked for and there are any.
    yardstick: Yardstick | None = None

    @property
    def group_size(self) -> int:
        """Work-items of a work-group; 0 where unknown."""
        return prod(self.group) if self.group else 0

    @property
    def lanes_filled(self) -> float | None:
        """Share of the lanes of a work-group's waves that have a work-item."""
        size = self.group_size
        return size / (-(-size // self.wave) * self.wave) if size else None

    @property
    def launched_waves(self) -> int:
        """Waves of a whole launch; 0 where unknown."""
        return self.groups * -(-self.group_size // self.wave)

    @property
    def multiply_add_share(self) -> float:
        """Share of the hot code's slots that are multiply-adds."""
        return self.hot.multiply_add_share

    def to_json(self, *, with_listing: bool = False) -> JsonObject:
        """Return all fields and :data:`DERIVED` as a JSON object."""
        found = asdict(self)
        if not with_listing:
            del found["listing"]
        return {**found, **{name: getattr(self, name) for name in DERIVED}}


@dataclass(frozen=True)
class Failure:
    """A kernel that the compiler could not compile."""

    kernel: str
    reason: str


@dataclass(frozen=True)
class Report:
    """Machine code of a module for a GPU."""

    path: str
    name: str
    #: Device preset that the module was compiled with.
    device: str
    gpu: str
    #: Name and version of the compiler.
    compiler: str
    #: Kernels, in the order of the module's source.
    kernels: tuple[KernelCode, ...]
    failures: tuple[Failure, ...]
    findings: tuple[Finding, ...]

    def totals(self) -> dict[str, int]:
        """Return sums over all kernels, each counted once."""
        sums: dict[str, int] = {"kernels": len(self.kernels)}
        for name in ("issue", "idle", "multiply_adds", "fetches", "loads", "stores"):
            sums[name] = sum(getattr(kernel.whole, name) for kernel in self.kernels)
        sums["spills"] = sum(kernel.spills for kernel in self.kernels)
        sums["spilling_kernels"] = sum(kernel.spills > 0 for kernel in self.kernels)
        return sums

    def share(self, kernel: str) -> float:
        """Return a kernel's share of all arithmetic, from 0 to 1; equal shares if unknown."""
        known = {each.kernel: each.flops for each in self.kernels}
        total = sum(filter(None, known.values()))
        flops = known.get(kernel)
        return 1 / len(known) if flops is None or not total else flops / total

    def to_json(self, *, with_listing: bool = False) -> JsonObject:
        """Return the report as a JSON object."""
        kernels = [each.to_json(with_listing=with_listing) for each in self.kernels]
        return {"format": FORMAT, **asdict(self), "totals": self.totals(), "kernels": kernels}


def read_report(path: Path) -> Report:
    """Read a file that ``tvmflow isa --json`` was written to; `InputError` if it is none."""
    try:
        content = json.loads(read_text(path, MOST_CONTENT_BYTES))
        if not isinstance(content, Mapping) or content.get("format") != FORMAT:
            raise ValueError(f"it has another format than {FORMAT}")
        rest = {name: value for name, value in content.items() if name not in ("format", "totals")}
        rest["kernels"] = [
            {name: value for name, value in kernel.items() if name not in DERIVED}
            for kernel in content.get("kernels", ())
        ]
        report: Report = typed(Report, rest)
    except (OSError, AttributeError, TypeError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(
            f"Reading {path} failed: the output of `tvmflow isa --json` was expected ({reason}).",
            remedy="Name such a file, or a module.",
        ) from error
    return report
