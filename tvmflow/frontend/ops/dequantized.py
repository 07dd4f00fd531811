"""Products of dequantized numbers, computed of the integers.

Quantized networks in the form of real operators between DequantizeLinear and QuantizeLinear::

    DequantizeLinear(x) · DequantizeLinear(w) = sum((x - zx) (w - zw)) · sx · sw

with the sum in int32, exact.  What follows (biases, activations, QuantizeLinear) stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from ...ir.limits import LARGE_WEIGHT_BYTES
from .context import NodeContext, constant

R = relax.op

_NARROW = ("int8", "uint8")


@dataclass(frozen=True)
class IntegerProduct:
    """The operands of a product without their zero points, in int32."""

    x: relax.Expr
    weight: np.ndarray
    #: Of the sums: one, or one for each output.
    scale: np.ndarray

    def scaled(self, c: NodeContext, total: relax.Expr, axis: int) -> relax.Expr:
        """The real numbers of sums in int32; scales lie along ``axis``."""
        value = c.emit(R.astype(c.emit(total), "float32"))
        shape = [1] * len(c.result.shape)
        shape[axis] = self.scale.size
        return R.multiply(value, constant(self.scale.reshape(shape)))


def integer_product(c: NodeContext, axis: int) -> IntegerProduct | None:
    """The product of the first two inputs, if that is one of 8-bit numbers with constant weights.

    ``axis`` is that of the weights' outputs, along which they may have scales and zero points.
    """
    left, right = c.dequantized(0), c.dequantized(1)
    if left is None or left.known is not None or right is None or right.known is None:
        return None
    narrow = left.dtype in _NARROW and right.dtype in _NARROW
    if not narrow or right.known.nbytes >= LARGE_WEIGHT_BYTES:
        return None
    along = right.axis % right.known.ndim == axis % right.known.ndim
    if left.scale.size > 1 or (right.scale.size > 1 and not along):
        return None
    x = c.emit(R.astype(left.value, "int32"))
    if left.zero.any():
        x = c.emit(R.subtract(x, constant(left.zero.reshape(()))))
    shape = [1] * right.known.ndim
    shape[axis] = right.zero.size
    weight = right.known.astype(np.int32) - right.zero.reshape(shape)
    scale = left.scale.reshape(-1) * right.scale.reshape(-1)
    return IntegerProduct(x, weight, scale.astype(np.float32))
