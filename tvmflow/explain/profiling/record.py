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
from ..yardstick.measured import Yardstick

if TYPE_CHECKING:
    import pandas

    from ...devices.device_file import DeviceFile

#: Version of the JSON form; another one is refused.
FORMAT = 1
#: Properties of a profile that its JSON contains for readers, although they follow from the rest.
DERIVED = ("kernels_ms", "queue_ms", "between_ms", "host_ms")

#: Limits of a kernel's speed.
BOUNDS = ("bandwidth", "arithmetic", "launch", "latency")

#: Kinds of findings.
FINDING_KINDS = (
    *("coalescing", "texture-locality", "divergence", "bank-conflicts", "local-memory"),
    *("registers", "vector-width", "cache-lines", "pages", "accumulators", "parallel"),
    *("dot-product", "tensor-core", "occupancy", "fusion", "host"),
)


@dataclass(frozen=True)
class ModuleFacts:
    """Measured module."""

    path: str
    #: The network's name.
    name: str
    #: ``opencl``, ``cuda`` or ``llvm``.
    target: str
    #: Device preset that its kernels are scheduled for.
    device: str
    #: Versions of ``tvmflow``, ``tvm`` and ``tvm_ffi`` that compiled it.
    versions: dict[str, str]


@dataclass(frozen=True)
class DeviceFacts:
    """Device that a module was measured on."""

    name: str
    driver: str
    version: str


@dataclass(frozen=True)
class CacheCeiling:
    """Rate of copies that stay in a cache."""

    #: ``L1``, ``L2``, ...
    name: str
    #: Largest working set that fits it.
    capacity_bytes: int
    #: Rate of bytes read and written.
    gbps: float


@dataclass(frozen=True)
class Ceilings:
    """Rates that a device reaches in kernels that do one thing only."""

    #: Rate of bytes read and written by a copy of a buffer much larger than any cache.
    copy_gbps: float
    fp32_gflops: float
    #: Time of an empty kernel in a queue of many.
    launch_us: float
    #: Rate of bytes read from images.
    texture_gbps: float | None = None
    fp16_gflops: float | None = None
    #: Rate of operations of dot products of 8-bit integers, summed in 32 bits.
    int8_gops: float | None = None
    #: Caches, the smallest first; empty if the device's caches are not known.
    caches: tuple[CacheCeiling, ...] = ()
    #: Time of the measurement, UTC, as ISO 8601.
    date: str | None = None
    #: Part of the host's processors that other programs took meanwhile, 0 to 1.
    others_share: float | None = None

    @classmethod
    def of_device(cls, file: DeviceFile) -> Ceilings | None:
        """Return the rates of a device file; ``None`` if it lacks those that each device has."""
        rates = {name: float(fact.value) for name, fact in file.rates.items() if fact.value}
        try:
            return cls(
                copy_gbps=rates["buffer_gbps"],
                fp32_gflops=rates["fp32_gflops"],
                launch_us=rates["launch_us"],
                texture_gbps=rates.get("image_gbps"),
                fp16_gflops=rates.get("fp16_gflops"),
            )
        except KeyError:
            return None

    @property
    def were_disturbed(self) -> bool:
        """True if other programs took more of the processors than `runtime.load.QUIET`."""
        return is_disturbed(self.others_share)

    def measured_text(self) -> str | None:
        """Describe time and load of the measurement; ``None`` if neither is known."""
        parts = []
        if self.date is not None:
            parts.append(self.date.replace("T", " ").replace("+00:00", " UTC"))
        if self.others_share is not None:
            again = ", so they are measured again when fewer run" if self.were_disturbed else ""
            parts.append(f"other programs took {self.others_share:.0%} of the processors{again}")
        return "; ".join(parts) or None


@dataclass(frozen=True)
class FirstCall:
    """Times before the measured calls."""

    #: Time to read the module and load its library.
    load_ms: float
    #: Time of the first run beyond that of a later one: the driver's compiler, or its cache.
    build_ms: float | None
    #: Time to copy the weights to the device.
    upload_ms: float | None
    #: Time of a later run.
    run_ms: float


@dataclass(frozen=True)
class MemoryStep:
    """Memory at one call of a primary function."""

    step: int
    function: str
    #: Bytes of intermediate tensors that were written and are still read.
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
    #: Start time within a run: kernels follow one another with the measured gaps.
    start_us: float
    median_us: float
    p10_us: float
    p90_us: float
    #: Arithmetic operations on elements; a product and a sum are two.
    flops: int | None = None
    #: Traffic that counts every touched element of a tensor once.
    bytes_read: int | None = None
    bytes_written: int | None = None
    gflops: float | None = None
    gbps: float | None = None
    #: Operations per byte.
    intensity: float | None = None
    #: Ceilings that apply to it: ``fp32``, ``fp16`` or ``int8``, and ``copy``, ``texture`` or the
    #: cache that its working set fits.
    arithmetic: str = "fp32"
    memory: str = "copy"
    #: Share of the lower of both ceilings at its intensity, 0 to 1.
    roofline_share: float | None = None
    #: One of :data:`BOUNDS`.
    bound: str | None = None
    #: Times of another engine for its layer, if they were asked for and there are any; at the
    #: first launch of a layer's main function.
    yardstick: Yardstick | None = None


