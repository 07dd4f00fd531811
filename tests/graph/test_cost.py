"""How often the cost model counts what a primary function reads."""

from __future__ import annotations

import pytest
from tvm import te, tirx

from tvmflow.ir.traffic import count_reads
from tvmflow.schedules import conv2d, depthwise, pooling

WINDOW = {"strides": (1, 1), "dilation": (1, 1)}


def reads(inputs, result):
    """Elements read of each input."""
    function = te.create_prim_func([*inputs, result])
    return [count_reads(function, function.params[i]) for i in range(len(inputs))]


@pytest.mark.parametrize(("padding", "outputs"), [((0, 0, 0, 0), 6 * 5), ((1, 1, 1, 1), 8 * 7)])
def test_padding_is_read_as_often_as_the_window_slides(padding, outputs):
    x = te.placeholder((1, 2, 8, 7, 4), name="x")
    w = te.placeholder((2, 3, 3, 4), name="w")
    products = 2 * outputs * 4 * 3 * 3
    y = depthwise.compute(x, w, **WINDOW, padding=padding)
    assert reads([x, w], y) == [products, products]
    pooled = pooling.compute(
        x, kind="avg", window=(3, 3), **WINDOW, padding=padding, ceil_mode=False,
        count_include_pad=True,
    )  # fmt: skip
    assert reads([x], pooled) == [products]


@pytest.mark.parametrize("sums", [None, "float16"])
def test_of_a_direct_convolution_and_what_follows_it(sums):
    x = te.placeholder((1, 2, 9, 9, 4), name="x")
    w = te.placeholder((3, 7, 5, 5, 4), name="w")
    bias = te.placeholder((3, 4), name="bias")
    y = conv2d.compute(x, w, **WINDOW, padding=(2, 2, 2, 2), groups=1, sums=sums)
    out = te.compute(y.shape, lambda n, o, h, v, k: y[n, o, h, v, k] + bias[o, k])
    z = te.compute(out.shape, lambda *i: tirx.max(out(*i), tirx.const(0.0, "float32")))
    products = 3 * 9 * 9 * 4 * 7 * 5 * 5
    assert reads([x, w, bias], z) == [products, products, 3 * 9 * 9 * 4]


def test_two_blocks_before_the_window():
    x = te.placeholder((1, 1, 6, 6, 4), name="x")
    w = te.placeholder((1, 3, 3, 4), name="w")
    half = te.compute(x.shape, lambda *i: x(*i) * tirx.const(0.5, "float32"))
    y = depthwise.compute(half, w, **WINDOW, padding=(1, 1, 1, 1))
    assert reads([x, w], y)[0] == 6 * 6 * 4 * 9
