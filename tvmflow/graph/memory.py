"""The memory plan: which intermediate tensors share an allocation.

Runs when calls write to tensors that ``main`` allocates.  Before::

    alloc  = R.builtin.alloc_tensor(R.shape([1, 4, 16, 16, 4]), "float32", 0, "global")
    _      = conv2d(x, w, alloc)                   # its third parameter is a texture

After::

    image0 = R.memory.alloc_storage(R.shape([1, 64, 16, 4]), 0, "global.texture:1.2", "float32")
    alloc  = R.call_packed("vm.builtin.alloc_tensor", image0, 0, R.shape([1, 4, 16, 16, 4]), ...)
    _      = conv2d(x, w, alloc)

Tensors whose lives do not overlap share a *block*: a buffer as large as the largest
of them, or an image as wide, as high and as deep.  Larger tensors choose first; each
takes the block that has to grow least, or a new one if that grows less (the greedy
by size of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020).  The largest sum of tensors that live at one time is a lower bound
for any plan.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any

import numpy as np

from ..ir.scope import (
    CHANNELS,
    HALF,
    HALF_BUFFER,
    PREFIX,
    Extent,
    extent_of,
    is_half,
    is_texture,
    texel_bytes,
)


class Kind(Enum):
    """Kinds of allocations; the value is the memory scope that they are made with.

    An image is made with the extents (layers, rows, columns, channels).
    """

    BUFFER = "global"
    HALF_BUFFER = HALF_BUFFER
    IMAGE = f"{PREFIX}:1.2"
    HALF_IMAGE = f"{HALF}:1.2"


#: Blocks of channels that devices have, see :mod:`tvmflow.devices.target`.
LANES = (4, 8, 16)
#: Drivers align buffers to this many bytes, at least.
ALIGNMENT = 64
#: Orders of tensors that are tried besides the one by size.
ORDERS = 32


HALF_KINDS = (Kind.HALF_BUFFER, Kind.HALF_IMAGE)


@dataclass
class Tensor:
    """An intermediate tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    #: Memory scope of the parameter that writes it; ``None`` is a buffer of its dtype.
    scope: str | None = None
    #: Steps, numbers of calls of primary functions, that write it first and read it last.
    first: int = 0
    last: int = 0
    producer: str = ""
    readers: list[str] = field(default_factory=list)
    #: Number of its block; ``None`` for a result of the model, which has memory of its own.
    block: int | None = None

    @property
    def bytes(self) -> int:
        """Size without any padding."""
        if self.is_image:
            return prod(self.shape) // CHANNELS * texel_bytes(str(self.scope))
        size = 2 if self.scope == HALF_BUFFER else np.dtype(self.dtype).itemsize
        return prod(self.shape) * size

    @property
    def layout(self) -> str:
        """``NCHW4c`` for a texture, else what the shape tells."""
        if len(self.shape) == 5 and (self.is_image or self.shape[-1] in LANES):
            return f"NCHW{self.shape[-1]}c"
        return "NCHW" if len(self.shape) == 4 else "plain"

    @property
    def is_image(self) -> bool:
        """Whether it is a texture."""
        return self.scope is not None and is_texture(self.scope)

    @property
    def kind(self) -> Kind:
        """What it can share an allocation with."""
        if self.scope == HALF_BUFFER:
            return Kind.HALF_BUFFER
        if self.scope is None:
            return Kind.BUFFER
        return Kind.HALF_IMAGE if is_half(self.scope) else Kind.IMAGE

    @property
    def extent(self) -> Extent | None:
        """Extent of its image."""
        return extent_of(self.shape, str(self.scope)) if self.is_image else None


