"""Expressions in which what is used more than once has a name, so that it is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

Scalar = Any


@dataclass
class Names:
    """Names for what an expression uses more than once, so that it is computed once."""

    bound: list[tuple[tirx.Var, Scalar]] = field(default_factory=list)

    def name(self, name: str, value: Scalar, dtype: str = "float32") -> tirx.Var:
        """Return a variable that has this value in what :meth:`close` returns."""
        var = tirx.Var(name, dtype)
        self.bound.append((var, value))
        return var

    def close(self, body: Scalar) -> Scalar:
        """The expression ``body`` with every name defined."""
        for var, value in reversed(self.bound):
            body = tirx.Let(var, value, body)
        return body


def lane_of(lanes: Sequence[Scalar], lane: tirx.Var) -> Scalar:
    """The one of four values that an index says."""
    chosen = lanes[-1]
    for number, value in reversed(list(enumerate(lanes[:-1]))):
        chosen = tirx.Select(lane == number, value, chosen)
    return chosen
