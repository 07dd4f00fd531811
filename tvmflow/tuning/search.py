"""Searches of knobs: their base class, and those without a cost model."""

from __future__ import annotations

import heapq
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from ..journal.records import Value
from .tasks import Knobs, Task

if TYPE_CHECKING:
    pass

#: Draws after which a random search takes it that nothing new is left.
_DRAWS = 2000


def key_of(knobs: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    """Make knobs hashable."""
    return tuple(knobs.items())


class Search(ABC):
    """Proposes knobs of one task, none of them twice; ``seed`` makes the proposals repeatable."""

    def __init__(self, task: Task, seed: int):
        self.task = task
        self.random = random.Random(f"{seed} {task.digest}")
        self._seen: set[tuple] = set()

    def note(self, knobs: Mapping[str, object]) -> bool:
        """Remember knobs that were tried; return whether they are new."""
        key = key_of({name: knobs[name] for name in self.task.space})
        tried = len(self._seen)
        self._seen.add(key)
        return len(self._seen) > tried

    def propose(self, count: int) -> list[Knobs]:
        """Return up to ``count`` new choices that meet all constraints; none when all are tried."""
        return list(itertools.islice(filter(self.note, self._candidates()), count))

    @abstractmethod
    def _candidates(self) -> Iterator[Knobs]:
        """Choices that meet the constraints, maybe some that were tried."""

    def learn(self, trials: Sequence[tuple[Knobs, float]]) -> None:  # noqa: B027 (few learn)
        """Take in what candidates cost, in seconds; infinite for failures."""


class RandomSearch(Search):
    """Draws at random."""

    def _candidates(self) -> Iterator[Knobs]:
        for _ in range(_DRAWS):
            knobs = {name: self.random.choice(v) for name, v in self.task.space.items()}
            if self.task.allows(knobs):
                yield knobs


class GridSearch(Search):
    """Goes through the whole space, in steps that leave the same gaps everywhere."""

    def __init__(self, task: Task, seed: int, trials: int):
        super().__init__(task, seed)
        size = prod(map(len, task.space.values()))
        step = max(1, size // max(1, trials))
        # The gaps are filled afterwards, where trials are left.
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
    """Walks away from the heuristic, one step of one knob at a time, the nearest first."""

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
                    # Among those of the same distance none comes first by its knob.
                    heapq.heappush(self._queue, (distance + 1, self.random.random(), near))
            pairs = zip(self.task.space.items(), place, strict=True)
            knobs = {name: values[i] for (name, values), i in pairs}
            if self.task.allows(knobs):
                yield knobs


def _nearest(values: Sequence, wanted: Value) -> int:
    """Find the place of a value, or of the nearest number."""
    if isinstance(wanted, str):
        return values.index(wanted) if wanted in values else 0
    return min(range(len(values)), key=lambda i: abs(values[i] - wanted))
