"""Conversion of models of operator sets 1 to 6 to set 7, beyond ONNX's version converter.

In these operator sets operators do not broadcast like NumPy yet, and many attributes have been
renamed since.  Rules here cover what ONNX's converter does not know or gets wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference, version_converter

from ..errors import UnsupportedModelError
from .graph import node_attributes, node_name
from .nested import nested_graphs

#: Oldest operator set of the importer, the first in which operators broadcast like NumPy.  Models
#: of older sets are upgraded to it first.
OLDEST_OPSET = 7

#: Domain of nodes that conform to operator set 7 already: the converter skips foreign domains.
_DONE = "tvmflow.upgraded"


def upgraded(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Upgrade a model of operator set 1 to 6 to set 7, with ONNX's version converter.

    The converter gets the model without its weights: it would read all of them, and large ones are
    not part of the message.

    ::

        before  opset 6   Add(x, b, broadcast=1, axis=1)
        after   opset 7   Add(x, Unsqueeze(b, axes=[1, 2]))
    """
    for node in model.graph.node:
        if any(nested_graphs(node)):
            raise UnsupportedModelError(
                f"The model uses ONNX operator set {opset}, and ONNX's version converter does not "
                f"bring the graphs within node {node_name(node)!r} ({node.op_type}) to "
                f"{OLDEST_OPSET}, the oldest that is compiled.",
                remedy="Export the model for operator set 18, for example.",
            )
    weights = list(model.graph.initializer)
    names = {tensor.name for tensor in weights}
    inputs = [value for value in model.graph.input if value.name not in names]
    inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights]
    graph = onnx.GraphProto(
        name=model.graph.name or "model", node=model.graph.node, input=inputs,
        output=model.graph.output,
    )  # fmt: skip
    skeleton = onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, graph=graph
    )
    try:
        typed = _with_shapes(skeleton, opset, weights)
        _align(typed)
        weights += _apply_rules(typed, opset, weights)
        typed.opset_import.append(helper.make_opsetid(_DONE, 1))
        result = version_converter.convert_version(typed, OLDEST_OPSET)
        for node in result.graph.node:
            node.domain = "" if node.domain == _DONE else node.domain
        kept = [entry for entry in result.opset_import if entry.domain != _DONE]
        del result.opset_import[:]
        result.opset_import.extend(kept)
        check_nodes(result)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedModelError(
            f"The model uses ONNX operator set {opset}, and ONNX's version converter cannot bring "
            f"it to {OLDEST_OPSET}, the oldest that is compiled: {lines[0].strip()}",
            remedy="Export the model for operator set 18, for example.",
            details="\n".join(lines[1:]) or None,
        ) from error
    names = {tensor.name for tensor in weights}
    inputs = [value for value in result.graph.input if value.name not in names]
    result.graph.ClearField("input")
    result.graph.ClearField("value_info")
    result.graph.input.extend(inputs)
    result.graph.initializer.extend(weights)
    return result


def check_nodes(model: onnx.ModelProto) -> None:
    """Check that all nodes of a converted model conform to its operator set.

    The converter itself may not notice.  Raises ``onnx.checker.ValidationError`` for a node that
    does not conform.
    """
    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {entry.domain: entry.version for entry in model.opset_import}
    for node in model.graph.node:
        onnx.checker.check_node(node, context)


#: Largest weights, in elements, that shape inference gets, as shapes may depend on their values.
_LARGEST_SHAPE = 1024


def _with_shapes(
    model: onnx.ModelProto, opset: int, weights: Sequence[onnx.TensorProto]
) -> onnx.ModelProto:
    """Return the model with the shapes of its values, inferred by the rules of operator set 6.

    For older sets ONNX has no inference for Relu, Add, Gemm and some thirty others, so shapes after
    them would be unknown.
    """
    made = [
        tensor
        for tensor in weights
        if tensor.data_type == TensorProto.INT64
        and prod(tensor.dims) <= _LARGEST_SHAPE
        and tensor.data_location != TensorProto.EXTERNAL
    ]
    known = _constants(model.graph, weights)
    nodes = []
    for node in model.graph.node:
        new = onnx.NodeProto.FromString(node.SerializeToString())
        newest, form = _IN_SET_6.get(node.op_type, (0, None))
        attributes = node_attributes(node)
        attributes.pop("consumed_inputs", None)
        if form is not None and opset <= newest and not node.domain:
            attributes = form(_Old(new, model.graph, known, made), attributes)
        nodes.append(
            helper.make_node(new.op_type, new.input, new.output, domain=new.domain, **attributes)
        )
    graph = onnx.GraphProto(name="shapes", node=nodes, input=model.graph.input, initializer=made)
    imports = [entry for entry in model.opset_import if entry.domain not in ("", "ai.onnx")]
    inferred = shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[*imports, helper.make_opsetid("", 6)])
    )
    typed = onnx.ModelProto.FromString(model.SerializeToString())
    outputs = {value.name for value in model.graph.output}
    typed.graph.value_info.extend(
        value for value in inferred.graph.value_info if value.name not in outputs
    )
    return typed


