"""Choices of knobs, of which a library times some on the device it meets (`tvmflow_tune`).

The choices of a function are its schedule with other knobs: those that the journals of other
devices have for it, the heuristic's for devices with other registers and waves, and the next values
of single knobs.  Only the functions in which a network spends its time have them, and with plain
kernels one for each function: where a kernel is wrong, another set of knobs costs less than those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from ...devices.presets import Tiling
from ...devices.target import Device
from ...errors import CompileError, JournalError
from ...ir.half_sums import with_free_registers
from ...journal.journal import Journal
from ...journal.records import Target, vars_of
from ...module.standalone.format import AlternativeKind
from ...runtime.json_types import JsonMapping, JsonObject
from ...schedules import FAMILIES, Proposal, Scheduled, schedule_function
from ...schedules.common import Workload
from ...schedules.family import read_knobs, refusal
from ...tuning_logs import find_journal, shipped
from ..generate import generating
from ..lookup import best_knobs, workload_of
from .alternatives import Alternatives, Generated

logger = logging.getLogger(__name__)

#: Share of a network's operations, and most functions, that have choices.
SHARE, FUNCTIONS = 0.95, 24
#: Factors of the vectors of a tile and of the work-items of a group, in the order in which they are
#: tried.  On phones the best tiles are 4 to 16 vectors (`devices.presets.SOURCES`).
FACTORS = ((1, 1), (0.5, 1), (2, 1), (1, 2), (1, 0.5))


def add_choices(made: Alternatives, most: int, least: int) -> JsonObject:
    """Add up to ``most`` choices for hot functions, and ``least`` for the others.

    Returns them by function, for the metadata.
    """
    described: JsonObject = {}
    calls = made.calls()
    hot = _hottest(made) if most else []
    numbers = {name: least for name, listed in calls.items() if listed and least}
    numbers |= dict.fromkeys(hot, max(most, least))
    with ExitStack() as stack:
        journals = list(_journals(made, stack))
        for name, number in numbers.items():
            found = _Choices(made, name, journals)
            found.generate(number)
            if not found.generated:
                continue
            made.plan.alternative_sources.append(
                {kernel: text for each in found.generated for kernel, text in each.sources.items()}
            )
            for number, call in calls[name]:
                for kernels in found.generated:
                    made.add(number, call, kernels, AlternativeKind.CHOICE)
            described[name] = found.describe()
    return described


def _journals(made: Alternatives, stack: ExitStack) -> Iterator[Journal]:
    """Open the journals of the compilation, then those that ship."""
    for path in (*made.job.attempt.journals, *(find_journal(Path(name)) for name in shipped())):
        try:
            yield stack.enter_context(Journal.open(path))
        except JournalError as error:
            logger.info("%s has no choices: %s", path, error.message)


def _hottest(made: Alternatives) -> list[str]:
    """Return the functions with the most operations, in descending order."""
    calls, target = made.calls(), made.job.target
    operations: dict[str, int] = {}
    for name, function in made.functions.items():
        operations[name] = len(calls[name]) * Workload.of(function, target).operations
    found: list[str] = []
    left = SHARE * sum(operations.values())
    for name in sorted(operations, key=lambda name: -operations[name]):
        if left <= 0 or len(found) == FUNCTIONS:
            break
        left -= operations[name]
        found.append(name)
    return found


class _Choices:
    """Other knobs of one function."""

    def __init__(self, made: Alternatives, name: str, journals: list[Journal]) -> None:
        self.made, self.name, self.journals = made, name, journals
        self.function = made.functions[name]
        self.default: Scheduled = made.job.schedules[name]
        self.family = next(f for f in FAMILIES if self.default.family == f.NAME)
        self.workload = workload_of(self.function, self.default.family, self.default.shape)
        self.knobs: list[JsonMapping] = [self.default.knobs]
        self.generated: list[Generated] = []

    def generate(self, most: int) -> None:
        """Generate kernels for up to ``most`` other knobs."""
        for proposal in self._proposals():
            if len(self.generated) == most:
                return
            if any(dict(proposal.knobs) == dict(known) for known in self.knobs):
                continue
            try:
                kernels = self._generated(proposal)
            except CompileError as error:
                logger.info("%s has no kernel with %s: %s", self.name, proposal, error.message)
                continue
            if kernels is not None:
                self.knobs.append(proposal.knobs)
                self.generated.append(kernels)

    def describe(self) -> JsonObject:
        """Return what journals store of a trial, and the knobs, the usual ones first."""
        target = vars_of(Target.of(self.made.job.target))
        knobs = [dict(known) for known in self.knobs]
        return {"workload": vars_of(self.workload), "target": target, "knobs": knobs}

    def _generated(self, proposal: Proposal) -> Generated | None:
        """Generate kernels with knobs; ``None`` if these do not lead to a schedule."""
        target = self.made.job.target
        with generating(target):
            found = schedule_function(
                self.function, target, name=self.name,
                lookup=lambda family, _: proposal if family == self.family.NAME else None,
                families=[self.family, FAMILIES[-1]],
            )  # fmt: skip
        if found.source != proposal.source:
            return None
        return self.made.generate(self.name, found.schedule, f"choice{len(self.generated)}")

    def _proposals(self) -> Iterator[Proposal]:
        target = self.made.job.target
        for journal in self.journals:
            found = best_knobs([journal], self.workload, target, near=True)
            if found is not None:
                yield found
        device = with_free_registers(target.device, self.function)
        shape = self.family.Shape(**self.default.shape)
        others = [_scaled(device, vectors, items) for vectors, items in FACTORS]
        if device.is_cpu:
            # PoCL computes tiles fastest from a copy of their inputs, Intel's runtime larger ones
            # without it.
            unstaged = replace(device, stage_input=False)
            others[1:1] = [_scaled(unstaged, 2, 1), unstaged]
        for preset in others:
            knobs = self.family.heuristic(shape, preset)
            yield Proposal("heuristic of another device", asdict(knobs))
        for name, values in self.family.space(shape, device).items():
            index = values.index(self.default.knobs[name])
            for other in values[max(0, index - 1) : index] + values[index + 1 : index + 2]:
                knobs = read_knobs(self.family, {**self.default.knobs, name: other})
                if refusal(self.family, knobs, shape, device) is None:
                    yield Proposal("neighbour", asdict(knobs))


def _scaled(device: Device, vectors: float, items: float) -> Device:
    """Return a device with more or fewer registers, and larger or smaller work-groups."""

    def tiling(known: Tiling) -> Tiling:
        found = replace(known, vectors=max(1, round(known.vectors * vectors)))
        return found if device.is_cpu else replace(found, items=max(1, round(known.items * items)))

    group = device.group_size if device.is_cpu else max(1, round(device.group_size * items))
    return replace(
        device,
        accumulators=max(1, round(device.accumulators * vectors)),
        group_size=min(group, device.max_group_size),
        convolution=tiling(device.convolution),
        depthwise=tiling(device.depthwise),
    )
