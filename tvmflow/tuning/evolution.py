"""Evolutionary search with a learnt cost model: MetaSchedule's engine for our schedule families.

MetaSchedule replays the recorded steps of a schedule (its trace) with other decisions.  A family's
``apply`` takes different steps for different knobs, so its trace cannot be replayed.  MetaSchedule
therefore gets a stand-in: a function of one block whose schedule samples a number for each knob and
writes it into an annotation.  Replay and mutation are always valid, a postprocessor checks the
constraints, and the build processes create the real schedule.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import ceil, log2

import numpy as np
import tvm
from tvm import s_tir, te
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from ..runtime.json_types import JsonMapping
from .search import Search
from .tasks import Knobs, Task

logger = logging.getLogger(__name__)

#: Values of each knob.
Space = Mapping[str, Sequence]

#: Proposals that are generated at a time.
BATCH = 8
_BLOCK = "knobs"
#: Attributes of a stand-in: its task's shape, and the values of its knobs.
_SHAPE, _SPACE = "tvmflow.shape", "tvmflow.space"
#: A number of trials that is never reached, as the engine does not manage budgets.
_TRIALS = 1 << 20


def stand_in(task: Task) -> tvm.IRModule:
    """Return the stand-in for a task's function that MetaSchedule gets."""
    x = te.placeholder((1,), name="x")
    y = te.compute((1,), lambda i: x[i], name=_BLOCK)
    about = {_SHAPE: json.dumps(asdict(task.shape)), _SPACE: json.dumps(task.space)}
    function = te.create_prim_func([x, y]).with_attrs({"global_symbol": "main", **about})
    return tvm.IRModule({"main": function})


def decide(sch: s_tir.Schedule, space: Space, knobs: Knobs | None = None) -> None:
    """Schedule a stand-in: one decision for each knob, drawn at random or given."""
    block = sch.get_sblock(_BLOCK, func_name="main")
    for name, values in space.items():
        even = [1.0 / len(values)] * len(values)
        index = None if knobs is None else values.index(knobs[name])
        choice = sch.sample_categorical(list(range(len(values))), even, index)
        sch.annotate(block, name, choice)


def decided(sch: s_tir.Schedule, space: Space) -> Knobs:
    """Return the knobs that a schedule of a stand-in decided on."""
    annotations = sch.get(sch.get_sblock(_BLOCK, func_name="main")).annotations
    return {name: values[int(annotations[name])] for name, values in space.items()}


def features(knobs: Knobs, space: Space, shape: JsonMapping) -> list[float]:
    """Return knobs and shape as numbers.

    Decision trees split at thresholds of single numbers, so the waste of a tile at the end of an
    extent is a separate number for each pair of them.
    """
    extents = [v for v in shape.values() if type(v) is int]
    sizes = [v for v in knobs.values() if type(v) is int]
    row = [float(space[n].index(v) if isinstance(v, str) else v) for n, v in knobs.items()]
    row += [log2(max(v, 1)) if type(v) is int else float(v == "texture") for v in shape.values()]
    row.append(sum(log2(size) for size in sizes))
    row += [ceil(extent / size) * size / max(extent, 1) for extent in extents for size in sizes]
    return row


@derived_object
class KeepsConstraints(ms.postproc.PyPostproc):
    """A postprocessor that rejects knobs that violate the family's constraints."""

    def __init__(self, task: Task):
        super().__init__()
        self.task = task

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        """Do nothing: the context is not needed."""

    def apply(self, sch: s_tir.Schedule) -> bool:
        """Return whether a candidate is allowed."""
        return self.task.allows(decided(sch, self.task.space))

    def clone(self) -> KeepsConstraints:
        """Return a copy for another thread."""
        return KeepsConstraints(self.task)


@derived_object
class ChangesKnobs(ms.mutator.PyMutator):
    """A mutator that changes one knob: usually to an adjacent value, else to any other."""

    def __init__(self, source: random.Random):
        super().__init__()
        self.source = source

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        """Do nothing: the context is not needed."""

    def apply(self, trace: s_tir.schedule.Trace, _seed: int) -> s_tir.schedule.Trace | None:
        """Return a trace with another decision; ``None`` if there is no choice."""
        sampled = (i for i in trace.insts if i.kind.name == "SampleCategorical")
        free = [i for i in sampled if len(i.attrs[0]) > 1]
        if not free:
            return None
        chosen = self.source.choice(free)
        last = len(chosen.attrs[0]) - 1
        now = int(trace.decisions[chosen])
        near = [i for i in (now - 1, now + 1) if 0 <= i <= last]
        anywhere = [i for i in range(last + 1) if i != now]
        other = self.source.choice(near if self.source.random() < 0.7 else anywhere)
        return trace.with_decision(chosen, other, remove_postproc=True)

    def clone(self) -> ChangesKnobs:
        """Return a copy for another thread."""
        return ChangesKnobs(self.source)