def _constants(
    graph: onnx.GraphProto, weights: Sequence[onnx.TensorProto]
) -> dict[str, onnx.TensorProto]:
    """Return weights and results of Constant nodes, by name."""
    known = {tensor.name: tensor for tensor in weights}
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain:
            known[node.output[0]] = node.attribute[0].t
    return known


def _align(model: onnx.ModelProto) -> None:
    """Append axes of extent 1 to operands that broadcast from a given axis on.

    The slopes of PRelu were one for each channel; the converter does not change them, and since
    operator set 7 they would mean one for each column.  Other operators name the operand's axis,
    which the converter does not always accept.

    ::

        before  PRelu(x : (1, 4, 8, 4), slope : (4,))     Add(x, b : (4,), broadcast=1, axis=1)
        after   PRelu(x, Unsqueeze(slope, axes=[1, 2]))   Add(x, Unsqueeze(b, ...), broadcast=1)
    """
    ranks = _ranks(model.graph)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        first = _first_axis(node)
        if first is not None:
            x, operand = node.input
            if x not in ranks or operand not in ranks:
                name = node.name or node.output[0]
                raise ValueError(f"the shapes of what {node.op_type} {name} reads are not known")
            first += ranks[x] if first < 0 else 0
            count = ranks[x] - first - ranks[operand]
            if ranks[operand] and count > 0:
                axes = [ranks[operand] + index for index in range(count)]
                wide = f"{node.output[0]}_aligned"
                nodes.append(helper.make_node("Unsqueeze", [operand], [wide], axes=axes))
                node.input[1] = wide
            # Both operands now end at the same axis, and the converter rejects negative axes.
            kept = [a for a in node.attribute if a.name != "axis"]
            del node.attribute[:]
            node.attribute.extend(kept)
        nodes.append(node)
    changed = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(changed)


def _ranks(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the ranks of values, as far as they are known."""
    return {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info)
        if value.type.tensor_type.HasField("shape")
    }


def _first_axis(node: onnx.NodeProto) -> int | None:
    """Return the axis at which a node's second operand starts, ``None`` if it ends at the last."""
    if node.op_type == "PRelu" and len(node.input) == 2:
        return 1
    attributes = {a.name: a.i for a in node.attribute if a.name in ("broadcast", "axis")}
    return attributes.get("axis") if attributes.get("broadcast") else None


@dataclass
class _Old:
    """A node of an older operator set, which a rule rewrites."""

    node: onnx.NodeProto
    graph: onnx.GraphProto
    weights: Mapping[str, onnx.TensorProto]
    #: Weights that rules have added.
    made: list[onnx.TensorProto]

    def constant(self, index: int, what: str) -> np.ndarray:
        """Return the values of an input that must be constant."""
        tensor = self.weights.get(self.node.input[index])
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            raise ValueError(
                f"the {what} of {self.node.op_type} {node_name(self.node)} are computed"
            )
        return numpy_helper.to_array(tensor)


def _apply_rules(
    model: onnx.ModelProto, opset: int, weights: Sequence[onnx.TensorProto]
) -> list[onnx.TensorProto]:
    """Upgrade nodes that the converter does not know to operator set 7, in place.

    Returns the added weights, which become inputs of the graph like all others.

    ::

        before  Pad(x, paddings=[0, 1, 0, 1])      Split(x, s : [1, 2], axis=0)
        after   Pad(x, pads=[0, 1, 0, 1])          Split(x, axis=0, split=[1, 2])
    """
    known = _constants(model.graph, weights)
    made: list[onnx.TensorProto] = []
    for node in model.graph.node:
        newest, rule = _RULES.get(node.op_type, (0, None))
        if rule is None or opset > newest or node.domain:
            continue
        attributes = rule(_Old(node, model.graph, known, made), node_attributes(node))
        new = helper.make_node(node.op_type, node.input, node.output, domain=_DONE, **attributes)
        node.ClearField("attribute")
        node.attribute.extend(new.attribute)
        node.domain = _DONE
    return made


#: Attributes by name; a rule returns the attributes of operator set 7.
_Attributes = dict[str, Any]


def _compare(old: _Old, attributes: _Attributes) -> _Attributes:
    """Drop the attributes of broadcasting, as the operands have been aligned."""
    return {k: v for k, v in attributes.items() if k not in ("broadcast", "axis")}


def _split(old: _Old, attributes: _Attributes) -> _Attributes:
    """Move the lengths to an attribute.  The axis has no default in operator set 1."""
    if "axis" not in attributes:
        raise ValueError(f"Split {node_name(old.node)} does not say along which axis")
    if len(old.node.input) == 2:
        lengths = old.constant(1, "lengths").reshape(-1)
        attributes["split"] = [int(length) for length in lengths]
        del old.node.input[1]
    return attributes


def _tiles(old: _Old) -> tuple[int, int]:
    """Return the number of repetitions and their axis."""
    tiles, axis = (int(old.constant(i, w).item()) for i, w in ((1, "tiles"), (2, "axis")))
    return tiles, axis


def _tile(old: _Old, attributes: _Attributes) -> _Attributes:
    """Replace a count and its axis with counts for all axes."""
    tiles, axis = _tiles(old)
    rank = _ranks(old.graph).get(old.node.input[0])
    if rank is None or not -rank <= axis < rank:
        raise ValueError(f"the axis of Tile {node_name(old.node)} is {axis}, of {rank}")
    repeats = np.ones(rank, np.int64)
    repeats[axis] = tiles
    name = f"{old.node.output[0]}_repeats"
    old.made.append(numpy_helper.from_array(repeats, name))
    old.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, [rank]))
    old.node.input[:] = [old.node.input[0], name]
    return attributes


