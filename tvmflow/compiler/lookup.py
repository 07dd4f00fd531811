"""What compiling asks of journals: the workload of a primary function, and knobs for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx

from ..codegen.narrow import half_lengths
from ..devices.target import TargetSpec
from ..ir.scope import is_half, is_texture
from ..journal.journal import Journal
from ..journal.records import Target, Trial, Workload
from ..schedules import Lookup, Proposal

_SHORT = {"float32": "fp32", "float16": "fp16"}


def workload_of(function: tirx.PrimFunc, family: str, shape: Mapping[str, Any]) -> Workload:
    """The workload of a primary function without a schedule.

    Parameters
    ----------
    function
        Blocks without a schedule, with the storage of its parameters decided.
    family, shape
        As a schedule family sees it: its ``NAME``, and its ``Shape`` as a dictionary.
    """
    tensors = [p for p in function.params if isinstance(p, tirx.Buffer)]
    scopes = [tensor.scope() for tensor in tensors]
    dtype = str(tensors[-1].dtype) if tensors else ""
    extents = ("x".join(str(int(d)) for d in tensor.shape) for tensor in tensors)
    return Workload(
        family,
        dict(shape),
        dtype="fp16" if any(map(is_half, scopes)) else _SHORT.get(dtype, dtype),
        storage="texture" if any(map(is_texture, scopes)) else "buffer",
        accumulate="fp16" if half_lengths(function) else "fp32",
        signature=" ".join(extents),
    )


def best_knobs(
    journals: Sequence[Journal], workload: Workload, target: Target
) -> tuple[Trial, Journal] | None:
    """The trial whose knobs are to be used for a workload, and the journal that has it.

    The nearest workload counts first (:meth:`.Workload.distance`); then the order of the
    journals, because costs of different devices cannot be compared; then the cost.
    """
    found = [(journal.nearest(workload, target), journal) for journal in journals]
    trials = [(trial, journal) for trial, journal in found if trial is not None]
    return min(trials, key=lambda pair: workload.distance(pair[0].workload), default=None)


def lookup_in(
    journals: Sequence[Journal], function: tirx.PrimFunc, target: TargetSpec
) -> Lookup | None:
    """How knobs for a primary function are looked up; ``None`` where there are no journals."""
    if not journals:
        return None

    def lookup(family: str, shape: dict[str, Any]) -> Proposal | None:
        workload = workload_of(function, family, shape)
        found = best_knobs(journals, workload, Target.of(target))
        if found is None:
            return None
        trial, journal = found
        return Proposal("journal", trial.knobs, describe(trial, journal))

    return lookup


def describe(trial: Trial, journal: Journal) -> str:
    """Which record of which journal, where it was measured, and where it is from."""
    file, line = trial.provenance.get("file"), trial.provenance.get("line")
    note = trial.provenance.get("note")
    parts = [
        f"{journal.path.name}: {trial.cost * 1e3:.3g} ms on {trial.device.name}",
        trial.source,
        trial.workload.dtype,
        f"{file}:{line}" if file else None,
        str(note) if note else None,
    ]
    return ", ".join(part for part in parts if part)
