"""Converters of activation functions and clipping."""

from __future__ import annotations

from math import sqrt

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ...ir import rounding
from ...ir.rewriter import constant
from ..converter import NodeContext, Refusal, converts, formulas


@converts("Clip")
def clip(c: NodeContext) -> relax.Expr:
    """Convert Clip, with limits as attributes before opset 11 and as optional inputs since.

    Constant limits of floating-point values become one ``clip``, which fuses with the operator
    before it.
    """
    if c.opset < 11:
        limits = [c.attribute("min"), c.attribute("max")]
    else:
        known = [c.known(1), c.known(2)]
        if any(c.has(index) and known[index - 1] is None for index in (1, 2)):
            x = R.maximum(c.input(), c.input(1)) if c.has(1) else c.input()
            return R.minimum(x, c.input(2)) if c.has(2) else x
        limits = [None if value is None else value.reshape(()).item() for value in known]
    if c.is_float():
        # The default of a limit is the type's largest finite number.
        largest = float(np.finfo(c.dtype()).max)
        limits = [v if v is not None else s * largest for v, s in zip(limits, (-1, 1), strict=True)]
    return _clip_between(c, c.input(), *limits)


def _clip_between(
    c: NodeContext, x: relax.Expr, low: float | None, high: float | None
) -> relax.Expr:
    """Limit to a constant range, of which either end may be open."""
    # TVM's own operator rounds limits to fp32, which is wrong for float64.
    narrow = c.is_float() and c.dtype() != "float64"
    if low is not None and high is not None and low <= high and narrow:
        return R.clip(x, tvm.tirx.const(low, "float32"), tvm.tirx.const(high, "float32"))
    # ONNX defines that every value becomes the upper limit if the limits cross.
    x = x if low is None else R.maximum(x, c.constant(low))
    return x if high is None else R.minimum(x, c.constant(high))


@converts("LeakyRelu")
def leaky_relu(c: NodeContext) -> relax.Expr:
    """Return x where x >= 0, else alpha · x."""
    x, alpha = c.input(), c.attribute("alpha", 0.01)
    if alpha != 0:
        return R.nn.leakyrelu(x, alpha)
    return R.where(x > c.constant(0), x, x * c.constant(0))


@converts("Elu", "Selu", "Celu")
def elu(c: NodeContext) -> relax.Expr:
    """Return gamma · (x where x > 0, else alpha · (exp(x / beta) - 1))."""
    alpha = c.attribute("alpha", 1.67326319217681884765625 if c.op_type == "Selu" else 1.0)
    gamma = c.attribute("gamma", 1.05070102214813232421875) if c.op_type == "Selu" else 1.0
    # The exponential gets no positive values, for which it could overflow.
    positive, negative = R.nn.relu(c.input()), R.minimum(c.input(), c.constant(0))
    if c.op_type == "Celu" and alpha != 1.0:
        negative = negative / c.constant(alpha)
    if gamma != 1.0:
        positive = positive * c.constant(gamma)
    return positive + (R.exp(negative) - c.constant(1)) * c.constant(alpha * gamma)


def _limited_line(c: NodeContext, alpha: float, beta: float) -> relax.Expr:
    """Return alpha · x + beta, limited to [0, 1]."""
    # Product and sum are rounded separately, as in other runtimes: quantized networks round the
    # result to integers, which would differ.
    times = rounding.product if c.dtype() == "float32" else R.multiply
    return _clip_between(c, times(c.input(), c.constant(alpha)) + c.constant(beta), 0.0, 1.0)


@converts("Swish")
def swish(c: NodeContext) -> relax.Expr:
    """Return x · sigmoid(alpha · x)."""
    x, alpha = c.input(), c.attribute("alpha", 1.0)
    return x * R.sigmoid(x if alpha == 1.0 else x * c.constant(alpha))


@converts("SwiGLU")
def swiglu(c: NodeContext) -> relax.Expr:
    """Return the Swish of a gate times a value."""
    return swish(c) * c.input(1)


@converts("Dropout")
def dropout(c: NodeContext) -> list[relax.Expr]:
    """Return the input and a mask of ones, as in inference; refuse training mode."""
    training, ratio = c.known(2), c.known(1)
    if c.has(2) and (training is None or training.any()) and (ratio is None or ratio.any()):
        raise Refusal("in training mode its result is another one at each call")
    return [c.input(), constant(np.ones(c.shape(), bool))]


@converts("Softplus")
def softplus(c: NodeContext) -> relax.Expr:
    """Return log(1 + exp(x)) without overflow, as max(x, 0) + log(1 + u), u = exp(-|x|).

    Rounding 1 + u loses digits of a small u.  The logarithm of the rounded number is accurate and
    nearly proportional to the rounded u, so it is multiplied by u / rounded u (W. Kahan).
    """
    x, one = c.input(), c.constant(1)
    u = R.exp(-R.abs(x))
    near = u + one
    scaled = R.log(near) * (u / (near - one))
    return R.nn.relu(x) + R.where(R.equal(near, one), u, scaled)


@converts("Shrink")
def shrink(c: NodeContext) -> relax.Expr:
    """Return x + bias below -lambd, x - bias above lambd, else 0.

    Integers are computed in fp32 and the result is truncated, as in ONNX Runtime; ONNX's definition
    truncates bias and lambd instead.
    """
    bias, limit = c.attribute("bias", 0.0), c.attribute("lambd", 0.5)
    dtype = c.dtype() if c.is_float() else "float32"
    zero, low, high, bias = (c.constant(v, dtype) for v in (0, -limit, limit, bias))
    x = c.cast(c.input(), dtype)
    result = R.where(x < low, x + bias, R.where(x > high, x - bias, zero))
    return result if c.is_float() else R.astype(result, c.dtype())


@converts("Gelu")
def gelu(c: NodeContext) -> relax.Expr:
    """Return x · Φ(x), with the error function or its approximation by tanh."""
    x, approximate = c.input(), c.attribute("approximate", "none")
    if approximate == "none":
        inner = R.erf(x * c.constant(sqrt(0.5)))
    elif approximate == "tanh":
        bent = x + x * x * x * c.constant(0.044715)
        inner = R.tanh(bent * c.constant(sqrt(2.0 / np.pi)))
    else:
        raise Refusal(f"its approximation {approximate!r} is unknown")
    return x * c.constant(0.5) * (inner + c.constant(1))


formulas(
    PRelu=lambda c: R.where(c.input() < c.constant(0), c.input() * c.input(1), c.input()),
    ThresholdedRelu=lambda c: R.where(
        c.input() > c.constant(c.attribute("alpha", 1.0)), c.input(), c.constant(0)
    ),
    HardSigmoid=lambda c: _limited_line(c, c.attribute("alpha", 0.2), c.attribute("beta", 0.5)),
    # HardSigmoid's attributes are fp32.
    HardSwish=lambda c: c.input() * _limited_line(c, float(np.float32(1 / 6)), 0.5),
    Mish=lambda c: c.input() * R.tanh(softplus(c)),
    Softsign=lambda c: c.input() / (R.abs(c.input()) + c.constant(1)),
)
