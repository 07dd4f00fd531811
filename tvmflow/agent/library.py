"""Standalone libraries that an agent has opened."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import AgentError, VerificationError
from ..ir.tensors import dtype_from_name
from ..module.standalone.binding import TEST_FIELDS, TestOptions
from ..module.standalone.format import DTYPES
from ..module.standalone.tested import SelfTest
from ..module.standalone.tuned import Tuned, check_budget
from ..runtime.json_types import JsonObject
from .connection import Connection
from .frames import Code, FieldReader, Fields, Kind

#: Time limit of opening a library: a phone's driver compiles a network for minutes.
OPEN_S = 900.0
#: Time for which each run of a self-test may take longer.
_TEST_RUN_S = 1.0
#: Caches of built programs (`RemoteDevice.open`).
NO_CACHE, SHARED_CACHE, NEW_CACHE = range(3)
#: Reasons why a measurement ended.
REASONS = ("sure", "time", "runs")


@dataclass(frozen=True)
class Samples:
    """Times of single runs in milliseconds, and why there are no more of them."""

    ms: tuple[float, ...]
    reason: str


class RemoteLibrary:
    """A standalone library that is open on a device."""

    def __init__(
        self,
        connection: Connection,
        device: str,
        path: Path,
        handle: int,
        open_ms: float,
        about: JsonObject,
    ):
        self.path = path
        self._connection, self._device = connection, device
        self.open_ms, self.about = open_ms, about
        self._handle = handle

    def run(
        self,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[tuple[str, tuple[int, ...]]],
        shape: int = 0,
    ) -> tuple[list[np.ndarray], float]:
        """Run once; return the outputs, and the time there in ms.

        ``outputs`` are the dtype and shape of each, and ``shape`` is the library's shape.
        """
        put = self._connection.put
        request = Fields().u32(self._handle, shape, len(inputs))
        for index, array in enumerate(inputs):
            array = np.ascontiguousarray(array)
            content = array.reshape(-1).view(np.uint8).tobytes()
            request.u32(index, DTYPES[array.dtype.name]).raw(put(content))
        found = [np.empty(extents, dtype_from_name(dtype)) for dtype, extents in outputs]
        request.u32(len(found))
        for index, array in enumerate(found):
            request.u32(index, DTYPES[outputs[index][0]]).u64(array.nbytes)
        views = [memoryview(array.reshape(-1).view(np.uint8).data) for array in found]
        with naming(self.path, self._device):
            answer = self._connection.request(
                Kind.RUN, request, OPEN_S, lambda part: part.take_into(views[part.u32()])
            )
        return found, answer.u64() * 1e-6

    def time(
        self,
        *,
        shape: int = 0,
        copies: bool = True,
        warmup: int = 5,
        runs: int = 1_000_000,
        seconds: float = 10.0,
        share: float = 0.0,
    ) -> Samples:
        """Time runs on the inputs of the last `run`, with the copies of inputs and outputs.

        It ends after ``runs`` or ``seconds``, or when the median is known to ``share`` of it.
        """
        request = Fields().u32(self._handle, shape, int(copies), warmup, runs)
        request.u64(round(seconds * 1e9)).f64(share)
        ns: list[int] = []
        with naming(self.path, self._device):
            answer = self._connection.request(
                Kind.TIME,
                request,
                OPEN_S + 2 * seconds,
                lambda part: ns.extend(np.frombuffer(part.rest(), "<u8").tolist()),
            )
        return Samples(tuple(each * 1e-6 for each in ns), REASONS[answer.u32()])

    def profile(self, runs: int, shape: int = 0) -> list[list[tuple[str, float, float]]]:
        """Return the name of each kernel, with its begin and end in µs, for each run.

        The library must have been opened with the flag `binding.PROFILE`.
        """
        found: list[list[tuple[str, float, float]]] = []

        def add(part: FieldReader) -> None:
            times = [(part.u64(), part.u64(), part.text()) for _ in range(part.u32())]
            found.append([(name, begin * 1e-3, end * 1e-3) for begin, end, name in times])

        request = Fields().u32(self._handle, shape, runs)
        with naming(self.path, self._device):
            self._connection.request(Kind.PROFILE, request, OPEN_S, add)
        return found

    def self_test(
        self, runs: int = 0, pause_ms: int = 0, budget_ms: int = 0, second_instance: bool = False
    ) -> SelfTest:
        """Run the library's test inputs as `StandaloneModule.self_test` does.

        Raises `VerificationError` if a result is wrong, and `AgentError` if the device fails.
        """
        options = TestOptions.of(runs, pause_ms, budget_ms, second_instance)
        request = Fields().u32(self._handle, *(getattr(options, n) for n in TEST_FIELDS))
        with naming(self.path, self._device):
            limit_s = OPEN_S + pause_ms * 1e-3 + runs * _TEST_RUN_S
            answer = self._connection.request(Kind.SELF_TEST, request, limit_s)
        message, report = answer.text(), json.loads(answer.text())
        found = SelfTest(answer.f64(), answer.f64(), answer.u64(), report)
        if message:
            what, _, remedy = message.partition(" Remedy: ")
            raise VerificationError(
                f"Checking {self.path} on {self._device} failed: {what}",
                remedy=remedy,
                details=found.details,
            )
        return found

    def tune(
        self, budget_ms: int = 1000, progress: Callable[[float], object] | None = None
    ) -> Tuned:
        """Time the library's choices there, as `StandaloneModule.tune` does.

        Raises `InputError` for a budget of 0, and `AgentError` if the library has no choices, or
        the device fails.
        """
        check_budget(budget_ms)

        def add(part: FieldReader) -> None:
            done = part.f64()
            if progress is not None:
                progress(done)

        request = Fields().u32(self._handle, budget_ms)
        with naming(self.path, self._device):
            limit_s = OPEN_S + budget_ms * 1e-3
            answer = self._connection.request(Kind.TUNE, request, limit_s, add)
        return Tuned(json.loads(answer.text()))

    def describe(self) -> JsonObject:
        """Return the library's report of device, memory and programs."""
        answer = self._connection.request(Kind.DESCRIBE, Fields().u32(self._handle))
        found: JsonObject = json.loads(answer.text())
        return found

    def binaries(self) -> dict[str, bytes]:
        """Close a library that was opened with `NEW_CACHE`; return its cache's files by name."""
        found: dict[str, bytearray] = {}

        def add(part: FieldReader) -> None:
            name, size = part.text(), part.u64()
            part.take_into(found.setdefault(name, bytearray(size)))

        request = Fields().u32(self._handle)
        self._connection.request(Kind.BINARIES, request, OPEN_S, add)
        return {name: bytes(content) for name, content in found.items()}

    def close(self) -> None:
        """Close it; do nothing if its session has ended."""
        try:
            self._connection.request(Kind.CLOSE, Fields().u32(self._handle))
        except AgentError as error:
            if error.code != Code.MISSING:
                raise


@contextmanager
def naming(path: Path, device: str) -> Iterator[None]:
    """Name the library and the device in errors of the library."""
    try:
        yield
    except AgentError as error:
        if error.code == Code.LIBRARY:
            error.message = f"Running {path} on {device} failed: {error.message}"
            error.args = (error.message,)
        raise
