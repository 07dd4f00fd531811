"""Calls of modules with several shapes: choice of the shape, and splitting of batches into parts.

A batch that was not compiled runs in parts (5 = 4 + 1) if samples are independent of each other;
the metadata has the compiler's proof of that (`tvmflow.frontend.batch`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from ..errors import InputError
from ..ir.tensors import TensorInfo
from ..runtime.json_types import JsonMapping
from .values import Outputs, any_array, check_input, is_on_host, is_tensor, on_host, shared

logger = logging.getLogger(__name__)

Shape = tuple[int, ...]
#: Function that runs a shape, given by its number, on values in order.
Run = Callable[[int, Sequence[Any]], Outputs]


class OfShape(Protocol):
    """A module for one of its shapes, or only the interface of that."""

    @property
    def inputs(self) -> Sequence[TensorInfo]:
        """Return the inputs of this shape."""

    @property
    def outputs(self) -> Sequence[TensorInfo]:
        """Return the outputs of this shape."""


@dataclass(frozen=True)
class Interface:
    """Inputs and outputs of one of a module's shapes."""

    inputs: Sequence[TensorInfo]
    outputs: Sequence[TensorInfo]


@dataclass(frozen=True)
class Part:
    """Samples that run as one batch: ``count`` of them, starting at the sample ``begin``."""

    variant: int
    begin: int
    count: int
    #: Number of copies of the last sample that are appended.
    padding: int = 0


def find(variants: Sequence[OfShape], values: Sequence[object]) -> int | None:
    """Return the number of the shape that fits the values; ``None`` if no shape does."""
    shapes = [_shape(value) for value in values]
    for number, variant in enumerate(variants):
        if all(_fits(info, shape) for info, shape in zip(variant.inputs, shapes, strict=True)):
            return number
    return None


def warn_default_shape(variants: Sequence[OfShape], file: object, attempt: str) -> None:
    """Warn that an operation that supports one shape uses the first of several."""
    if len(variants) > 1:
        logger.warning(
            "%s has %d shapes, of which %s takes the first: %s. Compile a module of one shape to "
            "take another.",
            file, len(variants), attempt, ", ".join(map(str, variants[0].inputs)),
        )  # fmt: skip


def choose(variants: Sequence[OfShape], wanted: Mapping[str, Mapping[int, int]]) -> int:
    """Return the number of the first shape with these extents, given by input and axis.

    Raises `InputError`, with a list of the module's shapes, if there is none.
    """
    for number, variant in enumerate(variants):
        shapes = {info.name: info.logical_shape or info.shape for info in variant.inputs}
        if all(
            name in shapes and all(a < len(shapes[name]) and shapes[name][a] == e
                                   for a, e in axes.items())
            for name, axes in wanted.items()
        ):  # fmt: skip
            return number
    there = "; ".join(", ".join(map(str, variant.inputs)) for variant in variants)
    asked = ", ".join(f"{n} {list(axes.values())}" for n, axes in wanted.items())
    raise InputError(
        f"The module has no shape with {asked}; it has {there}.",
        remedy="Name one of these.",
    )


