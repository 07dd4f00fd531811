"""Cells of recurrent layers: the step functions of ONNX's LSTM, GRU and RNN.

A gate has two sums for each hidden unit, one of the step's input and one of the previous state::

    x = W · input + biases        s = R · h

from which a cell computes, each gate with its activation (f, g and h in this order)::

    LSTM    i = f(x + s + p · c)        f' = f(x + s + p · c)  or  1 - i    (``input_forget``)
            c' = f' · c + i · g(x + s)  o = f(x + s + p · c')
            h' = o · h(c')
    GRU     z = f(x + s)                r = f(x + s)
            n = g(x + R · (r · h))  or  g(x + r · s)                       (``linear_before_reset``)
            h' = (1 - z) · n + z · h
    RNN     h' = f(x + s)

Source: the operators' definitions in ONNX's specification, opsets 7 to 22.  ``clip`` limits the
arguments of all activations; ONNX Runtime does not clip that of an LSTM's cell state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from tvm import tirx
from tvm.tirx import Expr

#: Operands of the products: the state before the step, and the same times the reset gate.
STATE, RESET = "state", "reset"


# -- activations --------------------------------------------------------------------------


def _number(x: Expr, value: float) -> Expr:
    return tirx.const(value, x.ty.dtype)


def _above(x: Expr, limit: float, other: Expr) -> Expr:
    return tirx.Select(x > _number(x, limit), x, other)


def _elu(x: Expr, alpha: float, _: float) -> Expr:
    # The exponential gets no positive values, for which it could overflow.
    negative = tirx.exp(tirx.min(x, _number(x, 0))) - _number(x, 1)
    return _above(x, 0, negative * _number(x, alpha))


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    line = x * _number(x, alpha) + _number(x, beta)
    return tirx.min(tirx.max(line, _number(x, 0)), _number(x, 1))


def _softplus(x: Expr, _: float, __: float) -> Expr:
    """Return log(1 + exp(x)) without overflow."""
    small = tirx.exp(_number(x, 0) - tirx.abs(x))
    return tirx.max(x, _number(x, 0)) + tirx.log(_number(x, 1) + small)


#: Activations by ONNX's name in lower case: a function of x, alpha and beta, and the defaults of
#: the parameters that the activation has.
_ACTIVATIONS: dict[str, tuple[Callable[[Expr, float, float], Expr], tuple[float, ...]]] = {
    "sigmoid": (lambda x, a, b: tirx.sigmoid(x), ()),
    "tanh": (lambda x, a, b: tirx.tanh(x), ()),
    "relu": (lambda x, a, b: tirx.max(x, _number(x, 0)), ()),
    "affine": (lambda x, a, b: x * _number(x, a) + _number(x, b), (1.0, 0.0)),
    "leakyrelu": (lambda x, a, b: tirx.Select(x >= _number(x, 0), x, x * _number(x, a)), (0.01,)),
    "thresholdedrelu": (lambda x, a, b: _above(x, a, _number(x, 0)), (1.0,)),
    "scaledtanh": (lambda x, a, b: tirx.tanh(x * _number(x, b)) * _number(x, a), (1.0, 1.0)),
    "hardsigmoid": (_hard_sigmoid, (0.2, 0.5)),
    "elu": (_elu, (1.0,)),
    "softsign": (lambda x, a, b: x / (_number(x, 1) + tirx.abs(x)), ()),
    "softplus": (_softplus, ()),
}


@dataclass(frozen=True)
class Activation:
    """An activation with its parameters."""

    #: ONNX's name in lower case.
    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: Expr) -> Expr:
        """Apply the activation to ``x``."""
        return _ACTIVATIONS[self.name][0](x, self.alpha, self.beta)


def activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> tuple[Activation, ...]:
    """Return the activations that ONNX's attributes name; each takes the next of its parameters.

    Raises `KeyError` for an activation that ONNX does not have.
    """
    given, found = [list(alphas), list(betas)], []
    for name in map(str.lower, names):
        defaults = _ACTIVATIONS[name][1]
        pairs = zip(given, defaults, strict=False)
        found.append(Activation(name, *(left.pop(0) if left else usual for left, usual in pairs)))
    return tuple(found)


# -- cells --------------------------------------------------------------------------------

#: Gates of each operator, in ONNX's order, and its default activations.
GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "i"}
USUAL = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
#: The gates of an LSTM that have a peephole, in ONNX's order.
PEEPHOLES = "iof"


@dataclass(frozen=True)
class Values:
    """Inputs of one element of a cell."""

    #: Sums of the input and of the state, and the peephole weight, by gate.
    x: Callable[[str], Expr]
    s: Callable[[str], Expr]
    peephole: Callable[[str], Expr] | None
    #: The hidden state and the cell state before the step.
    h: Expr
    c: Expr | None
    #: Index of the direction.
    direction: Expr
    #: Store a value in place of a gate's sum and return its load, so that it is computed once.
    keep: Callable[[str, Expr], Expr]


@dataclass(frozen=True)
class Cell:
    """A cell with its activations and flags, as a node describes it."""

    #: ``LSTM``, ``GRU`` or ``RNN``.
    kind: str
    #: Activations of each direction.
    functions: tuple[tuple[Activation, ...], ...]
    clip: float | None = None
    #: ONNX's attributes ``input_forget`` and ``linear_before_reset``.
    coupled: bool = False
    linear: bool = False

    @property
    def gates(self) -> str:
        """Return a letter for each gate, in ONNX's order."""
        return GATES[self.kind]

    @property
    def phases(self) -> tuple[dict[str, str], ...]:
        """Return one or two phases: the gates summed in the same loop, each with its operand."""
        if self.kind == "GRU" and not self.linear:
            return ({"r": STATE}, {"z": STATE, "h": RESET})
        return (dict.fromkeys(self.gates, STATE),)

    def reset(self, v: Values) -> Expr:
        """Return the hidden state times the reset gate, in the first of two phases."""
        return self._sigmoid(v, "r") * v.h

    def step(self, v: Values) -> tuple[Expr, Expr | None]:
        """Return the hidden state and the cell state after the step."""
        if self.kind == "LSTM":
            return self._lstm(v)
        if self.kind == "GRU":
            return self._gru(v), None
        return v.keep("i", self._apply(0, v.x("i") + v.s("i"), v)), None

    def _lstm(self, v: Values) -> tuple[Expr, Expr]:
        assert v.c is not None
        one = _number(v.c, 1)
        i = v.keep("i", self._sigmoid(v, "i", v.c))
        f = v.keep("f", one - i if self.coupled else self._sigmoid(v, "f", v.c))
        g = v.keep("c", self._apply(1, v.x("c") + v.s("c"), v))
        c = v.keep("c", f * v.c + i * g)
        o = v.keep("o", self._sigmoid(v, "o", c))
        return v.keep("o", o * self._apply(2, c, v)), c

    def _gru(self, v: Values) -> Expr:
        z = v.keep("z", self._sigmoid(v, "z"))
        s = v.keep("r", self._sigmoid(v, "r")) * v.s("h") if self.linear else v.s("h")
        n = v.keep("h", self._apply(1, v.x("h") + s, v))
        return v.keep("h", (_number(z, 1) - z) * n + z * v.h)

    def _sigmoid(self, v: Values, gate: str, c: Expr | None = None) -> Expr:
        """Apply the first activation to a gate's sums, with its peephole to a cell state."""
        total = v.x(gate) + v.s(gate)
        if c is not None and v.peephole is not None:
            total = total + v.peephole(gate) * c
        return self._apply(0, total, v)

    def _apply(self, which: int, x: Expr, v: Values) -> Expr:
        """Apply one of the activations of this direction."""
        if self.clip is not None:
            x = tirx.min(tirx.max(x, _number(x, -self.clip)), _number(x, self.clip))
        first, *others = (functions[which] for functions in self.functions)
        if all(other == first for other in others):
            return first(x)
        (other,) = others
        return tirx.Select(v.direction == 0, first(x), other(x))

    # -- as text --------------------------------------------------------------------------

    def to_json(self) -> str:
        """Serialise the cell for an annotation."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Cell:
        """Parse the cell of an annotation."""
        values = json.loads(text)
        functions = (tuple(Activation(**f) for f in each) for each in values.pop("functions"))
        return cls(functions=tuple(functions), **values)
