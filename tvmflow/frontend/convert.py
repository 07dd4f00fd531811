"""Conversion of the graph to a Relax function, node by node."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import tvm
from tvm import relax, te, topi

from ..ir.names import unique
from ..ir.operator import FUNCTION_ATTRIBUTE
from ..ir.operators import OPERATORS
from ..ir.rewriter import constant, identifier, shape_of
from ..ir.tensors import TensorType
from ..ops.onnx_form import attributes_of
from .converter import Converter, InvalidNode, NodeContext, Refusal, bind, call_unfused, dtype_of
from .dynamic import MAKERS
from .graph import NOT_TAKEN, Graph, invalid, node_name
from .ops import CONVERTERS

_LOG = logging.getLogger(__name__)


class _Expressions(dict[str, relax.Expr]):
    """Relax expressions by ONNX name; constants are created at their first use and then shared."""

    def __init__(self, constants: Mapping[str, np.ndarray]):
        self._constants = constants

    def __missing__(self, name: str) -> relax.Expr:
        self[name] = constant(np.asarray(self._constants[name]))
        return self[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._constants


#: Operators that are folded or expanded once the types of their inputs are known.
_OF_TYPES = {"ConstantOfShape", "EyeLike", "Range", "Shape", "Size", *MAKERS}


def to_relax(graph: Graph) -> tuple[tvm.IRModule | None, dict[str, np.ndarray]]:
    """Convert the graph to a module whose ``main`` takes the inputs and large weights.

    Nodes that cannot be converted are added to the graph's problems; then the module is ``None``.
    The large weights are returned by parameter name.

    Raises ``ModelError`` for a node that breaks ONNX's rules.
    """
    _make_names_unique(graph.nodes)
    known = {"", *graph.types, *graph.constants, *(info.name for info in graph.inputs)}
    for node in graph.nodes:
        # These operators are left unexpanded after a refused node, and are not problems themselves.
        is_left = node.op_type in _OF_TYPES and not known.issuperset(node.input)
        if _converter_of(node) is None and not (is_left or graph.is_refused(node)):
            graph.refuse(node, "the operator is not supported")
    # Weights that stay outside the IR, in the order of their first use.
    names = [*(name for node in graph.nodes for name in node.input), *graph.outputs]
    arrays = {name: graph.constants[name] for name in names if name in graph.constants}
    weights = {n: a for n, a in arrays.items() if a.nbytes >= graph.large_weight_bytes}
    expressions = _Expressions(graph.constants)
    types = {info.name: TensorType(info.shape, info.dtype) for info in graph.inputs}
    types |= {name: TensorType(a.shape, str(a.dtype)) for name, a in weights.items()}
    parameters = [_variable(name, kind) for name, kind in types.items()]
    read = {
        name: parameter
        for name, parameter in zip(types, parameters, strict=True)
        if name in weights or name not in graph.constants
    }
    expressions.update(read)
    builder = relax.BlockBuilder()
    attributes = {"num_input": len(graph.inputs)}
    with builder.function("main", parameters, attrs=attributes):
        with builder.dataflow():
            for name, parameter in read.items():
                if types[name].dtype == "float16" and graph.is_widened:
                    wide = _converted(builder, parameter, "float32")
                    expressions[name] = bind(builder, wide, f"{name}:wide", relax.DataflowVar)
            _convert_nodes(builder, graph, expressions)
            outputs = [_output(builder, name, graph, expressions) for name in graph.outputs]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    if graph.invalid is not None:
        raise graph.invalid
    return (None if graph.problems else builder.get()), weights


def _variable(name: str, kind: TensorType) -> relax.Var:
    return relax.Var(name, relax.TensorType(kind.shape, kind.dtype))


def _output(
    builder: relax.BlockBuilder, name: str, graph: Graph, expressions: _Expressions
) -> relax.Expr:
    """Return an output's expression, or a new variable if a node before it has a problem."""
    if name not in expressions:
        return _variable(name, graph.types.get(name, TensorType((1,), "float32")))
    if name not in graph.half_outputs:
        return expressions[name]
    if name in graph.constants:
        return constant(graph.constants[name].astype(np.float16))
    half = _converted(builder, expressions[name], "float16")
    return bind(builder, half, f"{name}:half", relax.Var)