@dataclass
class Block:
    """An allocation that several tensors share."""

    #: The kind of its tensors.
    kind: Kind
    bytes: int = 0
    extent: Extent | None = None
    tensors: list[Tensor] = field(default_factory=list)

    def with_room_for(self, tensor: Tensor) -> tuple[int, Extent | None]:
        """Size and extent that the block would have with one more tensor."""
        if tensor.extent is None:
            return max(self.bytes, -(-tensor.bytes // ALIGNMENT) * ALIGNMENT), None
        own, new = self.extent or Extent(0, 0), tensor.extent
        extent = Extent(
            max(own.width, new.width), max(own.height, new.height), max(own.layers, new.layers)
        )
        assert tensor.scope is not None
        return extent.texels * texel_bytes(tensor.scope), extent

    def is_free_for(self, tensor: Tensor) -> bool:
        """Whether the kind fits and nobody in it lives at the same time."""
        return tensor.kind is self.kind and all(
            tensor.last < t.first or t.last < tensor.first for t in self.tensors
        )


@dataclass
class MemoryPlan:
    """Blocks, and the tensors in and outside of them."""

    tensors: list[Tensor]
    blocks: list[Block]
    #: Names of the functions that are called, in order.
    steps: list[str] = field(default_factory=list)

    @property
    def peak_bytes(self) -> int:
        """Memory of all blocks: what intermediate tensors occupy during a run."""
        return sum(block.bytes for block in self.blocks)

    @property
    def lower_bound_bytes(self) -> int:
        """Largest sum of tensors in blocks that live at one time."""
        planned = [t for t in self.tensors if t.block is not None]
        steps = range(max((t.last for t in planned), default=-1) + 1)
        return max(
            (sum(t.bytes for t in planned if t.first <= s <= t.last) for s in steps), default=0
        )

    def report(self) -> dict[str, Any]:
        """The plan as JSON, for ``tvmflow inspect --memory``."""
        return {
            "peak_bytes": self.peak_bytes,
            "lower_bound_bytes": self.lower_bound_bytes,
            "steps": self.steps,
            "blocks": [
                {"bytes": b.bytes, "image": None if b.extent is None else str(b.extent)}
                for b in self.blocks
            ],
            "tensors": [
                {
                    "name": t.name,
                    "shape": list(t.shape),
                    "dtype": t.dtype,
                    "storage": "texture" if t.is_image else "buffer",
                    "stored_as": "float16" if t.kind in HALF_KINDS else t.dtype,
                    "layout": t.layout,
                    "scope": t.scope,
                    "image": None if t.extent is None else str(t.extent),
                    "bytes": t.bytes,
                    "block": t.block,
                    "first": t.first,
                    "last": t.last,
                    "producer": t.producer,
                    "readers": t.readers,
                }
                for t in self.tensors
            ],
        }


def assign_blocks(tensors: Iterable[Tensor]) -> list[Block]:
    """Give every tensor a block; see the module's docstring."""
    by_size = sorted(tensors, key=lambda t: (-t.bytes, t.first))
    # The greedy order is not always the best one: some others near it are tried, too.
    shuffle = random.Random(0)
    orders = [by_size] + [
        sorted(by_size, key=lambda t: -t.bytes * shuffle.uniform(0.3, 1)) for _ in range(ORDERS)
    ]
    blocks = min((_greedy(order) for order in orders), key=lambda b: sum(x.bytes for x in b))
    blocks.sort(key=lambda b: min(t.first for t in b.tensors))
    for number, block in enumerate(blocks):
        for tensor in block.tensors:
            tensor.block = number
    return blocks


def _greedy(tensors: Iterable[Tensor]) -> list[Block]:
    """Blocks for tensors that choose in this order."""
    blocks: list[Block] = []
    for tensor in tensors:
        fresh = Block(tensor.kind)
        options = [b for b in blocks if b.is_free_for(tensor)] + [fresh]
        # Of several that need not grow the smallest: larger ones are left for larger tensors.
        best = min(options, key=lambda b: (b.with_room_for(tensor)[0] - b.bytes, b.bytes))
        best.bytes, best.extent = best.with_room_for(tensor)
        best.tensors.append(tensor)
        if best is fresh:
            blocks.append(fresh)
    return blocks
