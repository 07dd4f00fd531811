"""What an operator is compiled for when extents are left open: dtypes, ranks, names of extents.

A signature is written ``float32[B, M, 4]``: extents of one name are the same number, whichever it
is at a call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import OperatorError
from ..ir.operator import Operand, Operator
from ..ir.tensors import TensorType

_TYPE = re.compile(r"(\w+)(?:\[(.*)\])?")
_EXTENT = re.compile(r"([A-Za-z_]\w*)(?:\s*\+\s*(\d+))?|(\d+)")


@dataclass(frozen=True)
class Extent:
    """An extent: a number, a name, or a name and a number more."""

    name: str | None
    number: int = 0

    def __str__(self) -> str:
        if self.name is None:
            return str(self.number)
        return f"{self.name} + {self.number}" if self.number else self.name


@dataclass(frozen=True)
class OpenType:
    """A dtype, and extents that may be left open."""

    dtype: str
    shape: tuple[Extent, ...]

    @property
    def row(self) -> int:
        """The last extent; 1 where there is none, or it is open."""
        return self.shape[-1].number if self.shape and self.shape[-1].name is None else 1

    def accepts(self, kind: TensorType) -> bool:
        """Whether a tensor's dtype, rank and fixed extents are these."""
        if kind.dtype != self.dtype or len(kind.shape) != len(self.shape):
            return False
        pairs = zip(self.shape, kind.shape, strict=True)
        return all(e.name is not None or e.number == n for e, n in pairs)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


#: One item an input; ``None`` for one that is left out.
Signature = tuple[OpenType | None, ...]


def read_signature(operator: Operator, given: Mapping[str, str]) -> Signature:
    """A signature from texts by the names of an operator's inputs.

    They are ``"float16"``, or ``"float16[P, 4]"`` for another shape than the input's first.
    Required inputs that are not named have their first dtype and shape.  Raises `OperatorError`
    where there is no such input, or a text is no type of it.
    """
    for name in given:
        if name not in (operand.name for operand in operator.inputs):
            raise OperatorError(
                f"Compiling {operator.name} failed: it has no input {name!r}; it has "
                f"{', '.join(operand.name for operand in operator.inputs)}.",
                remedy="Check the name.",
            )
    return _with_bound_names(
        operator,
        [
            None if operand.optional and operand.name not in given
            else _read(operator, operand, given.get(operand.name, operand.dtypes[0]))
            for operand in operator.inputs
        ],
    )  # fmt: skip


def signature_of(operator: Operator, types: Sequence[TensorType | None]) -> Signature:
    """The signature that tensors of these types have, whatever their open extents are."""
    return _with_bound_names(
        operator,
        [
            None if kind is None else OpenType(kind.dtype, _shape(operand, len(kind.shape)))
            for operand, kind in zip(operator.inputs, types, strict=True)
        ],
    )


def describe(operator: Operator, signature: Signature) -> str:
    """The inputs of a signature, for messages."""
    pairs = zip(operator.inputs, signature, strict=True)
    return ", ".join(f"{operand.name} {kind}" for operand, kind in pairs if kind is not None)


def _read(operator: Operator, operand: Operand, text: str) -> OpenType:
    found = _TYPE.fullmatch(text.strip())
    if found is None or found[1] not in operand.dtypes:
        raise OperatorError(
            f"Compiling {operator.name} for the input {operand.name} as {text!r} failed: expected "
            f"{' or '.join(operand.dtypes)}, or one with extents such as "
            f"{operand.dtypes[0]}[{(operand.shapes or ('N',))[0]}].",
            remedy="Write the input's type in this form.",
        )
    if found[2] is None and not operand.shapes:
        raise OperatorError(
            f"Compiling {operator.name} failed: nothing tells the rank of the input "
            f"{operand.name}.",
            remedy=f'Give it with extents, for example "{found[1]}[N, 4]".',
        )
    return OpenType(found[1], _extents(operand.shapes[0] if found[2] is None else found[2]))


def _shape(operand: Operand, rank: int) -> tuple[Extent, ...]:
    """The declared shape of this rank; without one, an extent of its own for each axis."""
    own = tuple(Extent(f"{operand.name}_{axis}") for axis in range(rank))
    return next((shape for shape in map(_extents, operand.shapes) if len(shape) == rank), own)


def _extents(text: str) -> tuple[Extent, ...]:
    """Read ``B, M + 1, 4``."""
    shape = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if not (found := _EXTENT.fullmatch(part)):
            raise OperatorError(
                f"The extent {part!r} in {text!r} was not understood.",
                remedy="Write a number, a name, or a name and a number more, such as B + 1.",
            )
        name, more, number = found.groups()
        shape.append(Extent(name, int(number or more or 0)))
    return tuple(shape)


def _with_bound_names(operator: Operator, types: Sequence[OpenType | None]) -> Signature:
    """The same, with names of their own for sums of a name that is no extent by itself.

    Only an extent itself tells a compiled function what its name stands for.
    """
    bound = {e.name for kind in types if kind for e in kind.shape if not e.number}
    return tuple(
        kind and OpenType(
            kind.dtype,
            tuple(
                extent if extent.name is None or extent.name in bound
                else Extent(f"{operand.name}_{axis}")
                for axis, extent in enumerate(kind.shape)
            ),
        )
        for operand, kind in zip(operator.inputs, types, strict=True)
    )  # fmt: skip
