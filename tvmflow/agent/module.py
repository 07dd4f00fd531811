"""Standalone libraries that run on a device behind an agent, called like local modules."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np

from .. import _versions
from ..errors import AgentError, InputError
from ..ir.pictures import Image
from ..module.bench import DEFAULT_RUNS, DEFAULT_SECONDS, Timing
from ..module.blocked_layout import to_blocked
from ..module.kernel_time import KernelTime, kernel_times
from ..module.module import Running
from ..module.samples import random_inputs
from ..module.setting import Setting
from ..module.standalone import binding
from ..module.standalone.loaded import StandaloneModule, tensor_interfaces
from ..module.standalone.read import EncodedPlan
from ..module.standalone.tested import SelfTest
from ..module.standalone.tuned import Tuned
from ..module.values import Outputs, as_array, put
from ..runtime.json_types import JsonObject
from ..runtime.timing import Spread
from .library import SHARED_CACHE, RemoteLibrary

#: Ratio of the last runs' median to the first ones' above which a device counts as throttled.
_SLOWER = 1.1
#: Time that a device counts as having slept; its two clocks are not read at once.
_SLEPT_NS = 1e7
#: Fewest runs of which both ends can be compared.
_COMPARED = 20


@dataclass(frozen=True)
class Conditions:
    """State of a device at the beginning and the end of a measurement."""

    before: JsonObject  #: Sensors: temperatures, clocks, throttling, battery.
    after: JsonObject
    #: Median of the last quarter of the runs, relative to the first quarter's; 1 for few runs.
    slowdown: float

    @property
    def throttled(self) -> str:
        """Return a sentence if the device was throttled or became slower; otherwise empty."""
        names = sorted({*self.before.get("throttled", ()), *self.after.get("throttled", ())})
        if names:
            return f"The device throttles ({', '.join(names)})."
        if self.slowdown > _SLOWER:
            return f"The last runs took {self.slowdown:.2f} times as long as the first ones."
        return ""

    @property
    def slept(self) -> str:
        """Return a sentence if the device slept meanwhile; otherwise empty."""
        slept_ns = self.after.get("slept_ns", 0) - self.before.get("slept_ns", 0)
        if slept_ns < _SLEPT_NS:
            return ""
        return f"The device slept for {slept_ns * 1e-9:.1f} s meanwhile."

    @property
    def celsius(self) -> tuple[float, float] | None:
        """Return the highest temperatures before and after; ``None`` if the device shows none."""
        before, after = (
            max(each.get("temperatures", {}).values(), default=None)
            for each in (self.before, self.after)
        )
        return None if before is None or after is None else (float(before), float(after))


class OpensLibraries(Protocol):
    """A device that opens standalone libraries: `RemoteDevice`, which refers to this file."""

    @property
    def name(self) -> str:
        """Return the device's name."""

    def sensors(self) -> JsonObject:
        """Return temperatures, clocks, throttling and battery."""

    def open(
        self,
        library: Path,
        *,
        backend: str,
        device_index: int,
        flags: int,
        cache: int,
    ) -> RemoteLibrary:
        """Send a library, unless it is there, and open it."""


