"""Tuning for a device that is not connected: knobs by predicted time.

Knobs of each task are searched with :mod:`.device_model`, without compiling anything.  If a
compiler is available, knobs whose machine code spills registers are then rejected.  The results go
into a journal, marked as predicted.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tvm import s_tir

from ..devices.gpus import Gpu
from ..errors import TvmflowError
from ..journal.journal import Journal
from ..journal.records import Device, Trial, Value
from ..schedules import Proposal, schedule_function
from .device_model import CONSTANTS, Kernel, rates_of, registers, seconds
from .kernel_facts import FAMILIES, KNOBS, Precision, kernel_of
from .search import key_of
from .tasks import Knobs, Task
from .tuner import TOOLCHAIN

logger = logging.getLogger(__name__)

#: Random starts of a search, besides the heuristic's knobs.
STARTS = 8
#: Tiles of each task that are compiled to machine code, besides the heuristic's.
FINALISTS = 4


@dataclass(frozen=True)
class Code:
    """A compiler's report on a kernel."""

    #: Name and version of the compiler.
    compiler: str
    #: Registers of a work-item, of four 32-bit values each, and spilled registers.
    registers: int
    spills: int
    #: Waves that a core holds, and work-items in each.
    waves: int
    wave: int


#: Compiles a task's kernels with given knobs; ``None`` for a kernel that cannot be compiled.
MachineCode = Callable[[Sequence[tuple[Task, Knobs]]], Sequence[Code | None]]


@dataclass(frozen=True)
class Choice:
    """Knobs of a task, and their predicted time."""

    knobs: Knobs
    seconds: float
    code: Code | None = None

    @property
    def order(self) -> tuple[int, float]:
        """Return the sort key, the least is best: code that spills is slower than predicted."""
        return self.code.spills if self.code else 0, self.seconds


@dataclass(frozen=True)
class Prediction:
    """The knobs of a task: the heuristic's, and those with the best prediction."""

    task: Task
    heuristic: Choice
    best: Choice


def why_unknown(task: Task) -> str | None:
    """Return why the model does not support a task's kernel; ``None`` if it does."""
    if task.family.NAME not in FAMILIES:
        return f"the model does not know the family {task.family.NAME}"
    if not task.shape.texture or getattr(task.shape, "weights", "texture") != "texture":
        return "it does not read textures"
    return None


class Descent:
    """Search for the knobs of one task with the least predicted time.

    Starting from the heuristic's knobs, and from random ones, one knob at a time is set to its best
    value while the others stay, until nothing improves.  Knobs that the model does not distinguish
    keep the heuristic's value.
    """

    def __init__(self, task: Task, gpu: Gpu, seed: int = 0):
        self.task, self.gpu = task, gpu
        self.values = {n: v for n, v in task.space.items() if n in KNOBS and len(v) > 1}
        stored = 2 if task.workload.dtype == "fp16" else 4
        self._precision = Precision(stored, 4 if task.workload.accumulate == "fp32" else 2)
        # The input is [N, C', H, W, c] or [N, C, H, W].
        self._stride = max(1, round(task.arguments[0].shape[3] / task.shape.width))
        self._random = random.Random(f"{seed} {task.digest}")
        self._known: dict[tuple, tuple[float, float]] = {}

    def seconds(self, knobs: Knobs) -> float:
        """Return the predicted time of knobs."""
        return float(seconds(self._kernel(knobs), self.gpu))

    def best(self, count: int) -> list[Choice]:
        """Return the best choices found, each with another tile of a work-item.

        Among equal times, those with fewer registers come first.
        """
        self._descend(self.task.heuristic)
        for _ in range(STARTS):
            drawn = {name: self._random.choice(values) for name, values in self.values.items()}
            self._descend({**self.task.heuristic, **drawn})
        found: dict[tuple, Choice] = {}
        for key, (time_s, _) in sorted(self._known.items(), key=lambda item: item[1]):
            tile = tuple(pair for pair in key if not pair[0].startswith("group_"))
            found.setdefault(tile, Choice(dict(key), time_s))
        return list(found.values())[:count]

    def _descend(self, knobs: Knobs) -> None:
        least, found = self._cost(knobs), True
        while found:
            found = False
            for name, values in self.values.items():
                near = [{**knobs, name: value} for value in values if value != knobs[name]]
                best = min(near, key=self._cost)
                if (cost := self._cost(best)) < least:
                    knobs, least, found = best, cost, True

    def _cost(self, knobs: Knobs) -> tuple[float, float]:
        """Return predicted time and registers; infinite if a constraint forbids the knobs."""
        key = key_of(knobs)
        if key in self._known:
            return self._known[key]
        if not self.task.allows(knobs):
            return float("inf"), float("inf")
        kernel = self._kernel(knobs)
        cost = self.seconds(knobs), float(registers(kernel, CONSTANTS[self.gpu.isa]))
        return self._known.setdefault(key, cost)

    def _kernel(self, knobs: Knobs) -> Kernel:
        task = self.task
        return kernel_of(
            task.family.NAME, task.shape, knobs, self._precision, self.gpu, self._stride
        )


