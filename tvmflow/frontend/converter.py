"""Interface and registry of the converters from ONNX operators to Relax.

A converter takes a :class:`NodeContext` and returns Relax expressions that compute exactly what the
ONNX operator does, for static shapes; or it raises :class:`Refusal` with the reason.  Each file of
:mod:`tvmflow.frontend.ops` registers the converters of one family of operators.  Expressions may be
nested: each inner one is bound to one variable, even if it is used several times::

    @converts("Softsign")
    def softsign(c: NodeContext) -> relax.Expr:
        return c.input() / (R.abs(c.input()) + c.constant(1))
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from tvm import relax
from tvm.relax import op as R

from ..ir.expressions import OPAQUE
from ..ir.limits import excess
from ..ir.rewriter import constant, constant_array, identifier, shape_of
from ..ir.tensors import TensorType
from .graph import Graph, node_attributes, node_name


class Refusal(Exception):  # noqa: N818 - not an error of the program, but its answer
    """Raised for a node that cannot be converted correctly; the message is the reason."""


class InvalidNode(Refusal):
    """Raised for a node that breaks ONNX's rules, so that no compiler could accept it."""


@dataclass
class NodeContext:
    """One ONNX node during its conversion to Relax."""

    builder: relax.BlockBuilder
    node: onnx.NodeProto
    graph: Graph
    #: Relax expressions of the values computed so far, by ONNX name.
    expressions: Mapping[str, relax.Expr]
    #: Static types of the node's results, ``None`` for unused ones.
    results: Sequence[TensorType | None]
    #: Identifiers of the bindings of all nodes' results.
    taken: Container[str]

    def __post_init__(self) -> None:
        self.op_type: str = self.node.op_type
        self.opset = self.graph.opset
        self.attributes = node_attributes(self.node)
        self._inputs: list[str] = list(self.node.input)
        self._variables: dict[relax.Expr, relax.Var] = {}
        self._emitted = 0

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value: text as ``str``, repeated values as a list.

        Numbers are rounded to fp32, including the default.
        """
        value = self.attributes.get(name, default)
        return float(np.float32(value)) if isinstance(value, float) else value

    def required(self, name: str) -> Any:
        """Return the value of a required attribute; refuse the node without it."""
        if name not in self.attributes:
            raise InvalidNode(f"its attribute {name!r} is missing")
        return self.attribute(name)

    def axis(self, default: int | None = None, rank: int | None = None) -> int:
        """Return the attribute ``axis``, counted from the front of the first input's axes."""
        axis = self.required("axis") if default is None else self.attribute("axis", default)
        return normalized_axis(axis, len(self.shape()) if rank is None else rank)

    def has(self, index: int) -> bool:
        """Return whether an optional input is given."""
        return index < len(self._inputs) and bool(self._inputs[index])

    def input(self, index: int = 0) -> relax.Expr:
        """Return an input as a Relax expression."""
        return self.expressions[self._inputs[index]]

    def inputs(self) -> list[relax.Expr]:
        """Return all inputs that are given as Relax expressions."""
        return [self.expressions[name] for name in self._inputs if name]

    def known(self, index: int) -> np.ndarray | None:
        """Return an input's values if they are constant."""
        return self.graph.constants.get(self._inputs[index]) if self.has(index) else None

    def array(self, index: int, what: str) -> np.ndarray:
        """Return the values of an input that must be constant; refuse the node otherwise."""
        value = self.known(index)
        if value is None:
            raise Refusal(f"its {what} are computed at run time; only constant ones are supported")
        return value

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return an input's shape."""
        return shape_of(self.input(index))

    def dtype(self, index: int = 0) -> str:
        """Return an input's dtype."""
        return dtype_of(self.input(index))

    def is_float(self, index: int = 0) -> bool:
        """Return whether an input has a floating-point type."""
        return np.dtype(self.dtype(index)).kind == "f"

    @property
    def result(self) -> TensorType:
        """Return the type of the first result, even if that is unused."""
        return self.graph.type_of(self.node.output[0])

    def uses_result(self, index: int) -> bool:
        """Return whether an optional result is used."""
        return index < len(self.results) and self.results[index] is not None

    def emit(self, value: relax.Expr) -> relax.Expr:
        """Bind an intermediate result to a variable named after the node, which infers its type.

        The names ``NODE#1``, ``NODE#2``, ... trace kernels back to nodes; numbers are skipped as in
        :func:`.convert.binding_names`.
        """
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.emit(field) for field in value.fields])
        if not isinstance(value, relax.Call | relax.TupleGetItem):
            return value
        if value not in self._variables:
            flat = self.flat(value)
            self._emitted += 1
            while identifier(name := f"{node_name(self.node)}#{self._emitted}") in self.taken:
                self._emitted += 1
            self._variables[value] = bind(self.builder, flat, name, relax.DataflowVar)
        return self._variables[value]

    def flat(self, value: relax.Expr) -> relax.Expr:
        """Return an expression's variable, or the expression on variables for its operands."""
        if value in self._variables:
            return self._variables[value]
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(self.emit(value.tuple_value), value.index)
        if isinstance(value, relax.Call):
            arguments = [self.emit(argument) for argument in value.args]
            return relax.Call(value.op, arguments, value.attrs, value.ty_args)
        return value

    def definition(self, expr: relax.Expr) -> relax.Expr:
        """Return the expression that a variable is bound to; anything else unchanged."""
        found = self.builder.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return expr if found is None else found

    def cast(self, value: relax.Expr, dtype: str) -> relax.Expr:
        """Cast a value to a dtype; return it unchanged if it has that already."""
        value = self.emit(value)
        if dtype_of(value) == dtype:
            return value
        array = constant_array(value)
        return R.astype(value, dtype) if array is None else constant(array.astype(dtype))

    def reshaped(self, index: int, shape: Sequence[int]) -> relax.Expr:
        """Reshape an input; the result is a constant if its values are known."""
        values = self.known(index)
        if values is not None:
            return constant(values.reshape(shape))
        return R.reshape(self.input(index), shape)

    def constant(self, value: npt.ArrayLike, dtype: str | None = None) -> relax.Expr:
        """Return a constant of the given dtype, or of the first input's."""
        return constant(np.asarray(value).astype(dtype or self.dtype(), copy=False))