class AgentModule(StandaloneModule):
    """A standalone library on a device behind an agent.

    Calls send the inputs, unless they are there, and fetch the outputs; `time_calls` measures on
    the device itself.  The connection must stay open, and closing the module does not end it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        device: OpensLibraries,
        *,
        device_index: int = 0,
        check_weights: bool = True,
        backend: str = "auto",
        cache: int = SHARED_CACHE,
        whole: tuple[AgentModule, int] | None = None,
    ):
        super().__init__(
            path,
            device_index=device_index,
            check_weights=check_weights,
            backend=backend,
            whole=whole,
        )
        self.remote = device
        self._cache = cache
        #: Sensors around the last measurement.
        self.conditions: Conditions | None = None

    @property
    def variants(self) -> tuple[AgentModule, ...]:
        """Return a view of the module for each of its shapes; itself if there is only one."""
        if self._whole is not None or self._plan.shapes == 1:
            return (self,)
        options = {
            "device_index": self.device_index,
            "backend": self._backend,
            "cache": self._cache,
        }
        return tuple(
            AgentModule(self.path, self.remote, whole=(self, number), **options)  # type: ignore[arg-type]
            for number in range(self._plan.shapes)
        )

    def close(self) -> None:
        """Close the library on the device."""
        if self._whole is None and isinstance(self._running, _RemoteRunning):
            self._running.library.close()
        super().close()

    def self_test(
        self, runs: int = 0, pause_ms: int = 0, budget_ms: int = 0, second_instance: bool = False
    ) -> SelfTest:
        """Run the library's test inputs there; raises as `LoadedLibrary.self_test`."""
        with self._lock:
            library = self._remote_running().library
            return library.self_test(runs, pause_ms, budget_ms, second_instance)

    def tune(
        self, budget_ms: int = 1000, progress: Callable[[float], object] | None = None
    ) -> Tuned:
        """Time the library's choices there; raises as `RemoteLibrary.tune`."""
        with self._lock:
            return self._remote_running().library.tune(budget_ms, progress)

    def describe(self) -> JsonObject:
        """Return the library's report of device, memory and programs."""
        with self._lock:
            return self._remote_running().library.describe()

    @property
    def first_run_ms(self) -> float:
        """Return the time from opening the library to the first outputs, on the device's clock."""
        with self._lock:
            running = self._remote_running()
            return running.library.open_ms + (running.first_ms or 0.0)

    def binaries(self) -> dict[str, bytes]:
        """Return the files of the library's cache by name, and close it; see `NEW_CACHE`."""
        with self._lock:
            return self._remote_running().library.binaries()

    def memory(self) -> dict[str, int]:
        """Return the model's memory in bytes, by kind."""
        found: dict[str, int] = self.describe().get("memory", {})
        return found

    def cancel(self) -> None:
        """Raise `AgentError`: Ctrl-C cancels a run there."""
        raise AgentError(
            f"Cancelling a run of {self.path} on {self.remote.name} is not possible.",
            remedy="Press Ctrl-C in the program that waits for it.",
        )

    def time_calls(
        self,
        inputs: Mapping[str, object] | None = None,
        *,
        runs: int | None = None,
        seconds: float | None = None,
        warmup: int = 5,
        seed: int = 0,
    ) -> Timing:
        """Measure calls on the device, with the copies of inputs and outputs in its memory.

        Parameters are those of `tvmflow.bench`.
        """
        if runs is None and seconds is None:
            runs, seconds = DEFAULT_RUNS, DEFAULT_SECONDS
        given = inputs if inputs is not None else random_inputs(self, seed)
        self(given)
        with self._lock:
            running = self._remote_running()
            number = 0 if self._whole is None else self._whole[1]
            before = self.remote.sensors()
            samples = running.library.time(
                shape=number,
                warmup=warmup,
                runs=runs or 1_000_000,
                seconds=3600.0 if seconds is None else seconds,
            )
            after = self.remote.sensors()
        times = samples.ms
        quarter = len(times) // 4
        slowdown = median(times[-quarter:]) / median(times[:quarter]) if quarter else 1.0
        self.conditions = Conditions(before, after, slowdown if len(times) >= _COMPARED else 1.0)
        mean_ms = float(np.mean(times))
        return Timing(
            **vars(Spread.of(times)),
            runs=len(times),
            load_ms=running.library.open_ms,
            first_ms=running.first_ms or 0.0,
            min_ms=min(times),
            max_ms=max(times),
            mean_ms=mean_ms,
            p99_ms=float(np.percentile(times, 99)),
            runs_per_s=1e3 / mean_ms,
            warmup=warmup,
            others_share=None,
        )

    def setting(self) -> Setting:
        """Return the setting in which the module runs there."""
        about = self.describe()
        device, backend = about["device"], str(about["backend"])
        is_cpu = backend == "cpu"
        reported = {n: "" if is_cpu else device[n] for n in ("platform", "driver", "version")}
        return Setting(
            target="llvm" if is_cpu else "opencl",
            backend=backend,
            format="standalone",
            device=", ".join(dict.fromkeys((self.remote.name, device["name"]))),
            **reported,
            threads=None,
            versions={"tvmflow": _versions.__version__, "TVM": str(self.metadata.get("tvm", ""))},
        )

    def remarks(self) -> list[str]:
        """Return sentences on the last measurement: temperatures, throttling, sleep."""
        found = []
        if self.conditions is not None:
            if (celsius := self.conditions.celsius) is not None:
                found.append(
                    "The hottest sensor showed {:.1f} °C at the beginning and {:.1f} °C at the "
                    "end.".format(*celsius)
                )
            found += filter(None, (self.conditions.throttled, self.conditions.slept))
        return found

    def _remote_running(self) -> _RemoteRunning:
        running = self._opened()
        assert isinstance(running, _RemoteRunning)
        return running

    def _check_process(self) -> None:
        """Do nothing: no driver of this process is used."""

    def _open(self) -> _RemoteRunning:
        return _RemoteRunning(self, self._flags, self._plan, 0)

    def _open_variant(self, first: Running, number: int) -> _RemoteRunning:
        assert isinstance(first, _RemoteRunning)
        return _RemoteRunning(self, self._flags, self._plan, number, first)


