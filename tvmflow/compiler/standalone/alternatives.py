"""Further kernels of functions, which may take the place of those that a library usually runs.

Each alternative of a call reads and writes the same tensors as the call's own kernels.  Workspaces
are shared: only one alternative runs at a time.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from typing import NamedTuple

from tvm import IRModule, s_tir, tirx

from ...codegen.kernels import KernelCall, generate_kernels, kernel_calls
from ...errors import CompileError
from ...ir.signatures import wants_schedule
from ...ir.workspaces import with_workspaces
from ...module.standalone.format import AlternativeKind
from ...module.standalone.plan import Allocation, Alternative, Call, Plan, PlanTensor
from ...schedules import FAMILIES, fallback, schedule_function
from ..compilation import Compilation
from ..generate import generating
from .extract import launches_of

logger = logging.getLogger(__name__)


class Generated(NamedTuple):
    """Kernels of a function."""

    calls: list[KernelCall]
    workspaces: list[Allocation]
    sources: dict[str, str]


class Alternatives:
    """Generator of alternatives for a plan's calls."""

    def __init__(self, job: Compilation, plan: Plan) -> None:
        self.job, self.plan = job, plan
        #: The functions that have a schedule, before they are scheduled.
        self.functions: dict[str, tirx.PrimFunc] = {
            gv.name_hint: function
            for gv, function in job.unscheduled.functions.items()
            if isinstance(function, tirx.PrimFunc) and wants_schedule(function)
        }
        #: Numbers of the allocations of workspaces, which all functions share.
        self._workspaces: list[int] = []

    def calls(self) -> dict[str, list[tuple[int, Call]]]:
        """Return the numbered calls of each function."""
        found: dict[str, list[tuple[int, Call]]] = {name: [] for name in self.functions}
        for number, call in enumerate(self.plan.calls):
            if call.function in found:
                found[call.function].append((number, call))
        return found

    def generate(self, name: str, schedule: s_tir.Schedule, suffix: str) -> Generated:
        """Generate the kernels of a function with a schedule; raises `CompileError`."""
        scheduled, function = schedule.mod["main"], self.functions[name]
        with generating(self.job.target):
            attributes = {"tirx.is_scheduled": True, **dict(function.attrs or {})}
            plain, buffers = with_workspaces(scheduled.with_attrs(attributes))
            kernels = generate_kernels(IRModule({f"{name}_{suffix}": plain}), self.job.target)
            calls = kernel_calls(kernels, f"{name}_{suffix}")
        shapes = ((tuple(int(d) for d in b.shape), str(b.dtype)) for b in buffers)
        workspaces = [Allocation.of(shape, dtype) for shape, dtype in shapes]
        sources = {call.kernel: kernels.sources[call.kernel] for call in calls}
        return Generated(calls, workspaces, sources)

    def add(self, number: int, call: Call, kernels: Generated, kind: AlternativeKind) -> None:
        """Add an alternative of a call."""
        operands = list(call.operands[: len(self.functions[call.function].params)])
        for index, allocation in enumerate(kernels.workspaces):
            operands.append(PlanTensor(f"workspace{index}", self._workspace(index, allocation)))
        launches = tuple(launches_of(call.function, kernels.calls, operands))
        self.plan.alternatives.append(Alternative(number, launches, kind))

    def _workspace(self, index: int, needed: Allocation) -> int:
        if index == len(self._workspaces):
            self._workspaces.append(self.plan.allocate(needed))
        there = self.plan.allocations[self._workspaces[index]]
        larger = replace(there, bytes=max(there.bytes, needed.bytes))
        self.plan.allocations[self._workspaces[index]] = larger
        return self._workspaces[index]


def add_plain_kernels(made: Alternatives) -> None:
    """Add plain kernels of all functions, for a device whose driver computes others wrongly.

    Each function is scheduled by the fallback family with one element for each work-item and no
    vectors.  A library uses these kernels where its self-test finds the others wrong
    (`native/standalone/self_test.c`); functions that have none are left as they are.
    """
    for name, calls in made.calls().items():
        if not calls:
            continue
        try:
            kernels = _plain(made, name)
        except CompileError as error:
            logger.info("%s has no plain kernel: %s", name, error.message)
            continue
        made.plan.alternative_sources.append(kernels.sources)
        for number, call in calls:
            made.add(number, call, kernels, AlternativeKind.PLAIN)


def _plain(made: Alternatives, name: str) -> Generated:
    target = made.job.target
    knobs = replace(fallback.heuristic(fallback.Shape(1), target.device), elements=1, vector=1)
    with generating(target):
        found = schedule_function(
            made.functions[name], target, asdict(knobs), name, families=FAMILIES[-1:]
        )
    return made.generate(name, found.schedule, "plain")


def sort_alternatives(plan: Plan) -> None:
    """Sort a plan's alternatives as the library expects them."""
    calls = plan.calls
    plan.alternatives.sort(
        key=lambda a: (calls[a.call].first, -a.calls, a.kind == AlternativeKind.PLAIN)
    )
