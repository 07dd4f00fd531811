"""Matrix products with int4 weights, which stay packed and are unpacked as they are read.

Columns are stored in panels of c for vector loads, and a byte holds two neighbours of a column::

    before   MatMul(x[M, K], DequantizeLinear(q[K, N], s, z, block_size=B))
    after    NibbleProduct(x, bytes[N / c, K / 2, c], s[N / c, K / B, c], (lo - z)[N / c, K / B, c])
             bytes[n, k, i] = (q[2k, c * n + i] - lo) | (q[2k + 1, c * n + i] - lo) << 4

Weights are `(q - z) * s` rounded to fp32, as ONNX defines them.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from ..schedules.dense import whole_panels
from .graph import Graph, node_attributes, node_name

#: Columns of a panel, as many as the longest vectors have lanes.
LANES = 16


def keep_nibbles(graph: Graph) -> None:
    """Replace MatMul and Gemm with products that read packed weights where possible, in place."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.nodes:
        found = _product(graph, node) if node.op_type in ("MatMul", "Gemm") else None
        nodes += [node] if found is None else found
    graph.nodes = nodes
    graph.drop_unused_nodes()


def _product(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    attributes = node_attributes(node)
    x, weight = node.input[:2]
    source = graph.dequantized.get(weight)
    if source is None or x in graph.dequantized or x not in graph.types or node.domain:
        return None
    if attributes.get("transA", 0) or any(attributes.get(n, 1.0) != 1 for n in ("alpha", "beta")):
        return None
    packed = _packed(graph, source, rows=bool(attributes.get("transB", 0)))
    kind = graph.types[x]
    if packed is None or kind.dtype != "float32" or len(kind.shape) < 2:
        return None
    operands, offset = packed
    names = [f"{weight}:{node_name(node)}:{index}" for index in range(len(operands))]
    graph.constants.update(zip(names, operands, strict=True))
    graph.origins |= dict.fromkeys(names, graph.initializers(source.input))
    result, added = node.output[0], list(filter(None, node.input[2:3]))
    product = f"{result}:product" if added else result
    if added:
        graph.types[product] = graph.types[result]
    name = f"{node_name(node)}:product" if added else node_name(node)
    nodes = [helper.make_node("NibbleProduct", [x, *names], [product], name=name, offset=offset)]
    if added:
        nodes.append(helper.make_node("Add", [product, *added], [result], name=node_name(node)))
    return nodes


def _packed(
    graph: Graph, source: onnx.NodeProto, *, rows: bool
) -> tuple[list[np.ndarray], float] | None:
    """Return the operands of a product after ``x``, and an offset that all weights share.

    Operands are bytes and scales, and offsets if they differ; the shared offset is then 0.  An
    offset is added to each unpacked number before it is scaled.  Weights are ``[N, K]`` with
    ``rows``, else ``[K, N]``.
    """
    known = [graph.constants.get(name) if name else None for name in source.input]
    numbers, scales, *zeros = known
    if numbers is None or scales is None or (len(source.input) > 2 and zeros[0] is None):
        return None
    if numbers.ndim != 2 or not numbers.size or scales.dtype != np.float32:
        return None
    depth = numbers.shape[1 if rows else 0]
    low = int(numbers.min())
    if depth % 2 or int(numbers.max()) - low > 15:
        return None
    zero = zeros[0] if zeros and zeros[0] is not None else np.zeros(scales.shape, np.int32)
    factors = _of_columns(scales, source, numbers, rows)
    points = _of_columns(zero.astype(np.int32), source, numbers, rows)
    if factors is None or points is None:
        return None
    nibbles = ((numbers.T if rows else numbers).astype(np.int32) - low).astype(np.uint8)
    operands = [_in_panels(nibbles[::2] | nibbles[1::2] << 4), _in_panels(factors)]
    added = (low - points).astype(np.float32)
    if (added == added[0, 0]).all():
        return operands, float(added[0, 0])
    return [*operands, _in_panels(added)], 0.0


def _in_panels(rows: np.ndarray) -> np.ndarray:
    """Rearrange ``[K, N]`` into panels of columns, ``[N / c, K, c]``, padded with zeros."""
    depth, units = rows.shape
    panels = whole_panels(units, LANES)
    padded = np.pad(rows, ((0, 0), (0, panels * LANES - units)))
    return np.ascontiguousarray(padded.reshape(depth, panels, LANES).transpose(1, 0, 2))


def _of_columns(
    values: np.ndarray, source: onnx.NodeProto, numbers: np.ndarray, rows: bool
) -> np.ndarray | None:
    """Return scales or zero points as ``[blocks, N]``.

    Returns ``None`` if the two weights of a byte have different ones.
    """
    attributes, along = node_attributes(source), 1 if rows else 0
    block, axis = attributes.get("block_size", 0), attributes.get("axis", 1) % 2
    if block:
        if axis != along or block % 2 or numbers.shape[along] % block:
            return None
    elif values.size > 1 and axis == along:
        return None
    else:
        values = values.reshape([-1 if a == axis and values.size > 1 else 1 for a in range(2)])
    values = values.T if rows else values
    return np.broadcast_to(values, (values.shape[0], numbers.shape[1 - along]))
