"""ONNX's own test cases of single operators, as networks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from contexts import Network
from graphs import Tensor
from support.onnx_cases import node_cases

from tvmflow.frontend.nested import renamed
from tvmflow.frontend.source import constant_value

#: Name for cases of several operators: other operators, written out.
SEVERAL = "several operators"


@cache
def cases() -> Mapping[str, list[Any]]:
    """Return all cases by operator."""
    table: dict[str, list[Any]] = {}
    for case in node_cases():
        op_types = {node.op_type for node in case.model.graph.node}
        table.setdefault(op_types.pop() if len(op_types) == 1 else SEVERAL, []).append(case)
    return table


def values(case: Any) -> tuple[list[Any], list[Any]]:
    """Return the inputs and outputs; a scalar may be NumPy's own type instead of an array."""
    inputs, outputs = (
        [np.asarray(v) if isinstance(v, np.generic) else v for v in side]
        for side in case.data_sets[0]
    )
    return inputs, outputs


def is_numeric(case: Any) -> bool:
    """Return whether there are numbers to compare."""
    inputs, outputs = values(case)
    arrays = [*inputs, *outputs]
    return all(isinstance(a, np.ndarray) and a.dtype.kind in "fiub" for a in arrays)


#: Inputs of a case that stay inputs, while the others become constants: all; the first one
#: (shapes, axes, weights are constants); the last one, a loop's state; none.
FORMS = {
    "as it is": slice(None), "with constants": slice(1), "with constants before": slice(-1, None),
    "of constants": slice(0),
}  # fmt: skip
#: Operators that read a shape, a length or limits, which are constants in a network.
OF_CONSTANTS = (
    "BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow", "MelWeightMatrix", "Range",
)  # fmt: skip


def network_of(case: Any, prefix: str, *, form: str) -> tuple[Network, dict[str, np.ndarray]]:
    """Return a case in one of `FORMS` as a network with its own names, and its expected results."""
    graph = case.model.graph
    inputs, outputs = values(case)
    named = dict(zip([v.name for v in graph.input], inputs, strict=False))
    known = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    written = {n.output[0]: constant_value(n) for n in graph.node if n.op_type == "Constant"}
    if len(written) == len(graph.node):
        written = {}  # Cases of Constant itself.
    known |= {name: array for name, array in written.items() if array is not None}
    feeds = {n: a for n, a in list(named.items())[FORMS[form]] if n not in known}
    known |= {n: a for n, a in named.items() if n not in feeds}
    outer = {*named, *known, *(name for node in graph.node for name in node.output)}
    names = {name: prefix + name for name in outer if name}
    nodes = []
    for index, node in enumerate(graph.node):
        if node.output[0] in known:
            continue
        copy = renamed(node, names)
        copy.name = f"{prefix}{node.op_type}_{index}"
        nodes.append(copy)
    expected = {prefix + v.name: a for v, a in zip(graph.output, outputs, strict=True)}
    network = Network(
        nodes[0].op_type,
        case.name,
        "case",
        opset_of(case),
        tuple(nodes),
        {prefix + n: a for n, a in known.items()},
        {prefix + n: np.asarray(a, order="C") for n, a in feeds.items()},
        tuple(Tensor(n, a.shape, a.dtype.name) for n, a in expected.items()),
    )
    return network, expected


def forms_of(case: Any) -> list[str]:
    """Return the forms in which a case is tried, one after the other."""
    of_constants = all(
        n.op_type in OF_CONSTANTS or n.op_type == "Constant" for n in case.model.graph.node
    )
    return list(FORMS) if of_constants else list(FORMS)[:-1]


def opset_of(case: Any) -> int:
    """Return the operator set of a case."""
    return next(o.version for o in case.model.opset_import if o.domain in ("", "ai.onnx"))


def is_plain(case: Any) -> bool:
    """Return whether a case has only operators of ONNX's own domain, and names for all values."""
    domains = {o.domain for o in case.model.opset_import} - {"", "ai.onnx"}
    return not domains and not case.model.functions and bool(case.model.graph.node)
