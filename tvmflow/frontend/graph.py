"""Representation of a model between the file and Relax: nodes, constants and static types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..errors import ModelError, UnsupportedModelError
from ..ir.operator import DOMAIN
from ..ir.operators import OPERATORS
from ..ir.tensors import TensorInfo, TensorType
from ..ir.units import counted
from .nested import needed, reads

#: ONNX's own operator domain has two spellings.
DEFAULT_DOMAINS = ("", "ai.onnx")
#: ONNX Runtime's own operator domain.
CONTRIB_DOMAIN = "com.microsoft"
#: Elementwise operators, whose operands broadcast.
ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift",
    "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu",
    "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu",
    "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu",
    "Where", "Xor",
)  # fmt: skip
#: Prefix of refusals for an error that TVM raised, such as for shapes that do not fit.
NOT_TAKEN = "TVM does not take it"
#: Domains and fused operators that ONNX Runtime introduces when it optimises a model beyond the
#: basic level.
_OPTIMISED_DOMAINS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
_OPTIMISED = {
    f"{CONTRIB_DOMAIN}.{name}"
    for name in (
        "BiasAdd", "BiasGelu", "BiasSoftmax", "BiasSplitGelu", "ConvTransposeWithDynamicPads",
        "FastGelu", "FusedConv", "FusedGemm", "FusedMatMul",
        "FusedMatMulActivation", "NhwcConv", "NhwcFusedConv", "NhwcMaxPool", "QuickGelu",
        "SkipGroupNorm", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
        "SimplifiedLayerNormalization", "TransposeMatMul",
    )
}  # fmt: skip
#: Most nodes that an error lists by name for each reason; the rest are counted.
_NAMES_SHOWN = 8
#: Operator of nodes that run a VM loop; their attribute ``loop`` names the graph of its body.
RUN_LOOP = "RunLoop"


@dataclass(frozen=True)
class Limit:
    """A bound that the user gave for a size known at run time."""

    #: The name that the bound was given for, and the node.
    name: str
    node: str
    bound: int
    #: Name of the int64 scalar that is the size before the bound.
    count: str


@dataclass(frozen=True)
class Check:
    """A branch of an If that cannot be computed and that no run may take."""

    #: Name of the int64 scalar that is 1 if a run takes the branch.
    taken: str
    #: The If, and the reason why its branch cannot be computed.
    node: str
    reason: str


@dataclass
class Graph:
    """A model with static shapes."""

    name: str
    #: Version of ONNX's operator set that the nodes follow.
    opset: int
    #: Arguments of a call, in order.
    inputs: tuple[TensorInfo, ...]
    #: Names of the results, in order.
    outputs: list[str]
    #: Nodes in topological order, of the default domain or custom operators; without nested graphs
    #: once :func:`.propagate.propagate` has expanded control flow.
    nodes: list[onnx.NodeProto]
    #: Initializers and constants computed from them, by name; large ones memory-mapped.
    constants: dict[str, np.ndarray]
    #: Constants of at least this size stay outside the IR and are never rewritten.
    large_weight_bytes: int
    #: Known types of inputs and of nodes' results.
    types: dict[str, TensorType] = field(default_factory=dict)
    #: Names of the initializers that a constant was computed from, by constant.
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: DequantizeLinear nodes by the names of their results, including folded ones.
    dequantized: dict[str, onnx.NodeProto] = field(default_factory=dict)
    #: Outputs that the application gets in float16, though they are computed in fp32.
    half_outputs: set[str] = field(default_factory=set)
    #: Whether values that are float16 in the model are computed in fp32.
    is_widened: bool = False
    #: Bounded axis of outputs, and the name of the int64 scalar that is the number of its valid
    #: elements, by output.
    counts: dict[str, tuple[int, str]] = field(default_factory=dict)
    #: Bodies of VM loops by node (:mod:`.expanders.vm_loops`).
    loops: dict[str, Graph] = field(default_factory=dict)
    #: Bounds that the user gave.
    limits: list[Limit] = field(default_factory=list)
    #: Name prefixes of the nodes in branches that are chosen at run time, each with the prefix of
    #: the other branch.
    branches: dict[str, str] = field(default_factory=dict)
    #: Prefixes of branches that cannot be computed, with the reason.
    untaken: dict[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    #: The node at which an error ended the walk over the nodes.
    failed_in: str | None = None
    #: Operator, name and reason of each node that :meth:`refuse` recorded.
    problems: list[tuple[str, str, str]] = field(default_factory=list)
    #: Error for the first node that breaks ONNX's rules.
    invalid: ModelError | None = None
    _refused: dict[int, onnx.NodeProto] = field(default_factory=dict)

    def refuse(self, node: onnx.NodeProto, reason: str) -> None:
        """Record that a node cannot be compiled; it stays in ``nodes`` for its dependencies."""
        self.problems.append((operator_name(node), node_name(node), reason))
        self._refused[id(node)] = node

    def is_refused(self, node: onnx.NodeProto) -> bool:
        """Return whether a node was refused."""
        return id(node) in self._refused

    def type_of(self, name: str) -> TensorType:
        """Return the type of a known value."""
        if name in self.constants:
            array = self.constants[name]
            return TensorType(array.shape, str(array.dtype))
        return self.types[name]

    def initializers(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the initializers among these constants, or from which they were computed."""
        found = (self.origins.get(name, (name,)) for name in names if name in self.constants)
        return tuple(dict.fromkeys(chain.from_iterable(found)))

    def branch_of(self, node: str) -> str | None:
        """Return the prefix of the innermost branch that a node is in, by its name."""
        return max((b for b in self.branches if node.startswith(b)), key=len, default=None)

    def with_bodies(self) -> Iterator[Graph]:
        """Yield the graph and the bodies of its loops, at any depth."""
        yield self
        for body in self.loops.values():
            yield from body.with_bodies()

    def drop_unused_nodes(self) -> None:
        """Keep only nodes that outputs, their sizes, or checks depend on."""
        counts = [count for _, count in self.counts.values()]
        counts += [limit.count for limit in self.limits]
        counts += [check.taken for check in self.checks]
        self.nodes = needed(self.nodes, [*self.outputs, *counts])

    def consumers(self) -> Counter[str]:
        """Count the uses of each value by nodes and as an output."""
        return Counter([*(name for node in self.nodes for name in reads(node)), *self.outputs])


