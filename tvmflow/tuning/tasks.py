"""Tasks: the distinct primary functions of a network, as the pipeline leaves them to schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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
    """A parameter of a primary function, as memory for it is reserved."""

    shape: tuple[int, ...]
    dtype: str
    #: TVM's memory scope; empty for a plain buffer.
    scope: str


@dataclass(frozen=True)
class Task:
    """A primary function to tune."""

    #: Of the functions in the network that it stands for: of the same shape and arguments, they
    #: may differ in the elementwise operators behind, and get the same knobs.
    names: tuple[str, ...]
    #: The first of them: blocks without a schedule, with the scopes of its parameters.
    function: tirx.PrimFunc
    #: The schedule family that serves it, and what its knobs depend on.
    family: Family
    shape: Any
    target: TargetSpec
    #: How often the network runs them.
    calls: int
    #: How many of its last parameters are results.
    results: int
    #: Steps of its loops, a stand-in for its time before that is measured.
    operations: int

    @property
    def name(self) -> str:
        """Of the first function."""
        return self.names[0]

    @property
    def label(self) -> str:
        """The name, and the storage: a network may be tried with both."""
        storage = self.workload.storage
        return self.name if storage == "buffer" else f"{self.name} ({storage})"

    @cached_property
    def workload(self) -> records.Workload:
        """The workload that journals have it under."""
        return workload_of(self.function, self.family.NAME, facts_of(self.shape))

    @cached_property
    def journal_target(self) -> records.Target:
        """The target that journals have it under."""
        return records.Target.of(self.target)

    @cached_property
    def digest(self) -> str:
        """The task's identity, whatever its functions are named.

        What a journal takes for the same is one task, also where storages give a device
        blocks of other sizes.
        """
        return records.digest("task", self.workload.data + self.journal_target.kin).hex()

    @cached_property
    def space(self) -> dict[str, tuple[Any, ...]]:
        """The values worth trying of each knob."""
        return self.family.space(self.shape, self.target.device)

    @property
    def is_tunable(self) -> bool:
        """True if there is anything to choose."""
        return prod(map(len, self.space.values())) > 1

    @cached_property
    def heuristic(self) -> Knobs:
        """The knobs that are chosen without measurements."""
        device = with_free_registers(self.target.device, self.function)
        return asdict(self.family.heuristic(self.shape, device))

    def allows(self, knobs: Mapping[str, Any]) -> bool:
        """Tell whether knobs meet the family's constraints."""
        chosen = self.family.Knobs(**knobs)
        return refusal(self.family, chosen, self.shape, self.target.device) is None

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The function's parameters, results last."""
        return arguments_of(self.function)

    @cached_property
    def text(self) -> str:
        """The function as text, for other processes."""
        return str(tvm.ir.save_json(self.function))


def arguments_of(function: tirx.PrimFunc) -> tuple[Argument, ...]:
    """A function's parameters, results last."""
    found = ((p, str(p.scope())) for p in function.params)
    return tuple(
        Argument(tuple(map(int, p.shape)), str(p.dtype), "" if scope == "global" else scope)
        for p, scope in found
    )


def extract_tasks(mod: IRModule, target: TargetSpec) -> list[Task]:
    """The distinct primary functions that ``main`` calls, in the order of their first calls."""
    calls: Counter[str] = Counter()
    results: dict[str, int] = {}
    for binding in bindings_of(mod["main"]):
        if (call := called_function(mod, binding.value)) is not None:
            function, inputs = call
            name = binding.value.args[0].name_hint
            calls[name] += 1
            results[name] = len(function.params) - len(inputs)
    tasks: dict[str, Task] = {}
    with target.tvm_target:
        for name, count in calls.items():
            if wants_schedule(mod[name]):
                task = task_of(name, mod[name], target, count, results[name])
                if (known := tasks.get(task.digest)) is not None:
                    names = (*known.names, name)
                    task = replace(known, names=names, calls=known.calls + count)
                tasks[task.digest] = task
    return list(tasks.values())


def network_tasks(job: Compilation, first: str = "import") -> list[Task]:
    """The tasks of a network, and of the bodies of loops in it, from a stage of `job` on."""
    tasks: dict[str, Task] = {}
    for mod in run_with_bodies(job, first, "weights"):
        for task in extract_tasks(mod, job.target):
            if (known := tasks.get(task.digest)) is not None:
                names = tuple(dict.fromkeys((*known.names, *task.names)))
                task = replace(known, names=names, calls=known.calls + task.calls)
            tasks[task.digest] = task
    return list(tasks.values())


def task_of(
    name: str, function: tirx.PrimFunc, target: TargetSpec, calls: int, results: int
) -> Task:
    """A function's task; called within TVM's target."""
    # What a family would do is not all in `match`: one may still decline when it is applied.
    family = BY_NAME[schedule_function(function, target, name=name).family]
    workload = Workload.of(function, target)
    shape = family.match(workload)
    operations = sum(prod(workload.extents(block)) for block in workload.blocks)
    return Task((name,), function, family, shape, target, calls, results, operations)


#: Extents of the reference kernel: some milliseconds on a phone, and nothing that a cache is too
#: small for.
_ROWS, _SUM = 4096, 256


def reference_task(target: TargetSpec) -> Task:
    """Sums of products, by whose time it shows whether a device runs as fast as it did at first.

    The schedule is fixed: what the kernel takes depends on the clock alone.
    """
    x = te.placeholder((_ROWS, _SUM), name="x")
    k = te.reduce_axis((0, _SUM), name="k")
    y = te.compute((_ROWS,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="y")
    with target.tvm_target:
        return task_of("reference", te.create_prim_func([x, y]), target, 1, 1)
