"""Conversion of local functions whose operator set differs from the graph's to the newest set.

ONNX's inliner copies a function's nodes into the graph unchanged, where they would have the meaning
of the graph's operator set.  Therefore nodes whose operator has changed since are marked with their
set before inlining, and converted one by one once the types of their inputs are known::

    before  opset 17, y = F(x), F of opset 11: y = Softmax(x)
    after   opset 17, y = Reshape(Softmax(Flatten(x), axis=-1), Shape(x))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference, version_converter

from ..ir.names import unique
from .graph import DEFAULT_DOMAINS, node_name
from .nested import all_nodes, renamed
from .upgrade import OLDEST_OPSET, upgraded
from .values import Values

_MARK = "tvmflow.opset."
#: Operators of which newer sets change only the values or nested graphs that they may hold; nodes
#: of nested graphs are marked themselves.
_UNMARKED = ("Constant", "If", "Loop")
#: Newest operator set from which the version converter changes an operator's meaning: it applies
#: the coordinates of operator set 11 to Resize of set 10, and the axis of set 13 to Hardmax, which
#: flattened its input before (tests/frontend/test_function_opsets.py).
_MISCONVERTED = {"Resize": 10, "Upsample": 9, "Hardmax": 12}
#: Largest constants, in elements, whose values the version converter gets.
_LARGEST_KNOWN = 1024


def with_marked_opsets(model: onnx.ModelProto, opset: int) -> tuple[onnx.ModelProto, int]:
    """Return a model whose functions and graph have one operator set, and that set.

    A model for which this holds already is returned unchanged.
    """
    sets = [_opset(function.opset_import, opset) for function in model.functions]
    newest = max([OLDEST_OPSET, opset, *sets])
    if not sets or {opset, *sets} == {newest}:
        return model, opset
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    _mark(marked.graph.node, opset, newest)
    for function, own in zip(marked.functions, sets, strict=True):
        _mark(function.node, own, newest)
    for imports in (marked.opset_import, *(f.opset_import for f in marked.functions)):
        kept = [entry for entry in imports if entry.domain not in DEFAULT_DOMAINS]
        del imports[:]
        imports.extend([*kept, helper.make_opsetid("", newest)])
    return marked, newest


def _opset(imports: Sequence[onnx.OperatorSetIdProto], default: int) -> int:
    found = (entry.version for entry in imports if entry.domain in DEFAULT_DOMAINS)
    return int(next(found, default))


def _mark(nodes: Sequence[onnx.NodeProto], opset: int, newest: int) -> None:
    for node in all_nodes(nodes):
        if node.domain in DEFAULT_DOMAINS and _has_changed(node.op_type, opset, newest):
            node.domain = f"{_MARK}{opset}"


def _has_changed(op_type: str, opset: int, newest: int) -> bool:
    if op_type in _UNMARKED or not onnx.defs.has(op_type, opset, ""):
        return False
    if not onnx.defs.has(op_type, newest, ""):
        return True
    now = onnx.defs.get_schema(op_type, newest, "")
    return now.deprecated or now.since_version != onnx.defs.get_schema(op_type, opset).since_version


def is_marked(node: onnx.NodeProto) -> bool:
    """Return whether a node must be converted to the graph's operator set."""
    return bool(node.domain.startswith(_MARK))


def raised(node: onnx.NodeProto, values: Values) -> Iterator[onnx.NodeProto]:
    """Convert a marked node to the graph's operator set with ONNX's version converter."""
    graph, opset = values.graph, int(node.domain.removeprefix(_MARK))
    plain = renamed(node, values.aliases)
    plain.domain = ""
    names = list(dict.fromkeys(filter(None, plain.input)))
    if not all(map(values.is_known, names)) or any(name in values.sequences for name in names):
        graph.refuse(node, f"it is of operator set {opset}, and its inputs have no known type")
        return
    try:
        if opset <= _MISCONVERTED.get(node.op_type, 0):
            raise ValueError("its meaning would change")
        model = _converted(plain, names, values, opset)
    except Exception as error:  # noqa: BLE001 (the converter's errors share no other class)
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        graph.refuse(
            node,
            f"ONNX's version converter does not bring it from operator set {opset} of its function "
            f"to {graph.opset}: {line}",
        )
        return
    known = {*names, *node.output}
    own = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name not in known}
    made = {*own, *(name for each in model.graph.node for name in each.output)} - known
    fresh = {old: unique(f"{node_name(node)}/{old}", values.taken) for old in sorted(made)}
    graph.constants.update((fresh[name], array) for name, array in own.items())
    for each in model.graph.node:
        each.name = each.name or node_name(node)
        new = renamed(each, fresh)
        values.used.update(new.input)
        yield new


def _converted(
    node: onnx.NodeProto, names: Sequence[str], values: Values, opset: int
) -> onnx.ModelProto:
    """Return a model of the graph's operator set that consists of this node."""
    graph = values.graph
    inputs, weights = [], []
    for name in names:
        kind = graph.type_of(name)
        if name in graph.constants and kind.elements <= _LARGEST_KNOWN:
            weights.append(numpy_helper.from_array(np.array(graph.constants[name]), name))
        else:
            elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
            inputs.append(helper.make_tensor_value_info(name, elem_type, kind.shape))
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    body = helper.make_graph([node], "node", inputs, outputs, weights)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    if opset < OLDEST_OPSET:
        model = upgraded(model, opset)
    model = shape_inference.infer_shapes(model, strict_mode=True)
    model = version_converter.convert_version(model, graph.opset)
    # The converter does not check types: it turns a float16 value of Pad into a float32 one.
    onnx.checker.check_model(model, full_check=True)
    return model
