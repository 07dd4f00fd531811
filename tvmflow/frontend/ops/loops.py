"""Converter for loops that the virtual machine runs."""

from __future__ import annotations

from tvm import relax

from ...ir.loops import loop_call
from ...ir.rewriter import shape_of
from ..converter import NodeContext, converts, dtype_of
from ..graph import RUN_LOOP


@converts(RUN_LOOP)
def run_loop(c: NodeContext) -> list[relax.Expr]:
    """Convert RunLoop, whose results have the types of its first inputs."""
    arguments = c.inputs()
    state = arguments[: len(c.node.output)]
    types = [relax.TensorType(shape_of(value), dtype_of(value)) for value in state]
    call = loop_call(c.required("loop"), arguments, types)
    return [relax.TupleGetItem(call, index) for index in range(len(types))]
