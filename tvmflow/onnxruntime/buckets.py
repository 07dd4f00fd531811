"""Padding of inputs to compiled shapes, and cropping of the outputs, where a user allows it.

Padding changes results wherever a network looks beyond the borders: ``tvmflow.verify`` with
``buckets`` measures by how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..errors import InputError
from ..frontend.source import Source

Shape = tuple[int, ...]
#: Value that is appended to an input: a number, or ``edge`` to repeat its last elements.
Padding = float | str


@dataclass(frozen=True)
class Buckets:
    """Shapes to which inputs are padded, by name, and with what."""

    shapes: Mapping[str, Sequence[Shape]]
    padding: Mapping[str, Padding]

    @classmethod
    def of(
        cls,
        source: Source,
        shapes: Mapping[str, Sequence[Sequence[int]]],
        padding: Mapping[str, Padding],
    ) -> Buckets:
        """Check what a user gave; raises `InputError` for an unknown name or padding."""
        names = [value.name for value in source.inputs]
        for name in (*shapes, *padding):
            if name not in names:
                raise InputError(
                    f"Buckets or padding were given for the input {name!r}, but the model has "
                    f"{', '.join(map(repr, names))}.",
                    remedy="Use the name of one of the model's inputs.",
                )
        for name, value in padding.items():
            if value != "edge" and isinstance(value, str):
                raise InputError(
                    f"The padding of {name!r} is {value!r}, expected a number or 'edge'.",
                    remedy="`pad={'x': 0.0}`, for example.",
                )
        found = {name: [tuple(map(int, s)) for s in given] for name, given in shapes.items()}
        return cls({name: sorted(given, key=prod) for name, given in found.items()}, padding)

    def choose(self, shapes: Mapping[str, Shape]) -> dict[str, Shape] | None:
        """Return the smallest buckets that hold these shapes; ``None`` if nothing is padded."""
        found = {name: self._bucket(name, shape) for name, shape in shapes.items()}
        return None if found == dict(shapes) else found

    def pad(self, name: str, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Return an array of this shape that begins with the given one."""
        if array.shape == shape:
            return array
        value = self.padding.get(name, 0)
        if value == "edge":
            sizes = zip(shape, array.shape, strict=True)
            return np.pad(array, [(0, wanted - there) for wanted, there in sizes], "edge")
        padded = np.full(shape, value, array.dtype)
        padded[tuple(map(slice, array.shape))] = array
        return padded

    def _bucket(self, name: str, shape: Shape) -> Shape:
        def holds(bucket: Shape) -> bool:
            return len(bucket) == len(shape) and all(map(int.__ge__, bucket, shape))

        return next(filter(holds, self.shapes.get(name, ())), shape)


def output_shapes(source: Source, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the outputs' shapes for shapes of all inputs; those known only at run time are absent.

    Raises `ModelError` if the model contradicts these shapes.
    """
    from ..frontend.prepare import prepare
    from ..frontend.propagate import propagate

    graph = prepare(source, shapes)
    propagate(graph)
    types = {name: graph.types[name] for name in graph.outputs if name in graph.types}
    return {name: kind.shape for name, kind in types.items()}


def crop(name: str, array: np.ndarray, shape: Shape | None) -> np.ndarray:
    """Return the beginning of an output of a padded run.

    Raises `InputError` if the shape without padding is unknown, or does not lie in the output.
    """
    if shape is None or len(shape) != array.ndim or any(map(int.__gt__, shape, array.shape)):
        wanted = "an unknown shape" if shape is None else list(shape)
        raise InputError(
            f"The output {name!r} of the padded run has shape {list(array.shape)}, which cannot be "
            f"cropped to {wanted}.",
            remedy="Leave `buckets` out for this model.",
        )
    return array[tuple(map(slice, shape))]