def run_any(
    variants: Sequence[OfShape],
    values: Sequence[Any],
    batch: JsonMapping | None,
    run: Run,
    *,
    on_device: bool = False,
    pad: bool = False,
) -> Outputs:
    """Run the shape that fits the values, or split their batch into parts and run these.

    ``batch`` is the proof of independence in the module's metadata; with ``pad`` a batch that is
    smaller than a compiled one is padded by repeating its last sample.

    Raises `InputError`, with the nearest shape, if no shape fits, or with the reason why a batch
    cannot be split.
    """
    if (number := find(variants, values)) is not None:
        return run(number, values)
    parts = parts_of(variants, values, batch, pad=pad)
    if on_device:
        raise InputError(
            f"A batch of {sum(part.count for part in parts)} runs in parts, which are put together "
            "on the host, so that its outputs cannot be 'dlpack'.",
            remedy="Take them as 'numpy', or give one of the compiled batches.",
        )
    assert batch is not None
    inputs, outputs = batch["inputs"], batch["outputs"]
    infos = variants[0].inputs
    arrays = [
        _sliceable(info, value) if info.name in inputs else value
        for info, value in zip(infos, values, strict=True)
    ]
    results = []
    for part in parts:
        taken = [
            _part(array, part, int(inputs[info.name]["axis"])) if info.name in inputs else array
            for info, array in zip(infos, arrays, strict=True)
        ]
        found = run(part.variant, taken)
        results.append([_without_padding(a, part, outputs[n]) for n, a in found.items()])
    names = [info.name for info in variants[0].outputs]
    joined = [
        np.concatenate(pieces, axis=int(outputs[name]["axis"]))
        for name, pieces in zip(names, zip(*results, strict=True), strict=True)
    ]
    return Outputs(names, joined)


def parts_of(
    variants: Sequence[OfShape],
    values: Sequence[object],
    batch: JsonMapping | None,
    *,
    pad: bool = False,
) -> list[Part]:
    """Split values whose batch was not compiled into parts of compiled batches.

    Raises `InputError` if that is impossible: the shape differs in more than the batch, the
    independence of samples is not proven, or the batch is no sum of compiled ones.
    """
    shapes = [_shape(value) for value in values]
    axes = {} if batch is None else {n: int(b["axis"]) for n, b in batch["inputs"].items()}
    first = variants[0].inputs
    for info, shape, value in zip(first, shapes, values, strict=True):
        if len(shape) not in (len(info.shape), len(info.logical_shape or info.shape)):
            check_input(info, shape, _dtype(value))
    extents = {s[axes[i.name]] for i, s in zip(first, shapes, strict=True) if i.name in axes}
    compiled = _compiled(variants, shapes, axes) if len(extents) == 1 else {}
    if not compiled or batch is None:
        raise _not_there(variants, shapes)
    (wanted,) = extents
    known = ", ".join(map(str, sorted(compiled)))
    if not batch["proven"]:
        where = f" at node {batch['node']}" if batch.get("node") else ""
        raise InputError(
            f"A batch of {wanted} was given, but the module has {known}, and it is not proven that "
            f"samples are independent of each other{where}: {batch.get('reason')}.",
            remedy="Give one of these batches, or compile the model for this one.",
        )
    sizes = counts(wanted, tuple(sorted(compiled, reverse=True)), pad)
    if sizes is None:
        raise InputError(
            f"A batch of {wanted} was given, which is no sum of the module's batches ({known}).",
            remedy="Pad it with `pad_batch`, or compile the model for this one, too.",
        )
    parts, begin = [], 0
    for size in sizes:
        count = min(size, wanted - begin)
        parts.append(Part(compiled[size], begin, count, size - count))
        begin += count
    return parts


