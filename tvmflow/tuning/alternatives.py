"""Algorithms and storage as alternatives, which are tuned and then chosen by their costs.

A decision has a set of tasks for each of its options.  They are tuned together with the tasks of
the network as the cost models choose it; then the option with the least sum of best costs wins::

    algorithm of conv1   direct     conv2d                                            0.8 ms
                         winograd4  winograd_input, winograd_product, winograd_output 0.5 ms
    storage              auto       all tasks                                         3.1 ms
                         texture    all tasks                                         2.9 ms

The resulting network may have tasks that no option had; they are tuned last.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvm import IRModule, relax

from ..compiler import lookup
from ..compiler.compilation import Compilation
from ..compiler.driver import run_stages
from ..devices.target import with_storage
from ..errors import CompileError
from ..graph.layout.algorithms import Choice, Convolution, convolutions
from ..graph.layout.rules import elementwise
from ..ir.expressions import substitute_vars
from ..ir.rewriter import identifier, op_name, shape_of
from ..ir.signatures import bindings_of
from ..journal.journal import Journal
from ..journal.records import Target, Trial, Workload
from .tasks import Task, network_tasks
from .tuner import TOOLCHAIN, Budget, Progress

logger = logging.getLogger(__name__)

#: Options whose heuristics cost more than this, relative to the best, are not tuned further.
HOPELESS = 2.0
#: Largest cost, relative to the cost model's choice, with which an option replaces it; smaller
#: gains are noise.
GAIN = 0.97

#: A function that tunes tasks with a budget.
Measure = Callable[[Sequence[Task], Budget], list[Progress]]


@dataclass(frozen=True)
class Decision:
    """Options for something, the tasks in which they differ, and their costs."""

    #: ``algorithm`` or ``storage``.
    what: str
    #: Names of the convolutions that it is for; for storage, the network's.
    names: tuple[str, ...]
    #: The option that the cost model chose.
    default: str
    workload: Workload
    options: Mapping[str, Sequence[Task]]
    #: Seconds of the kernels by option, once they are measured; infinite if one failed.
    costs: Mapping[str, float] = field(default_factory=dict)

    def with_costs(self, costs: Mapping[str, float]) -> Decision:
        """Return the decision with the seconds of each option's tasks and their launches.

        ``costs`` are the costs of tasks, by digest.
        """
        target = next(iter(self.options.values()))[0].target
        launch = 1e-6 * target.device.launch_us if target.is_gpu_kernel else 0.0
        found = {
            option: sum(t.calls * (costs.get(t.digest, math.inf) + launch) for t in tasks)
            for option, tasks in self.options.items()
        }
        return replace(self, costs=found)

    def weighed(self, option: str) -> list[Task]:
        """Return an option's tasks with the number of calls that the network would make."""
        return [replace(t, calls=len(self.names) * t.calls) for t in self.options[option]]

    @property
    def choice(self) -> str:
        """Return the option with the least cost, or the default if the gain is noise."""
        best = min(self.costs, key=lambda option: self.costs[option])
        return best if self.costs[best] < GAIN * self.costs[self.default] else self.default

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        """Return the decision as a row of a table."""
        return self.what, ", ".join(self.names), self.default, self.choice, self.comparison

    @property
    def comparison(self) -> str:
        """Return the costs as text."""
        costs = sorted(self.costs.items(), key=lambda item: item[1])
        return ", ".join(
            f"{option} {cost * 1e3:.3g} ms" if math.isfinite(cost) else f"{option} failed"
            for option, cost in costs
        )


@dataclass
class Alternatives:
    """A network as the cost models choose it, and its alternatives."""

    #: The compilation before layouts are chosen.
    job: Compilation
    tasks: list[Task]
    decisions: list[Decision]


@dataclass(frozen=True)
class Outcome:
    """A network with all decisions, and the progress of its tasks."""

    progress: list[Progress]
    settled: list[Decision]
    storage: str
    algorithms: Mapping[str, str]


