"""Integer quotients and remainders are right, and undefined ones do not crash."""

from __future__ import annotations

import operator

import numpy as np
import onnx
import pytest
from onnx import helper
from support.onnx_models import model_of

import tvmflow
from tvmflow.verify.compare import verify

TARGETS = [
    pytest.param({"target": "llvm"}, id="llvm"),
    pytest.param({"target": "llvm", "format": "standalone"}, id="library"),
    pytest.param({"target": "opencl", "device": "adreno"}, id="opencl", marks=pytest.mark.opencl),
]


def truncated(a, b):
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


OPERATORS = {
    "Div": ({}, truncated),
    "Mod": ({}, operator.mod),
    "Mod like fmod": ({"fmod": 1}, lambda a, b: a - b * truncated(a, b)),
}


@pytest.mark.parametrize("options", TARGETS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("name", OPERATORS)
def test_any_numbers(name, dtype, options):
    """Cases include division by zero, and of the least number by -1, which overflows."""
    attributes, function = OPERATORS[name]
    info = np.iinfo(dtype)
    pairs = [(info.min, 0), (info.max, 0), (7, 2), (0, 0), (info.min, info.max), (0, 3), (5, 1)]
    if info.min:
        pairs += [(info.min, -1), (info.max, -1), (-8, 3), (8, -3), (-7, -2), (3, info.min)]
    x, y = (np.array(side * 3, dtype) for side in zip(*pairs, strict=True))
    node = helper.make_node(name.split()[0], ["x", "y"], ["z"], **attributes)
    kind = (x.shape, dtype)
    model = model_of([node], {"x": kind, "y": kind}, {"z": kind})
    with tvmflow.compile(model, **options) as module:
        (z,) = module(x, y).values()
    for a, b, found in zip(x.tolist(), y.tolist(), z.tolist(), strict=True):
        if b != 0:
            # The quotient that overflows wraps to the least number.
            wanted = function(a, b)
            assert found == (wanted if wanted <= info.max else info.min), (a, b)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("options", TARGETS)
def test_blocks_of_channels_that_are_not_full(options, tmp_path):
    """Lanes after the last channel must not be divisors."""
    rng = np.random.default_rng(3)
    w = (8 * rng.standard_normal((17, 3, 1, 1))).astype(np.float32)
    d = rng.integers(1, 5, (1, 17, 4, 4)).astype(np.int32)
    nodes = "c = Conv(x, w) i = Cast<to = 6>(c) q = Div(i, d) y = Cast<to = 1>(q)"
    model = model_of(nodes, {"x": (1, 3, 4, 4)}, "y", {"w": w, "d": d}, opset=18)
    onnx.save(model, tmp_path / "net.onnx")
    feeds = {"x": rng.integers(-9, 9, (1, 3, 4, 4)).astype(np.float32)}
    with tvmflow.compile(tmp_path / "net.onnx", **options) as module:
        verify(tmp_path / "net.onnx", module, feeds).raise_if_failed()
