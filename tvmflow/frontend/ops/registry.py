"""Which function converts which ONNX operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from tvm import relax

from .context import NodeContext
from .custom import custom

#: Converts a node to one expression, or to one for each of its results.
Converter = Callable[[NodeContext], "relax.Expr | Sequence[relax.Expr | None]"]

#: Converter by ONNX operator.
CONVERTERS: dict[str, Converter] = {}


def converter_of(node: onnx.NodeProto) -> Converter | None:
    """Return what converts a node, ``None`` for an unknown operator of the default domain."""
    return custom if node.domain else CONVERTERS.get(node.op_type)


def converts(*op_types: str) -> Callable[[Converter], Converter]:
    """Register a function as the converter of ONNX operators."""

    def register(function: Converter) -> Converter:
        for op_type in op_types:
            assert op_type not in CONVERTERS, op_type
            CONVERTERS[op_type] = function
        return function

    return register
