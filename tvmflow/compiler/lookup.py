"""Lookups in tuning journals: knobs of primary functions, algorithms of convolutions, storage.

The last two are kept as trials of two workloads that no schedule family has.  The choice is the
trial's only knob, its cost the sum of the kernels that it leads to::

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

#: Names of the workloads that are no schedule family's, and of their knobs.
ALGORITHM, STORAGE = "algorithm", "storage"

#: Short names of dtypes.
SHORT = {"float32": "fp32", "float16": "fp16"}


# -- knobs ------------------------------------------------------------------------------------


def workload_of(function: tirx.PrimFunc, family: str, shape: JsonMapping) -> Workload:
    """The workload of a primary function without a schedule, whose storage is decided.

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
    """The knobs to be used for a workload, with the record of a journal that has them.

    With ``near``, also those of a map of nearly the same size.  What was measured counts before
    what a model predicted, in whichever journal; then the nearest workload
    (:meth:`.Workload.distance`); then the order of the journals, because costs of different
    devices cannot be compared; then the cost.
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
    """The lookup of knobs for a primary function; ``None`` where there are no journals."""
    if not journals:
        return None
    return lambda family, shape: best_knobs(
        journals, workload_of(function, family, shape), target, near=True
    )


def describe(trial: Trial, journal: Journal) -> str:
    """Name a record of a journal, where it was measured, and where it is from."""
    file, line, note = map(trial.provenance.get, ("file", "line", "note"))
    what = f"{journal.path.name}: {trial.cost * 1e3:.3g} ms on {trial.device.name}"
    origin = f"{file}:{line}" if file else None
    parts = what, trial.source, trial.workload.dtype, origin, str(note) if note else None
    return ", ".join(part for part in parts if part)


# -- algorithms and storage -------------------------------------------------------------------


def algorithm_workload(convolution: Convolution, half: bool, accumulate: str) -> Workload:
    """The workload that stands for the choice of a convolution's algorithm in journals.

    The dtype is part of the shape: what is fastest in 16 bits says nothing of 32.
    """
    facts = asdict(convolution)
    # A fact of the weights, which other networks of these layers do not share.
    del facts["fits_half"]
    dtype = "fp16" if half else "fp32"
    shape = {n: "x".join(map(str, v)) if isinstance(v, tuple) else v for n, v in facts.items()}
    shape |= {"dtype": dtype, "accumulate": accumulate}
    return Workload(ALGORITHM, shape, dtype=dtype, storage="", accumulate=accumulate)


def storage_workload(mod: IRModule, dtype: str, accumulate: str) -> Workload:
    """The workload that stands for the choice of a network's storage in journals.

    ``mod`` is the network before layouts are chosen.
    """
    shape = {"network": network_digest(mod), "dtype": dtype, "accumulate": accumulate}
    return Workload(STORAGE, shape, dtype=dtype, storage="", accumulate=accumulate)


def network_digest(mod: IRModule) -> str:
    """A hash of a network's operators and shapes, whatever names and weights it has."""
    main = mod["main"]
    numbers = {param: index for index, param in enumerate(main.params)}
    lines = [str(param.ty) for param in main.params]
    for binding in bindings_of(main):
        lines.append(_text(binding.value, numbers))
        numbers[binding.var] = len(numbers)
    lines.append(_text(main.body.body, numbers))
    return digest("network", "\n".join(lines).encode()).hex()


def _text(expr: relax.Expr, numbers: dict[relax.Var, int]) -> str:
    """An expression with numbers for variables, and types for constants."""
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
    """The lookup of a convolution's algorithm; ``None`` where there are no journals."""
    if not journals:
        return None

    def measured(convolution: Convolution, half: bool) -> Measured | None:
        workload = algorithm_workload(convolution, half, job.options.accumulate)
        found = best_knobs(journals, workload, job.target)
        return None if found is None else Measured(str(found.knobs.get(ALGORITHM)), found.origin)

    return measured


def use_measured_storage(job: Compilation, journals: Sequence[Journal]) -> None:
    """Give a network the storage that was the fastest, unless the user asked for one."""
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
    """True if the storage of a network is left to what was measured."""
    requested = job.storage != "auto" or job.options.storage_overrides or job.options.keep_layout
    return not requested and job.target.device.image_extent > 0
