"""Measurement of what 16-bit storage does to a network, with ONNX Runtime.

The model runs twice: unchanged, and with the tensors rounded to 16 bits that a module stores so.
A tensor that differs by more than `LOSS` although its inputs do not is infinite in 16 bits, or its
operands nearly cancel, or it chooses among nearly equal values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..frontend.graph import node_name
from ..ir.limits import LARGEST_HALF
from ..ir.names import found_in
from ..ir.rewriter import identifier
from .noise import integers_of, stored_in_half
from .reference import all_results, read_model

if TYPE_CHECKING:
    import onnx

    from ..runtime.json_types import JsonMapping

    Arrays = Mapping[str, np.ndarray]

#: Largest allowed error of a tensor, relative to its largest number.
LOSS = 0.05
#: Attempts to keep operands further up in 32 bits before a tensor is given up.
_MOST_STEPS = 8
#: Most measurements of one network.
_MOST_RUNS = 40
#: Operators with discontinuous results, in addition to those with integer results.
_CHOICES = ("Floor", "Ceil", "Round", "Sign", "Hardmax", "TopK", "QuantizeLinear", "Mod")


@dataclass(frozen=True)
class Loss:
    """A tensor that loses more than `LOSS` although its inputs do not."""

    tensor: str
    #: Description of the node or input.
    where: str
    operator: str
    #: Largest number in the reference.
    largest: float
    #: Largest error relative to `largest`; infinite if the tensor is.
    error: float
    #: Whether the operator chooses among values, which may be nearly equal.
    is_choice: bool

    @property
    def is_infinite(self) -> bool:
        """Return whether the tensor has infinities or NaN that the reference does not have."""
        return not np.isfinite(self.error)

    def __str__(self) -> str:
        if self.is_infinite and self.largest > LARGEST_HALF:
            return (
                f"The first numbers that are infinite in 16 bits, up to {self.largest:.3g}, are in "
                f"{self.where}."
            )
        if self.is_infinite:
            lost = "is the first that is infinite or NaN"
        else:
            lost = f"is the first that loses digits: it is off by {self.error:.1%} of its largest "
            lost += f"number, {self.largest:.3g}"
        return f"With tensors stored in 16 bits, {self.where} {lost}."


class Halves:
    """Measurement of the effect of 16 bits on a model with given inputs, arrays by ONNX name.

    ``options`` are a module's, of which `results` and `weights` change the model; ``file`` is the
    file of a model in memory, whose external data is next to it.

    Raises `EnvironmentMismatchError`, `ModelError` or `InputError` if ONNX Runtime is missing, or
    cannot run the model with these inputs.
    """

    def __init__(
        self,
        model: Path | onnx.ModelProto,
        inputs: Arrays,
        options: JsonMapping,
        file: Path | None = None,
    ):
        self.path = model if isinstance(model, Path) else file or Path("model.onnx")
        self.model = read_model(model, options)
        self.inputs = dict(inputs)
        self.fixed = integers_of(self.model)
        self.reference = all_results(self.path, self.model, self.inputs)
        self.nodes = {name: n for n in self.model.graph.node for name in n.output if name}
        self._identifiers = _by_identifier(self.model)

    def named(self, stored: Iterable[str]) -> set[str]:
        """Return the ONNX names of tensors between primary functions, as far as they have one."""
        # Each pass appends a number to the parameters of ``main``.
        inputs = {
            name: re.compile(f"{identifier(name)}(_\\d+)*(_blocked)?") for name in self.inputs
        }
        found = set()
        for tensor in stored:
            name = found_in(self._identifiers, tensor, ())
            found.add(name or next((n for n, form in inputs.items() if form.fullmatch(tensor)), ""))
        return found - {""}

    def losses(self, stored: Collection[str] | None) -> list[Loss]:
        """Return the tensors that first differ by more than `LOSS`, in the order of the nodes.

        `stored` are the ONNX names of tensors in 16 bits; ``None`` for all fp32 tensors.
        """
        inputs = {
            name: _rounded(a) if stored is None or name in stored else a
            for name, a in self.inputs.items()
        }
        rounded = stored_in_half(
            self.model,
            lambda name: name not in self.fixed and (stored is None or name in stored),
        )
        results = all_results(self.path, rounded, inputs)
        errors = {
            name: _error(results[name], array)
            for name, array in self.reference.items()
            if name in results
        }
        bad = {name for name, error in errors.items() if error > LOSS}
        bad -= self._harmless(bad, results)
        given = {name: _error(inputs[name], array) for name, array in self.inputs.items()}
        lost = {name for name, error in given.items() if error > LOSS}
        first = [
            name
            for name in self.reference
            if name in bad and not (bad | lost).intersection(self.nodes[name].input)
        ]
        return [self._loss(name, (given | errors)[name]) for name in (*lost, *first)]

    def _loss(self, name: str, error: float) -> Loss:
        node = self.nodes.get(name)
        if node is None:
            largest = _largest(self.inputs[name])
            return Loss(name, f"the input {name!r}", "", largest, error, is_choice=False)
        array = self.reference[name]
        return Loss(
            name,
            f"the result {name!r} of the node {node.name or name!r} ({node.op_type})",
            node.op_type,
            _largest(array),
            error,
            is_choice=array.dtype.kind != "f" or node.op_type in _CHOICES,
        )

    def _harmless(self, bad: set[str], results: Arrays) -> set[str]:
        """Return the tensors that are harmlessly minus infinity, such as masks before a softmax."""
        readers: dict[str, list[str]] = {}
        for node in self.model.graph.node:
            for name in node.input:
                readers.setdefault(name, []).extend(node.output)
        outputs = {output.name for output in self.model.graph.output}
        found: set[str] = set()
        for name in reversed(list(self.reference)):
            array = self.reference[name]
            if name not in bad or array.dtype.kind != "f" or name in outputs:
                continue
            changed = ~np.isfinite(results[name]) & np.isfinite(array)
            masked = (results[name][changed] == -np.inf).all()
            later = [each for each in readers.get(name, []) if each in bad and each not in found]
            if changed.any() and masked and not later:
                found.add(name)
        return found

    # -- what stays in 32 bits ----------------------------------------------------------------

    def keep(self, stored: Collection[str]) -> Kept:
        """Find the tensors that must stay in 32 bits so that no tensor loses `LOSS`."""
        kept = Kept()
        steps: dict[str, int] = {}
        tried: dict[str, list[str]] = {}
        for _ in range(_MOST_RUNS):
            left = set(stored) - set(kept.tensors)
            losses = [each for each in self.losses(left) if each.tensor not in kept.given_up]
            if not losses:
                break
            for loss in losses:
                found = [] if loss.is_choice else self._to_keep(loss, left)
                steps[loss.tensor] = steps.get(loss.tensor, 0) + 1
                if not found or steps[loss.tensor] > _MOST_STEPS:
                    # Keeping its operands did not help: undo that.
                    kept.given_up[loss.tensor] = str(loss)
                    for name in tried.get(loss.tensor, []):
                        kept.tensors.pop(name, None)
                    continue
                own = found == [loss.tensor]
                reason = f"up to {loss.largest:.3g}" if own else f"{loss.where} cancels"
                tried.setdefault(loss.tensor, []).extend(n for n in found if not own)
                kept.tensors |= dict.fromkeys(found, f"measured: {reason}")
        return kept

    def _to_keep(self, loss: Loss, stored: Collection[str]) -> list[str]:
        """Return the tensor itself if its rounding loses too much, else its nearest inputs."""
        reference = (self.inputs | self.reference)[loss.tensor]
        if loss.tensor in stored and _error(_rounded(reference), reference) > LOSS:
            return [loss.tensor]
        found, seen, level = [], {loss.tensor}, list(self.nodes[loss.tensor].input)
        while level:
            later: list[str] = []
            for name in level:
                if name in seen or not name:
                    continue
                seen.add(name)
                if name in stored:
                    found.append(name)
                elif name in self.nodes:
                    later += self.nodes[name].input
            level = later
        return found


@dataclass
class Kept:
    """Result of `Halves.keep`, by ONNX name."""

    #: Tensors that stay in 32 bits, with reasons.
    tensors: dict[str, str] = field(default_factory=dict)
    #: Tensors that still lose `LOSS`, with a sentence each.
    given_up: dict[str, str] = field(default_factory=dict)


def first_loss(
    model: Path, inputs: Arrays, metadata: JsonMapping, options: JsonMapping
) -> Loss | None:
    """Return the first tensor that a module's 16-bit storage makes infinite or inexact.

    ``None`` if there is none, or the reference cannot run the model's inner tensors.
    """
    try:
        halves = Halves(model, inputs, options)
        names = half_names(metadata)
        stored = None if names is None else halves.named(names)
        return next(iter(halves.losses(stored)), None)
    except Exception:  # noqa: BLE001 (another comparison stands already; this only explains it)
        return None


def half_names(metadata: JsonMapping) -> list[str] | None:
    """Return a module's 16-bit tensors between primary functions; ``None`` if not recorded."""
    if "halves" in metadata:
        return list(metadata["halves"])
    if "placements" not in metadata:
        return None
    return [
        place["tensor"]
        for place in metadata["placements"]
        if place["stored_as"] == "float16" and not place["constant"]
    ]


def _by_identifier(model: onnx.ModelProto) -> dict[str, str]:
    """Return ONNX names by the identifiers that the front end gives to nodes' results."""
    found: dict[str, str] = {}
    for node in model.graph.node:
        name = identifier(node_name(node))
        for number, output in enumerate(node.output):
            found.setdefault(f"{name}_{number}" if number else name, output)
    return found


def _rounded(array: np.ndarray) -> np.ndarray:
    """Round fp32 numbers to 16 bits."""
    if array.dtype != np.float32:
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def _largest(array: np.ndarray) -> float:
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    return float(np.abs(finite.astype(np.float64)).max(initial=0))


def _error(found: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest difference relative to the reference's largest number."""
    if found.shape != reference.shape:
        return np.inf
    if reference.dtype.kind != "f":
        return float((found != reference).any())
    known = np.isfinite(reference)
    if not np.isfinite(found[known]).all():
        return np.inf
    difference = np.abs(found[known].astype(np.float64) - reference[known].astype(np.float64))
    largest = _largest(reference)
    return float(difference.max(initial=0)) / largest if largest else 0.0
