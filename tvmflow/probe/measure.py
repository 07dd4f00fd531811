"""Measure an OpenCL device behind an agent, and describe it by a device file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

from ..agent.device import RemoteDevice
from ..agent.frames import Code
from ..devices.device_file import DeviceFile, Fact, Origin
from ..errors import AgentError, DeviceError
from ..module.standalone.encode import BUILD_OPTIONS
from . import cases
from .bench import Bench, Case, Program, Ready
from .cases import LEAST_ROWS, Grid, Place
from .kernels import LIVE, live_values, source

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds after which no further measurement is begun.
LIMIT_S = 100.0
#: Least and most bytes of a stream; between them four times the cache that the driver reports.
_LEAST_STREAM, _MOST_STREAM = 64 << 20, 512 << 20
#: Part of the device's memory that a stream may take.
_MEMORY_SHARE = 16
#: Extents of streamed images; layers make up the size.
_WIDE, _EXTENTS = (2048, 2048), ((256, 256), (64, 64))
#: Columns and rows of what is read again and again: the first fits any cache, the others are
#: weights as convolutions read them.
_CACHED, _WEIGHTS = (16, 16), ((4, 1024), (16, 1024), (4, 4096), (16, 4096))
#: Slowdown by which live values clearly cost waves, and spread that is noise.
_SLOWER, _NOISE = 1.3, 1.1
#: Extension of `get_max_sub_group_size`, and work-items of the group in which it is asked.
_SUBGROUPS, _SUBGROUP_GROUP = "cl_khr_subgroups", 256
#: Errors after which a session goes on, and those after which there is a new one.
_REFUSALS = (Code.ARGUMENT, Code.DEVICE, Code.MEMORY)
_ENDS = (Code.LOST, Code.TIMEOUT, Code.MISSING)
#: Most characters of a reason: compilers' logs may be long.
_MOST_MESSAGE = 500
#: Facts about speeds of textures: each is the ratio of two rates.
_RATIOS = {
    "texture.write": ("image_write_gbps", "buffer_write_gbps"),
    "texture.stream": ("image_gbps", "buffer_read_gbps"),
    "texture.cached": ("image_cached_gbps", "buffer_cached_gbps"),
}
#: Facts that are only reported, with the reason.
_NEVER_MEASURED = {
    "image2d_from_buffer": "The driver reports it; the agent makes no images from buffers.",
}
#: Facts of the driver that no schedule asks for.
_REPORTED = (
    *("compute_units", "local_memory_bytes", "global_cache_bytes", "global_memory_bytes"),
    *("max_allocation_bytes", "image2d_max_width", "image2d_max_height", "image2d_from_buffer"),
)


def probe(
    remote: RemoteDevice,
    index: int = 0,
    *,
    preset: str | None = None,
    limit_s: float = LIMIT_S,
    report: Callable[[str], object] = logger.info,
) -> DeviceFile:
    """Measure an OpenCL device, which takes up to two minutes.

    A measurement whose kernel the driver refuses, ends or computes wrong is left out, and
    ``not_measured`` among the file's measurements has the reason.

    Parameters
    ----------
    index
        Number of the device there.
    preset
        Preset of the facts that are not measured.  Default: that of the device's class.
    limit_s
        Seconds after which no further measurement is begun.
    report
        Function that gets the name of each group of measurements as it begins.

    Raises `AgentError` if the device is gone or has no OpenCL, and `DeviceError` if no measurement
    succeeds.
    """
    return _Probe(remote, index, preset, limit_s, report).run()


@dataclass(frozen=True)
class _Wanted:
    """A measurement, and its places in a device file."""

    what: str
    case: Callable[[], Case]
    rate: str | None
    series: str | None = None
    #: Entries of the series next to the result.
    about: Mapping[str, object] = field(default_factory=dict)


class _Probe:
    """Measurements on a device."""

    def __init__(
        self,
        remote: RemoteDevice,
        index: int,
        preset: str | None,
        limit_s: float,
        report: Callable[[str], object],
    ):
        self.info = remote.require_opencl(index)
        self.file = DeviceFile.of(self.info, remote.name, preset)
        self.lanes = self.file.device().channel_block
        self.is_cpu = self.file.device().is_cpu
        self.grid = Grid.of(self.info, is_cpu=self.is_cpu)
        self.bench = Bench(remote, index)
        self.ends, self.report = time.monotonic() + limit_s, report
        self.has_images = self.info.images and self.info.image_max_array_size > 0
        self.rates: dict[str, float] = {}
        self.wave: int | None = None
        self.series: dict[str, list[dict[str, Any]]] = {
            "streams": [],
            "cached_reads": [],
            "live_values": [],
        }
        self.not_measured: dict[str, str] = {}

    def run(self) -> DeviceFile:
        """Measure what the cost models need most first, then the series for readers."""
        options = f"{BUILD_OPTIONS} -DLANES={self.lanes}" + " -DIMAGES" * self.has_images
        self.report("launches and arithmetic")
        program = Program(source(), options)
        self._launches(program)
        self._subgroups(program)
        self._arithmetic(program)
        self.report("memory and caches")
        self._memory(program)
        self.report("registers")
        self._live_values()
        if not self.rates:
            name, reason = next(iter(self.not_measured.items()))
            raise DeviceError(
                f"Measuring {self.info.name} failed: no measurement succeeded. {name}: {reason}",
                remedy="Update the device's driver, or compile for its CPU with `target=llvm`.",
            )
        return self._result()

    def _launches(self, program: Program) -> None:
        for name, recorded in (("launch_us", False), ("launch_recorded_us", True)):
            measure = partial(self.bench.launch_seconds, program, recorded=recorded)
            if (seconds := self._attempt(name, measure)) is not None:
                self.rates[name] = seconds * 1e6

    def _subgroups(self, program: Program) -> None:
        """Measure the wave of a GPU that has the extension for it, which needs OpenCL C 2.0.

        See https://registry.khronos.org/OpenCL/sdk/3.0/docs/man/html/subGroupFunctions.html.
        """
        if self.is_cpu or _SUBGROUPS not in self.info.extensions:
            return
        standard = "CL3.0" if self.info.version.startswith("OpenCL 3") else "CL2.0"
        own = program._replace(options=f"{program.options} -DSUBGROUPS -cl-std={standard}")
        group = min(_SUBGROUP_GROUP, self.info.max_work_group_size)
        self.wave = self._attempt("wave", lambda: self.bench.wave(own, group))

    def _arithmetic(self, program: Program) -> None:
        def multiply_adds(name: str, program: Program, kernel: str, dtype: str) -> None:
            work = (program, self.grid, kernel, dtype, self.lanes)
            self._measure(_Wanted(name, lambda: cases.arithmetic(self.bench, *work), name))

        multiply_adds("fp32_gflops", program, "multiply_add", "float32")
        if self.info.fp16:
            half = program._replace(options=program.options + " -DHALF")
            multiply_adds("fp16_gflops", half, "multiply_add_half", "float16")
            multiply_adds("mixed_gflops", half, "multiply_half_add", "float16")
        name = "local_gbps"
        self._measure(_Wanted(name, lambda: cases.local(self.bench, program, self.grid), name))

    def _memory(self, program: Program) -> None:
        """Measure buffers and images, those that a fact compares in turn."""
        for dtype, of in (("float32", ""), ("float16", "_fp16")):
            for access in ("read", "write"):
                # The rate of images that profiles take as their ceiling is that of reads.
                names = (
                    f"buffer{of}_{access}_gbps",
                    f"image{of}_{access}_gbps".replace("read_", ""),
                )
                self._measure(*self._streams(program, dtype, access, names, (None, _WIDE)))
            self._measure(*self._rereads(program, dtype, _CACHED, f"{of}_cached_gbps"))
        copy = self._streams(program, "float32", "copy", ("buffer_gbps",), (None,))
        self._measure(*copy)
        for dtype in ("float32", "float16"):
            self._measure(*self._streams(program, dtype, "read", (None, None), _EXTENTS))
            for extent in _WEIGHTS:
                self._measure(*self._rereads(program, dtype, extent))

    def _live_values(self) -> None:
        program = Program(live_values(), BUILD_OPTIONS)
        for count in LIVE:
            case = partial(cases.live_values, self.bench, program, self.grid, count)
            about = {"vectors": count}
            self._measure(_Wanted(f"{count} live values", case, None, "live_values", about))

    def _streams(
        self,
        program: Program,
        dtype: str,
        access: str,
        names: Sequence[str | None],
        extents: Sequence[tuple[int, int] | None],
    ) -> Iterator[_Wanted]:
        """Yield streams through images of these extents, and through a buffer for ``None``."""
        info = self.info
        size = min(max(_LEAST_STREAM, 4 * info.global_cache_bytes), _MOST_STREAM)
        size = min(size, info.global_memory_bytes // _MEMORY_SHARE, info.max_allocation_bytes)
        for name, extent in zip(names, extents, strict=True):
            if extent is not None and not self.has_images:
                continue
            width, height = extent or _WIDE
            row_bytes = Place(dtype, width, 1, 1, False).vector_bytes * width
            rows = max(1, size // row_bytes // LEAST_ROWS) * LEAST_ROWS
            height = min(rows, height)
            most = info.image_max_array_size if extent else rows
            place = Place(dtype, width, height, min(most, rows // height), extent is not None)
            case = partial(cases.stream, self.bench, program, self.grid, place, access)
            about = {"access": access, **asdict(place)}
            yield _Wanted(f"{access} of {place}", case, name, "streams", about)

    def _rereads(
        self, program: Program, dtype: str, extent: tuple[int, int], name: str | None = None
    ) -> Iterator[_Wanted]:
        """Yield reads of few data, which a cache holds, from a buffer and an image."""
        for storage in ("buffer", "image")[: 1 + self.has_images]:
            place = Place(dtype, *extent, 1, storage == "image")
            case = partial(cases.reread, self.bench, program, self.grid, place)
            rate = None if name is None else f"{storage}{name}"
            yield _Wanted(f"reads of cached {place}", case, rate, "cached_reads", asdict(place))

    def _measure(self, *wanted: _Wanted) -> None:
        """Measure in turn, unless the time is over."""
        if wanted and time.monotonic() > self.ends:
            reason = f"The time was over before {wanted[0].what}."
            self.not_measured.setdefault("the rest", reason)
            return
        with self.bench.memory():
            grown = [(each, self._attempt(each.what, partial(self._grow, each))) for each in wanted]
            ready = {each.what: one for each, one in grown if one is not None}
            rates = self._attempt(", ".join(ready), lambda: self.bench.rates(list(ready.values())))
        found = dict(zip(ready, rates or (), strict=False))
        for each in wanted:
            if (rate := found.get(each.what)) is None:
                continue
            if each.rate is not None:
                self.rates[each.rate] = rate / 1e9
            if each.series == "live_values":
                self.series[each.series].append({**each.about, "ns": _rounded(1e9 / rate)})
            elif each.series is not None:
                self.series[each.series].append({**each.about, "gbps": _rounded(rate / 1e9)})

    def _grow(self, wanted: _Wanted) -> Ready:
        return self.bench.grow(wanted.case())

    def _attempt(self, what: str, function: Callable[[], T]) -> T | None:
        """Note a failure of the driver or wrong sums, and go on without that result."""
        try:
            return function()
        except (AgentError, DeviceError) as error:
            if isinstance(error, AgentError):
                if error.code not in (*_REFUSALS, *_ENDS):
                    raise
                if error.code in _ENDS:
                    self.bench.forget_programs()
            self.not_measured[what] = error.message[:_MOST_MESSAGE]
            return None

    def _result(self) -> DeviceFile:
        facts = dict(self.file.facts)
        for fact, (image, buffer) in _RATIOS.items():
            if image in self.rates and buffer in self.rates:
                ratio = _rounded(self.rates[image] / self.rates[buffer])
                facts[fact] = Fact(ratio, Origin.MEASURED)
        vectors = None if self.is_cpu else accumulators_of(self.series["live_values"])
        if vectors is not None:
            facts["accumulators"] = Fact(vectors, Origin.MEASURED)
        if self.wave is not None:
            facts["wave"] = Fact(self.wave, Origin.MEASURED)
        measurements = {
            "clock": "events" if self.bench.has_events else "wall",
            "reported": {name: getattr(self.info, name) for name in _REPORTED},
            "not_measured": {**_NEVER_MEASURED, **self.not_measured},
            **self.series,
        }
        rates = {n: Fact(_rounded(rate), Origin.MEASURED) for n, rate in self.rates.items()}
        return replace(self.file, facts=facts, rates=rates, measurements=measurements)


def accumulators_of(series: Sequence[Mapping[str, float]]) -> int | None:
    """Return the accumulators that leave all waves, if a series of live values has a clear step.

    It has one if times before it differ by noise only, and all after it are clearly longer.  Half
    of the values are left to what schedules read, as in the presets of GPUs with known registers.
    """
    for at in range(2, len(series)):
        before = [each["ns"] for each in series[:at]]
        after = [each["ns"] for each in series[at:]]
        if max(before) > _NOISE * min(before):
            return None
        if min(after) > _SLOWER * median(before):
            return max(1, int(series[at - 1]["vectors"]) // 2)
    return None


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
