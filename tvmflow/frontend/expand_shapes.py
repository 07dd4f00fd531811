"""Expansion of ranges of the batch and open extents to the static shapes of one module.

``shapes`` may have a range of batches as the first extent, and ``?`` for extents given by ``at``::

    shapes={"image": ("1..8", 3, 224, 224)}        batches 1, 2, 4 and 8
    shapes={"image": (1, 3, "?", "?")}, at={"image": [(224, 224), (320, 240)]}

Each combination gives static shapes of all inputs, a *variant*.  The first one is the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from ..errors import ShapeError
from ..ir.extents import ANY_INPUT, OPEN, RANGE, Extent
from ..ir.limits import MOST_VARIANTS
from .shapes import declared_dims, is_fixed, static_inputs

#: The static shapes of all inputs by name.
Shapes = Mapping[str, tuple[int, ...]]
_Declared = Mapping[str, Sequence[int | str | None] | None]
#: Batches for which the proof of independence compares the shapes (`.batch`).
_PROBES = (2, 3)


@dataclass(frozen=True)
class Expansion:
    """Static shapes that given shapes expand to."""

    #: Static shapes to compile for; the first ones are the default.
    variants: tuple[Shapes, ...]
    #: Shapes at two batches for each choice of the other extents; empty without a range of batches.
    probes: tuple[tuple[Shapes, Shapes], ...] = ()


def is_open(shapes: Mapping[str, Sequence[Extent]], at: object) -> bool:
    """Return whether given shapes may expand to several."""
    return bool(at) or any(isinstance(e, str) for shape in shapes.values() for e in shape)


def expand(
    inputs: Sequence[onnx.ValueInfoProto],
    shapes: Mapping[str, Sequence[Extent]],
    at: Mapping[str, Sequence[Sequence[int]]],
) -> Expansion:
    """Expand ``shapes`` and ``at`` to static shapes of all inputs.

    A symbol that is set for one input is set for all that use it.  The result has the choices of
    ``at`` in their order, each with the batches in ascending order.

    Raises ``ShapeError`` if a range is empty, not of the first axis, or of one that the model
    fixes; if the extents of ``at`` do not fit the open ones; if there are more than
    `MOST_VARIANTS`; or if a shape does not fit the model (`static_inputs`).
    """
    declared = declared_dims(inputs)
    low, high = _batches(shapes, declared)
    filled = list(_filled(shapes, at, declared))

    def of_batch(given: Mapping[str, Sequence[Extent]], batch: int) -> Shapes:
        concrete = {
            name: tuple(batch if RANGE.fullmatch(str(e)) else e for e in shape)
            for name, shape in given.items()
        }
        return {info.name: info.shape for info in static_inputs(inputs, concrete)}  # type: ignore[arg-type]

    batches = compiled_batches(low, high)
    if (count := len(filled) * len(batches)) > MOST_VARIANTS:
        raise ShapeError(
            f"The shapes asked for are {count} ({len(filled)} of `at` times {len(batches)} "
            f"batches), and a module has at most {MOST_VARIANTS}: each has kernels of its own.",
            remedy="Ask for fewer, or compile several modules.",
        )
    variants = [of_batch(given, batch) for given in filled for batch in batches]
    probes = [
        (of_batch(given, _PROBES[0]), of_batch(given, _PROBES[1]))
        for given in (filled if len(batches) > 1 else ())
    ]
    # Two choices may give the same shapes.
    different = {tuple(sorted(variant.items())): variant for variant in variants}
    return Expansion(tuple(different.values()), tuple(probes))


def compiled_batches(low: int, high: int) -> list[int]:
    """Return the batches to compile for a range: its ends, and the powers of two between.

    >>> compiled_batches(1, 6)
    [1, 2, 4, 6]
    """
    powers = (1 << n for n in range(high.bit_length()))
    return sorted({low, high, *(p for p in powers if low < p < high)})


def _dim(declared: _Declared, name: str, axis: int) -> int | str | None:
    """Return an input's dimension in the model; ``None`` if it is unknown."""
    dims = declared.get(name) or ()
    return dims[axis] if axis < len(dims) else None


def _batches(shapes: Mapping[str, Sequence[Extent]], declared: _Declared) -> tuple[int, int]:
    """Return the range of batches, which all inputs must agree on; 1 to 1 without one."""
    found: dict[str, tuple[int, int]] = {}
    for name, shape in shapes.items():
        for axis, extent in enumerate(shape):
            if not isinstance(extent, str) or extent == OPEN:
                continue
            range_ = RANGE.fullmatch(extent)
            if range_ is None:
                raise ShapeError(
                    f"An extent given for the input {name!r} is {extent!r}; expected a number, a "
                    "range of batches such as 1..8, or ?.",
                    remedy=f"`shapes={name}=1..8,3,224,224`, for example",
                )
            low, high = int(range_[1]), int(range_[2])
            fixed = _dim(declared, name, axis)
            if axis:
                raise ShapeError(
                    f"The range {extent} is given for axis {axis} of the input {name!r}, but only "
                    "the first axis, the batch, can have one: other batches run in parts, other "
                    "extents cannot.",
                    remedy="Write ? for the extent, and list its values with `at`.",
                )
            if is_fixed(fixed):
                raise ShapeError(
                    f"The range {extent} is given for the first axis of the input {name!r}, which "
                    f"the model fixes at {fixed}.",
                    remedy="Export the model with an open batch.",
                )
            if not 1 <= low <= high:
                raise ShapeError(
                    f"The range {extent} of the input {name!r} is empty; expected batches from 1 "
                    "on, the smaller one first.",
                    remedy=f"`shapes={name}=1..8,3,224,224`, for example",
                )
            found[name] = low, high
    first = next(iter(found), None)
    for name, range_given in found.items():
        if first is not None and range_given != found[first]:
            texts = ["..".join(map(str, found[each])) for each in (first, name)]
            raise ShapeError(
                f"The inputs {first!r} and {name!r} have different ranges of batches, {texts[0]} "
                f"and {texts[1]}.",
                remedy="Give all inputs the same range: it is one batch.",
            )
    return (1, 1) if first is None else found[first]