def _converted(builder: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    """Convert a tensor to another type in a separate function.

    As it is never fused, it only loads or stores halves, for which devices need no fp16 arithmetic.
    """
    return call_unfused(builder, "convert", lambda x: topi.cast(x, dtype), value)


def _convert_nodes(builder: relax.BlockBuilder, graph: Graph, expressions: _Expressions) -> None:
    """Convert all nodes; record failures, and continue with new variables as the results."""
    used, bindings = graph.consumers(), binding_names(graph)
    taken = set(map(identifier, bindings.values()))
    for node in graph.nodes:
        names = [name if name in used and name in graph.types else None for name in node.output]
        results = [graph.types[name] if name else None for name in names]
        values: list[relax.Expr | None] = []
        converter = _converter_of(node)
        is_ready = all(name in expressions for name in node.input if name)
        if converter is not None and is_ready and not graph.is_refused(node):
            context = NodeContext(builder, node, graph, expressions, results, taken)
            try:
                found = converter(context)
                parts = [found] if isinstance(found, relax.Expr) else found
                values = [
                    _result(context, bindings[name], value, name in graph.outputs, expected)
                    if value is not None and name
                    else None
                    for name, value, expected in zip(names, parts, results, strict=False)
                ]
            except InvalidNode as broken:
                # The error is raised after the builder's scopes have ended.
                graph.invalid = graph.invalid or invalid(node, str(broken))
                graph.refuse(node, str(broken))
            except Refusal as refusal:
                graph.refuse(node, str(refusal))
            except Exception as error:  # noqa: BLE001 (TVM raises many kinds for what it refuses)
                _LOG.debug("converting %s %s", node.op_type, node_name(node), exc_info=True)
                lines = str(error).strip().splitlines() or [type(error).__name__]
                graph.refuse(node, f"{NOT_TAKEN}: {lines[-1].strip()}")
        for name, value in itertools.zip_longest(names, values):
            if name:
                expressions[name] = _variable(name, graph.types[name]) if value is None else value


def _converter_of(node: onnx.NodeProto) -> Converter | None:
    """Return the converter of a node, ``None`` for an unknown operator of the default domain."""
    return _custom if node.domain else CONVERTERS.get(node.op_type)


def _custom(c: NodeContext) -> list[relax.Expr]:
    """Return a custom operator's results, computed by its definition in :mod:`tvmflow.ops`.

    The result is one primary function, which is fused and scheduled like any other.
    """
    operator = OPERATORS[c.op_type]
    attributes = attributes_of(c.node, operator)
    present = [c.has(index) for index in range(len(operator.inputs))]

    def compute(*tensors: te.Tensor) -> list[te.Tensor]:
        given = iter(tensors)
        return operator.tensors([next(given) if here else None for here in present], attributes)

    count = len(operator.outputs)
    attrs = {FUNCTION_ATTRIBUTE: count}
    call = c.builder.call_te(
        compute, *c.inputs(), primfunc_name_hint=operator.name, primfunc_attrs=attrs
    )
    return [call if count == 1 else relax.TupleGetItem(call, index) for index in range(count)]


def _result(
    c: NodeContext, binding: str, value: relax.Expr, is_output: bool, expected: TensorType | None
) -> relax.Expr:
    """Bind a converted result to its name, and compare its type with ONNX's."""
    kind = relax.Var if is_output else relax.DataflowVar
    value = c.flat(value)
    if is_output or not isinstance(value, relax.Var | tvm.ir.GenericConst):
        value = bind(c.builder, value, binding, kind)
    found = TensorType(shape_of(value), dtype_of(value))
    if expected is not None and found != expected:
        raise Refusal(f"its result would be {found} where ONNX has {expected}")
    return value


def _make_names_unique(nodes: Sequence[onnx.NodeProto]) -> None:
    """Give nodes names that are unique as identifiers; in ONNX they may be equal or missing.

    A node without a name is named after its result, unless another node has that name::

        Conv "a", Relu "" -> "a"        Conv "a", Relu "a_1"
        Conv "a/b", Relu "a_b"          Conv "a/b", Relu "a_b_1"
    """
    taken: set[str] = set()
    # Names from the model take precedence.
    for node in sorted(nodes, key=lambda node: not node.name):
        node.name = unique(node_name(node), taken, identifier)


def binding_names(graph: Graph) -> dict[str, str]:
    """Return the names of the bindings that :func:`to_relax` creates, by the tensors' ONNX names.

    A node's first result has its name, further ones are ``NODE:1``, ``NODE:2``, ....  As an
    identifier that is ``NODE_1``, which exporters use for a second node: taken numbers are skipped.
    """
    nodes = {identifier(node_name(node)) for node in graph.nodes}
    names: dict[str, str] = {}
    for node in graph.nodes:
        name = node_name(node)
        further = (f"{name}:{number}" for number in itertools.count(1))
        own = itertools.chain([name], (b for b in further if identifier(b) not in nodes))
        names |= {
            tensor: binding for tensor, binding in zip(node.output, own, strict=False) if tensor
        }
    return names