class _RemoteRunning:
    """One shape of a library that is open on the device."""

    upload_ms: float | None = None  #: Unknown, because it is part of opening.

    def __init__(
        self,
        module: AgentModule,
        flags: int,
        plan: EncodedPlan,
        shape: int,
        first: _RemoteRunning | None = None,
    ):
        self._module, self._flags, self._plan, self._shape = module, flags, plan, shape
        self._inputs, self._outputs = tensor_interfaces(plan, shape)
        self.first_ms: float | None = None
        self.library: RemoteLibrary = self._opened(flags) if first is None else first.library

    def _opened(self, flags: int) -> RemoteLibrary:
        module = self._module
        return module.remote.open(
            module.path,
            backend=module._backend,
            device_index=module.device_index,
            flags=flags,
            cache=module._cache,
        )

    def run(
        self, values: Sequence[object], *, on_device: bool, into: Sequence[np.ndarray | None] = ()
    ) -> Outputs:
        """Run the network once; ``into`` has an array for each output, or ``None``."""
        if on_device:
            raise InputError(
                f"Running {self._module.path} with outputs that stay on the device is not "
                "possible: it is another machine's.",
                remedy="Take them as 'numpy'.",
            )
        wanted = [(info.dtype, info.shape) for info in self._outputs]
        arrays, ms = self.library.run(self._arrays(values), wanted, self._shape)
        self.first_ms = ms if self.first_ms is None else self.first_ms
        names = [info.name for info in self._outputs]
        given = into or (None,) * len(arrays)
        return Outputs(names, map(put, names, arrays, given))

    def profile(self, values: Sequence[object], runs: int) -> list[KernelTime]:
        """Measure every kernel launch, in a second instance, because measuring slows runs down."""
        library = self._opened(binding.PROFILE | binding.UNCHECKED_WEIGHTS)
        try:
            wanted = [(info.dtype, info.shape) for info in self._outputs]
            library.run(self._arrays(values), wanted, self._shape)
            times = library.profile(max(1, runs), self._shape)
            is_cpu = library.about.get("backend") == "cpu"
        finally:
            library.close()
        plan = self._module._plans[-1 if is_cpu else 0]
        measured: list[list[JsonObject]] = []
        for run in times:
            sizes = plan.sizes_by_kernel(self._shape)
            measured.append(
                [
                    {"kernel": name, "start_us": begin, "us": end - begin, **sizes[name].popleft()}
                    for name, begin, end in run
                ]
            )
        return kernel_times(measured, "device")

    def _arrays(self, values: Sequence[object]) -> list[np.ndarray]:
        arrays = []
        for info, value in zip(self._inputs, values, strict=True):
            if isinstance(value, Image):
                raise InputError(
                    f"The input {info.name!r} was given a picture, which is not sent to other "
                    "machines.",
                    remedy="Give an array of the network's input.",
                )
            arrays.append(np.ascontiguousarray(as_array(info, to_blocked(info, np.asarray(value)))))
        return arrays
