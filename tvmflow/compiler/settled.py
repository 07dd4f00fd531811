"""Decisions that were settled by measuring: algorithms of convolutions, storage of networks.

A journal keeps them as trials of two workloads that no schedule family has.  The choice is the
trial's only knob, its cost the sum of the kernels that it leads to::

    algorithm  {batch, inputs, outputs, height, …, dtype, accumulate}   {"algorithm": "winograd4"}
    storage    {network, dtype, accumulate}                             {"storage": "texture"}
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from tvm import IRModule, relax
from tvm.ir import GenericConst

from ..devices.choices import STORAGES
from ..devices.target import with_storage
from ..graph.layout.algorithms import Convolution, Measured
from ..journal.journal import Journal
from ..journal.records import Target, Workload, digest
from .compilation import Compilation
from .lookup import best_knobs, describe

logger = logging.getLogger(__name__)

#: Names of the two workloads, and of their knobs.
ALGORITHM, STORAGE = "algorithm", "storage"


def algorithm_workload(convolution: Convolution, half: bool, accumulate: str) -> Workload:
    """What journals call the choice of a convolution's algorithm.

    The dtype is part of the shape: what is fastest in 16 bits says nothing of 32.
    """
    facts = {
        name: "x".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in asdict(convolution).items()
        # A fact of the weights, which other networks of these layers do not share.
        if name != "fits_half"
    }
    dtype = "fp16" if half else "fp32"
    shape = {**facts, "dtype": dtype, "accumulate": accumulate}
    return Workload(ALGORITHM, shape, dtype=dtype, storage="", accumulate=accumulate)


def storage_workload(mod: IRModule, dtype: str, accumulate: str) -> Workload:
    """What journals call the choice of a network's storage.

    ``mod`` is the network before layouts are chosen.
    """
    shape = {"network": network_digest(mod), "dtype": dtype, "accumulate": accumulate}
    return Workload(STORAGE, shape, dtype=dtype, storage="", accumulate=accumulate)


def network_digest(mod: IRModule) -> str:
    """A hash of a network's operators and shapes, whatever names and weights it has."""
    main = mod["main"]
    numbers = {param: index for index, param in enumerate(main.params)}
    lines = [str(param.ty) for param in main.params]
    for block in main.body.blocks:
        for binding in block.bindings:
            lines.append(_text(binding.value, numbers))
            numbers[binding.var] = len(numbers)
    lines.append(_text(main.body.body, numbers))
    return digest("network", "\n".join(lines).encode()).hex()


def _text(expr: Any, numbers: dict[relax.Var, int]) -> str:
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


# -- what compiling asks ---------------------------------------------------------------------


def measured_algorithms(
    journals: Sequence[Journal], job: Compilation
) -> Callable[[Convolution, bool], Measured | None] | None:
    """How a convolution's algorithm is looked up; ``None`` where there are no journals."""
    if not journals:
        return None

    def measured(convolution: Convolution, half: bool) -> Measured | None:
        workload = algorithm_workload(convolution, half, job.options.accumulate)
        found = best_knobs(journals, workload, Target.of(job.target))
        if found is None:
            return None
        return Measured(str(found[0].knobs.get(ALGORITHM)), describe(*found))

    return measured


def settle_storage(job: Compilation, journals: Sequence[Journal]) -> None:
    """Give a network the storage that was the fastest, unless the user asked for one."""
    if not journals or not is_open(job):
        return
    workload = storage_workload(job.mod, job.options.dtype, job.options.accumulate)
    found = best_knobs(journals, workload, Target.of(job.target))
    if found is None:
        return
    storage, origin = str(found[0].knobs.get(STORAGE)), describe(*found)
    if storage not in STORAGES:
        logger.info("storage   %s of %s: there is no such storage", storage, origin)
        return
    job.storage, job.target = storage, with_storage(job.target, storage)
    job.settled_storage = f"{storage}, journal ({origin})"
    logger.info("storage   %s", job.settled_storage)


def is_open(job: Compilation) -> bool:
    """Whether the storage of a network is left to what was measured."""
    asked = job.storage != "auto" or job.options.storage_overrides or job.options.keep_layout
    return not asked and job.target.device.image_extent > 0
