"""Measure an OpenCL device behind an agent, and describe it by a device file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any, TypeVar

from ..agent.device import RemoteDevice
from ..agent.frames import Code
from ..devices.device_file import DeviceFile, Fact, Origin
from ..errors import AgentError, DeviceError
from ..module.standalone.encode import BUILD_OPTIONS
from . import cases
from .bench import Bench, Case, Program
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
#: Errors after which a session goes on, and those after which there is a new one.
_REFUSALS, _ENDS = (Code.ARGUMENT, Code.DEVICE, Code.MEMORY), (Code.LOST, Code.TIMEOUT)
#: Most characters of a reason: compilers' logs may be long.
_MOST_MESSAGE = 500
#: Facts about speeds of textures: each is the ratio of two rates.
_RATIOS = {
    "texture.write": ("image_write_gbps", "buffer_write_gbps"),
    "texture.stream": ("image_gbps", "buffer_read_gbps"),
    "texture.cached": ("image_cached_gbps", "buffer_cached_gbps"),
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
        self.series: dict[str, list[dict[str, Any]]] = {
            "streams": [],
            "cached_reads": [],
            "live_values": [],
        }
        self.not_measured = {
            "launch_recorded_us": "The agent records no command buffers.",
            "image2d_from_buffer": "The driver reports it; the agent makes no images from buffers.",
        }

    def run(self) -> DeviceFile:
        """Measure what the cost models need most first, then the series for readers."""
        options = f"{BUILD_OPTIONS} -DLANES={self.lanes}" + " -DIMAGES" * self.has_images
        self.report("launches and arithmetic")
        program = Program(source(), options)
        self._launches(program)
        self._arithmetic(program)
        self.report("memory and caches")
        self._memory(program)
        self.report("registers")
        self._live_values()
        if not self.rates:
            name, reason = list(self.not_measured.items())[2]
            raise DeviceError(
                f"Measuring {self.info.name} failed: no measurement succeeded. {name}: {reason}",
                remedy="Update the device's driver, or compile for its CPU with `target=llvm`.",
            )
        return self._result()

    def _launches(self, program: Program) -> None:
        seconds = self._attempt("launch_us", lambda: self.bench.launch_seconds(program))
        if seconds is not None:
            self.rates["launch_us"] = seconds * 1e6

    def _arithmetic(self, program: Program) -> None:
        kernels = [("fp32_gflops", program, "multiply_add", "float32")]
        if self.info.fp16:
            half = program._replace(options=program.options + " -DHALF")
            kernels += [("fp16_gflops", half, "multiply_add_half", "float16")]
            kernels += [("mixed_gflops", half, "multiply_half_add", "float16")]
        for name, built, kernel, dtype in kernels:
            work = (built, self.grid, kernel, dtype, self.lanes)
            self._add(name, self._rate(name, cases.arithmetic, *work))
        self._add("local_gbps", self._rate("local_gbps", cases.local, program, self.grid))

    def _memory(self, program: Program) -> None:
        for dtype, of in (("float32", ""), ("float16", "_fp16")):
            self._stream(program, dtype, "read", f"buffer{of}_read_gbps")
            if dtype == "float32":
                self._stream(program, dtype, "write", "buffer_write_gbps")
                self._stream(program, dtype, "copy", "buffer_gbps")
            self._reread(program, Place(dtype, *_CACHED, 1, False), f"buffer{of}_cached_gbps")
            if self.has_images:
                self._stream(program, dtype, "read", f"image{of}_gbps", _WIDE)
                self._stream(program, dtype, "write", f"image{of}_write_gbps", _WIDE)
                self._reread(program, Place(dtype, *_CACHED, 1, True), f"image{of}_cached_gbps")
        for dtype in ("float32", "float16"):
            for extent in _EXTENTS if self.has_images else ():
                self._stream(program, dtype, "read", None, extent)
            for extent in _WEIGHTS:
                for is_image in (False, True)[: 1 + self.has_images]:
                    self._reread(program, Place(dtype, *extent, 1, is_image))

    def _live_values(self) -> None:
        program = Program(live_values(), BUILD_OPTIONS)
        for count in LIVE:
            rate = self._rate(f"{count} live values", cases.live_values, program, self.grid, count)
            if rate is not None:
                self.series["live_values"].append({"vectors": count, "ns": _rounded(1e9 / rate)})

    def _stream(
        self,
        program: Program,
        dtype: str,
        access: str,
        name: str | None,
        extent: tuple[int, int] | None = None,
    ) -> None:
        """Measure a stream through a buffer, or through images if an extent is given."""
        info = self.info
        width, height = extent or _WIDE
        size = min(max(_LEAST_STREAM, 4 * info.global_cache_bytes), _MOST_STREAM)
        size = min(size, info.global_memory_bytes // _MEMORY_SHARE, info.max_allocation_bytes)
        row_bytes = Place(dtype, width, 1, 1, False).vector_bytes * width
        rows = max(1, size // row_bytes // LEAST_ROWS) * LEAST_ROWS
        height = min(rows, height)
        most = info.image_max_array_size if extent else rows
        place = Place(dtype, width, height, min(most, rows // height), extent is not None)
        what = f"{access} of {place}"
        rate = self._rate(what, cases.stream, program, self.grid, place, access)
        self._add(name, rate, "streams", {"access": access, **asdict(place)})

    def _reread(self, program: Program, place: Place, name: str | None = None) -> None:
        """Measure reads of a place that a cache holds."""
        rate = self._rate(f"reads of cached {place}", cases.reread, program, self.grid, place)
        self._add(name, rate, "cached_reads", asdict(place))

    def _add(
        self,
        name: str | None,
        rate: float | None,
        series: str | None = None,
        about: Mapping[str, object] | None = None,
    ) -> None:
        """Add a rate in a second as 10⁹ of them, by name and to a series."""
        if rate is None:
            return
        if name is not None:
            self.rates[name] = rate / 1e9
        if series is not None:
            self.series[series].append({**(about or {}), "gbps": _rounded(rate / 1e9)})

    def _rate(self, what: str, case: Callable[..., Case], *arguments: object) -> float | None:
        """Measure a case; return ``None`` if that failed, or the time is over."""
        if time.monotonic() > self.ends:
            self.not_measured.setdefault("the rest", f"The time was over before {what}.")
            return None

        def rate() -> float:
            with self.bench.memory():
                return self.bench.rate(case(self.bench, *arguments))

        return self._attempt(what, rate)

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
        measurements = {
            "clock": "events" if self.bench.has_events else "wall",
            "reported": {name: getattr(self.info, name) for name in _REPORTED},
            "not_measured": self.not_measured,
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
