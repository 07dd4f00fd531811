"""Networks: an operator in one of its positions, as an ONNX model with inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from generators import Rule, rule_of
from graphs import ERRATIC, IR_VERSION, TAME, VALUES, Graph, InvalidError, Tensor, opset_imports
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from support.norm_chains import FORMS, Chain

#: Channel counts: with and without a remainder modulo 4 and 16.
CHANNELS = (3, 16, 5, 1, 17, 30, 60, 64)


@dataclass(frozen=True)
class Network:
    """A network, the values of its inputs, and what it tests."""

    operator: str
    position: str
    kind: str
    opset: int
    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, np.ndarray] = field(repr=False)
    feeds: Mapping[str, np.ndarray] = field(repr=False)
    outputs: tuple[Tensor, ...]
    #: Tensors that are never stored in half precision.
    wide: frozenset[str] = frozenset()

    @property
    def model(self) -> onnx.ModelProto:
        return merged([self])

    @property
    def digest(self) -> str:
        """Return a hash of the model and its inputs."""
        text = hashlib.sha256(self.model.SerializeToString(deterministic=True))
        for name, array in self.feeds.items():
            text.update(name.encode() + array.tobytes())
        return text.hexdigest()[:16]


def merged(networks: Sequence[Network]) -> onnx.ModelProto:
    """Merge networks of the same operator set into one model."""
    nodes = [node for n in networks for node in n.nodes]
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for n in networks
            for name, array in n.feeds.items()
        ],
        [
            helper.make_tensor_value_info(
                t.name, helper.np_dtype_to_tensor_dtype(np.dtype(t.dtype)), t.shape
            )
            for n in networks
            for t in n.outputs
        ],
        [numpy_helper.from_array(a, name) for n in networks for name, a in n.constants.items()],
    )
    opsets = opset_imports(networks[0].opset, nodes)
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


# ---- Where the operator stands ----------------------------------------------------------------

#: A function that adds the operator to the graph.
Apply = Callable[[Tensor], list[Tensor]]


def _picture(g: Graph, rule: Rule, *, multiple: bool = True) -> Tensor:
    """Return an input of four axes."""
    channels = g.pick(*CHANNELS)
    if multiple and rule.multiple > 1:
        channels = rule.multiple * g.pick(1, 3, 4, 5)
    height, width = g.integer(4, 8), g.integer(4, 8)
    if not rule.even and g.chance(0.1):
        height, width = g.pick((1, 1), (1, 6), (5, 1), (2, 3))
    if rule.even:
        height, width = 2 * (height // 2), 2 * (width // 2)
    return g.input([g.pick(1, 1, 1, 2, 3), channels, height, width])


def _any(g: Graph, rule: Rule) -> Tensor:
    """Return an input of any rank."""
    rank = g.pick(4, 4, 4, 3, 2, 5)
    if rank == 4 or rule.multiple > 1 or rule.even:
        return _picture(g, rule)
    return g.input([g.pick(1, 2, 3), g.pick(*CHANNELS), *g.integers(2, 5, rank - 2)])


def _convolved(g: Graph, rule: Rule) -> Tensor:
    """Return the result of a blocked convolution."""
    x = _picture(g, rule, multiple=False)
    channels = g.pick(16, 17, 64, 30, 60, 3, 5, 1)
    if rule.multiple > 1:
        channels = rule.multiple * g.pick(4, 5, 1, 15)
    return g.conv(x, channels, g.pick(1, 3))


def alone(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    return apply(_any(g, rule))


def at_input(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    y, *others = apply(_any(g, rule))
    y = g.cast(y, "float32")
    return [g.one("Mul", [y, g.constant(np.float32(0.5))]), *others]


def at_output(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    return apply(g.one("Relu", [_convolved(g, rule)]))


def after_conv(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    y, *others = apply(_convolved(g, rule))
    y = g.cast(y, "float32")
    return [g.one("LeakyRelu", [y], alpha=0.25), *others]


def before_conv(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    y, *others = apply(_picture(g, rule))
    return [_conv(g, y), *others]


def _conv(g: Graph, y: Tensor) -> Tensor:
    y = g.picture(y)
    if g.chance(0.2):
        # A depthwise convolution.
        return g.conv(y, y.channels, 3, group=y.channels)
    return g.conv(y, g.pick(16, 5, 3, 30, 1), g.pick(1, 3))


def between(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    y, *others = apply(_convolved(g, rule))
    return [_conv(g, y), *others]


def into_transpose(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    y, *others = apply(_convolved(g, rule))
    y = g.picture(y)
    perm = g.pick([0, 2, 3, 1], [0, 2, 1, 3], [1, 0, 2, 3], [0, 3, 2, 1])
    return [g.one("Transpose", [y], perm=perm), *others]


def into_reshape(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    y, *others = apply(_convolved(g, rule))
    options = [[-1], [y.shape[0] if y.rank else 1, -1]]
    options += [[-1, y.shape[-1]]] if y.rank else []
    options += [[d, -1] for d in (4, 3) if y.elements % d == 0]
    y = g.one("Reshape", [y, g.constant(np.array(g.pick(*options), np.int64))])
    return [y, *others]


def into_softmax(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    y, *others = apply(_convolved(g, rule))
    y = g.cast(y, "float32")
    y = g.reshape(y, [1]) if y.rank == 0 else y
    return [g.one("Softmax", [y], axis=g.axis(y)), *others]


def into_where(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    """Use the result as the condition of a Where, or as one of its choices."""
    y, *others = apply(_convolved(g, rule))
    if y.dtype == "bool":
        pair = [g.weights(y.shape), g.constant(np.float32(-3))]
        return [g.one("Where", [y, *pair]), *others]
    y = g.cast(y, "float32")
    mask = g.one("Greater", [y, g.constant(np.float32(0.25))])
    other = g.operand(g.pick(list(y.shape), []))
    pair = [y, other] if g.chance(0.7) else [other, y]
    return [g.one("Where", [mask, *pair]), *others]


def into_residual(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    x = _convolved(g, rule)
    y, *others = apply(x)
    y = g.cast(y, "float32")
    other = x if x.shape == y.shape else g.operand(y.shape)
    y = g.one("Add", [y, other] if g.chance(0.5) else [other, y])
    return [g.one("Relu", [y]) if g.chance(0.5) else y, *others]


def read_twice(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    y, *others = apply(_convolved(g, rule))
    first = g.one("Mul", [g.cast(y, "float32"), g.constant(np.float32(2))])
    second = g.pick("conv", "transpose", "itself")
    if second == "conv":
        return [first, _conv(g, y), *others]
    if second == "transpose":
        z = g.picture(y)
        return [first, g.one("Transpose", [z], perm=[0, 2, 3, 1]), *others]
    return [first, y, *others]


class _OfGraph(Chain):
    """A chain of nodes of a graph."""

    def __init__(self, g: Graph, x: Tensor, axes: Sequence[int]):
        super().__init__(x.shape, axes, g.opset)
        self.graph = g

    def add(self, operator: str, *inputs: str | float, **attributes: Any) -> str:
        g = self.graph
        operands = [
            g.tensors[i if isinstance(i, str) else self.constant(np.float32(i))] for i in inputs
        ]
        return g.one(operator, operands, **attributes).name

    def constant(self, array: Any) -> str:
        return self.graph.constant(array).name

    def reduce(self, operator: str, x: str, keepdims: int = 1) -> str:
        g = self.graph
        return g.with_axes(operator, g.tensors[x], self.axes, keepdims=keepdims)[0].name


def into_statistics(g: Graph, rule: Rule, apply: Apply) -> list[Tensor]:
    """Add a chain of sums, squares and roots whose values leave half precision or cancel in it."""
    y, *others = apply(_convolved(g, rule))
    y = g.picture(y)
    if g.chance(0.7):
        y = g.one("Add", [g.one("Mul", [y, g.constant(np.float32(3))]), g.constant(np.float32(30))])
    axes = g.pick([1], [2, 3], [3], [1, 2, 3])
    before = len(g.nodes)
    result = FORMS[g.pick(*FORMS)](_OfGraph(g, y, axes), y.name)
    made = [(node, g.tensors[name]) for node in g.nodes[before:] for name in node.output]
    # These stay in fp32, even if all else is stored in half precision.
    g.wide |= {
        t.name
        for node, t in made
        if t.elements < y.elements or node.op_type == "Exp" or set(node.input) == {y.name}
    }
    return [g.tensors[result], *others]


POSITIONS: dict[str, Callable[[Graph, Rule, Apply], list[Tensor]]] = {
    "alone": alone,
    "input": at_input,
    "output": at_output,
    "after conv": after_conv,
    "before conv": before_conv,
    "between convs": between,
    "transpose": into_transpose,
    "reshape": into_reshape,
    "softmax": into_softmax,
    "where": into_where,
    "residual": into_residual,
    "read twice": read_twice,
    "statistics": into_statistics,
}


def network(
    draw: Any,
    operator: str,
    position: str,
    opset: int,
    prefix: str = "",
    kinds: Sequence[str] = VALUES,
) -> Network:
    """Draw a network whose inputs have one of the kinds of values.

    Raises
    ------
    InvalidError
        If the drawn network is not valid ONNX.
    """
    rule = rule_of(operator)
    assert rule is not None, operator
    options = [kind for kind in rule.values if kind in kinds] or [rule.values[0]]
    if position == "where" and operator in ERRATIC:
        # A choice by a NaN that is not guaranteed would compare a number with another one.
        options = [kind for kind in options if kind in TAME] or [TAME[0]]
    # Most networks have normal numbers: whole and wide ones hide small errors.
    more = ["normal"] * (len(options) - 1) if "normal" in options else []
    kind = draw(st.sampled_from([*options, *more]))
    g = Graph(draw, opset, prefix, kind)
    outputs = POSITIONS[position](g, rule, lambda x: rule.draw(g, x))
    made = {name for node in g.nodes for name in node.output}
    unique = {t.name: t for t in outputs if t.name in made}
    if not unique:
        raise InvalidError("no result")
    read = {name for node in g.nodes for name in node.input}
    return Network(
        operator,
        position,
        kind,
        opset,
        tuple(g.nodes),
        {name: array for name, array in g.constants.items() if name in read},
        {name: array for name, array in g.feeds.items() if name in read},
        tuple(unique.values()),
        frozenset(g.wide),
    )
