"""Check of a parsed model and its conversion to a :class:`Graph` with static input shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, inliner

from ..errors import ModelError, UnsupportedModelError
from ..ir.operator import DOMAIN, VERSION
from ..ir.operators import OPERATORS
from ..ir.tensors import TensorInfo, TensorType
from ..ops.onnx_form import register_schemas
from .contrib import expand_quantized
from .expansion import EXPANDERS
from .graph import DEFAULT_DOMAINS, Graph, node_name, operator_name, unknown_operator, unsupported
from .lift import lift_constants
from .nested import all_graphs, all_nodes, rewritten
from .node_types import NEWEST_FORMS
from .opsets import with_marked_opsets
from .rewrite import move_quantized
from .shapes import static_inputs
from .source import PACKED, Source, dtype_name
from .upgrade import OLDEST_OPSET, upgraded

#: Operators that read numbers of 2 and 4 bits as bytes without a change in meaning.
_READ_PACKED = ("DequantizeLinear", "Cast")
#: Operators for which :mod:`.contrib` looks up the original types of such numbers.
_READ_BY_NAME = ("QuantizeLinear", "GatherBlockQuantized")
#: Oldest supported file format, the first with named operator sets.
OLDEST_IR_VERSION = 3


def prepare(source: Source, shapes: Mapping[str, Sequence[int]] | None) -> Graph:
    """Check the model, separate its weights and set the shapes of its inputs.

    Raises ``ModelError`` if the model is not valid by ONNX's checker or describes no computation;
    ``UnsupportedModelError`` if its version or a type in it is not supported; ``ShapeError`` if its
    inputs do not become static.
    """
    model = source.model
    model, opset = with_marked_opsets(model, check_versions(model))
    _check_content(model.graph)
    if opset < OLDEST_OPSET:
        model, opset = upgraded(model, opset), OLDEST_OPSET
    graph = model.graph
    constants: dict[str, np.ndarray] = {}
    nodes = lift_constants(graph, source, constants)
    packed = _packed_weights(graph)
    # Since format 4 an input may have an initializer, its default; here that makes it a weight.
    inputs = [value for value in graph.input if value.name not in constants]
    infos = static_inputs(inputs, shapes)
    # The value of an input without elements is known; the input stays in the interface.
    constants |= {i.name: np.zeros(i.shape, i.dtype) for i in infos if not i.elements}
    skeleton = _skeleton(model, infos, nodes)
    if skeleton.functions:
        # Bodies of functions have weights, too.
        inlined = _inlined(skeleton)
        packed |= _packed_weights(inlined)
        nodes = lift_constants(inlined, source, constants)

    origins: dict[str, tuple[str, ...]] = {}
    problems: list[tuple[str, str, str]] = []

    def rewrite(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
        expanded = expand_quantized(nodes, opset, constants, packed, origins, problems)
        return move_quantized(expanded, constants)

    nodes = rewritten(nodes, rewrite)
    if problems:
        raise unsupported(problems, source.label)
    result = Graph(
        source.name, opset,
        inputs=infos,
        outputs=[value.name for value in graph.output],
        nodes=nodes,
        constants=constants,
        large_weight_bytes=source.large_weight_bytes,
        types={info.name: TensorType(info.shape, info.dtype) for info in infos},
        origins=origins,
    )  # fmt: skip
    result.drop_unused_nodes()
    _check_custom(model, result.nodes)
    del skeleton.functions[:], skeleton.graph.node[:]
    skeleton.graph.node.extend(result.nodes)
    _check(skeleton, opset, constants)
    return result


def _check_content(graph: onnx.GraphProto) -> None:
    """Refuse graphs without outputs or nodes."""
    for what, found, remedy in (
        ("outputs", graph.output, "Export the model with at least one output."),
        ("nodes", graph.node, "Export the model again."),
    ):
        if not found:
            text = f"The model's graph has no {what}: it describes no computation."
            raise ModelError(text, remedy=remedy)


#: Most nodes of a model after inlining, and deepest nesting of function calls: the largest networks
#: have some ten thousand nodes.
MOST_INLINED, DEEPEST_CALLS = 100_000, 100


def _check_calls(model: onnx.ModelProto) -> None:
    """Refuse functions that would be inlined to too many nodes."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}

    def size(nodes: Iterable[onnx.NodeProto], depth: int) -> int:
        total = 0
        for node in all_nodes(nodes):
            key = node.domain, node.op_type, node.overload
            if key in functions and key not in sizes:
                if depth >= DEEPEST_CALLS:
                    raise UnsupportedModelError(
                        f"The model's functions call each other more than {DEEPEST_CALLS} deep, at "
                        f"{node.op_type!r}.",
                        remedy="Export the model without functions.",
                    )
                sizes[key] = size(functions[key].node, depth + 1)
            total += sizes.get(key, 1)
        return total

    if (total := size(model.graph.node, 0)) > MOST_INLINED:
        raise UnsupportedModelError(
            f"The model's functions become {total} nodes where they are called, more than the "
            f"{MOST_INLINED} that are compiled.",
            remedy="Export the model without functions that call each other many times.",
        )


def _inlined(skeleton: onnx.ModelProto) -> onnx.GraphProto:
    """Return the graph with calls of the model's own functions inlined."""
    _check_calls(skeleton)
    try:
        return inliner.inline_local_functions(skeleton).graph
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"The model's functions cannot be resolved: {error}",
            remedy="Export the model without functions.",
        ) from error


