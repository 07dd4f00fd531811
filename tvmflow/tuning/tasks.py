"""Tasks: the distinct primary functions of a network that schedules are applied to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import tvm
from tvm import IRModule, te, tirx

from ..compiler.compilation import Compilation
from ..compiler.driver import run_with_bodies
from ..compiler.lookup import workload_of
from ..devices.target import TargetSpec
from ..ir.half_sums import with_free_registers
from ..ir.signatures import bindings_of, called_function, wants_schedule
from ..journal import records
from ..schedules import FAMILIES, schedule_function
from ..schedules.common import Workload
from ..schedules.family import Family, facts_of, refusal

#: A value of each knob, by name.
Knobs = dict[str, Any]

BY_NAME: dict[str, Family] = {family.NAME: family for family in FAMILIES}


@dataclass(frozen=True)
class Argument:
    """A parameter of a primary function, with what is needed to allocate it."""

    shape: tuple[int, ...]
    dtype: str
    #: TVM's memory scope; empty for a plain buffer.
    scope: str


@dataclass(frozen=True)
class Task:
    """A primary function to tune."""

    #: Names of the functions that the task stands for.  They have the same shape and arguments, may
    #: differ in the elementwise operators after it, and get the same knobs.
    names: tuple[str, ...]
    #: The first of the functions: unscheduled blocks, with the scopes of its parameters.
    function: tirx.PrimFunc
    #: The schedule family that matches it, and the shape that its knobs depend on.
    family: Family
    shape: Any
    target: TargetSpec
    #: Number of calls of the functions in a run of the network.
    calls: int
    #: Number of results, which are the last parameters.
    results: int
    #: Total loop steps, which estimate its time before it is measured.
    operations: int

    @property
    def name(self) -> str:
        """Return the name of the first function."""
        return self.names[0]

    @property
    def label(self) -> str:
        """Return the name and the storage, as both storages of a network may be tried."""
        storage = self.workload.storage
        return self.name if storage == "buffer" else f"{self.name} ({storage})"

    @cached_property
    def workload(self) -> records.Workload:
        """Return the task's workload in journals."""
        return workload_of(self.function, self.family.NAME, facts_of(self.shape))

    @cached_property
    def journal_target(self) -> records.Target:
        """Return the task's target in journals."""
        return records.Target.of(self.target)

    @cached_property
    def digest(self) -> str:
        """Return the task's identity, independent of the names of its functions.

        Tasks with the same journal records are one task, even if the storage gives a device blocks
        of another size.
        """
        data = self.workload.data + self.journal_target.compatibility_key
        return records.digest("task", data).hex()

    @cached_property
    def space(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of each knob that are worth trying."""
        return self.family.space(self.shape, self.target.device)

    @property
    def is_tunable(self) -> bool:
        """Return whether there is more than one choice of knobs."""
        return prod(map(len, self.space.values())) > 1

    @cached_property
    def heuristic(self) -> Knobs:
        """Return the knobs that are chosen without measurements."""
        device = with_free_registers(self.target.device, self.function)
        return asdict(self.family.heuristic(self.shape, device))

    def allows(self, knobs: Mapping[str, Any]) -> bool:
        """Return whether knobs meet the family's constraints."""
        chosen = self.family.Knobs(**knobs)
        return refusal(self.family, chosen, self.shape, self.target.device) is None

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Return the function's parameters, results last."""
        return arguments_of(self.function)

    @cached_property
    def text(self) -> str:
        """Return the function as text, for other processes."""
        return str(tvm.ir.save_json(self.function))


def arguments_of(function: tirx.PrimFunc) -> tuple[Argument, ...]:
    """Return a function's parameters, results last."""
    found = ((p, str(p.scope())) for p in function.params)
    return tuple(
        Argument(tuple(map(int, p.shape)), str(p.dtype), "" if scope == "global" else scope)
        for p, scope in found
    )


def _tasks_of(mod: IRModule, target: TargetSpec) -> Iterator[Task]:
    """Yield a task for each function that ``main`` calls, in the order of first calls."""
    calls: Counter[str] = Counter()
    results: dict[str, int] = {}
    for binding in bindings_of(mod["main"]):
        if (call := called_function(mod, binding.value)) is not None:
            function, inputs = call
            name = binding.value.args[0].name_hint
            calls[name] += 1
            results[name] = len(function.params) - len(inputs)
    with target.tvm_target:
        for name, count in calls.items():
            if wants_schedule(mod[name]):
                yield task_of(name, mod[name], target, count, results[name])


def network_tasks(job: Compilation, first: str = "import") -> list[Task]:
    """Return the distinct tasks of a network and its loops' bodies; run ``job`` from ``first``."""
    tasks: dict[str, Task] = {}
    for mod in run_with_bodies(job, first):
        for task in _tasks_of(mod, job.target):
            if (known := tasks.get(task.digest)) is not None:
                names = tuple(dict.fromkeys((*known.names, *task.names)))
                task = replace(known, names=names, calls=known.calls + task.calls)
            tasks[task.digest] = task
    return list(tasks.values())


def task_of(
    name: str, function: tirx.PrimFunc, target: TargetSpec, calls: int, results: int
) -> Task:
    """Return a function's task; must be called within TVM's target."""
    # Not by `match` alone: a family that matches may still decline when it is applied.
    family = BY_NAME[schedule_function(function, target, name=name).family]
    workload = Workload.of(function, target)
    shape = family.match(workload)
    return Task((name,), function, family, shape, target, calls, results, workload.operations)


#: Extents of the reference kernel: some milliseconds on a phone, and small enough for any cache.
_ROWS, _SUM = 4096, 256


def reference_task(target: TargetSpec) -> Task:
    """Return a task whose time shows whether a device is still as fast as at first.

    Its kernel is a sum of products with a fixed schedule, whose time depends on the clock only.
    """
    x = te.placeholder((_ROWS, _SUM), name="x")
    k = te.reduce_axis((0, _SUM), name="k")
    y = te.compute((_ROWS,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="y")
    with target.tvm_target:
        return task_of("reference", te.create_prim_func([x, y]), target, 1, 1)
