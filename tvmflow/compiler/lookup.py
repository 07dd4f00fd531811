"""Lookups in tuning journals: knobs of primary functions, algorithms of convolutions, storage.

Algorithms and storage are recorded as trials of two kinds of workloads that belong to no schedule
family.  The choice is the trial's only knob; its cost is the total time of the resulting kernels::

    algorithm  {batch, inputs, outputs, height, …, dtype, accumulate}   {"algorithm": "winograd4"}
    storage    {network, dtype, accumulate}                             {"storage": "texture"}
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict

from tvm import IRModule, relax, tirx
from tvm.ir import GenericConst

from ..devices.choices import STORAGES
from ..devices.target import TargetSpec, with_storage
from ..graph.layout.algorithms import Convolution, Measured
from ..ir.half_sums import accumulation_of
from ..ir.scope import is_half, is_texture
from ..ir.signatures import bindings_of
from ..journal.journal import Journal
from ..journal.records import MAP_FACTS, Target, Trial, Workload, digest
from ..runtime.json_types import JsonMapping
from ..schedules import Lookup, Proposal
from .compilation import Compilation

logger = logging.getLogger(__name__)

#: Names of the workloads that belong to no schedule family, and of their knobs.
ALGORITHM, STORAGE = "algorithm", "storage"

#: Short names of dtypes.
SHORT = {"float32": "fp32", "float16": "fp16"}


# -- knobs ------------------------------------------------------------------------------------


def workload_of(function: tirx.PrimFunc, family: str, shape: JsonMapping) -> Workload:
    """Return the workload of an unscheduled primary function whose storage is decided.

    ``family`` and ``shape`` are a schedule family's ``NAME``, and its ``Shape`` as a dictionary.
    """
    tensors = [p for p in function.params if isinstance(p, tirx.Buffer)]
    scopes = [tensor.scope() for tensor in tensors]
    dtype = str(tensors[-1].dtype) if tensors else ""
    extents = ("x".join(str(int(d)) for d in tensor.shape) for tensor in tensors)
    return Workload(
        family,
        dict(shape),
        dtype="fp16" if any(map(is_half, scopes)) else SHORT.get(dtype, dtype),
        storage="texture" if any(map(is_texture, scopes)) else "buffer",
        accumulate=accumulation_of(function),
        signature=" ".join(extents),
    )


def best_knobs(
    journals: Sequence[Journal], workload: Workload, target: TargetSpec, *, near: bool = False
) -> Proposal | None:
    """Return the best knobs that journals have for a workload; ``None`` if they have none.

    With ``near``, knobs for a map of nearly the same size count, too.  Measured trials of any
    journal precede predicted ones; then the nearest workload (:meth:`.Workload.distance`) precedes;
    then the first journal, because costs on different devices cannot be compared; then the lowest
    cost.
    """
    measured = Target.of(target)
    for asked in (measured, measured.predicted):
        nearest = ((journal.nearest(workload, asked), journal) for journal in journals)
        trials = [
            (trial, journal)
            for trial, journal in nearest
            if trial is not None
            and (near or trial.workload.compatibility_key == workload.compatibility_key)
        ]
        if trials:
            break
    else:
        return None
    trial, journal = min(trials, key=lambda pair: workload.distance(pair[0].workload))
    origin = describe(trial, journal)
    if trial.workload.compatibility_key != workload.compatibility_key:
        extents = (str(v) for name, v in trial.workload.shape.items() if name in MAP_FACTS)
        origin += f", for a map of {'x'.join(extents)}"
    return Proposal("journal", trial.knobs, origin)


def lookup_in(
    journals: Sequence[Journal], function: tirx.PrimFunc, target: TargetSpec
) -> Lookup | None:
    """Return the lookup of knobs for a primary function; ``None`` without journals."""
    if not journals:
        return None
    return lambda family, shape: best_knobs(
        journals, workload_of(function, family, shape), target, near=True
    )


def describe(trial: Trial, journal: Journal) -> str:
    """Describe a journal's record: its cost, device, source and provenance."""
    file, line, note = map(trial.provenance.get, ("file", "line", "note"))
    what = f"{journal.path.name}: {trial.cost * 1e3:.3g} ms on {trial.device.name}"
    origin = f"{file}:{line}" if file else None
    parts = what, trial.source, trial.workload.dtype, origin, str(note) if note else None
    return ", ".join(part for part in parts if part)


