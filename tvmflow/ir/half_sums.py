"""The precision policy: which sums are taken in 16 bits, and how long a part of one may be.

*Products and sums*, ``--accumulate fp16``.  The layout pass computes sums of convolutions, packed
dense layers and average pooling in ``float16``; :func:`may_sum_in_half` says which of them.
Everything else is fp32: maxima have no sums, and softmax, normalisation and means over whole
pictures sum too many numbers of one sign for 11 bits.

*Chunks*, ``--accumulate mixed``: sums whose parts are taken in 16 bits.

*Error.*  With the unit roundoff of half, ``u = 2^-11``, a sum of ``n`` products of halves is off by
at most ``γ_n Σ|a_i b_i|`` with ``γ_n = n u / (1 - n u)`` (Higham, *Accuracy and Stability of
Numerical Algorithms*, sections 3.1 and 4.2).  For long sums that bounds nothing, so each *chunk* of
``n`` products is added to a sum in fp32, whatever the length ``N`` of the whole::

    |error| ≤ (γ_n + γ'_m (1 + γ_n)) Σ|a_i b_i|        m = ⌈N / n⌉ chunks, u' = 2^-24

The worst error is 2 % for 40 products (:func:`error_bound`).  The typical one chooses the length:
errors are independent, in the mean square at most ``u sqrt(n / 6)`` of the sum
(:func:`tvmflow.verify.tolerance.summed_in_half`), and 0.735 of it for random mantissas.  Within the
tolerance of an operator, 1e-3 of its largest result, ``n`` is at most
``6 (1e-3 / 0.735 u)^2 = 46``, and 40 with what storage adds (3e-4).  Winograd's products would
exceed that tolerance, and stay fp32.

*Range.*  Inputs of up to :data:`LARGEST_INPUT`, pictures of bytes that nobody normalised, overflow
no chunk: the largest ``n`` weights of an output channel say how far a chunk may grow
(:func:`chunks_fit`), and a layer with larger ones is summed in fp32.  Products of two computed
tensors have no such bound, and stay in fp32.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import tvm_ffi
from tvm import IRModule, relax, s_tir, tirx
from tvm.ir import Call, GlobalVar

from ..devices.choices import MIXED
from ..devices.presets import Device
from .expressions import nodes_in

#: Products in the longest sum that is taken in 16 bits: its error is some 2 % (see
#: :func:`tvmflow.verify.tolerance.summed_in_half`), and grows with the root of the length.
MOST_PRODUCTS = 8192
#: Numbers in the largest window that is averaged in 16 bits.  Numbers of one sign add up: 64
#: times 1,000 is near the largest half, 65,504.
LARGEST_WINDOW = 64

#: Products in a chunk, at most: see above.  Ten blocks of four channels, or a 3×3 window of one.
CHUNK = 40
#: The largest input for which no chunk may overflow.
LARGEST_INPUT = 256.0

_HALF = tvm_ffi.dtype("float16")


def may_sum_in_half(length: int, weight: np.ndarray | None = None) -> bool:
    """Return True if a sum of products with a weight, or of numbers, is taken in 16 bits."""
    if weight is None:
        return length <= LARGEST_WINDOW
    # A weight beyond the largest half would be infinite.
    return length <= MOST_PRODUCTS and fits_half(weight)


def dtype_of_sums(accumulate: str, length: int, weight: np.ndarray | None = None) -> str | None:
    """Return the dtype of sums for an option ``accumulate``; ``None`` is that of the tensors.

    They are of ``length`` products with a weight, whose first axis is its output channels, or of
    numbers.  A sum that is no longer than a chunk is one in 16 bits.
    """
    if accumulate == MIXED:
        if weight is not None and not chunks_fit(weight):
            return None
        if length > CHUNK:
            return None if weight is None else MIXED
        return "float16"
    return "float16" if accumulate == "fp16" and may_sum_in_half(length, weight) else None


def fits_half(array: np.ndarray) -> bool:
    """Return True if no value would be infinite in 16 bits."""
    return bool(np.abs(array).max(initial=0) <= np.finfo("e").max)


def half_sums(mod: IRModule) -> list[int]:
    """Return the lengths of the sums in 16 bits, one for each call of ``main`` that has one."""
    calls: list[relax.Call] = nodes_in(mod["main"].body, Call)
    names = (call.args[0] for call in calls if call.args and isinstance(call.args[0], GlobalVar))
    functions = (mod[name] for name in names)
    return [n for f in functions if isinstance(f, tirx.PrimFunc) for n in half_lengths(f)]


def half_lengths(function: tirx.PrimFunc) -> list[int]:
    """Return the lengths of the sums in 16 bits, or of their chunks, in an unscheduled function."""
    lengths = []
    for block in nodes_in(function.body, s_tir.SBlock):
        reduced = [v for v in block.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
        if not reduced:
            continue
        # Extents of other sums may be variables.
        if block.writes[0].source.dtype == _HALF:
            lengths.append(prod(int(v.dom.extent) for v in reduced))
        elif any(map(is_product, nodes_in(block.body, tirx.Cast))):
            lengths.append(min(prod(int(v.dom.extent) for v in reduced), CHUNK))
    return lengths


def accumulation_of(function: tirx.PrimFunc) -> str:
    """Return how an unscheduled function takes its sums: ``fp32``, ``mixed`` or ``fp16``."""
    if any(map(is_product, nodes_in(function.body, tirx.Cast))):
        return MIXED
    return "fp16" if half_lengths(function) else "fp32"


def with_free_registers(device: Device, function: tirx.PrimFunc) -> Device:
    """Return a device as heuristics see it, whose accumulators leave room for chunks of halves.

    A chunk takes half of the registers that the sums take in fp32.
    """
    if device.is_cpu or accumulation_of(function) != MIXED:
        return device
    return replace(device, accumulators=device.accumulators * 2 // 3)


def error_bound(length: int) -> float:
    """Return the largest error of a sum of products, as a part of the sum of their magnitudes."""
    n, m = min(length, CHUNK) * 2.0**-11, -(-length // CHUNK) * 2.0**-24
    chunk, chunks = n / (1 - n), m / (1 - m)
    return chunk + chunks * (1 + chunk)


def chunks_fit(weight: np.ndarray) -> bool:
    """Return True if no chunk of a sum overflows 16 bits for inputs up to :data:`LARGEST_INPUT`.

    The first axis of ``weight`` is its output channels.
    """
    rows = np.abs(weight).reshape(len(weight), -1)
    longest = min(CHUNK, rows.shape[1])
    largest = np.partition(rows, rows.shape[1] - longest, axis=1)[:, -longest:].sum(axis=1)
    return bool(largest.max(initial=0) * LARGEST_INPUT <= np.finfo("e").max)


def is_product(cast: tirx.Cast) -> bool:
    """Return True for a product of halves that is converted to fp32."""
    is_half = isinstance(cast.value, tirx.Mul) and cast.value.ty.dtype == "float16"
    return is_half and cast.ty.dtype == "float32"
