"""Booleans in TIR: which are more than conditions of choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from .expressions import CHOICE, nodes_in
from .rewriter import op_name

if TYPE_CHECKING:
    from tvm.ir import Node

COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
#: Functions that give masks for vectors, or take one boolean for all lanes.
_MASK_CALLS = ("tirx.isnan", "tirx.isinf", "tirx.isfinite", "prim.likely")


def is_boolean(expr: Node) -> bool:
    """Return True for a boolean, or a vector of them."""
    return str(getattr(getattr(expr, "ty", None), "dtype", "")).startswith("bool")


def keeps_booleans(node: Node) -> bool:
    """Return True if a statement, or an expression, has booleans that are more than choices.

    Such are tensors of booleans, comparisons of booleans, choices between them, and functions
    of them.
    """
    kinds = (TensorLoad, tirx.BufferStore, *COMPARISONS, tirx.Select, tirx.Cast, Call)
    return any(_is_more_than_choice(found) for found in nodes_in(node, *kinds))


def _is_more_than_choice(node: Node) -> bool:
    if isinstance(node, TensorLoad):
        return str(node.source.dtype) == "bool"
    if isinstance(node, tirx.BufferStore):
        return str(node.buffer.dtype) == "bool"
    if isinstance(node, COMPARISONS):
        return is_boolean(node.a)
    if isinstance(node, Call) and op_name(node) != CHOICE:
        values = () if op_name(node) in _MASK_CALLS else (node, *node.args)
        return any(map(is_boolean, values))
    return is_boolean(node)