# -- algorithms and storage -------------------------------------------------------------------


def algorithm_workload(convolution: Convolution, half: bool, accumulate: str) -> Workload:
    """Return the workload under which journals record a convolution's algorithm.

    The dtype is part of the shape: the fastest algorithm in 16 bits need not be so in 32.
    """
    facts = asdict(convolution)
    # This depends on the values of the weights, which other networks do not share.
    del facts["fits_half"]
    dtype = "fp16" if half else "fp32"
    shape = {n: "x".join(map(str, v)) if isinstance(v, tuple) else v for n, v in facts.items()}
    shape |= {"dtype": dtype, "accumulate": accumulate}
    return Workload(ALGORITHM, shape, dtype=dtype, storage="", accumulate=accumulate)


def storage_workload(mod: IRModule, dtype: str, accumulate: str) -> Workload:
    """Return the workload under which journals record a network's storage.

    ``mod`` is the network before layouts are chosen.
    """
    shape = {"network": network_digest(mod), "dtype": dtype, "accumulate": accumulate}
    return Workload(STORAGE, shape, dtype=dtype, storage="", accumulate=accumulate)


def network_digest(mod: IRModule) -> str:
    """Return a hash of a network's operators and shapes, without its names and weights."""
    main = mod["main"]
    numbers = {param: index for index, param in enumerate(main.params)}
    lines = [str(param.ty) for param in main.params]
    for binding in bindings_of(main):
        lines.append(_text(binding.value, numbers))
        numbers[binding.var] = len(numbers)
    lines.append(_text(main.body.body, numbers))
    return digest("network", "\n".join(lines).encode()).hex()


def _text(expr: relax.Expr, numbers: dict[relax.Var, int]) -> str:
    """Return the text of an expression, with numbers for variables and types for constants."""
    if isinstance(expr, relax.Var):
        return f"%{numbers[expr]}"
    if isinstance(expr, GenericConst):
        return f"constant {expr.ty}"
    if isinstance(expr, relax.Tuple):
        return f"({', '.join(_text(field, numbers) for field in expr.fields)})"
    if isinstance(expr, relax.TupleGetItem):
        return f"{_text(expr.tuple_value, numbers)}[{expr.index}]"
    if not isinstance(expr, relax.Call):
        return str(expr)
    name = getattr(expr.op, "name", None) or expr.op.name_hint
    arguments = ", ".join(_text(argument, numbers) for argument in expr.args)
    return f"{name}({arguments}) {expr.attrs} {expr.ty}"


def measured_algorithms(
    journals: Sequence[Journal], job: Compilation
) -> Callable[[Convolution, bool], Measured | None] | None:
    """Return the lookup of convolutions' algorithms; ``None`` without journals."""
    if not journals:
        return None

    def measured(convolution: Convolution, half: bool) -> Measured | None:
        workload = algorithm_workload(convolution, half, job.options.accumulate)
        found = best_knobs(journals, workload, job.target)
        return None if found is None else Measured(str(found.knobs.get(ALGORITHM)), found.origin)

    return measured


def use_measured_storage(job: Compilation, journals: Sequence[Journal]) -> None:
    """Use the storage that was measured as the fastest, unless the user chose one."""
    if not journals or not storage_is_open(job):
        return
    workload = storage_workload(job.mod, job.options.dtype, job.options.accumulate)
    if (found := best_knobs(journals, workload, job.target)) is None:
        return
    storage, origin = str(found.knobs.get(STORAGE)), found.origin
    if storage not in STORAGES:
        logger.info("storage   %s of %s: there is no such storage", storage, origin)
        return
    job.storage, job.target = storage, with_storage(job.target, storage)
    job.storage_origin = f"{storage}, journal ({origin})"
    logger.info("storage   %s", job.storage_origin)


def storage_is_open(job: Compilation) -> bool:
    """Return whether a measured storage may be used for a network."""
    requested = job.storage != "auto" or job.options.storage_overrides or job.options.keep_layout
    return not requested and job.target.device.image_extent > 0
