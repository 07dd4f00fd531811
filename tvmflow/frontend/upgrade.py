"""Models of operator sets 1 to 6, in which operators do not broadcast like NumPy yet."""

from __future__ import annotations

import onnx
from onnx import helper, version_converter

from ..errors import UnsupportedModelError


def upgraded(model: onnx.ModelProto, opset: int, wanted: int) -> onnx.ModelProto:
    """Return a model of an operator set from 7 on, by ONNX's version converter.

    Only nodes go through the converter, weights stay as they are: it would read all of them, and
    those outside the message are not there.

    ::

        before  opset 6   Add(x, b, broadcast=1, axis=1)
        after   opset 7   Add(x, Unsqueeze(b, axes=[1, 2]))

    Parameters
    ----------
    opset
        The model's operator set.
    wanted
        The one to convert to.

    Raises
    ------
    UnsupportedModelError
        If the converter does not take the model.
    """
    weights = list(model.graph.initializer)
    names = {tensor.name for tensor in weights}
    skeleton = onnx.ModelProto()
    skeleton.ir_version = model.ir_version
    skeleton.opset_import.extend(model.opset_import)
    skeleton.graph.name = model.graph.name or "model"
    skeleton.graph.node.extend(model.graph.node)
    skeleton.graph.output.extend(model.graph.output)
    skeleton.graph.input.extend(v for v in model.graph.input if v.name not in names)
    skeleton.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights
    )
    try:
        typed = onnx.shape_inference.infer_shapes(skeleton)
        _align(typed)
        result = version_converter.convert_version(typed, wanted)
        _check_nodes(result, wanted)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedModelError(
            f"The model uses ONNX operator set {opset}, and ONNX's version converter cannot bring "
            f"it to {wanted}, the oldest that is compiled: {lines[0].strip()}",
            remedy="Export the model for operator set 18, for example.",
            details="\n".join(lines[1:]) or None,
        ) from error
    kept = [value for value in result.graph.input if value.name not in names]
    del result.graph.input[:]
    result.graph.input.extend(kept)
    result.graph.initializer.extend(weights)
    del result.graph.value_info[:]
    return result


def _check_nodes(model: onnx.ModelProto, opset: int) -> None:
    """Check that nodes are what their operators have become: the converter may not know."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {entry.domain: entry.version for entry in model.opset_import}
    context.opset_imports[""] = opset
    for node in model.graph.node:
        onnx.checker.check_node(node, context)


def _align(model: onnx.ModelProto) -> None:
    """Give operands that begin at an axis further axes of extent 1 behind their own.

    The slopes of PRelu were one for each channel: the converter leaves them, and from operator set
    7 on they would be one for each column. Other operands name their axis; the converter does not
    always take that.

    ::

        before  PRelu(x : (1, 4, 8, 4), slope : (4,))     Add(x, b : (4,), broadcast=1, axis=1)
        after   PRelu(x, Unsqueeze(slope, axes=[1, 2]))   Add(x, Unsqueeze(b, ...), broadcast=1)
    """
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*model.graph.input, *model.graph.value_info)
        if value.type.tensor_type.HasField("shape")
    }
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
                kept = [a for a in node.attribute if a.name != "axis"]
                del node.attribute[:]
                node.attribute.extend(kept)
        nodes.append(node)
    changed = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(changed)


def _first_axis(node: onnx.NodeProto) -> int | None:
    """The axis at which a node's second operand begins, ``None`` where it is the last ones."""
    if node.op_type == "PRelu" and len(node.input) == 2:
        return 1
    attributes = {a.name: a.i for a in node.attribute if a.name in ("broadcast", "axis")}
    return attributes.get("axis") if attributes.get("broadcast") else None
