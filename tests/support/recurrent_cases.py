"""Random recurrent layers, and their results in float64 by ONNX's specification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from support.operators import build

Array = np.ndarray
#: Number of gates and default activations, by operator.
KINDS = {"LSTM": (4, ("Sigmoid", "Tanh", "Tanh")), "GRU": (3, ("Sigmoid", "Tanh")),
         "RNN": (1, ("Tanh",))}  # fmt: skip
RESULTS = {"LSTM": 3, "GRU": 2, "RNN": 2}
#: Function of x, alpha and beta, and defaults of those of the two that it has, by activation.
FUNCTIONS: dict[str, tuple[Callable[[Array, float, float], Array], tuple[float, ...]]] = {
    "Sigmoid": (lambda x, a, b: 1 / (1 + np.exp(-x)), ()),
    "Tanh": (lambda x, a, b: np.tanh(x), ()),
    "Relu": (lambda x, a, b: np.maximum(x, 0), ()),
    "Affine": (lambda x, a, b: a * x + b, (0.7, 0.1)),
    "LeakyRelu": (lambda x, a, b: np.where(x < 0, a * x, x), (0.2,)),
    "ThresholdedRelu": (lambda x, a, b: np.where(x > a, x, 0), (0.3,)),
    "ScaledTanh": (lambda x, a, b: a * np.tanh(b * x), (0.8, 1.3)),
    "HardSigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), (0.3, 0.4)),
    "Elu": (lambda x, a, b: np.where(x < 0, a * (np.exp(np.minimum(x, 0)) - 1), x), (0.6,)),
    "Softsign": (lambda x, a, b: x / (1 + np.abs(x)), ()),
    "Softplus": (lambda x, a, b: np.log1p(np.exp(x)), ()),
}


def model_of(
    kind: str, arrays: Sequence[Array | None], constant: Sequence[bool], opset: int,
    outputs: Sequence[str], **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:  # fmt: skip
    """Return a model of one node with some constant inputs, and the values of the others."""
    names = ["" if array is None else f"x{i}" for i, array in enumerate(arrays)]
    while not names[-1]:
        names.pop()
    node = helper.make_node(kind, names, list(outputs), name="node", **attributes)
    pairs = [(n, a, c) for n, a, c in zip(names, arrays, constant, strict=False) if a is not None]
    feeds, constants = ({n: a for n, a, c in pairs if c == is_constant} for is_constant in (0, 1))
    results = [name for name in outputs if name]
    return build([node], feeds, results, constants, opset, element_type=None), feeds


def draw(
    rng: np.random.Generator,
    kind: str,
    *,
    layout: int = 0,
    dtype: str = "float32",
    units: int = 0,
    clip: bool = False,
    direction: str = "",
) -> tuple[list[Array | None], dict[str, Any]]:
    """Draw inputs and attributes of a node: all that ONNX Runtime supports, except ``layout``."""

    def chance(probability: float = 0.5) -> bool:
        return bool(rng.random() < probability)

    gates, usual = KINDS[kind]
    direction = direction or str(rng.choice(["forward", "reverse", "bidirectional"]))
    directions = 1 + (direction == "bidirectional")
    steps, entries, inputs = (int(rng.integers(1, most)) for most in (7, 5, 9))
    units = units or int(rng.choice([1, 4, 7, 9, 16, 31]))

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return np.asarray(rng.standard_normal(shape) * scale).astype(dtype)

    state = (entries, directions, units) if layout else (directions, entries, units)
    arrays: list[Array | None] = [
        normal(*((entries, steps) if layout else (steps, entries)), inputs),
        normal(directions, gates * units, inputs, scale=inputs**-0.5),
        normal(directions, gates * units, units, scale=0.7 * units**-0.5),
        normal(directions, 2 * gates * units, scale=0.5) if chance(0.7) else None,
        rng.integers(1, steps + 1, entries).astype(np.int32) if chance() else None,
        normal(*state) if chance() else None,
    ]
    attributes: dict[str, Any] = {"direction": direction, "hidden_size": units}
    if layout:
        attributes["layout"] = 1
    if kind == "LSTM":
        arrays += [normal(*state) if chance() else None]
        arrays += [normal(directions, 3 * units, scale=0.5) if chance() else None]
        attributes["input_forget"] = int(chance(0.3))
    if kind == "GRU":
        attributes["linear_before_reset"] = int(chance())
    if clip or (kind != "LSTM" and chance(0.3)):
        attributes["clip"] = 0.6
    if chance():
        names = [str(rng.choice(list(FUNCTIONS))) for _ in range(len(usual) * directions)]
        numbers = [FUNCTIONS[name][1] for name in names]
        attributes["activations"] = names
        attributes["activation_alpha"] = [n[0] for n in numbers if n]
        attributes["activation_beta"] = [n[1] for n in numbers if len(n) > 1]
    return arrays, {name: value for name, value in attributes.items() if value != []}


def reference(kind: str, arrays: Sequence[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """Return all results in float64: one direction, batch entry and step at a time."""
    gates, usual = KINDS[kind]
    x, w, r, b, lengths, h0, c0, p, *_ = [
        None if a is None else a.astype(np.float64) for a in (*arrays, *[None] * 5)
    ]
    batch_first = attributes.get("layout", 0)
    if batch_first:
        x, h0, c0 = (None if a is None else a.swapaxes(0, 1) for a in (x, h0, c0))
    (steps, entries, _), (directions, _, units) = x.shape, r.shape
    names = attributes.get("activations", usual * directions)
    # Attributes are fp32.
    alphas, betas = (
        [float(np.float32(number)) for number in attributes.get(f"activation_{name}", ())]
        for name in ("alpha", "beta")
    )
    functions = []
    for name in names:
        function, defaults = FUNCTIONS[name]
        numbers = [left.pop(0) for left, _ in zip((alphas, betas), defaults, strict=False)]
        functions.append((function, *numbers, *[0.0] * (2 - len(numbers))))
    limit = float(np.float32(attributes["clip"])) if "clip" in attributes else None
    y = np.zeros((steps, directions, entries, units))
    y_h, y_c = np.zeros((2, directions, entries, units))
    for d in range(directions):
        backward = d == 1 or attributes["direction"] == "reverse"
        chosen = functions[d * len(usual) : (d + 1) * len(usual)]

        def apply(which: int, value: Array, chosen: list = chosen) -> Array:
            function, alpha, beta = chosen[which]
            return function(value if limit is None else np.clip(value, -limit, limit), alpha, beta)

        wb, rb = np.zeros((2, gates * units)) if b is None else np.split(b[d], 2)
        for n in range(entries):
            count = steps if lengths is None else int(lengths[n])
            h = np.zeros(units) if h0 is None else h0[d, n]
            c = np.zeros(units) if c0 is None else c0[d, n]
            for t in reversed(range(count)) if backward else range(count):
                xs = np.split(w[d] @ x[t, n] + wb, gates)
                hs = np.split(r[d] @ h + rb, gates)
                peep = np.zeros((3, units)) if p is None else np.split(p[d], 3)
                if kind == "LSTM":
                    i = apply(0, xs[0] + hs[0] + peep[0] * c)
                    f = apply(0, xs[2] + hs[2] + peep[2] * c)
                    f = 1 - i if attributes.get("input_forget") else f
                    c = f * c + i * apply(1, xs[3] + hs[3])
                    h = apply(0, xs[1] + hs[1] + peep[1] * c) * apply(2, c)
                elif kind == "GRU":
                    z, reset = apply(0, xs[0] + hs[0]), apply(0, xs[1] + hs[1])
                    if attributes.get("linear_before_reset"):
                        new = apply(1, xs[2] + reset * hs[2])
                    else:
                        rows = slice(2 * units, 3 * units)
                        new = apply(1, xs[2] + r[d, rows] @ (reset * h) + rb[rows])
                    h = (1 - z) * new + z * h
                else:
                    h = apply(0, xs[0] + hs[0])
                y[t, d, n] = h
            y_h[d, n], y_c[d, n] = h, c
    if batch_first:
        y, y_h, y_c = y.transpose(2, 0, 1, 3), y_h.swapaxes(0, 1), y_c.swapaxes(0, 1)
    dtype = arrays[0].dtype
    return [result.astype(dtype) for result in (y, y_h, y_c)[: RESULTS[kind]]]
