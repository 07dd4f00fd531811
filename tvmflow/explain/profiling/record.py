"""A profile as data, and as JSON.

Times end in ``_ms`` or ``_us``, sizes in ``_bytes``, rates in ``_gbps`` (10⁹ bytes a second),
``_gflops`` and ``_gops`` (10⁹ operations a second).  ``None`` is what could not be measured or
counted; `Profile.notes` says why.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from ...ir.units import counted
from ...module.html import html_table
from ...runtime.json_types import JsonObject
from ...runtime.load import is_disturbed
from ...runtime.timing import Spread

if TYPE_CHECKING:
    import pandas

#: Version of the JSON form; another one is refused.
FORMAT = 1
#: Properties of a profile that JSON has for its readers; they follow from the rest.
DERIVED = ("kernels_ms", "queue_ms", "between_ms", "host_ms")

#: What holds a kernel back.
BOUNDS = ("bandwidth", "arithmetic", "launch", "latency")

#: What findings are about.
FINDING_KINDS = (
    *("coalescing", "texture-locality", "divergence", "bank-conflicts", "local-memory"),
    *("registers", "vector-width", "cache-lines", "pages", "accumulators", "parallel"),
    *("dot-product", "tensor-core", "occupancy", "fusion", "host"),
)


@dataclass(frozen=True)
class ModuleFacts:
    """The module that was measured."""

    path: str
    #: The network's name.
    name: str
    #: ``opencl``, ``cuda`` or ``llvm``.
    target: str
    #: The preset that its kernels are shaped for.
    device: str
    #: Versions of ``tvmflow``, ``tvm`` and ``tvm_ffi`` that wrote it.
    versions: dict[str, str]


@dataclass(frozen=True)
class DeviceFacts:
    """The device that it was measured on."""

    name: str
    driver: str
    version: str


@dataclass(frozen=True)
class CacheCeiling:
    """The rate of copies that stay in a cache."""

    #: ``L1``, ``L2``, ...
    name: str
    #: Working sets up to this fit it.
    capacity_bytes: int
    #: Bytes read and written.
    gbps: float


@dataclass(frozen=True)
class Ceilings:
    """Rates that the device reaches in kernels that do one thing only."""

    #: Bytes read and written by a copy of a buffer much larger than any cache.
    copy_gbps: float
    fp32_gflops: float
    #: From the call of an empty kernel to its end, in a queue of such.
    launch_us: float
    #: Bytes read from images.
    texture_gbps: float | None = None
    fp16_gflops: float | None = None
    #: Products and sums of 8-bit integers in 32-bit ones.
    int8_gops: float | None = None
    #: The smallest first; empty where the device's caches are not known.
    caches: tuple[CacheCeiling, ...] = ()
    #: When they were measured, UTC, as ISO 8601.
    date: str | None = None
    #: Part of the host's processors that other programs took meanwhile, 0 to 1.
    others_share: float | None = None

    @property
    def were_disturbed(self) -> bool:
        """True if other programs took more of the machine than a quiet one has.

        See :data:`tvmflow.runtime.load.QUIET`.
        """
        return is_disturbed(self.others_share)

    def measured_text(self) -> str | None:
        """When they were measured, and beside what load; ``None`` if neither is known."""
        parts = []
        if self.date is not None:
            parts.append(self.date.replace("T", " ").replace("+00:00", " UTC"))
        if self.others_share is not None:
            again = ", so they are measured again when fewer run" if self.were_disturbed else ""
            parts.append(f"other programs took {self.others_share:.0%} of the processors{again}")
        return "; ".join(parts) or None


@dataclass(frozen=True)
class FirstCall:
    """Times before the calls that are measured."""

    #: Reading the module and loading its library.
    load_ms: float
    #: What the first run takes more than a later one: the driver's compiler, or its cache.
    build_ms: float | None
    #: Weights to the device.
    upload_ms: float | None
    #: A later run.
    run_ms: float


@dataclass(frozen=True)
class MemoryStep:
    """Memory at one call of a primary function."""

    step: int
    function: str
    #: Intermediate tensors that were written and are still read.
    live_bytes: int


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of a run."""

    name: str
    #: The primary function that it belongs to.
    function: str
    #: Names of the ONNX nodes that it computes.
    nodes: tuple[str, ...]
    #: Schedule family, and its knobs.
    family: str
    knobs: JsonObject
    #: Work-items of the launch and of a work-group; empty where there are none.
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    #: ``device`` (profiling events) or ``host`` (around the call).
    clock: str
    #: Begin in a run, in which kernels stand one behind the other with the gaps measured.
    start_us: float
    median_us: float
    p10_us: float
    p90_us: float
    #: Arithmetic operations on elements; a product and a sum are two.
    flops: int | None = None
    #: Every element of a tensor that is touched, once.
    bytes_read: int | None = None
    bytes_written: int | None = None
    gflops: float | None = None
    gbps: float | None = None
    #: Operations for a byte.
    intensity: float | None = None
    #: Which ceilings are its own: ``fp32``, ``fp16`` or ``int8``, and ``copy``, ``texture`` or
    #: the cache that its working set fits.
    arithmetic: str = "fp32"
    memory: str = "copy"
    #: Part of what the lower of both ceilings allows at its intensity, 0 to 1.
    roofline_share: float | None = None
    #: One of :data:`BOUNDS`.
    bound: str | None = None