def predict(
    tasks: Sequence[Task], gpu: Gpu, machine_code: MachineCode | None = None, seed: int = 0
) -> list[Prediction]:
    """Find knobs for a GPU, for the tasks that the model supports.

    Raises `TargetError` if the rates of the GPU are not known, and `TvmflowError` if the model
    supports none of the tasks.
    """
    rates_of(gpu)
    known = []
    for task in tasks:
        if (reason := why_unknown(task)) is None:
            known.append(task)
        else:
            logger.info("%s keeps the heuristic's knobs: %s.", task.name, reason)
    if not known:
        raise TvmflowError(
            "Predicting knobs failed: convolutions that read textures were expected, and the "
            "network has none.",
            remedy="Leave `storage` at auto, and choose a `device` that has textures.",
        )
    searches = [Descent(task, gpu, seed) for task in known]
    found = []
    for search in searches:
        heuristic = search.task.heuristic
        best = [c for c in search.best(FINALISTS + 1) if c.knobs != heuristic][:FINALISTS]
        found.append([Choice(heuristic, search.seconds(heuristic)), *best])
    if machine_code is not None:
        cases = [(s.task, c.knobs) for s, some in zip(searches, found, strict=True) for c in some]
        codes = iter(machine_code(cases))
        found = [list(_compiled([(choice, next(codes)) for choice in some])) for some in found]
    else:
        # The first choice that can be scheduled, as constraints do not catch everything.
        found = [
            [first, *islice((c for c in some if scheduled(s.task, c.knobs) is not None), 1)]
            for s, (first, *some) in zip(searches, found, strict=True)
        ]
    # Among equals the first one is chosen, which is the heuristic's.
    return [
        Prediction(search.task, some[0], min(some, key=lambda choice: choice.order))
        for search, some in zip(searches, found, strict=True)
    ]


def scheduled(task: Task, knobs: Knobs) -> s_tir.Schedule | None:
    """Schedule a task's function with knobs; ``None`` if they do not lead to a schedule."""
    proposal = Proposal("predicted", knobs)
    with task.target.tvm_target:
        found = schedule_function(task.function, task.target, lookup=lambda *_: proposal)
    return found.schedule if found.source == proposal.source else None


def _compiled(choices: Sequence[tuple[Choice, Code | None]]) -> Iterator[Choice]:
    """Yield the choices with their machine code.

    Choices that cannot be compiled are left out, except for the first one, the heuristic's.
    """
    for number, (choice, code) in enumerate(choices):
        if code is not None or number == 0:
            yield replace(choice, code=code)


def write_down(journal: Journal, predictions: Sequence[Prediction], gpu: Gpu) -> None:
    """Append predictions to a journal, marked as such; `JournalError` if writing fails."""
    for each in predictions:
        about: dict[str, Value] = {"model": "tvmflow.tuning.device_model"}
        if (code := each.best.code) is not None:
            about |= {name: getattr(code, name) for name in ("compiler", "registers", "spills")}
        journal.append(
            Trial(
                *(each.task.workload, each.task.journal_target.predicted, Device("", gpu.name)),
                *(each.best.knobs, (each.best.seconds,)),
                timestamp=time.time(),
                toolchain=TOOLCHAIN,
                source="predicted",
                provenance=about,
            )
        )
