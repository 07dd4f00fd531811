"""Read signatures: the dtypes, ranks and open extents that an operator is compiled for.

Types are written ``float32[B, M, 4]``: at each call, extents of one name are the same number.
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
    """An extent: a number, a name, or the sum of both."""

    name: str | None
    number: int = 0

    def __str__(self) -> str:
        if self.name is None:
            return str(self.number)
        return f"{self.name} + {self.number}" if self.number else self.name


@dataclass(frozen=True)
class OpenType:
    """A dtype, and extents that may be open."""

    dtype: str
    shape: tuple[Extent, ...]

    @property
    def row(self) -> int:
        """Return the last extent; 1 if it is open or the shape is empty."""
        return self.shape[-1].number if self.shape and self.shape[-1].name is None else 1

    def accepts(self, kind: TensorType) -> bool:
        """Return whether a tensor has this dtype and rank, and these fixed extents."""
        if kind.dtype != self.dtype or len(kind.shape) != len(self.shape):
            return False
        pairs = zip(self.shape, kind.shape, strict=True)
        return all(e.name is not None or e.number == n for e, n in pairs)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


#: The type of each input; ``None`` for one that is left out.
Signature = tuple[OpenType | None, ...]


def read_signature(operator: Operator, given: Mapping[str, str]) -> Signature:
    """Read a signature from the types of an operator's inputs, written as text.

    A type is ``"float16"``, or ``"float16[P, 4]"`` for another shape than the input's first one.
    Required inputs that are not named have their first dtype and shape.  Raises `OperatorError`
    if there is no such input, or a text is no type of it.
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
    """Return the signature of tensors of these types, whatever their open extents are."""
    return _with_bound_names(
        operator,
        [
            None if kind is None else OpenType(kind.dtype, _shape(operand, len(kind.shape)))
            for operand, kind in zip(operator.inputs, types, strict=True)
        ],
    )


def describe(operator: Operator, signature: Signature) -> str:
    """Describe the inputs of a signature, for messages."""
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
            f"Compiling {operator.name} failed: the rank of the input {operand.name} is not known.",
            remedy=f'Give it with extents, for example "{found[1]}[N, 4]".',
        )
    return OpenType(found[1], _extents(operand.shapes[0] if found[2] is None else found[2]))


def _shape(operand: Operand, rank: int) -> tuple[Extent, ...]:
    """Return the declared shape of a rank; without one, an open extent for each axis."""
    own = tuple(Extent(f"{operand.name}_{axis}") for axis in range(rank))
    return next((shape for shape in map(_extents, operand.shapes) if len(shape) == rank), own)


def _extents(text: str) -> tuple[Extent, ...]:
    """Read ``B, M + 1, 4``."""
    shape = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if not (found := _EXTENT.fullmatch(part)):
            raise OperatorError(
                f"The extent {part!r} in {text!r} was not understood.",
                remedy="Write a number, a name, or a sum of a name and a number such as B + 1.",
            )
        name, more, number = found.groups()
        shape.append(Extent(name, int(number or more or 0)))
    return tuple(shape)


def _with_bound_names(operator: Operator, types: Sequence[OpenType | None]) -> Signature:
    """Return a signature; sums with a name that is no extent itself become open extents.

    A compiled function can only read the value of a name from an extent that is this name.
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
