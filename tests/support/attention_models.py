"""Attention as exporters write it: products, a scale, masks and a softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from support.operators import build


@dataclass(frozen=True)
class Choice:
    """A boolean mask that replaces some scores by a number."""

    shape: Sequence[int]
    number: float = -np.inf
    #: Whether scores stay where the mask is true, or where it is false.
    keeps: bool = True


def attention(
    q: Sequence[int],
    k: Sequence[int],
    v: Sequence[int],
    *,
    masks: Sequence[Sequence[int] | np.ndarray] = (),
    scale: tuple[str, float | np.ndarray | Sequence[int]] | None = ("Mul", 0.3),
    cap: float | None = None,
    chosen: Sequence[Choice] = (),
    late: Sequence[tuple[str, float]] = (),
    turned: bool = True,
    view: Sequence[int] | None = None,
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    """Return a model of the inputs q, k and v, of these shapes.

    Parameters
    ----------
    masks
        Shapes of inputs that are added to the scores, or constants.
    scale
        An operator and its constant, or the shape of an input.
    cap
        Limit on the scaled scores, by ``tanh``.
    chosen
        Masks after those that are added; their inputs are true if they are positive.
    late
        Operators with their constants, after the masks.
    turned
        Whether k has a row for each key, and is transposed.
    view
        Shape to which scores are reshaped while masks are added, as in Swin.
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
        if isinstance(scale[1], Sequence):
            inputs["scale"] = scale[1]
        else:
            constants["scale"] = np.asarray(scale[1], np.float32)
        nodes.append(node(scale[0], [scores, "scale"], ["scaled"]))
        scores = "scaled"
    if cap is not None:
        constants["cap"] = np.float32(cap)
        nodes.append(node("Div", [scores, "cap"], ["below"]))
        nodes.append(node("Tanh", ["below"], ["bent"]))
        nodes.append(node("Mul", ["cap", "bent"], ["capped"]))
        scores = "capped"
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
        # The first mask is the left operand: a sum commutes.
        nodes.append(node("Add", [name, scores] if index == 0 else [scores, name], [f"s{index}"]))
        scores = f"s{index}"
    for index, choice in enumerate(chosen):
        inputs[f"choice{index}"] = choice.shape
        constants |= {f"number{index}": np.float32(choice.number), "zero": np.float32(0)}
        nodes.append(node("Greater", [f"choice{index}", "zero"], [f"where{index}"]))
        sides = [scores, f"number{index}"][:: 1 if choice.keeps else -1]
        nodes.append(node("Where", [f"where{index}", *sides], [f"c{index}"]))
        scores = f"c{index}"
    for index, (name, value) in enumerate(late):
        constants[f"late{index}"] = np.float32(value)
        nodes.append(node(name, [scores, f"late{index}"], [f"l{index}"]))
        scores = f"l{index}"
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
    """Return the shapes of q, k and v for some heads."""
    lead = tuple(batch)
    return {
        "q": (*lead, queries, depth), "k": (*lead, keys, depth),
        "v": (*lead, keys, columns or depth),
    }  # fmt: skip
