"""A schedule for each primary function."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tvm
from tvm import IRModule, tirx

from ..devices.target import TargetSpec
from ..errors import CompileError
from ..ir.signatures import wants_schedule
from ..ir.units import counted
from ..journal.journal import Journal
from ..schedules import FAMILIES, Scheduled, schedule_function
from .compilation import Attempt
from .lookup import lookup_in

logger = logging.getLogger(__name__)


def schedule_module(
    mod: IRModule,
    target: TargetSpec,
    knobs: Mapping[str, Mapping[str, Any]] | None = None,
    journals: Sequence[Journal] = (),
    nodes: Mapping[str, Sequence[str]] | None = None,
    last_resort: Collection[str] = (),
) -> tuple[IRModule, dict[str, Scheduled]]:
    """Schedule every primary function.

    Parameters
    ----------
    mod
        Fused primary functions, with their storage decided.
    target
        What they are scheduled for.
    knobs
        Knobs of single functions by name, instead of the heuristic's.
    journals
        Where knobs are looked up for the others.
    nodes
        Names of the ONNX nodes of each function, for messages.
    last_resort
        Functions that only the fallback schedules.

    Returns
    -------
    mod, choices
        The module with its functions scheduled, and what was chosen for each.

    Raises
    ------
    CompileError
        If no schedule can be made for a function.
    """
    choices: dict[str, Scheduled] = {}
    given = knobs or {}
    functions: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
    with target.tvm_target:
        for gv, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc) and wants_schedule(function):
                name = gv.name_hint
                try:
                    lookup = lookup_in(journals, function, target)
                    # The last family never declines.
                    families = FAMILIES[-1:] if name in last_resort else FAMILIES
                    scheduled = schedule_function(
                        function, target, given.get(name), name, lookup, families
                    )
                except Exception as error:
                    raise CompileError(
                        f"{described(name, nodes)} could not be scheduled for "
                        f"{target.kind}: {reason_of(error)}",
                        remedy="Compile with `target=llvm` to see whether the model itself "
                        "is sound.",
                    ) from error
                choices[name] = scheduled
                function = scheduled.schedule.mod["main"].with_attrs(
                    {"tirx.is_scheduled": True, **dict(function.attrs or {})}
                )
            functions[gv] = function
    return IRModule(functions, attrs=mod.attrs), choices


def described(name: str, nodes: Mapping[str, Sequence[str]] | None) -> str:
    """A primary function, with the ONNX nodes that it computes, for messages."""
    known = list((nodes or {}).get(name, ()))
    if not known:
        return f"The primary function {name}"
    shown = ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")
    return f"The primary function {name} ({'nodes' if len(known) > 1 else 'node'} {shown})"


def reason_of(error: Exception) -> str:
    """What an error of TVM's says in its last line."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def tell_matches(attempt: Attempt, schedules: Mapping[str, Scheduled]) -> None:
    """Say how many functions have their knobs from journals, and which knobs are nobody's."""
    for name in [name for name in attempt.knobs if name not in schedules]:
        logger.warning("Knobs were given for %s, which is no primary function here.", name)
    if not attempt.journals:
        return
    matched = sum(choice.source == "journal" for choice in schedules.values())
    functions = counted(len(schedules), "function")
    names = ", ".join(path.name for path in attempt.journals)
    if matched:
        logger.info("%s had knobs for %d of %s.", names, matched, functions)
    else:
        logger.warning(
            "%s had knobs for 0 of %s: what was tuned has other shapes, options or another kind "
            "of device.",
            names,
            functions,
        )
