"""Calibration for fp16: measure which tensors must stay in 32 bits."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING

from ..frontend.source import open_model
from ..ir.names import found_in
from ..ir.rewriter import identifier
from ..ir.units import bytes_text, counted
from ..module.samples import random_inputs
from ..verify.halves import LOSS, Halves

if TYPE_CHECKING:
    from ..graph.storage.placement import Placement
    from .compilation import Compilation

logger = logging.getLogger(__name__)

#: Additional bytes of an element in 32 bits.
_MORE_BYTES = 2
#: Upper bound of the number of passes that rebuild ``main``.
_MOST_PASSES = 9
#: Number of names that a message lists.
_FEW = 3


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration: tensors that stay in 32 bits, and those that lose precision."""

    #: Reasons why tensors stay in 32 bits, by identifier.
    wide: dict[str, str]
    #: A sentence for each tensor that still loses more than `LOSS`.
    lossy: tuple[str, ...]


def calibrate(job: Compilation, stored: Sequence[str]) -> Calibration:
    """Measure which tensors must stay in 32 bits; `stored` names those stored in 16 bits.

    Raises as `tvmflow.verify.halves.Halves` does, and `InputError` if inputs are too large for
    random values.
    """
    given = job.options.calibrate
    if given is None or isinstance(given, str):
        inputs = random_inputs(SimpleNamespace(inputs=job.model.inputs, metadata={}), seed=0)
    else:
        inputs = dict(given)
    assert job.source is not None
    source = open_model(job.source)
    halves = Halves(source.file or source.model, inputs, vars(job.options))
    kept = halves.keep(halves.named(stored))
    bindings = {name: identifier(binding) for name, binding in job.model.bindings.items()}
    wide = {bindings[name]: why for name, why in kept.tensors.items() if name in bindings}
    for index, info in enumerate(job.model.inputs):
        if (why := kept.tensors.get(info.name)) is not None:
            # Each pass that rebuilds ``main`` appends the number to its parameters' names again.
            wide |= {identifier(info.name) + f"_{index}" * n: why for n in range(_MOST_PASSES)}
    return Calibration(wide, tuple(kept.given_up.values()))


def log_calibration(
    found: Calibration, before: Sequence[Placement], after: Sequence[Placement]
) -> None:
    """Log which tensors stay in 32 bits, and how much more memory they need."""
    halves = {p.tensor: p for p in before if p.stored_as == "float16" and not p.constant}
    kept = [p for p in after if p.tensor in halves and p.stored_as != "float16"]
    more = sum(_MORE_BYTES * prod(p.shape) for p in kept)
    total = sum(_MORE_BYTES * prod(p.shape) for p in halves.values())
    share = f" ({more / total:.2%})" if total else ""
    names = "".join(f"\n  {p.tensor}: {p.reason.rpartition('measured: ')[2]}" for p in kept)
    logger.warning(
        "Calibration keeps %d of %s in 32 bits, which take %s more than %s%s%s",
        len(kept), counted(len(halves), "tensor"), bytes_text(more), bytes_text(total), share,
        f":{names}" if names else ".",
    )  # fmt: skip
    for sentence in found.lossy:
        logger.warning("More than %.0f %% is lost all the same. %s", 100 * LOSS, sentence)


def warn_of_ranges(risky: dict[str, str], stored: Collection[str], names: Collection[str]) -> None:
    """Warn of tensors in 16 bits whose estimated range may exceed that of fp16."""
    found = [(name, why) for name in stored if (why := found_in(risky, name, names)) is not None]
    if not found:
        return
    some = ", ".join(f"{name} ({why})" for name, why in found[:_FEW])
    rest = f" and {len(found) - _FEW} others" if len(found) > _FEW else ""
    logger.warning(
        "By an estimate of ranges 16 bits may not hold %s: %s%s. `calibrate` measures with inputs "
        "of yours, and keeps in 32 bits what needs it.",
        counted(len(found), "tensor"), some, rest,
    )  # fmt: skip
