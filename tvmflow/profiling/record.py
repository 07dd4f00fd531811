"""A profile as data, and as JSON.

Times end in ``_ms`` or ``_us``, sizes in ``_bytes``, rates in ``_gbps`` (10⁹ bytes a second),
``_gflops`` and ``_gops`` (10⁹ operations a second).  ``None`` is what could not be measured or
counted; `Profile.notes` says why.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ArtifactError

#: Version of the JSON form; another one is refused.
FORMAT = 1

#: What holds a kernel back.
BOUNDS = ("bandwidth", "arithmetic", "launch", "latency")

#: What findings are about.
FINDING_KINDS = (
    "coalescing",
    "texture-locality",
    "divergence",
    "bank-conflicts",
    "local-memory",
    "registers",
    "vector-width",
    "cache-lines",
    "pages",
    "accumulators",
    "parallel",
    "dot-product",
    "tensor-core",
    "occupancy",
    "fusion",
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
class Ceilings:
    """What the device reaches in kernels that do one thing only."""

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


@dataclass(frozen=True)
class FirstCall:
    """What comes before the calls that are measured."""

    #: Reading the module and loading its library.
    load_ms: float
    #: What the first run takes more than a later one: the driver's compiler, or its cache.
    build_ms: float | None
    #: Weights to the device.
    upload_ms: float | None
    #: A later run.
    run_ms: float


@dataclass(frozen=True)
class Spread:
    """A time over many runs."""

    median_ms: float
    p10_ms: float
    p90_ms: float


@dataclass(frozen=True)
class MemoryStep:
    """Memory at one call of a primary function."""

    step: int
    function: str
    #: Intermediate tensors that were written and are still read.
    live_bytes: int


@dataclass(frozen=True)
class Kernel:
    """One launch of a run."""

    name: str
    #: The primary function that it belongs to.
    function: str
    #: Names of the ONNX nodes that it computes.
    nodes: tuple[str, ...]
    #: Schedule family, and its knobs.
    family: str
    knobs: dict[str, Any]
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
    #: Which ceilings are its own: ``fp32``, ``fp16`` or ``int8``, and ``copy`` or ``texture``.
    arithmetic: str = "fp32"
    memory: str = "copy"
    #: Part of what the lower of both ceilings allows at its intensity, 0 to 1.
    roofline_share: float | None = None
    #: One of :data:`BOUNDS`.
    bound: str | None = None


@dataclass(frozen=True)
class Finding:
    """Something in a kernel that costs time and might be changed."""

    #: Name of the kernel, of all its launches; of a fusion, the one that reads the tensor.
    kernel: str
    #: One of :data:`FINDING_KINDS`.
    kind: str
    #: Buffer and index, or condition, as TVMScript.
    access: str
    #: Line in the text of the scheduled primary function, from 1; 0 where there is none.
    line: int
    #: What it costs in one run of the kernel, by unit: ``bytes``, ``cycles`` or ``lanes``.
    cost: Mapping[str, float]
    #: Of the kernel's traffic, cycles or lanes, from 0 to 1.
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
    #: What of a call no kernel explains.
    host_ms: float
    weights_bytes: int
    #: In the order of calls.
    memory: tuple[MemoryStep, ...]
    #: In the order of launches.
    kernels: tuple[Kernel, ...]
    findings: tuple[Finding, ...] = ()
    #: Scheduled TIR by primary function; findings name lines of it.
    tir: dict[str, str] = field(default_factory=dict)
    #: OpenCL C or CUDA C++ by kernel; empty on ``llvm``.
    sources: dict[str, str] = field(default_factory=dict)
    #: Sentences on what is missing, and why.
    notes: tuple[str, ...] = ()

    @property
    def kernels_ms(self) -> float:
        """Sum of the kernels' medians."""
        return sum(kernel.median_us for kernel in self.kernels) / 1e3

    def worth_us(self, finding: Finding) -> float:
        """What a finding may be worth at most: its share of its kernel's launches."""
        launches = (kernel for kernel in self.kernels if kernel.name == finding.kernel)
        return finding.share * sum(kernel.median_us for kernel in launches)

    def to_json(self) -> dict[str, Any]:
        """The same as what JSON has; tuples are lists."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    def to_pandas(self) -> Any:
        """The kernels as a ``pandas.DataFrame``, a row each.

        Raises
        ------
        EnvironmentMismatchError
            If pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            from ..errors import EnvironmentMismatchError

            raise EnvironmentMismatchError(
                "Making a pandas table of a profile failed: pandas is not installed.",
                remedy="python -m pip install pandas",
            ) from error
        return pandas.DataFrame([dataclasses.asdict(kernel) for kernel in self.kernels])


def from_json(content: Mapping[str, Any]) -> Profile:
    """The profile that `Profile.to_json` made this of.

    Raises
    ------
    ValueError, TypeError, KeyError
        If it is no profile of this format.
    """
    if content["format"] != FORMAT:
        raise ValueError(f"it has format {content['format']!r}, expected {FORMAT}")
    ceilings = content["ceilings"]
    rest = {key: content[key] for key in ("runs", "host_ms", "weights_bytes", "tir", "sources")}
    return Profile(
        module=_make(ModuleFacts, content["module"]),
        device=_make(DeviceFacts, content["device"]),
        ceilings=None if ceilings is None else _make(Ceilings, ceilings),
        first_call=_make(FirstCall, content["first_call"]),
        whole=_make(Spread, content["whole"]),
        memory=tuple(_make(MemoryStep, step) for step in content["memory"]),
        kernels=tuple(_make(Kernel, kernel) for kernel in content["kernels"]),
        findings=tuple(_make(Finding, finding) for finding in content["findings"]),
        notes=tuple(content["notes"]),
        **rest,
    )


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Read what ``tvmflow profile --json`` printed.

    Raises
    ------
    ArtifactError
        If there is no such file, or it holds no profile of this format.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        return from_json(json.loads(text, parse_constant=_no_number))
    except OSError as error:
        raise ArtifactError(
            f"Reading the profile {path} failed: {error.strerror or error}.",
            remedy="Name a file that `tvmflow profile OUT.so --json` was written to.",
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ArtifactError(
            f"Reading the profile {path} failed: a profile was expected, but {reason}.",
            remedy="Measure again with `tvmflow profile OUT.so --json` of this version.",
        ) from error


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


_Record = TypeVar("_Record")


def _make(kind: type[_Record], values: Mapping[str, Any]) -> _Record:
    """A record of plain fields; JSON has no tuples."""
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
