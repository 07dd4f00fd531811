"""Scheduling of all primary functions of a program."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

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
    attempt: Attempt | None = None,
    journals: Sequence[Journal] = (),
    nodes: Mapping[str, Sequence[str]] | None = None,
) -> tuple[IRModule, dict[str, Scheduled]]:
    """Schedule every primary function; return the program and the choice for each function.

    ``journals`` are the attempt's open journals; ``nodes`` are each function's ONNX nodes, for
    messages.

    Raises `CompileError` if a function cannot be scheduled.
    """
    attempt = attempt or Attempt()
    choices: dict[str, Scheduled] = {}
    functions: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
    with target.tvm_target:
        for gv, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc) and wants_schedule(function):
                name = gv.name_hint
                try:
                    lookup = lookup_in(journals, function, target)
                    # The last family never declines.
                    families = FAMILIES[-1:] if name in attempt.last_resort else FAMILIES
                    scheduled = schedule_function(
                        function, target, attempt.knobs.get(name), name, lookup, families
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
    """Return the name of a primary function and its ONNX nodes, for messages."""
    known = list((nodes or {}).get(name, ()))
    if not known:
        return f"The primary function {name}"
    shown = ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")
    return f"The primary function {name} ({'nodes' if len(known) > 1 else 'node'} {shown})"


def reason_of(error: Exception) -> str:
    """Return the last line of a TVM error."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def log_journal_hits(attempt: Attempt, schedules: Mapping[str, Scheduled]) -> None:
    """Log how many functions have knobs from journals; warn of knobs for unknown functions."""
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