def _filled(
    shapes: Mapping[str, Sequence[Extent]],
    at: Mapping[str, Sequence[Sequence[int]]],
    declared: _Declared,
) -> Iterator[dict[str, Sequence[Extent]]]:
    """Yield the given shapes with ``?`` filled in, once for each choice of ``at``."""
    places = {name: [a for a, e in enumerate(s) if e == OPEN] for name, s in shapes.items()}
    places = {name: axes for name, axes in places.items() if axes}
    if not at:
        if places:
            name, axes = next(iter(places.items()))
            raise ShapeError(
                f"The input {name!r} has {len(axes)} open extents, but none are listed for them.",
                remedy=f"`at={name}={'x'.join(['224'] * len(axes))}`, for example",
            )
        yield dict(shapes)
        return
    if not places:
        raise ShapeError(
            "Extents are listed with `at`, but no given shape has an open one.",
            remedy="Write ? for them, as in `shapes=image=1,3,?,?`.",
        )
    named = _by_input(at, places, _leaders(places, declared))
    counts = {name: len(choices) for name, choices in named.items()}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} for {name!r}" for name, count in counts.items())
        raise ShapeError(
            f"The lists of extents have different lengths ({found}); the first of each belong "
            "together, then the second, and so on.",
            remedy="List as many for each input.",
        )
    for number in range(next(iter(counts.values()))):
        symbols: dict[str, int] = {}
        given = {name: list(shape) for name, shape in shapes.items()}
        for name, choices in named.items():
            for axis, extent in zip(places[name], choices[number], strict=True):
                given[name][axis] = extent
                symbol = _dim(declared, name, axis)
                if isinstance(symbol, str):
                    symbols.setdefault(symbol, extent)
        for name, axes in places.items():
            for axis in axes if name not in named else ():
                symbol = _dim(declared, name, axis)
                if symbol not in symbols:
                    example = "x".join(["224"] * len(axes))
                    raise ShapeError(
                        f"Extents are listed for {', '.join(map(repr, named))}, but the input "
                        f"{name!r} has open ones, too.",
                        remedy=f"List them with another `at={name}={example}`.",
                    )
                given[name][axis] = symbols[str(symbol)]
        yield dict(given)


def _leaders(places: Mapping[str, Sequence[int]], declared: _Declared) -> list[str]:
    """Return the inputs with an open extent that no earlier input's open extents determine."""
    known: set[str] = set()
    leaders = []
    for name, axes in places.items():
        symbols = [_dim(declared, name, axis) for axis in axes]
        if not all(symbol in known for symbol in symbols):
            leaders.append(name)
        known |= {symbol for symbol in symbols if isinstance(symbol, str)}
    return leaders


def _by_input(
    at: Mapping[str, Sequence[Sequence[int]]],
    places: Mapping[str, Sequence[int]],
    leaders: Sequence[str],
) -> dict[str, Sequence[Sequence[int]]]:
    """Return the extents of ``at`` by input; check their number against the open extents."""
    named: dict[str, Sequence[Sequence[int]]] = {}
    for given, choices in at.items():
        name = given
        if given == ANY_INPUT:
            if len(leaders) != 1:
                raise ShapeError(
                    f"Extents are listed without an input's name, but {len(leaders)} have open "
                    f"ones: {', '.join(map(repr, leaders))}.",
                    remedy=f"`at={leaders[0]}=224x224`, for example",
                )
            name = leaders[0]
        if name not in places:
            raise ShapeError(
                f"Extents are listed for the input {name!r}, but the given shapes leave none of "
                f"it open, only of {', '.join(map(repr, places))}.",
                remedy=f"`at={next(iter(places))}=224x224`, for example",
            )
        if not choices:
            raise ShapeError(
                f"No extents are listed for the input {name!r}.",
                remedy="List at least one choice, or leave `at` out.",
            )
        for extents in choices:
            if len(extents) != len(places[name]):
                raise ShapeError(
                    f"{'x'.join(map(str, extents))} are {len(extents)} extents, but the given "
                    f"shape of the input {name!r} has {len(places[name])} open ones.",
                    remedy="Give one for each ?, in their order.",
                )
        named[name] = choices
    return named
