"""The largest elements of rows that have many alike, ranked and sorted."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_models import model_of

import tvmflow


def compiled(shape, k, axis, largest, dtype="float32", **options):
    dims = [k if a == axis else n for a, n in enumerate(shape)]
    model = model_of(
        f"y, i = TopK<axis = {axis}, largest = {largest}>(x, k)", {"x": (shape, dtype)},
        {"y": (dims, dtype), "i": (dims, "int64")}, {"k": np.array([k])}, opset=18,
    )  # fmt: skip
    return tvmflow.compile(model, **{"target": "opencl", **options})


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "uint8", "float16"])
@pytest.mark.parametrize("largest", [0, 1])
def test_long_rows_of_all_types_in_standalone_libraries(dtype, largest):
    # The sort of TVM's runtime is not in them.
    random = np.random.default_rng(0)
    x = random.integers(0, 40, (2, 3000)).astype(dtype)
    if dtype == "int64":
        x[:, ::7], x[:, ::11] = np.iinfo(dtype).min, np.iinfo(dtype).max
    elif dtype == "float16":
        x = random.normal(size=x.shape).astype(dtype)
    options = {"target": "llvm", "format": "standalone"}
    with compiled(x.shape, 70, 1, largest, dtype, **options) as module:
        found = module(x=x)
    # Equal elements keep their order.
    order = np.argsort(-x.astype(object) if largest else x.astype(object), 1, kind="stable")
    np.testing.assert_array_equal(found["i"], order[:, :70])
    np.testing.assert_array_equal(found["y"], np.take_along_axis(x, order[:, :70], 1))


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("shape", "k", "axis"),
    [((5, 31), 7, 1), ((31, 5), 31, 0), ((3, 1), 1, 1), ((2, 7, 9), 3, 1),
     ((2, 1500), 40, 1), ((1025, 2), 1, 0), ((3, 1, 1300), 512, 2), ((9001,), 100, 0),
     pytest.param((2, 1500), 700, 1, marks=pytest.mark.slow)],
)  # fmt: skip
@pytest.mark.parametrize("largest", [0, 1])
def test_of_equal_elements_the_first_wins(shape, k, axis, largest):
    x = np.random.default_rng(0).integers(-2, 3, shape).astype(np.float32)
    x.reshape(-1)[::7] = np.inf
    x.reshape(-1)[::11] = -np.inf
    with compiled(shape, k, axis, largest) as module:
        found = module(x=x)
        order = np.argsort(-x if largest else x, axis=axis, kind="stable")
        wanted = np.take(order, range(k), axis)
        np.testing.assert_array_equal(np.asarray(found["i"]), wanted)
        np.testing.assert_array_equal(np.asarray(found["y"]), np.take_along_axis(x, wanted, axis))
