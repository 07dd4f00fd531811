"""Builds the Relax function from the graph, node by node."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Container, Iterator, Mapping, Sequence

import numpy as np
import onnx
import tvm
from tvm import relax

from ..ir.names import unique
from ..ir.rewriter import identifier
from ..ir.tensors import TensorType
from .graph import Graph, node_name
from .half import HALF, WIDE, converted
from .ops import NodeContext, Refusal, bind, constant, converter_of, dtype_of, shape_of

_LOG = logging.getLogger(__name__)


class Expressions(Mapping[str, relax.Expr]):
    """Relax expressions by ONNX name; constants are made on first use and then shared."""

    def __init__(self, constants: Mapping[str, np.ndarray]):
        self._constants = constants
        self._expressions: dict[str, relax.Expr] = {}

    def __getitem__(self, name: str) -> relax.Expr:
        if name not in self._expressions:
            self._expressions[name] = constant(np.asarray(self._constants[name]))
        return self._expressions[name]

    def __setitem__(self, name: str, expression: relax.Expr) -> None:
        self._expressions[name] = expression

    def __contains__(self, name: object) -> bool:
        return name in self._expressions or name in self._constants

    def __iter__(self) -> Iterator[str]:
        return iter({**self._constants, **self._expressions})

    def __len__(self) -> int:
        return len({**self._constants, **self._expressions})


def find_unsupported(graph: Graph) -> None:
    """Add the nodes without a converter to the graph's problems."""
    for node in graph.nodes:
        if converter_of(node) is None and not graph.is_refused(node):
            graph.refuse(node, "the operator is not supported")


def large_weights(graph: Graph) -> dict[str, np.ndarray]:
    """Return the weights that stay outside the IR, in the order of their first use."""
    result: dict[str, np.ndarray] = {}
    for name in [name for node in graph.nodes for name in node.input] + graph.outputs:
        array = graph.constants.get(name)
        if array is not None and array.nbytes >= graph.large_weight_bytes:
            result[name] = array
    return result


def to_relax(graph: Graph) -> tuple[tvm.IRModule | None, dict[str, np.ndarray]]:
    """Convert the graph to a module whose ``main`` takes the inputs and large weights.

    Nodes that cannot be converted are added to the graph's problems.

    Returns
    -------
    tuple
        The module (``None`` if there are problems), and the large weights by parameter name.
    """
    _name_apart(graph.nodes)
    find_unsupported(graph)
    weights = large_weights(graph)
    expressions = Expressions(graph.constants)
    parameters = []
    types = {info.name: TensorType(info.shape, info.dtype) for info in graph.inputs}
    types |= {name: TensorType(a.shape, str(a.dtype)) for name, a in weights.items()}
    for name, kind in types.items():
        expressions[name] = _variable(name, kind)
        parameters.append(expressions[name])
    used = graph.consumers()
    bindings = binding_names(graph)
    taken = set(map(identifier, bindings.values()))
    builder = relax.BlockBuilder()
    attributes = {"num_input": len(graph.inputs)}
    with builder.function("main", parameters, attrs=attributes):
        with builder.dataflow():
            for parameter, name in zip(parameters, types, strict=True):
                if types[name].dtype == HALF and graph.is_widened:
                    wide = converted(builder, parameter, WIDE)
                    expressions[name] = bind(builder, wide, f"{name}:wide", relax.DataflowVar)
            for node in graph.nodes:
                _convert(builder, node, graph, expressions, used, bindings, taken)
            outputs = [_output(builder, name, graph, expressions) for name in graph.outputs]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return (None if graph.problems else builder.get()), weights


def _name_apart(nodes: Sequence[onnx.NodeProto]) -> None:
    """Give nodes names of their own, as identifiers: ONNX lets several have the same, or none.

    A node without a name is called after its result, unless another node has that name::

        Conv "a", Relu "" -> "a"        Conv "a", Relu "a_1"
        Conv "a/b", Relu "a_b"          Conv "a/b", Relu "a_b_1"
    """
    taken: set[str] = set()
    # Names that were given come first.
    for node in sorted(nodes, key=lambda node: not node.name):
        node.name = unique(node_name(node), taken, identifier)


def _variable(name: str, kind: TensorType) -> relax.Var:
    return relax.Var(name, relax.TensorType(kind.shape, kind.dtype))


def _convert(
    builder: relax.BlockBuilder,
    node: onnx.NodeProto,
    graph: Graph,
    expressions: Expressions,
    used: Container[str],
    bindings: Mapping[str, str],
    taken: Container[str],
) -> None:
    """Convert one node; where that fails, note it and stand variables in for its results."""
    names = [name if name in used and name in graph.types else None for name in node.output]
    results = [graph.types[name] if name else None for name in names]
    converter = converter_of(node)
    if (
        converter is None
        or graph.is_refused(node)
        or not all(name in expressions for name in node.input if name)
    ):
        values: Sequence[relax.Expr | None] = []
    else:
        context = NodeContext(
            *(builder, node, graph.opset, expressions, graph.constants, results),
            *(graph.dequantized, taken),
        )
        try:
            converted = converter(context)
            values = [converted] if isinstance(converted, relax.Expr) else converted
            values = [
                _result(builder, bindings[name], value, name in graph.outputs, expected)
                if value is not None and name
                else None
                for name, value, expected in zip(names, values, results, strict=False)
            ]
        except Refusal as refusal:
            graph.refuse(node, str(refusal))
            values = []
        except Exception as error:  # noqa: BLE001 (TVM raises many kinds for what it refuses)
            _LOG.debug("converting %s %s", node.op_type, node_name(node), exc_info=True)
            lines = str(error).strip().splitlines() or [type(error).__name__]
            graph.refuse(node, f"TVM does not take it: {lines[-1].strip()}")
            values = []
    for index, name in enumerate(names):
        if name:
            value = values[index] if index < len(values) else None
            expressions[name] = _variable(name, graph.types[name]) if value is None else value


def _result(
    builder: relax.BlockBuilder,
    binding: str,
    value: relax.Expr,
    is_output: bool,
    expected: TensorType | None,
) -> relax.Expr:
    """Bind a converted result under its name, and compare its type with ONNX's.

    Raises
    ------
    Refusal
        If the conversion has another shape or dtype than ONNX's shape inference says.
    """
    kind = relax.Var if is_output else relax.DataflowVar
    if is_output or not isinstance(value, relax.Var | tvm.ir.GenericConst):
        value = bind(builder, value, binding, kind)
    found = TensorType(shape_of(value), dtype_of(value))
    if expected is not None and found != expected:
        raise Refusal(
            f"its result would be {found.dtype}{list(found.shape)} where ONNX has "
            f"{expected.dtype}{list(expected.shape)}"
        )
    return value


def binding_names(graph: Graph) -> dict[str, str]:
    """Names of the bindings that :func:`to_relax` makes, by the tensors' ONNX names.

    A node's first result has its name, further ones are ``NODE:1``, ``NODE:2``, ....  As an
    identifier that is ``NODE_1``, as exporters call their second node: such numbers are left out.
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


def _output(
    builder: relax.BlockBuilder, name: str, graph: Graph, expressions: Expressions
) -> relax.Expr:
    """Return an output's expression; problems before it leave a variable in its place."""
    if name in graph.half_outputs and name in expressions:
        half = converted(builder, expressions[name], HALF)
        return bind(builder, half, f"{name}:half", relax.Var)
    if name in expressions:
        return expressions[name]
    return _variable(name, graph.types.get(name, TensorType((1,), "float32")))