@derived_object
class KnobFeatures(ms.feature_extractor.PyFeatureExtractor):
    """An extractor that returns one row of :func:`features` for each candidate."""

    def extract_from(
        self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]
    ) -> list[tvm.runtime.Tensor]:
        """Return the features of candidates of one task."""
        attributes = context.mod["main"].attrs
        space = json.loads(str(attributes[_SPACE]))
        shape = json.loads(str(attributes[_SHAPE]))
        rows = (features(decided(c.sch, space), space, shape) for c in candidates)
        return [tvm.runtime.tensor(np.array([row], "float32")) for row in rows]


def cost_model(seed: int) -> ms.cost_model.XGBModel:
    """Return a model for the tasks of one family, of costs relative to each task's best.

    It needs no warm-up: the heuristic is measured before anything is predicted.
    """
    config = ms.cost_model.xgb_model.XGBConfig(seed=seed, nthread=1, max_depth=6)
    how = {"num_warmup_samples": 0, "early_stopping_rounds": 10, "verbose_eval": 0}
    return ms.cost_model.XGBModel(extractor=KnobFeatures(), config=config, **how)


def _context(
    task: Task, generator: ms.SpaceGenerator, strategy: ms.SearchStrategy, seed: int
) -> ms.TuneContext:
    """Return a context for one thread.

    Its Python constructor would first import TVM's tensor intrinsics, which takes ten seconds or
    more, and which our schedules do not use.
    """
    context = ms.TuneContext.__new__(ms.TuneContext)
    arguments = (stand_in(task), task.target.tvm_target, generator, strategy, task.name, 1, seed)
    context.__init_handle_by_constructor__(
        # The engine logs level, file, line and message.
        *(ms._ffi_api.TuneContext, *arguments, lambda *fields: logger.debug("%s", fields[-1]))
    )
    ms._ffi_api.TuneContextInitialize(context)
    return context


class EvolutionarySearch(Search):
    """A search that evolves populations by the predictions of a cost model.

    The model learns from every trial of the task, and may know other tasks of the family.
    """

    def __init__(self, task: Task, seed: int, model: ms.cost_model.XGBModel):
        super().__init__(task, seed)
        self._model = model
        self._generator = ms.space_generator.ScheduleFn(
            lambda sch: decide(sch, task.space),
            sch_rules=[],
            postprocs=[KeepsConstraints(task)],
            mutator_probs={ChangesKnobs(self.random): 1.0},
        )
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=64,
            init_measured_ratio=0.3,
            init_min_unmeasured=16,
            genetic_num_iters=3,
            eps_greedy=0.15,
        )
        self._context = _context(task, self._generator, strategy, self.random.randrange(1, 1 << 30))
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(self._context.mod)
        self._context.pre_tuning(_TRIALS, BATCH, database=self._database, cost_model=self._model)
        self._proposed: list[Knobs] = []

    def _candidates(self) -> Iterator[Knobs]:
        while self._proposed or (found := self._context.generate_measure_candidates()):
            self._proposed = self._proposed or [decided(c.sch, self.task.space) for c in found]
            yield self._proposed.pop(0)

    def learn(self, trials: Sequence[tuple[Knobs, float]]) -> None:
        """Train the model with measured candidates, and add the valid ones to the database."""
        space = self.task.space
        # The heuristic's knobs may lie outside the space.
        inside = [(k, c) for k, c in trials if all(k[n] in v for n, v in space.items())]
        candidates, results = [], []
        for knobs, cost in inside:
            schedule = s_tir.Schedule(self._context.mod)
            decide(schedule, space, knobs)
            arguments = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
            candidates.append(ms.MeasureCandidate(schedule, arguments))
            failed = cost == float("inf")
            results.append(ms.runner.RunnerResult(None if failed else [cost], "x" * failed or None))
            if not failed:
                about = self._workload, [cost], self._context.target, arguments
                record = ms.database.TuningRecord(schedule.trace, *about)
                self._database.commit_tuning_record(record)
        if candidates:
            self._model.update(self._context, candidates, results)
            self._context.notify_runner_results(candidates, results)
