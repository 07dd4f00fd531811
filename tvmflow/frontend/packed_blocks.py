"""Unpacking of the weight blocks of ONNX Runtime's weight-only quantizers at import.

MatMulNBits has weights of 2, 4 or 8 bits in blocks along K, the first number of a byte in its low
bits.  They become operands of DequantizeLinear; :mod:`.int4` packs 4 bits again::

    before  MatMulNBits(a, bytes[N, K / B, B * bits / 8], s[N, K / B], z)
    after   MatMul(a, DequantizeLinear(q[K, N], s[K / B, N], z[K / B, N], axis=0, block_size=B))

GatherBlockQuantized becomes a look-up of bytes that are dequantized afterwards.
"""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import TensorProto, helper

from .converter import Refusal
from .replacement import Parts

#: Values of the 4-bit codes of MatMulBnb4, by its ``quant_type``: FP4 and NF4.
_BNB4 = np.array([
    [0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25,
     -0.0, -5.208333333e-03, -0.66666667, -1.0, -0.33333333, -0.5, -0.16666667, -0.25],
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
     -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
     0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0],
], np.float32)  # fmt: skip


def matmul_nbits(parts: Parts) -> bool:
    """Replace MatMulNBits with MatMul and DequantizeLinear.

    ``accuracy_level`` allows ONNX Runtime to round the other operand, which never happens here.
    """
    bits = parts.attributes.get("bits", 4)
    depth, units, block = _required(parts, "K", "N", "block_size")
    if parts.attributes.get("weight_prepacked", 0):
        raise Refusal("its weights are packed for one generation of CUDA devices")
    blocks = -(-depth // block)
    packed = _shaped(parts, 1, "weights", (units, blocks * (block * bits // 8)))
    numbers = _unpacked(packed, bits)[:, :depth]
    scales = _shaped(parts, 2, "scales", (units, blocks))
    zeros: np.ndarray = np.full(scales.shape, 1 << bits - 1, np.uint8)
    if parts.input(3):
        is_packed = parts.known(3, "zero points").dtype == np.uint8
        columns = -(-blocks * bits // 8) if is_packed else blocks
        zeros = _shaped(parts, 3, "zero points", (units, columns))
        zeros = _unpacked(zeros, bits)[:, :blocks] if is_packed else zeros
    if zeros.dtype == np.uint8 and not parts.input(4):
        weights = [parts.constant(np.ascontiguousarray(a.T)) for a in (numbers, scales, zeros)]
        weight = parts.real(weights, axis=0, block_size=block)
    else:
        places = np.arange(depth) // block
        if parts.input(4):
            places = parts.known(4, "indices of blocks").reshape(-1)[:depth]
            if len(places) < depth or places.min() < 0 or places.max() >= blocks:
                raise Refusal(f"its indices of blocks are not {depth} from 0 to {blocks - 1}")
        zeros, factors = (a.astype(np.float32)[:, places] for a in (zeros, scales))
        real = (numbers.astype(np.float32) - zeros) * factors
        weight = parts.constant(np.ascontiguousarray(real.T.astype(scales.dtype)))
    result = parts.add("MatMul", [parts.input(0), weight])
    if parts.input(5):
        parts.add("Add", [result, parts.input(5)])
    return True


def matmul_bnb4(parts: Parts) -> bool:
    """Replace MatMulBnb4, whose weights are 4-bit codes of a table, with MatMul.

    The first code of a byte is in its high bits; blocks are taken from the flattened ``[N, K]``.
    """
    depth, units, block, kind = _required(parts, "K", "N", "block_size", "quant_type")
    if kind not in range(len(_BNB4)):
        raise Refusal(f"its quant_type is {kind}, expected 0 or 1")
    count = units * depth
    packed = _shaped(parts, 1, "weights", (-(-count // 2),))
    scales = _shaped(parts, 2, "scales", (-(-count // block),))
    numbers = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[:count]
    real = _BNB4[kind][numbers] * scales.astype(np.float32)[np.arange(count) // block]
    weight = real.astype(scales.dtype).reshape(units, depth)
    if parts.attributes.get("transB", 1):
        weight = np.ascontiguousarray(weight.T)
    parts.add("MatMul", [parts.input(0), parts.constant(weight)])
    return True


def gather_block_quantized(parts: Parts) -> bool:
    """Replace GatherBlockQuantized with look-ups, from which numbers are dequantized.

    An index out of range gives zeros: it looks up an additional last row of zero scales.
    """
    data, scales = parts.known(0, "weights"), parts.known(2, "scales")
    zeros = parts.known(3, "zero points") if parts.input(3) else np.zeros((), scales.dtype)
    rank, block = data.ndim, parts.attributes.get("block_size", 128)
    axis = parts.attributes.get("gather_axis", 0) % rank
    along = parts.attributes.get("quantize_axis", 1) % rank
    if parts.input(0) not in parts.packed:
        bits = parts.attributes.get("bits", 4)
        data = _unpacked(data, bits)
        columns = scales.shape[-1]
        zeros = _unpacked(zeros, bits)[..., :columns] if zeros.ndim else zeros + (1 << bits - 1)
    expected = tuple(-(-n // block) if a == along else n for a, n in enumerate(data.shape))
    if scales.shape != expected or zeros.shape not in ((), expected) or not data.size:
        raise Refusal(
            f"its {list(data.shape)} weights have scales {list(scales.shape)} and zero points "
            f"{list(zeros.shape)}, expected {list(expected)}"
        )
    places = np.arange(data.shape[along]) // block
    if along == axis:
        scales = scales.take(places, axis)
        zeros = zeros.take(places, axis) if zeros.ndim else zeros
    count, after = data.shape[axis], along if along < axis else along - rank
    scales = np.concatenate([scales, np.zeros_like(scales.take([0], axis))], axis)

    def rows(array: np.ndarray, indices: str) -> str:
        return parts.add("Gather", [parts.constant(array), indices], axis=axis)

    def of_numbers(value: str) -> str:
        if along == axis:
            return value
        return parts.add("Gather", [value, parts.constant(places)], axis=after)

    first, end = parts.constant(np.array(0)), parts.constant(np.array(count))
    index = parts.add("Cast", [parts.input(1)], to=TensorProto.INT64)
    is_negative = parts.add("Less", [index, first])
    index = parts.add("Where", [is_negative, parts.add("Add", [index, end]), index])
    is_inside = parts.add("Not", [parts.add("Less", [index, first])])
    is_inside = parts.add("And", [is_inside, parts.add("Less", [index, end])])
    inside = parts.add("Where", [is_inside, index, first])
    to = helper.np_dtype_to_tensor_dtype(scales.dtype)
    value = parts.add("Cast", [rows(data, inside)], to=to)
    zeros = zeros.astype(scales.dtype)
    zero = of_numbers(rows(zeros, inside)) if zeros.ndim else parts.constant(zeros)
    scale = rows(scales, parts.add("Where", [is_inside, index, end]))
    parts.add("Mul", [parts.add("Sub", [value, zero]), of_numbers(scale)])
    return True


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack the last axis of bytes, with the first number of a byte in its low bits."""
    if bits not in (2, 4, 8):
        raise Refusal(f"its weights have {bits} bits, expected 2, 4 or 8")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return np.asarray(numbers.reshape(*packed.shape[:-1], -1))


def _shaped(parts: Parts, index: int, what: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a constant input in a shape; some versions of the quantizers write it flattened."""
    array = parts.known(index, what)
    if array.size != prod(shape):
        raise Refusal(f"its {what} are {list(array.shape)}, expected {prod(shape)} elements")
    return array.reshape(shape)


def _required(parts: Parts, *names: str) -> list[int]:
    """Return the values of required attributes; refuse the node without one."""
    missing = [name for name in names if name not in parts.attributes]
    if missing:
        raise Refusal(f"its attribute {missing[0]!r} is missing")
    return [int(parts.attributes[name]) for name in names]
