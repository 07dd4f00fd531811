"""Attention as exporters write it: products, a scale, masks and a softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper
from operators import build


def attention(
    q: Sequence[int],
    k: Sequence[int],
    v: Sequence[int],
    *,
    masks: Sequence[Sequence[int] | np.ndarray] = (),
    scale: tuple[str, float | np.ndarray] | None = ("Mul", 0.3),
    turned: bool = True,
    view: Sequence[int] | None = None,
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    """A model of the inputs q, k and v, of these shapes.

    Parameters
    ----------
    masks
        Shapes of inputs that are added to the scores, or constants.
    scale
        An operator and its constant.
    turned
        Whether keys have their numbers along the columns, and are transposed.
    view
        The shape to which scores are reshaped while masks are added, as Swin does.
    """
    node = helper.make_node
    inputs: dict[str, Sequence[int]] = {"q": q, "k": k, "v": v}
    constants: dict[str, np.ndarray] = {}
    nodes, keys, scores = [], "k", "products"
    if turned:
        axes = list(range(len(k)))
        keys = "turned"
        nodes.append(node("Transpose", ["k"], [keys], perm=[*axes[:-2], axes[-1], axes[-2]]))
    nodes.append(node("MatMul", ["q", keys], [scores]))
    if scale is not None:
        constants["scale"] = np.asarray(scale[1], np.float32)
        nodes.append(node(scale[0], [scores, "scale"], ["scaled"]))
        scores = "scaled"
    if view is not None:
        constants["view"] = np.array(view)
        nodes.append(node("Reshape", [scores, "view"], ["viewed"]))
        scores = "viewed"
    for index, mask in enumerate(masks):
        name = f"mask{index}"
        if isinstance(mask, np.ndarray):
            constants[name] = mask
        else:
            inputs[name] = mask
        # The first mask is the left operand: a sum has no order.
        nodes.append(node("Add", [name, scores] if index == 0 else [scores, name], [f"s{index}"]))
        scores = f"s{index}"
    if view is not None:
        batch = np.broadcast_shapes(tuple(q[:-2]), tuple(k[:-2]))
        constants["back"] = np.array([*batch, q[-2], v[-2]])
        nodes.append(node("Reshape", [scores, "back"], ["whole"]))
        scores = "whole"
    nodes += [node("Softmax", [scores], ["p"], axis=-1), node("MatMul", ["p", "v"], ["y"])]
    return build(nodes, inputs, outputs, constants)


def heads(
    queries: int, keys: int, depth: int, columns: int | None = None, batch: Sequence[int] = (1, 3)
) -> Mapping[str, tuple[int, ...]]:
    """Shapes of q, k and v for some heads."""
    lead = tuple(batch)
    return {
        "q": (*lead, queries, depth), "k": (*lead, keys, depth),
        "v": (*lead, keys, columns or depth),
    }  # fmt: skip
