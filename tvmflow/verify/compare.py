"""Comparison of a module's results with ONNX Runtime on the CPU, or ONNX's evaluator.

If the two disagree on NaN or infinity, the report names the first such tensor.  If an output is
beyond its tolerance, the noise model runs the reference with all numbers moved by a unit in their
last place: results of a quantized or ill-conditioned network may differ as much.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError, VerificationError
from ..ir.units import counted
from ..module.blocked_layout import all_to_logical
from ..module.load import OtherMachine, load
from ..module.module import Module
from ..module.padding import Padding, check_padding, crop, fits
from ..module.padding import pad as padded
from ..module.samples import random_inputs
from .halves import first_loss
from .noise import with_noise
from .reference import all_results, read_model, run_reference
from .tolerance import Comparison, compare, is_half, table_for, tolerance_for

if TYPE_CHECKING:
    from ..runtime.json_types import JsonMapping

    Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Report:
    """Comparison of every output, in the module's order."""

    outputs: tuple[Comparison, ...]
    reference: str  #: Name and version of the reference.
    #: Sentences about NaN and infinities that only one of the two has, and their origin.
    not_finite: tuple[str, ...] = ()
    #: Outputs beyond their tolerance whose reference differs as much when all numbers move by a
    #: unit in their last place: these inputs do not decide which result is right.
    undecided: tuple[str, ...] = ()
    #: Sentence about the first tensor that is infinite or loses digits in 16 bits.
    lost: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether every output is within its tolerance."""
        return all(output.passed for output in self.outputs)

    def __repr__(self) -> str:
        worst = max(self.outputs, key=lambda output: output.used, default=None)
        most = f", at most {worst.used:.2%} of a tolerance used" if worst else ""
        verdict = "passed" if self.passed else "failed"
        outputs = counted(len(self.outputs), "output")
        return f"<Report: {verdict} against {self.reference}, {outputs}{most}>"

    def raise_if_failed(self) -> None:
        """Raise `VerificationError` if outputs are beyond their tolerance."""
        failed = [output for output in self.outputs if not output.passed]
        if failed:
            worst = max(failed, key=lambda output: output.used)
            notes = (*self.not_finite, *self.lost, *map(_undecided_note, self.undecided))
            raise VerificationError(
                f"{len(failed)} of {len(self.outputs)} outputs differ from {self.reference} by "
                f"more than the tolerance, most of all {worst.name!r}, whose relative error is "
                + " ".join((f"{worst.max_rel_error:.3g}.", *notes)),
                remedy="Compile with `calibrate`, or with `dtype=fp32`."
                if self.lost
                else "Compile with `dump_ir` and compare the stages, or report the model.",
            )


def verify(
    model: str | os.PathLike[str],
    module: Module | str | os.PathLike[str],
    inputs: Arrays | None = None,
    *,
    seed: int = 0,
    device: int | OtherMachine = 0,
    pad: Padding | None = None,
) -> Report:
    """Compare a module's results with ONNX Runtime's.

    A model with custom operators, which ONNX Runtime does not know, is run by ONNX's reference
    evaluator instead, which is slow.

    Raises `EnvironmentMismatchError` if ONNX Runtime is not installed, `ModelError` if the
    reference cannot read or run the model or it is not the module's model, and `InputError` if an
    input does not fit.

    Parameters
    ----------
    model
        The ONNX file that the module was compiled from (of any size).
    module
        The module, or its file.
    inputs
        Arrays by ONNX name; random ones of `seed` by default.
    device
        Device for a module file, as for `tvmflow.load`.
    pad
        A number, or ``edge``: inputs smaller than the module's shapes are padded with it, and the
        outputs cropped, so that the report says what padding changes.
    """
    if isinstance(module, str | os.PathLike):
        with closing(load(module, device=device)) as opened:
            return verify(model, opened, inputs, seed=seed, pad=pad)
    values = dict(inputs) if inputs is not None else random_inputs(module, seed)
    logical = all_to_logical(module.inputs, values)
    names = [info.name for info in module.outputs]
    wanted = module.metadata.get("options", {})
    reference, name = run_reference(model, logical, names, wanted)
    if pad is not None:
        values = _padded(module, logical, pad)
    results = {
        key: np.asarray(result)
        for key, result in all_to_logical(module.outputs, dict(module(values).items())).items()
    }
    if pad is not None:
        results = {key: crop(key, result, reference[key].shape) for key, result in results.items()}
    table = table_for(module.metadata)
    allowed = {key: tolerance_for(reference[key].dtype.name, table) for key in names}
    half = is_half(module.metadata, "dtype")

    def compared() -> tuple[Comparison, ...]:
        return tuple(compare(k, result, reference[k], allowed[k]) for k, result in results.items())

    outputs = compared()
    differs: dict[str, float] = {}
    if not all(output.passed for output in outputs):
        allowed, differs = with_noise(Path(model), logical, reference, allowed, half, wanted)
        outputs = compared()
    undecided = tuple(
        output.name
        for output in outputs
        if not output.passed and output.max_abs_error <= 2 * differs.get(output.name, 0.0)
    )
    found = [disagreement(key, result, reference[key]) for key, result in results.items()]
    loss = None
    if half and not all(output.passed for output in outputs):
        loss = first_loss(Path(model), logical, module.metadata, wanted)
    lost: tuple[str, ...] = ()
    if loss is not None and not loss.is_choice:
        # The results are wrong, and not a choice among nearly equal numbers.
        undecided, lost = (), (str(loss),)
    elif any(found):
        found.append(origin(model, logical, wanted))
    return Report(outputs, name, tuple(filter(None, found)), undecided, lost)


def _padded(module: Module, values: Arrays, padding: Padding) -> dict[str, np.ndarray]:
    """Return inputs of the module's shapes; raises `InputError` if one is larger."""
    check_padding("the inputs", padding)
    shapes = {info.name: info.logical_shape or info.shape for info in module.inputs}
    for name, array in values.items():
        if name in shapes and not fits(array.shape, shapes[name]):
            raise InputError(
                f"The input {name!r} has shape {list(array.shape)}, which cannot be padded to "
                f"{list(shapes[name])}.",
                remedy="Give an input that is not larger than the module's.",
            )
    return {n: padded(a, shapes[n], padding) if n in shapes else a for n, a in values.items()}