def unsupported(problems: Iterable[tuple[str, str, str]], label: str) -> UnsupportedModelError:
    """Return an error that lists all nodes that cannot be compiled, by operator and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for op_type, node, reason in problems:
        groups.setdefault((op_type, reason), []).append(node)
    lines = []
    for (op_type, reason), names in sorted(groups.items()):
        shown = ", ".join(names[:_NAMES_SHOWN])
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        lines.append(f"  {op_type} ({counted(len(names), 'node')}): {reason}\n    {shown}{more}")
    operators = sorted({op_type for op_type, _ in groups})
    nodes = sum(map(len, groups.values()))
    remedy = "Export the model without them, or cut it before them (onnx.utils.extract_model)."
    if any(op in _OPTIMISED or op.rpartition(".")[0] in _OPTIMISED_DOMAINS for op in operators):
        remedy = (
            "ONNX Runtime has optimised this file for one machine: take the file from before, or "
            "let it write one with basic optimisation only (SessionOptions: "
            "graph_optimization_level = ORT_ENABLE_BASIC)."
        )
    elif any("." in op_type for op_type in operators):
        remedy += (
            f" Or bring an operator of your own: define it in a file for `ops` and give its nodes "
            f"the domain {DOMAIN} (docs/custom-operators.md)."
        )
    return UnsupportedModelError(
        f"{label[:1].upper() + label[1:]} cannot be compiled: "
        f"{counted(nodes, 'node uses', 'nodes use')} what is not supported "
        f"({', '.join(operators)}).",
        remedy=remedy,
        details="\n".join(lines),
    )


def invalid(node: onnx.NodeProto, reason: str) -> ModelError:
    """Return an error for a node that breaks ONNX's rules."""
    return ModelError(
        f"The model is invalid at node {node_name(node)!r} ({node.op_type}): {reason}.",
        remedy="Check the given input shapes and the node's attributes, or export the model again.",
    )


def node_name(node: onnx.NodeProto) -> str:
    """Return the node's name, or the name of its first result if it has none."""
    return str(node.name or next(filter(None, node.output), node.op_type))


def operator_name(node: onnx.NodeProto) -> str:
    """Return a node's operator, with the domain unless that is ONNX's own."""
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


def node_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes by name, with text as ``str``."""
    return {a.name: _text(helper.get_attribute_value(a)) for a in node.attribute}


def _text(value: Any) -> Any:
    """Return an attribute's value with text as ``str``, also in lists."""
    if isinstance(value, list):
        return [_text(each) for each in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def lists_of(
    op_type: str, opset: int, constant: Callable[[np.ndarray], str], **lists: int | Sequence[int]
) -> tuple[list[str], dict[str, Any]]:
    """Return the inputs and attributes that give a node lists such as ``axes``.

    They are attributes in older operator sets; in newer ones ``constant`` makes the inputs.
    """
    if lists.keys() <= onnx.defs.get_schema(op_type, opset).attributes.keys():
        return [], lists
    return [constant(np.array(each, np.int64).reshape(-1)) for each in lists.values()], {}


def unknown_operator(node: onnx.NodeProto, opset: int) -> str | None:
    """Return the reason why a node's operator is unknown, or ``None`` if it is known."""
    if node.domain == DOMAIN and node.op_type not in OPERATORS:
        return f"no such operator is registered (`ops=FILE`), there are {', '.join(OPERATORS)}"
    if node.domain not in ("", DOMAIN):
        return f"only ONNX's own operators and those of {DOMAIN} are supported"
    if not node.domain and not onnx.defs.has(node.op_type, opset, ""):
        return f"operator set {opset} has no such operator"
    return None
