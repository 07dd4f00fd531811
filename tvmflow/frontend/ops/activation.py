"""Activation functions and clipping."""

from __future__ import annotations

from math import sqrt

import numpy as np
import tvm
from tvm import relax

from ...codegen import rounding
from ..converter import NodeContext, Refusal, converts

R = relax.op


@converts("Clip")
def clip(c: NodeContext) -> relax.Expr:
    """Limit to a range; attributes before opset 11, then optional inputs.

    Constant limits of floating-point values become one ``clip``, so that they fuse with the
    operator before them.
    """
    if c.opset < 11:
        limits = [c.attribute("min"), c.attribute("max")]
    else:
        limits = []
        for index in (1, 2):
            value = c.known(index)
            if c.has(index) and value is None:
                return _clip_at_run_time(c)
            limits.append(None if value is None else value.reshape(()).item())
    if c.is_float():
        # A limit that is not there is the type's largest finite number.
        largest = float(np.finfo(c.dtype()).max)
        limits = [v if v is not None else s * largest for v, s in zip(limits, (-1, 1), strict=True)]
    return _clip_between(c, c.input(), limits[0], limits[1])


def _clip_between(
    c: NodeContext, x: relax.Expr, low: float | None, high: float | None
) -> relax.Expr:
    """Limit to a constant range, either end of which may be open."""
    # TVM's own operator has limits of fp32 only: in float64, 0.1 is another number.
    narrow = c.is_float() and c.dtype() != "float64"
    if low is not None and high is not None and low <= high and narrow:
        return R.clip(x, tvm.tirx.const(low, "float32"), tvm.tirx.const(high, "float32"))
    # When the limits cross, every value becomes the upper one.
    if low is not None:
        x = R.maximum(x, c.constant(low))
    if high is not None:
        x = R.minimum(c.emit(x) if low is not None else x, c.constant(high))
    return x


def _clip_at_run_time(c: NodeContext) -> relax.Expr:
    x = c.input()
    if c.has(1):
        x = c.emit(R.maximum(x, c.input(1)))
    return R.minimum(x, c.input(2)) if c.has(2) else x


@converts("LeakyRelu")
def leaky_relu(c: NodeContext) -> relax.Expr:
    """x where x >= 0, else alpha · x."""
    x, alpha = c.input(), c.attribute("alpha", 0.01)
    if alpha != 0:
        return R.nn.leakyrelu(x, alpha)
    return R.where(c.emit(R.greater(x, c.constant(0))), x, c.emit(R.multiply(x, c.factor(0))))


@converts("PRelu")
def prelu(c: NodeContext) -> relax.Expr:
    """x where x >= 0, else slope · x; the slope broadcasts to x from the right."""
    x, slope = c.input(), c.factor_input(1)
    scaled = c.emit(R.multiply(x, slope))
    return R.where(c.emit(R.less(x, c.constant(0))), scaled, x)


@converts("ThresholdedRelu")
def thresholded_relu(c: NodeContext) -> relax.Expr:
    """x where x > alpha, else 0."""
    x = c.input()
    passed = c.emit(R.greater(x, c.constant(c.attribute("alpha", 1.0))))
    return R.where(passed, x, c.constant(0))


@converts("Elu", "Selu", "Celu")
def elu(c: NodeContext) -> relax.Expr:
    """gamma · (x where x > 0, else alpha · (exp(x / beta) - 1))."""
    alpha = c.attribute("alpha", 1.67326319217681884765625 if c.op_type == "Selu" else 1.0)
    gamma = c.attribute("gamma", 1.05070102214813232421875) if c.op_type == "Selu" else 1.0
    x = c.input()
    # The exponential sees no positive values, where it could overflow.
    negative = c.emit(R.minimum(x, c.constant(0)))
    if c.op_type == "Celu" and alpha != 1.0:
        negative = c.emit(R.divide(negative, c.constant(alpha)))
    exponential = c.emit(R.subtract(c.emit(R.exp(negative)), c.constant(1)))
    negative = c.emit(R.multiply(exponential, c.constant(alpha * gamma)))
    positive = c.emit(R.nn.relu(x))
    if gamma != 1.0:
        positive = c.emit(R.multiply(positive, c.constant(gamma)))
    return R.add(positive, negative)


@converts("HardSigmoid")
def hard_sigmoid(c: NodeContext) -> relax.Expr:
    """alpha · x + beta, limited to [0, 1]."""
    return _limited_line(c, c.attribute("alpha", 0.2), c.attribute("beta", 0.5))