def _undecided_note(output: str) -> str:
    return (
        f"The reference's own results of {output!r} differ as much when all numbers move by a unit "
        "in their last place: it chooses among values that are nearly equal. Give inputs of the "
        "kind that the network was trained for."
    )


def disagreement(name: str, got: np.ndarray, reference: np.ndarray) -> str | None:
    """Describe where only one of two arrays has NaN or an infinity.

    Returns a sentence with the number of such elements and the first one; ``None`` without any.
    """
    if got.shape != reference.shape or reference.dtype.kind != "f":
        return None
    odd = ~np.isfinite(got) | ~np.isfinite(reference)
    different = odd & ~((got == reference) | (np.isnan(got) & np.isnan(reference)))
    if not different.any():
        return None
    gained = int((different & np.isfinite(reference)).sum())
    lost = int((different & np.isfinite(got)).sum())
    kinds = {
        "NaN or infinity at {} where the reference has numbers": gained,
        "numbers at {} where that has NaN or infinity": lost,
        "another of NaN, inf and -inf at {}": int(different.sum()) - gained - lost,
    }
    parts = [text.format(counted(count, "place")) for text, count in kinds.items() if count]
    first = tuple(int(i) for i in np.argwhere(different)[0])
    return (
        f"Output {name!r} has {', and '.join(parts)}, first at {list(first)}: "
        f"{got[first]:g} for {reference[first]:g}."
    )


def origin(
    model: str | os.PathLike[str], inputs: Arrays, options: JsonMapping | None = None
) -> str | None:
    """Find the first node of an ONNX file that yields NaN or an infinity in the reference.

    Returns a sentence; ``None`` if the reference cannot run the model's inner tensors.
    """
    for name, array in inputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"Input {name!r} has NaN or infinity."
    try:
        loaded = read_model(Path(model), options or {})
        found = all_results(Path(model), loaded, inputs)
    except Exception:  # noqa: BLE001 (another comparison stands already; this only explains it)
        return None
    nodes = {name: node for node in loaded.graph.node for name in node.output}
    for name, array in found.items():
        if array.dtype.kind != "f":
            continue
        where = f"the result {name!r} of the node {nodes[name].name or name!r}"
        where += f" ({nodes[name].op_type})"
        if not np.isfinite(array).all():
            kind = "NaN" if np.isnan(array).any() else "infinity"
            return f"In the reference {kind} is first seen in {where}."
    return "No tensor in the reference has NaN or infinity."