def _packed_weights(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the element types of weights of 2 and 4 bits, by name.

    Refuse them except for nodes that only use their numbers, which bytes hold as well, or zero
    points that determine the type of a result.
    """
    nodes = list(all_nodes(graph.node))
    weights = [tensor for each in all_graphs(graph) for tensor in each.initializer]
    packed = {t.name: t.data_type for t in weights if t.data_type in PACKED}
    for node in nodes:
        if node.op_type == "Constant":
            kinds = [a.t.data_type for a in node.attribute if a.t.data_type in PACKED]
            packed |= dict.fromkeys(node.output[:1], kinds[0]) if kinds else {}
    if not packed:
        return {}
    # Weights of nested graphs may be renamed, so they cannot be looked up by name.
    by_name = {id(node) for node in graph.node if node.op_type in _READ_BY_NAME}
    readers = [(name, node) for node in nodes for name in node.input if name in packed]
    for name, node in readers:
        if node.op_type not in _READ_PACKED and id(node) not in by_name:
            raise UnsupportedModelError(
                f"Tensor {name!r} has the element type {dtype_name(packed[name])} and is read by "
                f"node {node_name(node)!r} ({node.op_type}); only {' and '.join(_READ_PACKED)}, "
                f"and outside of nested graphs {' and '.join(_READ_BY_NAME)}, may read such "
                "weights.",
                remedy="Keep the weights in 8 bits.",
            )
    return packed


def check_versions(model: onnx.ModelProto) -> int:
    """Return the version of the operator set; refuse unsupported ones and file formats."""
    newest_opset, newest_ir = onnx.defs.onnx_opset_version(), onnx.IR_VERSION
    convert = "onnx.version_converter converts a model to another operator set"
    if not OLDEST_IR_VERSION <= model.ir_version <= newest_ir:
        raise UnsupportedModelError(
            f"The model's file format is ONNX IR version {model.ir_version}, expected "
            f"{OLDEST_IR_VERSION} to {newest_ir} (onnx {onnx.__version__}).",
            remedy="Install a newer onnx package, or export the model for an older version."
            if model.ir_version > newest_ir
            else "Export the model with a current exporter.",
        )
    versions = [o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS]
    if not versions:
        raise ModelError(
            "The model does not say which version of ONNX's operator set it uses.",
            remedy="Export the model with a current exporter.",
        )
    opset = versions[0]
    if not 1 <= opset <= newest_opset:
        raise UnsupportedModelError(
            f"The model uses ONNX operator set {opset}, expected 1 to "
            f"{newest_opset} (onnx {onnx.__version__}).",
            remedy=f"Export it for operator set 18, for example; {convert}.",
        )
    return int(opset)


def _check_custom(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Register the model's custom operators with ONNX; refuse other versions of their domain."""
    names = {node.op_type for node in all_nodes(nodes) if node.domain == DOMAIN}
    if not names:
        return
    imports = [*model.opset_import, *(o for f in model.functions for o in f.opset_import)]
    versions = {o.version for o in imports if o.domain == DOMAIN}
    if versions != {VERSION}:
        found = " and ".join(map(str, sorted(versions))) or "none"
        raise UnsupportedModelError(
            f"The model has nodes of the domain {DOMAIN} ({', '.join(sorted(names))}), for which "
            f"it must ask for version {VERSION} in its opset_import, but there is {found}.",
            remedy=f'Add onnx.helper.make_opsetid("{DOMAIN}", {VERSION}) to it.',
        )
    register_schemas(OPERATORS[name] for name in names if name in OPERATORS)


def _skeleton(
    model: onnx.ModelProto, inputs: Sequence[TensorInfo], nodes: Sequence[onnx.NodeProto]
) -> onnx.ModelProto:
    """Return the model without weights and stale types: its inputs, nodes and functions."""
    graph = onnx.GraphProto(name=model.graph.name or "model", node=nodes)
    for info in inputs:
        graph.input.append(_value_info(info.name, np.dtype(info.dtype), info.shape))
    for value in model.graph.output:
        # The type is inferred anew; the checker only insists on one.
        graph.output.append(_value_info(value.name, np.dtype("float32"), ()))
    skeleton = onnx.ModelProto(
        ir_version=model.ir_version,
        opset_import=model.opset_import,
        functions=model.functions,
        graph=graph,
    )
    for opset in skeleton.opset_import:
        if opset.domain in DEFAULT_DOMAINS:
            opset.domain = ""
    return skeleton


def _value_info(name: str, dtype: np.dtype, shape: Sequence[int]) -> onnx.ValueInfoProto:
    elem_type = helper.np_dtype_to_tensor_dtype(dtype)
    return helper.make_tensor_value_info(name, elem_type, shape)


def _check(skeleton: onnx.ModelProto, opset: int, constants: Mapping[str, np.ndarray]) -> None:
    """Run ONNX's checker, with the weights as inputs.

    Models with operators that it does not know are skipped: a later step reports all of
    them with everything else that is not supported, the checker would report only one.
    """
    nodes = list(all_nodes(skeleton.graph.node))
    if any(operator_name(n) not in EXPANDERS and unknown_operator(n, opset) for n in nodes):
        return
    for node in nodes:
        if node.op_type in NEWEST_FORMS:  # the checker may not know their newer attributes
            known = onnx.defs.get_schema(node.op_type, opset).attributes
            own = [attribute for attribute in node.attribute if attribute.name in known]
            del node.attribute[:]
            node.attribute.extend(own)
    inputs = {value.name for value in skeleton.graph.input}
    for name, array in constants.items():
        if name not in inputs:
            skeleton.graph.input.append(_value_info(name, array.dtype, array.shape))
    try:
        onnx.checker.check_model(skeleton)
    except onnx.checker.ValidationError as error:
        first, _, context = str(error).partition("\n")
        raise ModelError(
            f"The model is not valid: {first.strip()}",
            remedy="Export the model again; onnx.checker.check_model shows the same error.",
            details=context.strip() or None,
        ) from error