def _norm(old: _Old, attributes: _Attributes) -> _Attributes:
    """Convert the exponent to an integer."""
    exponent = attributes.get("p", 2.0)
    if exponent != int(exponent):
        raise ValueError(f"the exponent of {old.node.op_type} {node_name(old.node)} is {exponent}")
    return attributes | {"p": int(exponent)}


def _whole_reshape(old: _Old, attributes: _Attributes) -> _Attributes:
    """Move the shape to an input."""
    name = f"{old.node.output[0]}_shape"
    old.made.append(numpy_helper.from_array(np.array(attributes.pop("shape"), np.int64), name))
    old.node.input.append(name)
    return attributes


def _repeated(old: _Old, attributes: _Attributes) -> _Attributes:
    """Replace Tile with Concat, which needs no rank."""
    tiles, axis = _tiles(old)
    old.node.op_type = "Concat"
    old.node.input[:] = [old.node.input[0]] * tiles
    return {"axis": axis}


def _enlarged(old: _Old, attributes: _Attributes) -> _Attributes:
    """Replace Upsample with Tile; fractional factors stay, and their shape unknown."""
    scales = [attributes["height_scale"], attributes["width_scale"]]
    if all(scale == int(scale) for scale in scales):
        name = f"{old.node.output[0]}_repeats"
        repeats = np.array([1, 1, *scales], np.int64)
        old.made.append(numpy_helper.from_array(repeats, name))
        old.node.op_type = "Tile"
        old.node.input.append(name)
        return {}
    return attributes


#: The newest operator set in which a rule applies, and the rule, by operator.
_RULES: dict[str, tuple[int, Callable[[_Old, _Attributes], _Attributes]]] = {
    **dict.fromkeys(("And", "Equal", "Greater", "Less", "Or", "Xor"), (6, _compare)),
    # The element type was given by its name.
    "Cast": (5, lambda old, given: given | {"to": TensorProto.DataType.Value(given["to"])}),
    "Pad": (1, lambda old, given: given | {"pads": given.pop("paddings")}),
    "Split": (1, _split),
    "Tile": (5, _tile),
    "LpPool": (1, _norm),
    "GlobalLpPool": (1, _norm),
}
#: Rules that upgrade nodes to operator set 6, only for shape inference.
_IN_SET_6: dict[str, tuple[int, Callable[[_Old, _Attributes], _Attributes]]] = {
    **_RULES,
    "Concat": (3, lambda old, attributes: {"axis": 1, **attributes}),
    "Reshape": (4, _whole_reshape),
    "Tile": (5, _repeated),
    "Upsample": (6, _enlarged),
}
