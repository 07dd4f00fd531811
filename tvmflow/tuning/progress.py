"""What is known of each task while it is tuned, for whoever watches and for the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .tasks import Task

Knobs = dict[str, Any]

#: An improvement by less is none.
WORTH = 0.99


@dataclass(frozen=True)
class Point:
    """A trial in the course of a task."""

    #: Seconds since the session began; those of an earlier session have 0.
    at_s: float
    #: The cost of one run; infinite for a failure.
    cost: float
    error: str | None


@dataclass
class Progress:
    """How far a task is."""

    task: Task
    heuristic: float = float("inf")
    best: float = float("inf")
    best_knobs: Knobs = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    #: Trials since the last improvement.
    idle: int = 0

    @property
    def trials(self) -> int:
        """Measured, failed or found to be the same as another."""
        return len(self.points)

    @property
    def failures(self) -> int:
        """Trials without a cost."""
        return sum(point.error is not None for point in self.points)

    @property
    def time(self) -> float:
        """Seconds of all of the task's calls in a run of the network, with its best knobs."""
        return self.task.calls * self.best

    @property
    def speedup(self) -> float:
        """Over the heuristic; 1 before both are known."""
        known = float("inf") not in (self.heuristic, self.best)
        return self.heuristic / self.best if known else 1.0

    def take(self, knobs: Knobs, point: Point, is_heuristic: bool) -> None:
        """Take in a finished trial."""
        self.points.append(point)
        if is_heuristic:
            self.heuristic = point.cost
        self.idle = 0 if point.cost < WORTH * self.best else self.idle + 1
        if point.cost < self.best:
            self.best, self.best_knobs = point.cost, knobs


@dataclass(frozen=True)
class Standing:
    """What a device of a farm contributed."""

    device: str
    trials: int
    #: Why it gets no trials now; empty if it gets some.
    aside: str


#: Called whenever a trial has ended, with all tasks and the farm's devices.
Watch = Callable[[Sequence[Progress], Sequence[Standing]], None]