@dataclass(frozen=True)
class Finding:
    """Something in a kernel that costs time and might be changed."""

    #: Name of the kernel; for a fusion the one that reads the tensor; empty for the whole call.
    kernel: str
    #: One of :data:`FINDING_KINDS`.
    kind: str
    #: Buffer and index, or condition, as TVMScript.
    access: str
    #: Line in the text of the scheduled primary function, starting at 1; 0 if there is none.
    line: int
    #: Cost in one run of the kernel, by unit: ``bytes``, or ``cycles`` of waves or cores; for a
    #: whole call ``µs``.
    cost: Mapping[str, float]
    #: Share of the kernel's traffic or cycles, or of the call's time, from 0 to 1.
    share: float
    #: Description of the cost, with numbers.
    sentence: str
    #: Change to try.
    remedy: str


@dataclass(frozen=True)
class Profile:
    """A network's run on a device."""

    module: ModuleFacts
    device: DeviceFacts
    ceilings: Ceilings | None
    first_call: FirstCall
    #: Number of measured runs.
    runs: int
    #: Times of whole calls, copies of inputs and outputs included.
    whole: Spread
    weights_bytes: int
    #: Memory at each step, in the order of calls.
    memory: tuple[MemoryStep, ...]
    #: Kernels, in the order of launches.
    kernels: tuple[KernelLaunch, ...]
    findings: tuple[Finding, ...] = ()
    #: Scheduled TIR by primary function; findings refer to its lines.
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
        """Return a table of the kernels for notebooks, the longest first."""
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
        """Time from the start of a run's first launch to the end of its last one."""
        if not self.kernels:
            return 0.0
        last = self.kernels[-1]
        return (last.start_us + last.median_us - self.kernels[0].start_us) / 1e3

    @property
    def between_ms(self) -> float:
        """Part of :attr:`queue_ms` in which no kernel runs.

        By the device's clock the queue is idle: the driver needs time between kernels, or the host
        has not launched the next one yet.  By the host's clock it is the time of the virtual
        machine, and of measuring, between calls.
        """
        return max(0.0, self.queue_ms - self.kernels_ms)

    @property
    def has_device_clock(self) -> bool:
        """True if the device reports when kernels ran."""
        return bool(self.kernels) and all(kernel.clock == "device" for kernel in self.kernels)

    @property
    def explained_ms(self) -> float:
        """Part of a call that kernels explain.

        It is :attr:`queue_ms` by the device's clock, and :attr:`kernels_ms` by the host's: there
        the gaps belong to the host, and measuring each call makes them longer.
        """
        return self.queue_ms if self.has_device_clock else self.kernels_ms

    @property
    def host_ms(self) -> float:
        """Part of a call that kernels do not explain: the host's part, and copies."""
        return max(0.0, self.whole.median_ms - self.explained_ms)

    def worth_us(self, finding: Finding) -> float:
        """Return the most time that a finding can be worth.

        It is the finding's share of its kernel's launches, or of the whole call.
        """
        if not finding.kernel:
            return finding.share * 1e3 * self.whole.median_ms
        launches = (kernel for kernel in self.kernels if kernel.name == finding.kernel)
        return finding.share * sum(kernel.median_us for kernel in launches)

    def step_starts(self) -> list[float] | None:
        """Return the start in µs of the first launch of each step of :attr:`memory`.

        ``None`` if the launches do not fit the memory plan.
        """
        kernels = self.kernels
        launches = Counter(kernel.function for kernel in kernels)
        calls = Counter(step.function for step in self.memory)
        begins = [kernel.start_us for kernel in kernels]
        # A step that launches nothing after the last kernel begins at its end.
        begins.append(kernels[-1].start_us + kernels[-1].median_us if kernels else 0.0)
        starts, position = [], 0
        for function in (step.function for step in self.memory):
            starts.append(begins[position])
            # Each call of a function launches the same number of kernels, possibly none.
            count = launches[function] // calls[function]
            if count and [k.function for k in kernels[position : position + 1]] != [function]:
                return None
            position += count
            if position > len(kernels):
                return None
        return starts

    def to_json(self) -> JsonObject:
        """Return the profile and :data:`DERIVED` as a JSON object, with lists for tuples."""
        derived = {name: getattr(self, name) for name in DERIVED}
        return {"format": FORMAT, **dataclasses.asdict(self), **derived}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table of the kernels; `EnvironmentMismatchError` if pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            from ...errors import EnvironmentMismatchError

            raise EnvironmentMismatchError(
                "Making a pandas table of a profile failed: pandas is not installed.",
                remedy="python -m pip install pandas",
            ) from error
        return pandas.DataFrame([dataclasses.asdict(kernel) for kernel in self.kernels])