def counts(wanted: int, compiled: tuple[int, ...], pad: bool = False) -> list[int] | None:
    """Return compiled batches, the largest possible ones first, whose sum is a batch.

    With ``pad`` a remainder is rounded up to the next larger compiled batch.  ``None`` if there is
    no such sum.

    >>> counts(20, (8, 4, 2, 1)), counts(5, (8, 4, 2, 1), pad=True), counts(3, (4,))
    ([8, 8, 4], [8], None)
    """
    if wanted < 1:
        return None
    if pad:
        whole, rest = divmod(wanted, compiled[0])
        last = [min(size for size in compiled if size >= rest)] if rest else []
        return [compiled[0]] * whole + last

    @cache
    def sums(rest: int, first: int) -> tuple[int, ...] | None:
        """Return counts of the sizes starting at index ``first``, or ``None``."""
        size = compiled[first]
        if first == len(compiled) - 1:
            return None if rest % size else (rest // size,)
        most = rest // size
        # This many of a smaller size sum to a multiple of this size, so fewer of this size than
        # the loop's bound need not be tried.
        for count in range(most, max(-1, most - size), -1):
            if (others := sums(rest - count * size, first + 1)) is not None:
                return count, *others
        return None

    found = sums(wanted, 0)
    if found is None:
        return None
    return [size for size, count in zip(compiled, found, strict=True) for _ in range(count)]


def _compiled(
    variants: Sequence[OfShape], shapes: Sequence[Shape], axes: Mapping[str, int]
) -> dict[int, int]:
    """Return, by batch, the numbers of the shapes that differ from these only in the batch."""
    found = {}
    for number, variant in enumerate(variants):
        batches = {
            (info.logical_shape or info.shape)[axes[info.name]]
            for info in variant.inputs
            if info.name in axes
        }
        fits = all(
            _fits(info, shape, axes.get(info.name))
            for info, shape in zip(variant.inputs, shapes, strict=True)
        )
        if fits and len(batches) == 1:
            found[batches.pop()] = number
    return found


def _fits(info: TensorInfo, shape: Shape, but: int | None = None) -> bool:
    """Return whether a shape is an input's, in any of its layouts, except for the axis ``but``."""
    wanted = [info.shape, *([info.logical_shape] if info.logical_shape is not None else [])]
    return any(
        len(shape) == len(each)
        and all(a == b for n, (a, b) in enumerate(zip(shape, each, strict=True)) if n != but)
        for each in wanted
    )


def _not_there(variants: Sequence[OfShape], shapes: Sequence[Shape]) -> InputError:
    """Return an error that names the missing shape and the nearest one."""

    def distance(variant: OfShape) -> float:
        total = 0.0
        for info, shape in zip(variant.inputs, shapes, strict=True):
            wanted = info.shape if len(shape) == len(info.shape) else info.logical_shape or ()
            for given, extent in zip(shape, wanted, strict=True):
                total += abs(np.log(max(given, 0.5) / max(extent, 0.5)))
        return total

    near = min(variants, key=distance)
    first = variants[0].inputs
    given = ", ".join(f"{i.name} {list(s)}" for i, s in zip(first, shapes, strict=True))
    there = ", ".join(
        f"{info.name} {list(info.shape if len(s) == len(info.shape) else info.logical_shape or ())}"
        for info, s in zip(near.inputs, shapes, strict=True)
    )
    return InputError(
        f"The module has {len(variants)} shapes, but not {given}; the nearest is {there}.",
        remedy="Resize the inputs to it, or compile the model for this shape, too (`at`).",
    )


def _shape(value: object) -> Shape:
    found = getattr(value, "shape", None)
    return tuple(map(int, np.shape(value) if found is None else found))  # type: ignore[call-overload]


def _dtype(value: object) -> str:
    found = getattr(value, "dtype", None)
    return str(np.asarray(value).dtype if found is None else found)


def _sliceable(info: TensorInfo, value: object) -> np.ndarray:
    """Return a value as an array on the host."""
    if not is_tensor(value):
        return any_array(info.name, value)
    tensor = shared(info.name, value)
    if info.scope is not None and not is_on_host(tensor):
        raise InputError(
            f"The input {info.name!r} is in an image on the device, which has no parts.",
            remedy="Give a NumPy array, or one of the compiled batches.",
        )
    return on_host(tensor)


def _part(array: np.ndarray, part: Part, axis: int) -> np.ndarray:
    samples = np.arange(part.begin, part.begin + part.count + part.padding)
    if part.padding:
        return array.take(np.minimum(samples, part.begin + part.count - 1), axis)
    where = [slice(None)] * axis + [slice(part.begin, part.begin + part.count)]
    return array[tuple(where)]


def _without_padding(array: np.ndarray, part: Part, place: JsonMapping) -> np.ndarray:
    where = [slice(None)] * int(place["axis"]) + [slice(part.count * int(place["each"]))]
    return array[tuple(where)]