#: Function that converts a node to one expression, or to one for each of its results.
Converter = Callable[[NodeContext], "relax.Expr | Sequence[relax.Expr | None]"]
#: Function that returns the type of a node's results or, to use ONNX's shape inference, ``None``;
#: it raises :class:`Refusal` if the node has no static type.
ResultType = Callable[[onnx.NodeProto, Graph], TensorType | None]

#: Converters by ONNX operator.
CONVERTERS: dict[str, Converter] = {}
#: Type functions of operators for which ONNX's shape inference is not enough, by operator; all
#: results of such a node have one shape.
RESULT_TYPES: dict[str, ResultType] = {}


def converts(
    *op_types: str, result_type: ResultType | None = None
) -> Callable[[Converter], Converter]:
    """Register a function as the converter of ONNX operators.

    ``result_type`` replaces ONNX's shape inference where that is not enough.
    """

    def register(function: Converter) -> Converter:
        for op_type in op_types:
            assert op_type not in CONVERTERS, op_type
            CONVERTERS[op_type] = function
            if result_type is not None:
                RESULT_TYPES[op_type] = result_type
        return function

    return register


def formulas(**converters: Converter) -> None:
    """Register converters that consist of one expression, by operator."""
    for op_type, converter in converters.items():
        converts(op_type)(converter)


def bind(
    builder: relax.BlockBuilder, expression: relax.Expr, name: str, kind: type[relax.Var]
) -> relax.Var:
    """Bind an expression to a variable of exactly this name, which may be any text."""
    normalized = builder.normalize(expression)
    if isinstance(normalized.ty, relax.TensorType):
        too_large = excess(TensorType(shape_of(normalized), dtype_of(normalized)))
        if too_large is not None:
            raise Refusal(f"a tensor in between is too large: {too_large}")
    variable = kind(name, normalized.ty)
    builder.emit_normalized(relax.VarBinding(variable, normalized))
    return variable


def call_unfused(
    builder: relax.BlockBuilder, hint: str, compute: Callable[..., Any], *args: Any, **options: Any
) -> relax.Call:
    """Call a tensor expression as a function of this name that is never fused with others."""
    return builder.call_te(
        compute, *args, primfunc_name_hint=hint, primfunc_attrs={"op_pattern": OPAQUE}, **options
    )


def dtype_of(expression: relax.Expr) -> str:
    """Return a Relax tensor's dtype."""
    return str(expression.ty.dtype)


def normalized_axis(axis: int, rank: int) -> int:
    """Return an axis counted from the front; refuse the node if there is no such axis."""
    if not -rank <= axis < rank:
        raise InvalidNode(f"its axis {axis} does not exist in a tensor with {rank} axes")
    return axis % rank


def normalized_axes(axes: Sequence[int], rank: int) -> list[int]:
    """Return axes counted from the front."""
    return [normalized_axis(int(axis), rank) for axis in axes]


def shape_along(axis: int, rank: int) -> list[int]:
    """Return the shape that places a vector along an axis and broadcasts it along all others."""
    return [-1 if a == axis % rank else 1 for a in range(rank)]
