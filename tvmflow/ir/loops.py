"""Loops in Relax: a call of a packed function that stands for a loop until the program is whole.

To the passes it is opaque; it reads and writes plain buffers::

    lv : (bool[], int64[], float32[2, 3]) = R.call_pure_packed("tvmflow.loop:NODE", going, i, a, w)

:mod:`tvmflow.compiler.loops` puts a function in its place that calls the body again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

#: What the names of such functions begin with; the node's name follows.
PREFIX = "tvmflow.loop:"


def loop_call(
    node: str, arguments: Sequence[relax.Expr], types: Sequence[relax.TensorType]
) -> relax.Call:
    """The call of a loop: whether it begins, its state, and what its body captures.

    Its results, of ``types``, are whether it goes on, which is false, and the state behind it.
    """
    function = relax.ExternFunc(PREFIX + node)
    return relax.op.call_pure_packed(function, *arguments, ty_args=relax.TupleType(list(types)))


def is_loop_call(value: relax.Expr) -> bool:
    """Whether it is the call of a loop."""
    called = value.args[0] if isinstance(value, relax.Call) and value.args else None
    return isinstance(called, relax.ExternFunc) and str(called.global_symbol).startswith(PREFIX)
