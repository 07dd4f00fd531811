"""Plain kernels of all functions, for a device whose driver computes some of them wrongly.

Each function is scheduled a second time, by the fallback family with one element for each work-item
and no vectors, and reads and writes the same tensors.  A library uses these kernels where its
self-test finds the others wrong (`native/standalone/self_test.c`).
"""

from __future__ import annotations

import logging
from dataclasses import asdict, replace

from tvm import IRModule, tirx

from ...codegen.kernels import KernelCall, generate_kernels, kernel_calls
from ...errors import CompileError
from ...ir.signatures import wants_schedule
from ...ir.workspaces import with_workspaces
from ...module.standalone.plan import Allocation, Alternative, Call, Plan, PlanTensor
from ...schedules import FAMILIES, fallback, schedule_function
from ..compilation import Compilation
from ..generate import generating
from .check import check_alternatives
from .extract import launches_of

logger = logging.getLogger(__name__)


def add_alternatives(job: Compilation, plan: Plan) -> None:
    """Add plain kernels for the calls of a plan; functions that have none are left as they are."""
    functions = {gv.name_hint: f for gv, f in job.unscheduled.functions.items()}
    maker = _Maker(job, plan)
    for number, call in enumerate(plan.calls):
        function = functions.get(call.function)
        if isinstance(function, tirx.PrimFunc) and wants_schedule(function):
            maker.add(number, call, function)
    check_alternatives(plan)


class _Maker:
    """Generator of plain kernels, one program for each function."""

    def __init__(self, job: Compilation, plan: Plan) -> None:
        self.job, self.plan = job, plan
        #: Launches and workspaces of the functions so far; ``None`` for those without code.
        self.known: dict[str, tuple[list[KernelCall], list[Allocation]] | None] = {}
        #: Numbers of the allocations of workspaces, which all functions share.
        self.workspaces: list[int] = []

    def add(self, number: int, call: Call, function: tirx.PrimFunc) -> None:
        """Add the alternative of a call."""
        if call.function not in self.known:
            try:
                self.known[call.function] = self._generate(call.function, function)
            except CompileError as error:
                logger.info("%s has no plain kernel: %s", call.function, error.message)
                self.known[call.function] = None
        if (found := self.known[call.function]) is None:
            return
        kernels, workspaces = found
        operands = list(call.operands[: len(function.params)])
        for index, allocation in enumerate(workspaces):
            operands.append(PlanTensor(f"workspace{index}", self._workspace(index, allocation)))
        launches = tuple(launches_of(call.function, kernels, operands))
        self.plan.alternatives.append(Alternative(number, launches))

    def _workspace(self, index: int, needed: Allocation) -> int:
        if index == len(self.workspaces):
            self.workspaces.append(self.plan.allocate(needed))
        there = self.plan.allocations[self.workspaces[index]]
        larger = replace(there, bytes=max(there.bytes, needed.bytes))
        self.plan.allocations[self.workspaces[index]] = larger
        return self.workspaces[index]

    def _generate(
        self, name: str, function: tirx.PrimFunc
    ) -> tuple[list[KernelCall], list[Allocation]]:
        """Generate a function's kernels, and add their source to the plan."""
        target = self.job.target
        knobs = replace(fallback.heuristic(fallback.Shape(1), target.device), elements=1, vector=1)
        with generating(target):
            scheduled = schedule_function(
                function, target, asdict(knobs), name, families=FAMILIES[-1:]
            ).schedule.mod["main"]
            plain, buffers = with_workspaces(
                scheduled.with_attrs({"tirx.is_scheduled": True, **dict(function.attrs or {})})
            )
            kernels = generate_kernels(IRModule({f"{name}_plain": plain}), target)
            calls = kernel_calls(kernels, f"{name}_plain")
        self.plan.alternative_sources.append(
            {call.kernel: kernels.sources[call.kernel] for call in calls}
        )
        shapes = ((tuple(int(d) for d in b.shape), str(b.dtype)) for b in buffers)
        return calls, [Allocation.of(shape, dtype) for shape, dtype in shapes]
