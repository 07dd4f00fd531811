"""The families' definitions without a schedule, against loops in NumPy: every number is exact.

Strides and dilations differ between height and width, and so do all four sides of the padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import tvm
from tvm import te

from tvmflow.ir.blocked import words
from tvmflow.schedules import conv2d, depthwise, grouped, pooling
from tvmflow.schedules.integers import Dots, Integers

LANES = 4


@dataclass(frozen=True)
class Window:
    """A sliding window with padding ``pads`` at the top, left, bottom and right."""

    kernel: tuple[int, int] = (3, 2)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def options(self):
        return {"strides": self.strides, "padding": self.pads, "dilation": self.dilation}

    def taps(self, x, value=0):
        """Return each tap's inputs for all outputs of plain pictures: ``[p, q, N, C, H, W]``."""
        top, left, bottom, right = self.pads
        sides = ((0, 0), (0, 0), (top, bottom), (left, right))
        x = np.pad(x, sides, constant_values=value)
        spans = [(k - 1) * d for k, d in zip(self.kernel, self.dilation, strict=True)]
        height, width = (x.shape[2 + a] - spans[a] for a in range(2))
        found = [
            x[:, :, p : p + height : self.strides[0], q : q + width : self.strides[1]]
            for p, q in product(
                *(range(0, k * d, d) for k, d in zip(self.kernel, self.dilation, strict=True))
            )
        ]
        return np.stack(found).reshape(*self.kernel, *found[0].shape)


WINDOWS = {
    "wide_strides": Window(strides=(1, 2)),
    "padding": Window(pads=(1, 0, 1, 1), strides=(2, 1)),
    "all": Window(kernel=(2, 3), strides=(2, 3), pads=(0, 2, 1, 1), dilation=(3, 2)),
}
#: Results are exact without optimisation, so that none is needed.
TARGET = {"kind": "llvm", "opt-level": 0}


@pytest.fixture(params=WINDOWS)
def window(request):
    return WINDOWS[request.param]


def whole(rng, shape, low=-9, high=10, dtype="float32"):
    """Return integers, whose products and sums are exact in fp32."""
    return rng.integers(low, high, shape).astype(dtype)


