"""The blocked layout ``NCHW{c}c`` and conversions to and from it.

A tensor of logical shape ``[N, C, H, W]`` is stored as ``[N, C', H, W, c]`` with
``C' = ceil(C / c)``: channel ``k`` is in block ``k // c``, lane ``k % c``.
Lanes beyond C are padding with unspecified values: code that reads across channels
reads the first C only.
"""

from __future__ import annotations

import numpy as np
from tvm import te, tirx


def blocks_of(channels: int, block: int) -> int:
    """Return the number of blocks that hold ``channels``."""
    return -(-channels // block)


def blocked_shape(shape: tuple[int, ...], block: int) -> tuple[int, ...]:
    """Return the blocked shape ``[N, C', H, W, c]`` of ``[N, C, H, W]``."""
    n, channels, h, w = shape
    return (n, blocks_of(channels, block), h, w, block)


def pad_axis(array: np.ndarray, axis: int, multiple: int) -> np.ndarray:
    """Append zeros along ``axis`` up to a multiple of ``multiple``."""
    short = -array.shape[axis] % multiple
    if not short:
        return array
    return np.pad(array, [(0, short if a == axis else 0) for a in range(array.ndim)])


def split_axis(array: np.ndarray, axis: int, block: int) -> np.ndarray:
    """Split an axis into blocks whose lanes become the last axis, padded with zeros.

    Weights of dense layers ``[N, K]`` become ``[N', K, c]``, of convolutions ``[O, I, KH, KW]``
    become ``[O', I, KH, KW, c]``, of depthwise ones ``[C, KH, KW]`` become ``[C', KH, KW, c]``.
    """
    padded = pad_axis(array, axis, block)
    blocks = padded.shape[axis] // block
    split = padded.reshape(*padded.shape[:axis], blocks, block, *padded.shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(split, axis + 1, -1))


def block_constant(array: np.ndarray, block: int) -> np.ndarray:
    """Convert a constant ``[N, C, H, W]`` to the blocked layout; a single channel stays broadcast.

    ``[1, C, 1, 1]`` becomes ``[1, C', 1, 1, c]`` and ``[1, 1, H, W]`` becomes ``[1, 1, H, W, 1]``.
    """
    return split_axis(array, 1, 1 if array.shape[1] == 1 else block)


def gemm_weight(weight: np.ndarray, block: int, depth: int, columns: int) -> np.ndarray:
    """Convert ``OIHW`` to the matrix ``[KH * KW * I' * c, O]``, padded to these extents."""
    matrix = pad_axis(weight, 1, block).transpose(2, 3, 1, 0).reshape(-1, weight.shape[0])
    return pad_matrix(matrix, depth, columns)


def pad_matrix(matrix: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Pad a matrix with zeros to these extents."""
    return np.pad(matrix, [(0, rows - matrix.shape[0]), (0, columns - matrix.shape[1])])


def spread_groups(weight: np.ndarray, groups: int, block: int) -> np.ndarray:
    """Append zeros to the outputs of each group of ``OIHW``, so that each group fills blocks."""
    outputs, *rest = weight.shape
    padded = pad_axis(weight.reshape(groups, outputs // groups, *rest), 1, block)
    return padded.reshape(-1, *rest)


def close_gaps(x: te.Tensor, groups: int, outputs: int) -> te.Tensor:
    """Return TE that removes the lanes that pad each group's outputs from a blocked tensor."""
    n, blocks, h, w, block = (int(d) for d in x.shape)
    channels, padded = groups * outputs, blocks // groups * block

    def body(i, kk, y, v, k):  # type: ignore[no-untyped-def]
        # Lanes after the last channel are never read.
        channel = tirx.min(kk * block + k, channels - 1) if channels % block else kk * block + k
        place = tirx.floordiv(channel, outputs) * padded + tirx.floormod(channel, outputs)
        return x[i, tirx.floordiv(place, block), y, v, tirx.floormod(place, block)]

    return te.compute((n, blocks_of(channels, block), h, w, block), body, name="close_gaps")


def transposed_weight(
    weight: np.ndarray, groups: int, taps: tuple[int, int], block: int
) -> np.ndarray:
    """Convert ``[I, O/groups, KH, KW]`` to ``[O', I/groups, taps..., c]``, padded with zeros."""
    inputs, outputs, kh, kw = weight.shape
    split = weight.reshape(groups, inputs // groups, outputs, kh, kw)
    turned = split.transpose(0, 2, 1, 3, 4).reshape(groups * outputs, inputs // groups, kh, kw)
    padded = np.pad(turned, [(0, 0), (0, 0), (0, taps[0] - kh), (0, taps[1] - kw)])
    return split_axis(padded, 0, block)


def winograd_weight(transformed: np.ndarray, block: int) -> np.ndarray:
    """Convert ``[a, a, O, I]`` to ``[a*a, O', I, c]``, output channels padded with zeros."""
    a, _, outputs, inputs = transformed.shape
    return split_axis(transformed.reshape(a * a, outputs, inputs), 1, block)


def words(weight: np.ndarray, axis: int) -> np.ndarray:
    """Pack four int8 neighbours along an axis into an int32, the first one lowest; pad with 0."""
    last = np.moveaxis(pad_axis(weight, axis, 4), axis, -1)
    return np.moveaxis(np.ascontiguousarray(last).view("<i4"), -1, axis)


def pack(x: te.Tensor, block: int) -> te.Tensor:
    """Return TE that converts ``[N, C, H, W]`` to ``[N, C', H, W, c]``; padding lanes are zero."""
    n, channels, h, w = (int(d) for d in x.shape)

    def body(i, kk, y, v, k):  # type: ignore[no-untyped-def]
        channel = kk * block + k
        if channels % block == 0:
            return x[i, channel, y, v]
        return tirx.if_then_else(channel < channels, x[i, channel, y, v], tirx.const(0, x.dtype))

    return te.compute((n, blocks_of(channels, block), h, w, block), body, name="pack")


def unpack(x: te.Tensor, channels: int) -> te.Tensor:
    """Return TE that converts ``[N, C', H, W, c]`` to ``[N, C, H, W]``, without padding lanes."""
    n, _, h, w, block = (int(d) for d in x.shape)
    return te.compute(
        (n, channels, h, w),
        lambda i, k, y, v: x[i, tirx.floordiv(k, block), y, v, tirx.floormod(k, block)],
        name="unpack",
    )