def alternatives_of(job: Compilation) -> Alternatives:
    """Find the decisions that a network leaves open.

    ``job`` has run no stage yet; choices that the user requested are not decided here.
    """
    run_stages(job, until="simplify")
    base = replace(job)
    tasks = network_tasks(base, "layout")
    found = [_storage(job, tasks)] if lookup.storage_is_open(job) else []
    # Equal convolutions that several algorithms can compute, without a requested one.
    groups: dict[tuple[Convolution, bool, tuple[str, ...]], list[Choice]] = defaultdict(list)
    for choice in base.choices:
        if len(choice.possible) > 1 and not choice.asked:
            groups[choice.layer, choice.half, choice.possible].append(choice)
    found += [_algorithms(job, group) for group in groups.values()]
    return Alternatives(job, tasks, [decision for decision in found if decision is not None])


def _tasks(
    job: Compilation, storage: str | None = None, algorithms: Mapping[str, str] | None = None
) -> list[Task]:
    """Return the tasks of a network that is ready for the layout stage."""
    storage = storage or job.storage
    target = with_storage(job.target, storage)
    if algorithms is not None:
        job = replace(job, options=replace(job.options, algorithms=algorithms))
    return network_tasks(replace(job, storage=storage, target=target), "layout")


def _storage(job: Compilation, tasks: list[Task]) -> Decision | None:
    options = {job.storage: tasks}
    kernels = [{task.digest for task in tasks}]
    for storage in ("texture", "buffer"):
        found = _tasks(job, storage)
        if (digests := {task.digest for task in found}) not in kernels:
            kernels.append(digests)
            options[storage] = found
    if len(options) == 1:
        return None
    workload = lookup.storage_workload(job.mod, job.options.dtype, job.options.accumulate)
    return Decision(lookup.STORAGE, (job.model.name,), job.storage, workload, options)


def _algorithms(job: Compilation, group: Sequence[Choice]) -> Decision | None:
    first = group[0]
    model = replace(job.model, inputs=(), outputs=(), weights={}, bindings={})
    mod = network_of(job.mod, first.convolution)
    free = replace(job.options, storage_overrides={}, keep_layout={})
    one = replace(job, mod=mod, model=model, options=free)
    options: dict[str, list[Task]] = {}
    for algorithm in first.possible:
        try:
            options[algorithm] = _tasks(one, algorithms={first.convolution: algorithm})
        except CompileError as error:
            logger.info("%s of %s is left out: %s", algorithm, first.convolution, error.message)
    if len(options) < 2:
        return None
    # Functions that pack and unpack the layer's inputs and outputs do not depend on the algorithm.
    common = set.intersection(*({t.digest for t in tasks} for tasks in options.values()))
    options = {
        option: [replace(t, names=(f"{first.convolution} ({option})",)) for t in tasks
                 if t.digest not in common]
        for option, tasks in options.items()
    }  # fmt: skip
    if first.algorithm not in options or not all(options.values()):
        return None
    names = tuple(choice.convolution for choice in group)
    workload = lookup.algorithm_workload(first.layer, first.half, job.options.accumulate)
    return Decision(lookup.ALGORITHM, names, first.algorithm, workload, options)


# -- single convolutions as separate networks ----------------------------------------------------


def network_of(mod: IRModule, name: str) -> IRModule:
    """Return a network of one convolution from a whole network, before layouts are chosen.

    It includes the elementwise operators after the convolution that are fused with it, so that its
    primary functions are those of the whole network.  From::

        c = R.nn.conv2d(x, W)     s = R.add(c, b)     t = R.add(s, shortcut)     y = R.nn.relu(t)

    it makes::

        def main(x, shortcut):    c = R.nn.conv2d(x, W)  …  return y
    """
    bindings = bindings_of(mod["main"])
    readers: dict[relax.Var, list[relax.Binding]] = defaultdict(list)
    for binding in bindings:
        for var in relax.analysis.free_vars(binding.value):
            readers[var].append(binding)
    start = next(var for var, node in convolutions(mod).items() if node == name)
    chain = [next(binding for binding in bindings if binding.var.same_as(start))]
    while len(readers[var := chain[-1].var]) == 1:
        (reader,) = readers[var]
        if op_name(reader.value) not in elementwise.RULES or shape_of(reader.var) != shape_of(var):
            break
        chain.append(reader)
    return IRModule({"main": _function(chain)})