@dataclass(frozen=True)
class Finding:
    """Something in a kernel that costs time and might be changed."""

    #: Name of the kernel, of all its launches; of a fusion, the one that reads the tensor; empty
    #: where it is about the whole call.
    kernel: str
    #: One of :data:`FINDING_KINDS`.
    kind: str
    #: Buffer and index, or condition, as TVMScript.
    access: str
    #: Line in the text of the scheduled primary function, from 1; 0 where there is none.
    line: int
    #: What it costs in one run of the kernel, by unit: ``bytes``, or ``cycles`` of waves or cores;
    #: of a call, ``µs``.
    cost: Mapping[str, float]
    #: Of the kernel's traffic or cycles, or of the call's time, from 0 to 1.
    share: float
    #: What is the case, with numbers.
    sentence: str
    #: What to try.
    remedy: str


@dataclass(frozen=True)
class Profile:
    """A network's run on a device."""

    module: ModuleFacts
    device: DeviceFacts
    ceilings: Ceilings | None
    first_call: FirstCall
    #: How many runs were measured.
    runs: int
    #: Calls, with the inputs' and outputs' copies.
    whole: Spread
    weights_bytes: int
    #: In the order of calls.
    memory: tuple[MemoryStep, ...]
    #: In the order of launches.
    kernels: tuple[KernelLaunch, ...]
    findings: tuple[Finding, ...] = ()
    #: Scheduled TIR by primary function; findings name lines of it.
    tir: dict[str, str] = field(default_factory=dict)
    #: OpenCL C or CUDA C++ by kernel; empty on ``llvm``.
    sources: dict[str, str] = field(default_factory=dict)
    #: Sentences on what is missing, and why.
    notes: tuple[str, ...] = ()
    #: Part of the host's processors' time that other programs took meanwhile, 0 to 1.
    others_share: float | None = None

    def __repr__(self) -> str:
        found = counted(len(self.findings), "finding")
        launches = counted(len(self.kernels), "launch", "launches")
        return (
            f"<Profile of {self.module.name} on {self.device.name}: "
            f"{self.whole.median_ms:.3g} ms a call, {launches}, {found}>"
        )

    def _repr_html_(self) -> str:
        """The kernels, those that take longest first, for notebooks."""
        total = sum(kernel.median_us for kernel in self.kernels)
        rows = [
            (
                *(", ".join(kernel.nodes) or "-", kernel.name, f"{kernel.median_us:.1f}"),
                f"{kernel.median_us / total:.1%}" if total else "",
                *(None if rate is None else f"{rate:.1f}" for rate in (kernel.gflops, kernel.gbps)),
                None if kernel.roofline_share is None else f"{kernel.roofline_share:.0%}",
                kernel.bound,
            )
            for kernel in sorted(self.kernels, key=lambda kernel: -kernel.median_us)
        ]
        titles = "nodes", "kernel", "median, µs", "share", "GFLOP/s", "GB/s", "roofline", "bound"
        return f"<p>{escape(repr(self)[1:-1])}</p>{html_table(titles, rows)}"

    @property
    def kernels_ms(self) -> float:
        """Sum of the kernels' medians."""
        return sum(kernel.median_us for kernel in self.kernels) / 1e3

    @property
    def queue_ms(self) -> float:
        """From the begin of a run's first launch to the end of its last one."""
        if not self.kernels:
            return 0.0
        last = self.kernels[-1]
        return (last.start_us + last.median_us - self.kernels[0].start_us) / 1e3

    @property
    def between_ms(self) -> float:
        """Part of :attr:`queue_ms` in which no kernel runs.

        By the device's clock its queue is idle then: a driver needs time from one kernel to the
        next one, or the host has not launched it yet.  By the host's clock it is the virtual
        machine's own time, and that of measuring, between calls.
        """
        return max(0.0, self.queue_ms - self.kernels_ms)

    @property
    def has_device_clock(self) -> bool:
        """True if the device itself tells when kernels ran."""
        return bool(self.kernels) and all(kernel.clock == "device" for kernel in self.kernels)

    @property
    def explained_ms(self) -> float:
        """Part of a call that kernels explain: :attr:`queue_ms` by the device's clock.

        By the host's clock :attr:`kernels_ms`: gaps between calls are the host's, and longer where
        each call is measured.
        """
        return self.queue_ms if self.has_device_clock else self.kernels_ms

    @property
    def host_ms(self) -> float:
        """Part of a call that they do not explain: the host's part, and copies."""
        return max(0.0, self.whole.median_ms - self.explained_ms)

    def worth_us(self, finding: Finding) -> float:
        """Time that a finding may be worth at most: its share of its kernel's launches.

        Of a finding about the whole call, its share of that.
        """
        if not finding.kernel:
            return finding.share * 1e3 * self.whole.median_ms
        launches = (kernel for kernel in self.kernels if kernel.name == finding.kernel)
        return finding.share * sum(kernel.median_us for kernel in launches)

    def step_starts(self) -> list[float] | None:
        """The begin of each step of :attr:`memory` in µs: of the first launch of its call.

        ``None`` where launches are not those of the plan.
        """
        kernels = self.kernels
        launches = Counter(kernel.function for kernel in kernels)
        calls = Counter(step.function for step in self.memory)
        begins = [kernel.start_us for kernel in kernels]
        # What launches nothing after the last kernel begins at its end.
        begins.append(kernels[-1].start_us + kernels[-1].median_us if kernels else 0.0)
        starts, position = [], 0
        for function in (step.function for step in self.memory):
            starts.append(begins[position])
            # A function launches as many kernels in each of its calls, or none.
            count = launches[function] // calls[function]
            if count and [k.function for k in kernels[position : position + 1]] != [function]:
                return None
            position += count
            if position > len(kernels):
                return None
        return starts

    def to_json(self) -> JsonObject:
        """The content of JSON, with :data:`DERIVED`; it has lists for tuples."""
        derived = {name: getattr(self, name) for name in DERIVED}
        return {"format": FORMAT, **dataclasses.asdict(self), **derived}

    def to_pandas(self) -> pandas.DataFrame:
        """The kernels, a row each; `EnvironmentMismatchError` if pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            from ...errors import EnvironmentMismatchError

            raise EnvironmentMismatchError(
                "Making a pandas table of a profile failed: pandas is not installed.",
                remedy="python -m pip install pandas",
            ) from error
        return pandas.DataFrame([dataclasses.asdict(kernel) for kernel in self.kernels])
