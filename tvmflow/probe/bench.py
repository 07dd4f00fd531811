"""Timing and checking of kernels on a device behind an agent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from ..agent.device import RemoteDevice, RemoteLaunch, RunTime
from ..errors import AgentError, DeviceError

#: Rounds whose median is the result.
ROUNDS = 7
#: Least time of a round; shorter launches are repeated in it.
ROUND_S = 0.01
#: Most time of one launch: some systems end kernels that take seconds.
LAUNCH_S = 0.2
#: Most time of all rounds, after which no further one is begun.
_ROUNDS_S = 2.0
#: Time limit of requests; a kernel that takes so long hangs.
_LIMIT_S = 15.0
_MOST_REPEATS = 1000
#: Least and most launches in a queue, and the time that they may take.
_LEAST_LAUNCHES, _MOST_LAUNCHES, _QUEUE_S = 50, 5000, 0.1
#: Most launches in a recording, as in large networks: PoCL's cost more each in longer ones.
_MOST_RECORDED = 1000
#: Least share of a launch's time by the agent's clock that its kernel takes.
_LEAST_SHARE = 0.01
#: Largest growth of the work from one attempt to the next.
_GROWTH = 16
#: Tolerance of sums, which are exact up to 2^24.
_RELATIVE = 1e-3
#: Bits that are no number, in memory whose content is not written yet.
_NAN = b"\xff" * 4


class Program(NamedTuple):
    """Source and options of kernels."""

    source: str
    options: str


@dataclass(frozen=True)
class Case:
    """A kernel whose work grows with an amount: rows of a picture, or steps of a loop."""

    name: str
    #: Launch for an amount.
    launch: Callable[[int], RemoteLaunch]
    #: Bytes or operations of such a launch.
    work: Callable[[int], float]
    #: Sum that each work-item writes.
    expected: Callable[[int], float]
    #: Memory with the sums.
    sums: int
    least: int
    most: int
    #: Launch that writes the sums, where another kernel than the timed one does.
    check: Callable[[int], RemoteLaunch] | None = None
    #: Time for which the amount grows.
    target_s: float = 2 * ROUND_S


class Ready(NamedTuple):
    """A launch that takes long enough to be measured."""

    launch: RemoteLaunch
    #: Bytes or operations of the launch.
    work: float
    seconds: float


class Bench:
    """An OpenCL device, and the memory that one measurement has allocated there."""

    def __init__(self, remote: RemoteDevice, index: int):
        self.remote, self.index = remote, index
        #: Whether times are those of the driver's events, or else of the agent's clock.
        self.has_events = True
        self._handles: list[int] = []
        self._programs: dict[Program, int] = {}

    def build(self, program: Program) -> int:
        """Build a program unless it was built; return its handle."""
        if program not in self._programs:
            built = self.remote.build(program.source, program.options, self.index)
            self._programs[program] = built.handle
        return self._programs[program]

    def forget_programs(self) -> None:
        """Build programs again, as the session with them has ended."""
        self._programs.clear()

    @contextmanager
    def memory(self) -> Iterator[None]:
        """Release what is allocated in this context."""
        try:
            yield
        finally:
            handles, self._handles = self._handles, []
            with suppress(AgentError):
                self.remote.free(handles)

    def buffer(self, size_bytes: int, pattern: bytes = _NAN) -> int:
        """Allocate a buffer that is filled with a pattern; return its handle."""
        handle = self.remote.allocate(size_bytes, device_index=self.index)
        self._handles.append(handle)
        self.remote.fill(handle, pattern)
        return handle

    def values(self, numbers: np.ndarray) -> int:
        """Allocate a buffer with these numbers; return its handle."""
        handle = self.buffer(numbers.nbytes)
        self.remote.write(handle, numbers.tobytes())
        return handle

    def image(self, size: tuple[int, int, int], channel_type: int, pattern: bytes) -> int:
        """Allocate an image array that is filled with a pattern; return its handle."""
        handle = self.remote.allocate(
            image=size, channel_type=channel_type, device_index=self.index
        )
        self._handles.append(handle)
        self.remote.fill(handle, pattern)
        return handle

    def grow(self, case: Case) -> Ready:
        """Find the amount of work that takes the case's time, and check the sums.

        Raises `DeviceError` if they are wrong.
        """
        amount, most = case.least, case.most // case.least * case.least
        while (s := self._seconds(case.launch(amount))) < case.target_s / 2 and amount < most:
            growth = max(2.0, min(_GROWTH, case.target_s / max(s, 1e-9)))
            amount = min(most, int(amount * growth) // case.least * case.least)
        self._check(case, amount)
        return Ready(case.launch(amount), case.work(amount), s)

    def rates(self, ready: Sequence[Ready]) -> list[float]:
        """Return the work in a second of each launch, which are measured in turn."""
        if not ready:
            return []
        shortest = min(each.seconds for each in ready)
        repeats = max(1, min(_MOST_REPEATS, math.ceil(ROUND_S / max(shortest, 1e-9))))
        total = repeats * sum(each.seconds for each in ready)
        rounds = max(3, min(ROUNDS, int(_ROUNDS_S / max(total, 1e-9))))
        times = self._times([[each.launch] for each in ready], repeats, rounds)
        found = []
        for each, own in zip(ready, zip(*times, strict=True), strict=True):
            seconds, is_by_events = _median(own)
            self.has_events = self.has_events and is_by_events
            found.append(each.work * repeats / seconds)
        return found

    def launch_seconds(self, program: Program, *, recorded: bool = False) -> float:
        """Return the time of a launch of `nothing` among many, on the agent's clock.

        They are enqueued one by one, or with ``recorded`` replayed from one recording.
        """
        with self.memory():
            sums = self.buffer(4)
            launch = RemoteLaunch(self.build(program), "nothing", (sums,), (1,), (1,))
            case = Case("launches", lambda _: launch, float, lambda _: 1.0, sums, 1, 1)
            self._check(case, 1, recorded=recorded)
            once_s = self._launch_seconds(launch, _LEAST_LAUNCHES, 1, recorded)
            most = _MOST_RECORDED if recorded else _MOST_LAUNCHES
            count = min(most, int(_QUEUE_S / max(once_s, 1e-9)))
            return self._launch_seconds(launch, max(_LEAST_LAUNCHES, count), ROUNDS, recorded)

    def _launch_seconds(
        self, launch: RemoteLaunch, count: int, rounds: int, recorded: bool
    ) -> float:
        """Return the median time of a launch among so many, which are one run or recording."""
        sequence, repeats = ([launch] * count, 1) if recorded else ([launch], count)
        times = self._times([sequence], repeats, rounds, recorded=recorded)
        return median(each.wall_s for (each,) in times) / count

    def wave(self, program: Program, group: int) -> int:
        """Return the size of the largest subgroup in a work-group of this size.

        Raises `DeviceError` if the work-items do not agree on one that is possible.
        """
        with self.memory():
            sums = self.buffer(4 * group)
            launch = RemoteLaunch(self.build(program), "wave", (sums,), (group,), (group,))
            self.remote.launch([[launch]], limit_s=_LIMIT_S)
            sizes = set(np.frombuffer(self.remote.read(sums, 4 * group), "<f4").tolist())
        if sizes <= set(range(1, group + 1)) and len(sizes) == 1:
            return int(sizes.pop())
        raise DeviceError(
            f"Measuring subgroups failed: in a work-group of {group} work-items they have "
            f"{', '.join(f'{size:g}' for size in sorted(sizes)[:4])} work-items, expected one "
            f"number from 1 to {group}.",
            remedy="Update the device's driver.",
        )

    def _times(
        self,
        sequences: Sequence[Sequence[RemoteLaunch]],
        repeats: int,
        rounds: int,
        *,
        recorded: bool = False,
    ) -> list[list[RunTime]]:
        """Return the times of sequences of launches in turn, by round and sequence."""
        return self.remote.launch(
            sequences,
            warmup=1,
            repeats=repeats,
            rounds=rounds,
            limit_s=_LIMIT_S,
            recorded=recorded,
        )

    def _seconds(self, launch: RemoteLaunch) -> float:
        """Return the time of a launch."""
        ((once,),) = self._times([[launch]], 1, 1)
        return _median([once])[0]

    def _check(self, case: Case, amount: int, *, recorded: bool = False) -> None:
        launch = (case.check or case.launch)(amount)
        items = math.prod(launch.global_size)
        self.remote.fill(case.sums, _NAN)
        self.remote.launch([[launch]], limit_s=_LIMIT_S, recorded=recorded)
        found = np.frombuffer(self.remote.read(case.sums, 4 * items), "<f4")
        expected = case.expected(amount)
        wrong = ~np.isclose(found, expected, rtol=_RELATIVE, atol=0.0)
        if wrong.any():
            raise DeviceError(
                f"Measuring {case.name} failed: {np.count_nonzero(wrong)} of {items} work-items "
                f"of the kernel {launch.kernel} gave a wrong sum, such as {found[wrong][0]:g}, "
                f"expected {expected:g}.",
                remedy="Update the device's driver, or compile for its CPU with `target=llvm`.",
            )


def _median(times: Sequence[RunTime]) -> tuple[float, bool]:
    """Return the median time, and whether it is that of the driver's events.

    Some drivers, such as Mesa's rusticl on a CPU, report events of a nanosecond.
    """
    has_events = all(each.kernels_s > _LEAST_SHARE * each.wall_s for each in times)
    return median(each.kernels_s if has_events else each.wall_s for each in times), has_events