def blocked(x, lanes=LANES):
    """Convert ``[N, C, H, W]`` to ``[N, C / lanes, H, W, lanes]``."""
    n, channels, height, width = x.shape
    return np.ascontiguousarray(
        x.reshape(n, channels // lanes, lanes, height, width).transpose(0, 1, 3, 4, 2)
    )


def filters(w, lanes=LANES):
    """Convert ``[O, I, KH, KW]`` to ``[O / lanes, I, KH, KW, lanes]``."""
    outputs, *rest = w.shape
    return np.ascontiguousarray(np.moveaxis(w.reshape(outputs // lanes, lanes, *rest), 1, -1))


def plain(y):
    """Convert a blocked result to the plain layout."""
    n, blocks, height, width, lanes = y.shape
    return y.transpose(0, 1, 4, 2, 3).reshape(n, blocks * lanes, height, width)


def evaluate(compute, *arrays):
    """Return the result of an unscheduled definition, compiled for this CPU."""
    tensors = [te.placeholder(a.shape, str(a.dtype), name=f"t{i}") for i, a in enumerate(arrays)]
    result = compute(*tensors)
    function = tvm.compile(
        te.create_prim_func([*tensors, result]), target=tvm.target.Target(TARGET)
    )
    out = tvm.runtime.empty([int(d) for d in result.shape], str(result.dtype))
    function(*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


def convolved(window, x, w, groups=1, value=0):
    """Return the convolution by its definition; sums are in double precision."""
    taps = window.taps(x, value).astype(np.float64)
    outputs, inputs = w.shape[0] // groups, w.shape[1]
    parts = [
        np.einsum(
            "pqnihw,oipq->nohw",
            taps[:, :, :, g * inputs : (g + 1) * inputs],
            w[g * outputs : (g + 1) * outputs].astype(np.float64),
        )
        for g in range(groups)
    ]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(window, groups, rng):
    x, w = whole(rng, (2, 8, 9, 11)), whole(rng, (8, 8 // groups, *window.kernel))
    got = evaluate(
        lambda x, w: conv2d.compute(x, w, groups=groups, **window.options), blocked(x), filters(w)
    )
    np.testing.assert_array_equal(plain(got), convolved(window, x, w, groups))


def test_convolution_of_plain_pictures(window, rng):
    x, w = whole(rng, (1, 3, 9, 11)), whole(rng, (4, 3, *window.kernel))
    got = evaluate(lambda x, w: conv2d.compute(x, w, groups=1, **window.options), x, filters(w))
    np.testing.assert_array_equal(plain(got), convolved(window, x, w))


def test_convolution_whose_blocks_belong_to_several_groups(window, rng):
    x, w = whole(rng, (1, 8, 9, 11)), whole(rng, (8, 2, *window.kernel))
    got = evaluate(
        lambda x, w: grouped.compute(x, w, 8, groups=4, **window.options), blocked(x), filters(w)
    )
    np.testing.assert_array_equal(plain(got), convolved(window, x, w, 4))


def test_one_filter_a_channel(window, rng):
    x, w = whole(rng, (2, 8, 9, 11)), whole(rng, (8, *window.kernel))
    got = evaluate(lambda x, w: depthwise.compute(x, w, **window.options), blocked(x), filters(w))
    np.testing.assert_array_equal(plain(got), convolved(window, x, w[:, None], 8))


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling(window, kind, rng):
    x = whole(rng, (1, 4, 9, 11))
    options = {"kind": kind, "window": window.kernel, "ceil_mode": False}
    got = evaluate(
        lambda x: pooling.compute(x, **options, count_include_pad=False, **window.options),
        blocked(x),
    )
    taps = window.taps(x, np.nan)
    expected = np.nanmax(taps, (0, 1)) if kind == "max" else np.nanmean(taps, (0, 1))
    # The sum is exact, the quotient is rounded.
    np.testing.assert_allclose(plain(got), expected, rtol=2e-7)


# -- 8-bit numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "zero", "sums"), [("uint8", 113, "float32"), ("int8", -9, "int32")]
)
def test_products_of_bytes_without_their_zero_point(window, dtype, zero, sums, rng):
    """Padding is the zero point, so that it adds nothing."""
    limits = np.iinfo(dtype)
    x = whole(rng, (1, 8, 7, 9), limits.min, limits.max + 1, dtype)
    w = whole(rng, (4, 8, *window.kernel), -128, 128, "int8")
    compute = Integers(zero, sums, staged=False).around(conv2d.compute)
    options = {"groups": 1, **window.options}
    got = evaluate(lambda x, w: compute(x, w, **options), blocked(x), filters(w))
    assert got.dtype == np.int32
    expected = convolved(window, x.astype(np.int64) - zero, w)
    np.testing.assert_array_equal(plain(got), expected)


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 113), ("int8", -9)])
def test_dot_products_of_bytes(window, dtype, zero, rng):
    """The excess of the sums is the same for every output, also where windows reach padding."""
    limits = np.iinfo(dtype)
    x = whole(rng, (1, 8, 7, 9), limits.min, limits.max + 1, dtype)
    w = whole(rng, (4, 8, *window.kernel), -128, 128, "int8")
    unsigned = zero - limits.min
    compute = Dots(unsigned).around(conv2d.compute)
    options = {"groups": 1, **window.options}
    got = evaluate(lambda x, w: compute(x, w, **options), blocked(x), filters(words(w, 1)))
    excess = unsigned * w.astype(np.int64).sum(axis=(1, 2, 3))
    expected = convolved(window, x.astype(np.int64) - zero, w) + excess[:, None, None]
    np.testing.assert_array_equal(plain(got), expected)


def test_channels_that_fill_no_word_are_left_out(rng):
    """Five lanes are two words, whose last bytes are 0 for any weights."""
    window = WINDOWS["wide_strides"]
    x = whole(rng, (1, 5, 7, 9), 0, 256, "uint8")
    w = whole(rng, (4, 8, *window.kernel), -128, 128, "int8")
    compute = Dots(0).around(conv2d.compute)
    options = {"groups": 1, **window.options}
    got = evaluate(lambda x, w: compute(x, w, **options), x, filters(words(w, 1)))
    np.testing.assert_array_equal(plain(got), convolved(window, x.astype(np.int64), w[:, :5]))
