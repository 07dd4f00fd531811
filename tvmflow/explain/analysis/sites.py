"""Accesses to memory and conditions in the code of kernels, and what is around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx

from ...ir.expressions import conjuncts
from ...ir.scope import is_texture
from .evaluate import variables


@dataclass(frozen=True)
class Place:
    """What is around a piece of code."""

    #: Variables and extents of loops, outermost first; they count from 0.
    loops: tuple[tuple[Any, int], ...] = ()
    #: All of them hold where the code runs.
    conditions: tuple[Any, ...] = ()
    #: Whether something around it cannot be counted: a loop until data say so.
    unknown: bool = False

    @cached_property
    def variables(self) -> frozenset[Any]:
        """What its conditions depend on."""
        return frozenset(variables(self.conditions))

    def where(self, *conditions: Any) -> Place:
        """The same with more conditions."""
        found = [c for condition in conditions for c in conjuncts(condition)]
        return replace(self, conditions=(*self.conditions, *found))


@dataclass(frozen=True)
class Site:
    """An access to memory in the code of a kernel."""

    #: Memory, however the code names it.
    buffer: Any
    #: Its name there: several tensors may share memory.
    name: str
    #: One index into flat memory, or column, row and layer of an image.
    indices: tuple[Any, ...]
    is_store: bool
    #: Elements that one execution accesses, by one index for each, or one after another.
    lanes: int
    #: Bytes of an element as it is stored; of a texel for images.
    element_bytes: int
    place: Place
    #: Number of the statement that it is in.
    statement: int = 0
    #: What is stored; ``None`` for reads.
    value: Any = None

    @cached_property
    def variables(self) -> frozenset[Any]:
        """What its place in memory depends on."""
        return frozenset(variables(self.indices))

    @property
    def scope(self) -> str:
        """Memory scope: ``global``, ``shared``, ``local`` or a texture's."""
        return str(self.buffer.scope())

    @property
    def is_image(self) -> bool:
        """Whether it is a texel."""
        return is_texture(self.scope)

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements are one instruction's."""
        (index, *_) = self.indices
        return self.lanes == 1 or (isinstance(index, tirx.Ramp) and is_one(index.stride))

    def __str__(self) -> str:
        text = ", ".join(tirx_text(index) for index in self.indices)
        return f"{self.name}[{text}]"


@dataclass(frozen=True)
class Branch:
    """A condition in the code of a kernel."""

    condition: Any
    place: Place
    #: Accesses to memory of any scope where it holds, and where it does not: how long it takes.
    accesses: tuple[int, int]
    #: What is accessed there.
    sites: tuple[Site, ...]

    @cached_property
    def variables(self) -> frozenset[Any]:
        """What the condition depends on."""
        return frozenset(variables([self.condition]))


def buffer_bytes(buffer: Any) -> int:
    """Memory of a buffer."""
    dtype = tvm_ffi.dtype(buffer.dtype)
    return prod(int(extent) for extent in buffer.shape) * ((dtype.bits + 7) // 8) * dtype.lanes


def is_one(value: Any) -> bool:
    """Whether an expression is the constant 1."""
    return isinstance(value, tirx.IntImm) and int(value) == 1


def tirx_text(expr: Any) -> str:
    """An expression as TVMScript, on one line."""
    return " ".join(str(expr).split())
