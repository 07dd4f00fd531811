"""Seeded random weights that are generated when they are written, not before.

A weight is described by its distribution and generated in chunks from its own
random stream, so that the same seed gives the same values whether the tensor is
stored in the model or streamed to a file of several gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

#: Elements generated at a time (16 MiB of float32).
CHUNK_ELEMENTS = 4 << 20


@dataclass(frozen=True)
class Weight:
    """A float32 tensor to be drawn: ``mean + scale * standard normal``, or uniform.

    ``stream`` is the pair (model seed, number of the tensor in the model) that seeds its stream.
    """

    name: str
    shape: tuple[int, ...]
    #: ``"normal"`` (mean ``a``, standard deviation ``b``) or ``"uniform"`` (``a`` to ``b``).
    distribution: str
    a: float
    b: float
    stream: tuple[int, int]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The number of bytes in float32."""
        return 4 * self.elements

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield the values in row-major order, at most ``CHUNK_ELEMENTS`` at a time."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.stream)))
        for start in range(0, self.elements, CHUNK_ELEMENTS):
            count = min(CHUNK_ELEMENTS, self.elements - start)
            if self.distribution == "uniform":
                values = generator.random(count, dtype=np.float32)
                values *= np.float32(self.b - self.a)
            else:
                values = generator.standard_normal(count, dtype=np.float32)
                values *= np.float32(self.b)
            values += np.float32(self.a)
            yield values

    def array(self) -> np.ndarray:
        """Return the whole tensor in memory."""
        return np.concatenate(list(self.chunks())).reshape(self.shape)