def _function(chain: Sequence[relax.Binding]) -> relax.Function:
    """Return a function of these bindings; other variables that they read are its parameters."""
    inside = {binding.var for binding in chain}
    read = dict.fromkeys(v for b in chain for v in relax.analysis.free_vars(b.value))
    params = {v: relax.Var(identifier(v.name), v.ty) for v in read if v not in inside}
    replaced: dict[relax.Var, relax.Var] = dict(params)
    bindings = []
    for binding in chain:
        kind = relax.Var if binding is chain[-1] else relax.DataflowVar
        replaced[binding.var] = kind(binding.var.name, binding.var.ty)
        value = substitute_vars(binding.value, replaced)
        bindings.append(relax.VarBinding(replaced[binding.var], value))
    result = replaced[chain[-1].var]
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    attrs = {"global_symbol": "main", "num_input": len(params)}
    return relax.Function(list(params.values()), body, result.ty, True).with_attrs(attrs)


# -- tuning --------------------------------------------------------------------------------------


def tune_alternatives(
    alternatives: Alternatives, measure: Measure, budget: Budget, journal: Journal
) -> Outcome:
    """Tune a network and its options, record the decisions, and tune the resulting network."""
    began = time.monotonic()
    found, best = _tune_options(alternatives, measure, budget)
    settled = [decision.with_costs(best) for decision in alternatives.decisions]
    for decision in settled:
        _write_down(journal, alternatives.job, decision, best)
    job = alternatives.job
    changed = [s for s in settled if s.choice != s.default]
    algorithms = {n: s.choice for s in changed if s.what == lookup.ALGORITHM for n in s.names}
    algorithms = {**job.options.algorithms, **algorithms}
    storage = next((s.choice for s in changed if s.what == lookup.STORAGE), job.storage)
    tasks = _tasks(job, storage, algorithms) if changed else alternatives.tasks
    if new := [task for task in tasks if task.digest not in found]:
        found |= {p.task.digest: p for p in measure(new, budget.since(began))}
    progress = [replace(found[task.digest], task=task) for task in tasks]
    return Outcome(progress, settled, storage, algorithms)


def _tune_options(
    alternatives: Alternatives, measure: Measure, budget: Budget
) -> tuple[dict[str, Progress], dict[str, float]]:
    """Tune the network and the promising options; return the progress and all best costs."""

    def tune(tasks: Sequence[Task], budget: Budget) -> dict[str, Progress]:
        # Keep each task once, at its first position.
        once: dict[str, Task] = {}
        for task in tasks:
            once.setdefault(task.digest, task)
        return {p.task.digest: p for p in measure(list(once.values()), budget)}

    began = time.monotonic()
    decisions, chosen = alternatives.decisions, list(alternatives.tasks)
    best: dict[str, float] = {}
    if decisions:
        options = [t for d in decisions for option in d.options for t in d.weighed(option)]
        first = tune([*chosen, *options], replace(budget, trials=1, patience=None))
        best = {digest: p.best for digest, p in first.items()}
    for decision in decisions:
        costs = decision.with_costs(best).costs
        limit = HOPELESS * min(costs.values())
        for option, cost in costs.items():
            if cost <= limit < math.inf:
                chosen += decision.weighed(option)
    found = tune(chosen, budget.since(began))
    return found, best | {digest: p.best for digest, p in found.items()}


def _write_down(
    journal: Journal, job: Compilation, decision: Decision, best: Mapping[str, float]
) -> None:
    """Append a decision to a journal, unless the journal already has it."""
    choice, cost = decision.choice, decision.costs[decision.choice]
    if not math.isfinite(cost):
        return
    target, task = Target.of(job.target), decision.options[choice][0]
    # The journal may have other devices' trials; the one with this cost is of this device.
    key = target.compatibility_key
    trials = (t for t in journal.trials(task.workload) if t.target.compatibility_key == key)
    kernel = min(trials, key=lambda trial: abs(trial.cost - best[task.digest]))
    known = journal.best(decision.workload, target)
    trial = Trial(
        *(decision.workload, target, kernel.device, {decision.what: choice}, (cost,)),
        timestamp=time.time(),
        toolchain=TOOLCHAIN,
        provenance={"note": decision.comparison},
    )
    if known is None or (known.knobs, known.costs) != (trial.knobs, trial.costs):
        journal.append(trial)
