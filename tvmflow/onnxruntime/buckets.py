"""Choice of larger shapes to which inputs are padded, where a user allows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..errors import InputError
from ..frontend.source import Source
from ..module.padding import Padding, check_padding, fits, pad

Shape = tuple[int, ...]


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
            check_padding(name, value)
        found = {name: [tuple(map(int, s)) for s in given] for name, given in shapes.items()}
        return cls({name: sorted(given, key=prod) for name, given in found.items()}, padding)

    def choose(self, shapes: Mapping[str, Shape]) -> dict[str, Shape] | None:
        """Return the smallest buckets that hold these shapes; ``None`` if nothing is padded."""
        found = {name: self._bucket(name, shape) for name, shape in shapes.items()}
        return None if found == dict(shapes) else found

    def pad(self, name: str, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Return an array of this shape that begins with the given one."""
        return pad(array, shape, self.padding.get(name, 0))

    def _bucket(self, name: str, shape: Shape) -> Shape:
        return next((each for each in self.shapes.get(name, ()) if fits(shape, each)), shape)


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
