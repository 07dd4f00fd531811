"""Where a tensor is kept, as the storage pass decided it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.scope import extent_of, is_half, is_texture

#: Causes of a decision.
ASKED, OVERRIDE, COST, LIMITS, NO_IMAGES, LAYOUT, OBSTACLE, COPY = (
    "asked",
    "override",
    "cost",
    "limits",
    "no images",
    "layout",
    "obstacle",
    "copy",
)


@dataclass(frozen=True)
class Placement:
    """Where one tensor is kept, and why."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    #: Memory scope; ``None`` is a buffer of its dtype.
    scope: str | None
    reason: str
    #: One of the causes above: what kind of reason it is.
    cause: str = ASKED
    #: Whether it is a weight and not made by the network.
    constant: bool = False

    @property
    def storage(self) -> str:
        """``texture`` or ``buffer``."""
        return "texture" if self.scope is not None and is_texture(self.scope) else "buffer"

    @property
    def extent(self) -> str | None:
        """The image's extent as text, ``None`` for a buffer."""
        return str(extent_of(self.shape, str(self.scope))) if self.storage == "texture" else None

    @property
    def stored_as(self) -> str:
        """The dtype of its elements in memory."""
        return "float16" if self.scope is not None and is_half(self.scope) else self.dtype

    def report(self) -> dict[str, Any]:
        """The decision as JSON, for the module's metadata."""
        return {
            "tensor": self.tensor,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "stored_as": self.stored_as,
            "constant": self.constant,
            "storage": self.storage,
            "image": self.extent,
            "scope": self.scope,
            "cause": self.cause,
            "reason": self.reason,
        }


def table(placements: Sequence[Placement]) -> list[str]:
    """One line for each decision, in aligned columns."""
    rows = [("tensor", "shape", "dtype", "storage", "image", "why")]
    rows += [
        (
            p.tensor,
            "×".join(map(str, p.shape)) or "scalar",
            p.stored_as,
            p.storage,
            p.extent or "",
            p.reason,
        )
        for p in placements
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row[:5], widths, strict=True)), row[5]])
        for row in rows
    ]
