"""Searches of knobs: their base class, and searches without a cost model."""

from __future__ import annotations

import heapq
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ..journal.records import Value
from .tasks import Knobs, Task

#: Draws without a new choice after which a random search ends.
_DRAWS = 2000


def key_of(knobs: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    """Return knobs as a hashable key."""
    return tuple(knobs.items())


class Search(ABC):
    """Proposals of knobs for one task, without repetition; ``seed`` makes them repeatable."""

    def __init__(self, task: Task, seed: int):
        self.task = task
        self.random = random.Random(f"{seed} {task.digest}")
        self._seen: set[tuple] = set()

    def note(self, knobs: Mapping[str, object]) -> bool:
        """Note knobs that were tried; return whether they are new."""
        key = key_of({name: knobs[name] for name in self.task.space})
        tried = len(self._seen)
        self._seen.add(key)
        return len(self._seen) > tried

    def propose(self, count: int) -> list[Knobs]:
        """Return up to ``count`` new choices that meet all constraints; none when all are tried."""
        return list(itertools.islice(filter(self.note, self._candidates()), count))

    @abstractmethod
    def _candidates(self) -> Iterator[Knobs]:
        """Yield choices that meet the constraints; they may have been tried."""

    def learn(self, trials: Sequence[tuple[Knobs, float]]) -> None:  # noqa: B027 (few learn)
        """Learn from the costs of candidates in seconds; infinite for failures."""


class RandomSearch(Search):
    """A search that draws at random."""

    def _candidates(self) -> Iterator[Knobs]:
        for _ in range(_DRAWS):
            knobs = {name: self.random.choice(v) for name, v in self.task.space.items()}
            if self.task.allows(knobs):
                yield knobs


class GridSearch(Search):
    """A search through the whole space in even steps."""

    def __init__(self, task: Task, seed: int, trials: int):
        super().__init__(task, seed)
        size = prod(map(len, task.space.values()))
        step = max(1, size // max(1, trials))
        # Remaining trials fill the gaps.
        self._places = (place for first in range(step) for place in range(first, size, step))

    def _candidates(self) -> Iterator[Knobs]:
        for place in self._places:
            knobs = {}
            for name, values in reversed(self.task.space.items()):
                place, index = divmod(place, len(values))
                knobs[name] = values[index]
            if self.task.allows(knobs):
                yield {name: knobs[name] for name in self.task.space}


class NeighbourhoodSearch(Search):
    """A search outwards from the heuristic's knobs, one step of one knob at a time."""

    def __init__(self, task: Task, seed: int):
        super().__init__(task, seed)
        self._values = list(task.space.values())
        start = tuple(_nearest(values, task.heuristic[name]) for name, values in task.space.items())
        self._queue: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, start)]
        self._queued = {start}

    def _candidates(self) -> Iterator[Knobs]:
        while self._queue:
            distance, _, place = heapq.heappop(self._queue)
            for axis, step in itertools.product(range(len(place)), (-1, 1)):
                index = place[axis] + step
                near = (*place[:axis], index, *place[axis + 1 :])
                if 0 <= index < len(self._values[axis]) and near not in self._queued:
                    self._queued.add(near)
                    # A random order among equal distances, so that no knob is preferred.
                    heapq.heappush(self._queue, (distance + 1, self.random.random(), near))
            pairs = zip(self.task.space.items(), place, strict=True)
            knobs = {name: values[i] for (name, values), i in pairs}
            if self.task.allows(knobs):
                yield knobs


def _nearest(values: Sequence, wanted: Value) -> int:
    """Return the index of a value, or of the nearest number."""
    if isinstance(wanted, str):
        return values.index(wanted) if wanted in values else 0
    return min(range(len(values)), key=lambda i: abs(values[i] - wanted))
