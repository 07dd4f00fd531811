"""Check of the element types of nodes' inputs against ONNX's schemas.

A schema states the allowed types by type variables; inputs that share a variable have one type::

    Mul    A : T, B : T            T : float16, float, double, int8, ...
    Gather data : T, indices : I   T : any;  I : int32, int64
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx

from ..errors import ModelError
from .graph import Graph, node_name
from .source import DTYPES

#: Types as the schemas spell them, by dtype.
_SPELLED = {
    name: f"tensor({onnx.TensorProto.DataType.Name(number).lower()})"
    for number, name in DTYPES.items()
}
_DTYPES = {spelled: name for name, spelled in _SPELLED.items()}


#: Operators whose newer types and attributes ONNX Runtime offers in its own domain for all operator
#: sets; :mod:`.contrib` moves them to ONNX's domain.
NEWEST_FORMS = ("QuantizeLinear", "DequantizeLinear")


def types_opset(node: onnx.NodeProto, opset: int) -> int:
    """Return the operator set whose schema gives a node's types."""
    return int(onnx.defs.onnx_opset_version()) if node.op_type in NEWEST_FORMS else opset


@dataclass(frozen=True)
class _Signature:
    """Types of an operator's inputs in one operator set."""

    #: Type variable of each input.
    variables: tuple[str, ...]
    #: True if the last input may be repeated.
    is_variadic: bool
    #: True if repeated inputs have one type.
    is_homogeneous: bool
    #: Allowed dtypes by type variable.
    allowed: dict[str, frozenset[str]]

    def variable(self, index: int) -> str:
        """Return the type variable of an input; repeated inputs of several types have one each."""
        last = len(self.variables) - 1
        variable = self.variables[min(index, last)]
        repeated = self.is_variadic and index >= last
        return f"{variable}#{index}" if repeated and not self.is_homogeneous else variable


@cache
def _signature(op_type: str, opset: int) -> _Signature:
    schema = onnx.defs.get_schema(op_type, opset, "")
    options = onnx.defs.OpSchema.FormalParameterOption
    spelled = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    variables = tuple(parameter.type_str for parameter in schema.inputs)
    last = schema.inputs[-1] if schema.inputs else None
    return _Signature(
        variables,
        last is not None and last.option == options.Variadic,
        last is not None and last.is_homogeneous,
        {
            name: frozenset(_DTYPES[t] for t in spelled.get(name, [name]) if t in _DTYPES)
            for name in variables
        },
    )


def check_types(node: onnx.NodeProto, graph: Graph) -> None:
    """Check that the types of the inputs of a node of ONNX's own domain are allowed.

    Raises ``ModelError`` if one is not, or if inputs that must share a type differ.
    """
    if node.domain or not node.input or not onnx.defs.has(node.op_type, graph.opset, ""):
        return
    dtypes = {i: graph.type_of(name).dtype for i, name in enumerate(node.input) if name}
    found = _conflict(_signature(node.op_type, types_opset(node, graph.opset)), dtypes)
    if found is None:
        return
    raise ModelError(
        f"The model is invalid at node {node_name(node)!r} ({node.op_type}): "
        f"{_described(node, dtypes, *found)}.",
        remedy="Cast an input to another type before the node, or export the model again; ONNX "
        "Runtime does not load it either.",
    )


def _conflict(signature: _Signature, dtypes: dict[int, str]) -> tuple[list[int], list[str]] | None:
    """Return the inputs whose types do not fit, and the types that they may have.

    The list of types is empty if all inputs have allowed types, but different ones.
    """
    if not signature.variables:
        return None
    inputs: dict[str, list[int]] = {}
    for index in dtypes:
        if index >= len(signature.variables) and not signature.is_variadic:
            return None  # ONNX's checker reports surplus inputs
        inputs.setdefault(signature.variable(index), []).append(index)
    for variable, indices in inputs.items():
        allowed = signature.allowed[variable.partition("#")[0]]
        for index in indices:
            if allowed and dtypes[index] not in allowed:
                return [index], sorted(allowed, key=lambda name: (np.dtype(name).kind, name))
        if len({dtypes[index] for index in indices}) > 1:
            return indices, []
    return None


def _described(
    node: onnx.NodeProto, dtypes: dict[int, str], indices: list[int], allowed: list[str]
) -> str:
    """Describe which types inputs have, and which they may have."""
    first, *others = indices
    kind = f"{node.input[first]!r} is {dtypes[first]}"
    if allowed:
        several = ", ".join(allowed[:-1]), allowed[-1]
        return f"its input {kind}, expected {' or '.join(filter(None, several))}"
    other = next(i for i in others if dtypes[i] != dtypes[first])
    return (
        f"its inputs must have one element type, but {kind} and {node.input[other]!r} is "
        f"{dtypes[other]}"
    )
