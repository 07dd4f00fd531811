"""Converters of Fourier transforms, as products with constant matrices.

A transform of n elements is a product with an n × n matrix.  A longer one, n = a · b, is computed
as transforms of length a, factors, and transforms of length b (Cooley and Tukey, 1965)::

    x[n] with n = b · p + q       y[k] with k = r + a · s      w(n, k) = exp(-2πi k / n)
    y[r + a · s] = sum_q w(b, q · s) · w(n, q · r) · sum_p w(a, p · r) · x[b · p + q]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from tvm import relax
from tvm.relax import op as R

from ...ir.rewriter import constant, shape_of
from ...ir.tensors import TensorType
from ..converter import InvalidNode, NodeContext, Refusal, converts, normalized_axis
from ..graph import Graph, node_attributes

#: Largest length for which a transform is one product.
_ONE_PRODUCT = 128
#: Largest prime factor of a length, whose matrix has the square of it in elements.
_LONGEST_FACTOR = 2048


@dataclass(frozen=True)
class _Complex:
    """Complex numbers; ``imaginary`` is ``None`` if all are real."""

    real: relax.Expr
    imaginary: relax.Expr | None = None

    def map(self, function: Callable[[relax.Expr], relax.Expr]) -> _Complex:
        """Apply a linear function to the real and the imaginary part."""
        real = function(self.real)
        return _Complex(real, None if self.imaginary is None else function(self.imaginary))


@converts("DFT")
def dft(c: NodeContext) -> relax.Expr:
    """Compute the discrete Fourier transform of real or complex numbers, or its inverse."""
    if c.opset >= 20:
        given = int(c.array(2, "axis").reshape(())) if c.has(2) else -2
    else:
        given = c.attribute("axis", 1)
    rank = len(c.shape())
    axis = normalized_axis(given, rank)
    if axis == rank - 1:
        raise InvalidNode("its axis is the axis of real and imaginary parts")
    length = c.shape()[axis]
    inverse, onesided = bool(c.attribute("inverse", 0)), bool(c.attribute("onesided", 0))
    if c.has(1):
        length = int(c.array(1, "length of the transform").reshape(()))
    elif inverse and onesided:
        length = 2 * (length - 1)
    if length < 1:
        raise InvalidNode(f"the length of its transform is {length}, expected at least 1")
    signal = _parts(c, c.input(), axis)
    if onesided and not inverse and signal.imaginary is not None:
        raise InvalidNode("only real numbers have half a spectrum (onesided)")
    if inverse and onesided:
        signal = _whole_spectrum(c, signal, length)
    signal = _with_length(c, signal, length)
    result = _transform(c, signal, length, inverse)
    if inverse:
        factor = c.constant(1 / length)
        result = result.map(lambda part: part * factor)
    if onesided and not inverse:
        result = _first(c, result, length // 2 + 1)
    return _joined(c, result, axis, only_real=inverse and onesided)


def _framing(node: onnx.NodeProto, graph: Graph) -> tuple[int, int, int]:
    """Return the number, length and distance of an STFT's frames, in samples."""
    _, step_name, window, length_name = [*node.input, "", ""][:4]
    if any(name and name not in graph.constants for name in (step_name, length_name)):
        raise Refusal("length and distance of its frames are computed at run time")
    samples, step = graph.type_of(node.input[0]).shape[1], int(graph.constants[step_name].item())
    if length_name:
        length = int(graph.constants[length_name].item())
    else:
        length = graph.type_of(window).shape[0] if window else samples
    if not (0 < length <= samples and step > 0):
        raise InvalidNode(f"frames of {length} of {samples} samples cannot be {step} apart")
    if window and graph.type_of(window).shape != (length,):
        raise InvalidNode(f"its window is {graph.type_of(window)} for frames of {length}")
    return (samples - length) // step + 1, length, step


def _stft_type(node: onnx.NodeProto, graph: Graph) -> TensorType:
    """Return the type of an STFT, as ONNX's inference has a wrong default for ``onesided``."""
    frames, length, _ = _framing(node, graph)
    onesided = node_attributes(node).get("onesided", 1)
    signal = graph.type_of(node.input[0])
    bins = length // 2 + 1 if onesided else length
    return TensorType((signal.shape[0], frames, bins, 2), signal.dtype)


