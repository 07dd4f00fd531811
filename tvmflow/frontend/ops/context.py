"""What a converter sees of its node, and how it emits Relax operators."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import relax

from ...ir.limits import excess
from ...ir.rewriter import identifier
from ...ir.tensors import TensorType
from ..graph import node_name


class Refusal(Exception):  # noqa: N818 - not an error of the program, but its answer
    """The node cannot be converted right; the message says why."""


@dataclass(frozen=True)
class Dequantized:
    """``(value - zero) * scale``."""

    value: relax.Expr
    #: The value where it is a constant.
    known: np.ndarray | None
    #: One for all numbers, or a vector along an axis, as the zero point in int32.
    scale: np.ndarray
    zero: np.ndarray
    axis: int

    @property
    def dtype(self) -> str:
        """Of the value."""
        return dtype_of(self.value) if self.known is None else str(self.known.dtype)


class NodeContext:
    """One ONNX node on its way to Relax.

    Parameters
    ----------
    builder
        The open block builder.
    node
        The node to convert.
    opset
        Version of the operator set.
    expressions
        Relax expressions of the values computed so far, by ONNX name.
    constants
        Values known now, by ONNX name.
    results
        Static types of the node's results, ``None`` for those that nothing uses.
    dequantized
        The DequantizeLinear nodes by the names of their results.
    """

    def __init__(
        self,
        builder: relax.BlockBuilder,
        node: onnx.NodeProto,
        opset: int,
        expressions: Mapping[str, relax.Expr],
        constants: Mapping[str, np.ndarray],
        results: Sequence[TensorType | None],
        dequantized: Mapping[str, onnx.NodeProto],
        taken: Container[str],
    ):
        self.builder = builder
        self.node = node
        self.opset = opset
        self.op_type: str = node.op_type
        self.name = node_name(node)
        self.results = results
        self._inputs: list[str] = list(node.input)
        self._expressions = expressions
        self._dequantized = dequantized
        self.constants = constants
        self._taken = taken
        self._attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self._emitted = 0

    # Inputs and attributes -------------------------------------------------------------

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value; text as ``str``, repeated ones as a list.

        Numbers are fp32, also where the default has more digits.
        """
        value = self._attributes.get(name, default)
        if isinstance(value, float):
            return float(np.float32(value))
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def required(self, name: str) -> Any:
        """Return the value of an attribute that must be there."""
        if name not in self._attributes:
            raise Refusal(f"its attribute {name!r} is missing")
        return self.attribute(name)

    def has(self, index: int) -> bool:
        """Whether the optional input is given."""
        return index < len(self._inputs) and bool(self._inputs[index])

    def input(self, index: int = 0) -> relax.Expr:
        """Return an input as a Relax expression."""
        return self._expressions[self._inputs[index]]

    def dequantized(self, index: int) -> Dequantized | None:
        """Return what DequantizeLinear made an input of, if its scale and zero point are known."""
        node = self._dequantized.get(self._inputs[index])
        if node is None or dtype_of(self.input(index)) != "float32":
            return None
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        name, *parameters = [n for n in node.input if n]
        scale, *zeros = [self.constants.get(n) for n in parameters]
        if scale is None or attributes.get("block_size", 0) or any(z is None for z in zeros):
            return None
        zero = zeros[0] if zeros else np.zeros(scale.shape, np.uint8)
        assert zero is not None
        axis = attributes.get("axis", 1)
        value, known = self._expressions[name], self.constants.get(name)
        return Dequantized(value, known, scale, zero.astype(np.int32), axis)

    def inputs(self) -> list[relax.Expr]:
        """Return all inputs as Relax expressions."""
        return [self._expressions[name] for name in self._inputs if name]

    def known(self, index: int) -> np.ndarray | None:
        """Return an input's values if they are known now."""
        return self.constants.get(self._inputs[index]) if self.has(index) else None

    def array(self, index: int, what: str) -> np.ndarray:
        """Return an input's values, which have to be known now.

        Raises
        ------
        Refusal
            If they are computed at run time.
        """
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

    @property
    def result(self) -> TensorType:
        """The type of the first result."""
        result = self.results[0]
        assert result is not None
        return result

    def uses_result(self, index: int) -> bool:
        """Whether an optional result is asked for."""
        return index < len(self.results) and self.results[index] is not None

    # Output ----------------------------------------------------------------------------

    def emit(self, expression: relax.Expr) -> relax.Var:
        """Bind an intermediate result to a variable named after the node.

        Kernels are traced back to nodes by these names: ``NODE#1``, ``NODE#2``, ... are
        the node's intermediate results and ``NODE`` is its result.  As an identifier that is
        ``NODE_1``, as exporters call their second node: such numbers are left out.
        """
        self._emitted += 1
        while identifier(name := f"{self.name}#{self._emitted}") in self._taken:
            self._emitted += 1
        return bind(self.builder, expression, name, relax.DataflowVar)

    def chain(self, first: relax.Expr, *steps: Callable[[relax.Expr], relax.Expr]) -> relax.Expr:
        """Apply steps one after the other, emitting all but the last result."""
        value = first
        for step in steps:
            value = step(self.emit(value))
        return value

    def factor(self, value: Any) -> relax.Expr:
        """Return a constant of the first input's dtype to multiply with or divide by.

        TVM takes a product with the number zero for zero, whatever the other factor, and refuses
        to divide by it; it does not look into a tensor that has an axis.
        """
        array = np.asarray(value).astype(self.dtype())
        return constant(array.reshape(1) if not array.any() and self.shape() else array)

    def factor_input(self, index: int) -> relax.Expr:
        """Return an input to multiply with or divide by, as :meth:`factor` does a constant."""
        value, rank = self.known(index), len(self.result.shape)
        if value is None or value.ndim or value.any() or not rank or value.dtype.kind != "f":
            return self.input(index)
        return constant(value.reshape(1))

    def constant(self, value: Any, dtype: str | None = None) -> relax.Expr:
        """Return a constant of the given dtype, or of the first input's."""
        return constant(np.asarray(value).astype(dtype or self.dtype()))


def constant(array: np.ndarray) -> relax.Expr:
    """Return an array as a constant of exactly its dtype, which Relax would narrow else."""
    return relax.const(array, str(array.dtype))


def bind(
    builder: relax.BlockBuilder, expression: relax.Expr, name: str, kind: type[relax.Var]
) -> relax.Var:
    """Emit an expression under exactly this name, which may be any text."""
    normalized = builder.normalize(expression)
    if isinstance(normalized.ty, relax.TensorType):
        too_large = excess(TensorType(shape_of(normalized), dtype_of(normalized)))
        if too_large is not None:
            raise Refusal(f"a tensor in between is too large: {too_large}")
    variable = kind(name, normalized.ty)
    builder.emit_normalized(relax.VarBinding(variable, normalized))
    return variable


def shape_of(expression: relax.Expr) -> tuple[int, ...]:
    """Return a Relax tensor's static shape."""
    return tuple(int(extent) for extent in expression.ty.shape)


def dtype_of(expression: relax.Expr) -> str:
    """Return a Relax tensor's dtype."""
    return str(expression.ty.dtype)
