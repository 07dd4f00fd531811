"""Models in float16, computed in fp32.

Sums of numbers of 11 bits need more bits than these have.  So all float16 becomes fp32 here, before
anything is converted, as in ONNX Runtime on CPUs: nothing is rounded between operators, unless
tensors are to be stored in 16 bits (``--dtype fp16``).  The application's inputs and outputs stay
what they are, and a function of its own converts each.  Weights are stored in 16 bits where that is
all they have.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, topi

from ..ir.tensors import TensorType
from .graph import Graph

HALF, WIDE = "float16", "float32"
#: Fused with nothing: kernels that convert read and write halves and have none of their own,
#: which needs no support in devices.
_OPAQUE = 8


def widen(graph: Graph) -> None:
    """Give all float16 values the type float32, in place.

    Custom operators say themselves what types they take: models with some stay as they are.  Large
    weights keep their type in memory.
    """
    if any(node.domain for node in graph.nodes):
        return
    if graph.problems or all(kind.dtype != HALF for kind in graph.types.values()):
        return
    graph.is_widened = True
    graph.half_outputs = {n for n in graph.outputs if graph.type_of(n).dtype == HALF}
    inputs = {info.name for info in graph.inputs}
    for name, kind in graph.types.items():
        if kind.dtype == HALF and name not in inputs:
            graph.types[name] = TensorType(kind.shape, WIDE)
    for name, array in graph.constants.items():
        if array.dtype == np.float16 and array.nbytes < graph.large_weight_bytes:
            graph.constants[name] = array.astype(np.float32)


def converted(builder: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    """A tensor in another type, by a function of its own."""
    return builder.call_te(
        lambda x: topi.cast(x, dtype),
        value,
        primfunc_name_hint="convert",
        primfunc_attrs={"op_pattern": _OPAQUE},
    )