@converts("STFT", result_type=_stft_type)
def stft(c: NodeContext) -> relax.Expr:
    """Compute the short-time Fourier transform of windowed frames at regular distances."""
    frames, length, step = _framing(c.node, c.graph)
    batch, _, parts = c.shape()
    places = (np.arange(frames)[:, None] * step + np.arange(length)).astype(np.int32)
    framed = R.reshape(
        R.take(c.input(), constant(places.reshape(-1)), 1, "clip"), (batch, frames, length, parts)
    )
    if c.has(2):
        framed = framed * R.reshape(c.input(2), (1, 1, length, 1))
    result = _transform(c, _parts(c, c.emit(framed), 2), length, inverse=False)
    if c.attribute("onesided", 1):
        if parts == 2:
            raise InvalidNode("only real numbers have half a spectrum (onesided)")
        result = _first(c, result, length // 2 + 1)
    return _joined(c, result, 2)


def _parts(c: NodeContext, x: relax.Expr, axis: int) -> _Complex:
    """Split the last axis into real and imaginary part, and move an axis to the end."""
    rank, count = len(shape_of(x)) - 1, shape_of(x)[-1]
    if count not in (1, 2):
        raise InvalidNode(f"its numbers have {count} parts, expected one or two")
    order = [*(a for a in range(rank) if a != axis), axis]
    found = [
        c.emit(R.permute_dims(R.squeeze(R.strided_slice(x, [rank], [i], [i + 1]), [rank]), order))
        for i in range(count)
    ]
    return _Complex(*found)


def _joined(c: NodeContext, x: _Complex, axis: int, only_real: bool = False) -> relax.Expr:
    """Move the last axis back to its position, and join the parts along a new last axis."""
    assert x.imaginary is not None
    parts = [x.real] if only_real else [x.real, x.imaginary]
    rank = len(shape_of(c.emit(x.real)))
    order = [*range(axis), rank - 1, *range(axis, rank - 1)]
    found = [R.expand_dims(R.permute_dims(part, order), rank) for part in parts]
    return found[0] if only_real else R.concat(found, rank)


def _first(c: NodeContext, x: _Complex, count: int) -> _Complex:
    """Return the first numbers of the last axis."""

    def cut(part: relax.Expr) -> relax.Expr:
        part = c.emit(part)
        return R.strided_slice(part, [len(shape_of(part)) - 1], [0], [count])

    return x.map(cut)


def _with_length(c: NodeContext, x: _Complex, length: int) -> _Complex:
    """Cut the last axis, or pad it with zeros."""
    shape = shape_of(c.emit(x.real))
    missing = length - shape[-1]
    if missing < 0:
        return _first(c, x, length)
    if missing == 0:
        return x
    widths = [0] * (2 * len(shape) - 1) + [missing]
    return x.map(lambda part: R.nn.pad(part, widths))


def _whole_spectrum(c: NodeContext, x: _Complex, length: int) -> _Complex:
    """Complete the first half of the spectrum of real numbers by y[-k] = conj(y[k])."""
    half = length // 2 + 1
    x = _with_length(c, x, half)
    k = np.arange(length)
    places = np.where(k < half, k, length - k).astype(np.int32)
    # The first number, and for an even length the middle one, are real.
    sign = np.where((k == 0) | (2 * k == length), 0, np.where(k < half, 1, -1))
    axis = len(shape_of(c.emit(x.real))) - 1

    def all_of(part: relax.Expr) -> relax.Expr:
        return R.take(part, constant(places), axis, "clip")

    imaginary = None if x.imaginary is None else all_of(x.imaginary) * c.constant(sign)
    return _Complex(all_of(x.real), imaginary)


def _transform(c: NodeContext, x: _Complex, length: int, inverse: bool) -> _Complex:
    """Transform the last axis."""
    first = _factor(length)
    if length <= _ONE_PRODUCT or first == length:
        if length > _LONGEST_FACTOR:
            raise Refusal(
                f"a transform of {length} numbers, or of a prime factor of its length, is not "
                f"supported beyond {_LONGEST_FACTOR}"
            )
        k = np.arange(length)
        return _times_matrix(c, x, _turns(np.outer(k, k), length, inverse))
    second = length // first
    shape = shape_of(c.emit(x.real))[:-1]
    x = x.map(lambda part: _swapped(c, R.reshape(part, (*shape, first, second))))
    x = _transform(c, x, first, inverse)
    turns = np.outer(np.arange(second), np.arange(first))
    x = _times_factors(c, x, _turns(turns, length, inverse))
    x = _transform(c, x.map(lambda part: _swapped(c, part)), second, inverse)
    return x.map(lambda part: R.reshape(_swapped(c, part), (*shape, length)))


def _factor(length: int) -> int:
    """Return the smallest divisor that is at least the square root; the number itself if prime."""
    root = int(np.ceil(np.sqrt(length)))
    return next(d for d in range(max(root, 1), length + 1) if length % d == 0)


def _turns(steps: np.ndarray, length: int, inverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the real and imaginary parts of the roots of unity of these exponents."""
    angles = (2 if inverse else -2) * np.pi * (steps % length) / length
    return np.cos(angles), np.sin(angles)


def _times_matrix(c: NodeContext, x: _Complex, matrix: tuple[np.ndarray, np.ndarray]) -> _Complex:
    real, imaginary = (c.constant(part) for part in matrix)
    if x.imaginary is None:
        return _Complex(R.matmul(x.real, real), R.matmul(x.real, imaginary))
    return _Complex(
        R.matmul(x.real, real) - R.matmul(x.imaginary, imaginary),
        R.matmul(x.real, imaginary) + R.matmul(x.imaginary, real),
    )


def _times_factors(c: NodeContext, x: _Complex, factors: tuple[np.ndarray, np.ndarray]) -> _Complex:
    real, imaginary = (c.constant(part) for part in factors)
    assert x.imaginary is not None
    return _Complex(
        x.real * real - x.imaginary * imaginary, x.real * imaginary + x.imaginary * real
    )


def _swapped(c: NodeContext, x: relax.Expr) -> relax.Expr:
    """Transpose the last two axes."""
    rank = len(shape_of(c.emit(x)))
    return R.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2])