@converts("HardSwish")
def hard_swish(c: NodeContext) -> relax.Expr:
    """x · (x / 6 + 1/2, limited to [0, 1]); HardSigmoid's attributes are fp32."""
    return R.multiply(c.input(), c.emit(_limited_line(c, float(np.float32(1 / 6)), 0.5)))


def _limited_line(c: NodeContext, alpha: float, beta: float) -> relax.Expr:
    # Rounded twice, as elsewhere: quantized networks round it again, to integers.
    times = rounding.product if c.dtype() == "float32" else R.multiply
    line = c.emit(times(c.input(), c.constant(alpha)))
    return _clip_between(c, c.emit(R.add(line, c.constant(beta))), 0.0, 1.0)


@converts("Swish")
def swish(c: NodeContext) -> relax.Expr:
    """x · sigmoid(alpha · x)."""
    x, alpha = c.input(), c.attribute("alpha", 1.0)
    scaled = x if alpha == 1.0 else c.emit(R.multiply(x, c.constant(alpha)))
    return R.multiply(x, c.emit(R.sigmoid(scaled)))


@converts("Softplus")
def softplus(c: NodeContext) -> relax.Expr:
    """log(1 + exp(x)), without overflow: max(x, 0) + log(1 + u), u = exp(-|x|).

    A small u leaves little of itself in 1 + u.  The logarithm of that number is right, and close
    to proportional: times u, divided by what was left of it (W. Kahan).
    """
    x, one = c.input(), c.constant(1)
    u = c.emit(R.exp(c.emit(R.negative(c.emit(R.abs(x))))))
    near = c.emit(R.add(u, one))
    left = c.emit(R.subtract(near, one))
    scaled = c.emit(R.multiply(c.emit(R.log(near)), c.emit(R.divide(u, left))))
    tail = c.emit(R.where(c.emit(R.equal(near, one)), u, scaled))
    return R.add(c.emit(R.nn.relu(x)), tail)


@converts("Mish")
def mish(c: NodeContext) -> relax.Expr:
    """x · tanh(softplus(x))."""
    return R.multiply(c.input(), c.emit(R.tanh(c.emit(softplus(c)))))


@converts("Softsign")
def softsign(c: NodeContext) -> relax.Expr:
    """x / (1 + |x|)."""
    return R.divide(c.input(), c.emit(R.add(c.emit(R.abs(c.input())), c.constant(1))))


@converts("Shrink")
def shrink(c: NodeContext) -> relax.Expr:
    """x + bias below -lambd, x - bias above lambd, else 0; of integers in fp32, then cut.

    ONNX's own definition cuts bias and lambd instead; this is what ONNX Runtime does.
    """
    x, bias, limit = c.input(), c.attribute("bias", 0.0), c.attribute("lambd", 0.5)
    whole = np.dtype(c.dtype()).kind in "iu"
    dtype = "float32" if whole else c.dtype()
    zero, low, high, bias = (c.constant(v, dtype) for v in (0, -limit, limit, bias))
    x = c.cast(x, dtype)
    below, above = c.emit(R.less(x, low)), c.emit(R.greater(x, high))
    upper = c.emit(R.where(above, c.emit(R.subtract(x, bias)), zero))
    result = R.where(below, c.emit(R.add(x, bias)), upper)
    return R.astype(c.emit(result), c.dtype()) if whole else result


@converts("Gelu")
def gelu(c: NodeContext) -> relax.Expr:
    """x · Φ(x), with the error function or its approximation by tanh."""
    x, approximate = c.input(), c.attribute("approximate", "none")
    if approximate == "none":
        inner = c.emit(R.erf(c.emit(R.multiply(x, c.constant(sqrt(0.5))))))
    elif approximate == "tanh":
        cube = c.emit(R.multiply(c.emit(R.multiply(x, x)), x))
        bent = c.emit(R.add(x, c.emit(R.multiply(cube, c.constant(0.044715)))))
        inner = c.emit(R.tanh(c.emit(R.multiply(bent, c.constant(sqrt(2.0 / np.pi))))))
    else:
        raise Refusal(f"its approximation {approximate!r} is unknown")
    half = c.emit(R.multiply(x, c.constant(0.5)))
    return R.multiply(half, c.emit(R.add(inner, c.constant(1))))
