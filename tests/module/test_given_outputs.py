"""Results written into arrays of the caller, and values that modules convert."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import tvmflow
from tvmflow.errors import InputError
from tvmflow.module.module import Module

MODEL = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 3] x, int32[N, 2] output) => (float[N, 3] y, int32[N, 2] z) {
  y = Exp(x)
  z = Add(output, output)
}
""")
NON_ZERO = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x) => (int64[2, n] where) { where = NonZero(x) }
""")
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
N = np.arange(4, dtype=np.int32).reshape(2, 2)

#: Modules of TVM's runtime on host and device, a standalone one, and one of several shapes.
FORMS: dict[str, dict[str, Any]] = {
    "llvm": {"target": "llvm", "shapes": {"x": (2, 3), "output": (2, 2)}},
    "opencl": {"device": "cpu", "shapes": {"x": (2, 3), "output": (2, 2)}},
    "standalone": {
        "target": "llvm", "format": "standalone", "shapes": {"x": (2, 3), "output": (2, 2)},
    },
    "shapes": {"target": "llvm", "shapes": {"x": ("1..2", 3), "output": ("1..2", 2)}},
}  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[pytest.param(f, marks=[pytest.mark.opencl] if f == "opencl" else []) for f in FORMS],
)
def module(request: pytest.FixtureRequest) -> Iterator[Module]:
    with tvmflow.compile(MODEL, **FORMS[request.param]) as compiled:
        yield compiled


def wide(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return a non-contiguous array."""
    return np.full((*shape[:-1], 2 * shape[-1]), 7, dtype)[..., ::2]


@pytest.mark.parametrize("make", [np.empty, wide])
def test_results_are_written_into_given_arrays(module: Module, make: Any):
    y, z = make((2, 3), np.float32), make((2, 2), np.int32)
    for given in ([y, z], {"z": z, "y": y}, (y, z)):
        y[...], z[...] = 0, 0
        outputs = module.run([X, N], output=given)
        assert outputs["y"] is y
        assert outputs["z"] is z
        np.testing.assert_allclose(y, np.exp(X), rtol=1e-5)
        np.testing.assert_array_equal(z, 2 * N)
    only = module.run([X, N], output={"z": z})
    assert only["z"] is z
    np.testing.assert_array_equal(only["y"], y)


def test_an_input_of_the_name_output_stays_one(module: Module):
    outputs = module(x=X, output=N)
    np.testing.assert_array_equal(outputs["z"], 2 * N)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": np.empty((2, 3))}, "There is no output 'a'"),
        ([np.empty((2, 3), np.float32)], "1 arrays were given for results, but .* 2 outputs"),
        ({"y": np.empty((3, 2), np.float32)}, r"has shape \[3, 2\] .* has \[2, 3\] and float32"),
        ({"y": np.empty((2, 3))}, "has .* dtype float64, but .* float32"),
        ({"y": np.broadcast_to(np.float32(0), (2, 3))}, "into a read-only array"),
        ({"y": [[0.0] * 3] * 2}, "into a list"),
        ("torch", "'numpy' or 'dlpack', not 'torch'"),
    ],
)
def test_what_cannot_take_a_result_is_refused(module: Module, given: Any, message: str):
    with pytest.raises(InputError, match=message) as caught:
        module.run([X, N], output=given)
    assert caught.value.remedy


def test_the_array_of_a_single_output_and_of_one_with_a_size_of_run_time():
    with tvmflow.compile(NON_ZERO, target="llvm") as module:
        (info,) = module.outputs
        into = np.full(info.shape, -1, np.int64)
        outputs = module((X > 0) * X, output=into)
        expected = np.array(np.nonzero(X > 0))
        np.testing.assert_array_equal(outputs["where"], expected)
        np.testing.assert_array_equal(into[:, : expected.shape[1]], expected)


def test_lists_become_arrays_of_the_input_s_type(module: Module):
    outputs = module(X.astype(float).tolist(), N.tolist())
    np.testing.assert_allclose(outputs["y"], np.exp(X), rtol=1e-5)
    np.testing.assert_array_equal(outputs["z"], 2 * N)
    for value, dtype in (([[0.5, 1], [2, 3]], "float64"), ([[1 << 40, 1], [2, 3]], "int64")):
        with pytest.raises(InputError, match=f"'output' has dtype {dtype}"):
            module(X, value)


class Recording:
    """A tensor like PyTorch's while it records gradients."""

    def __init__(self, array: np.ndarray, requires_grad: bool = True):
        self.array, self.requires_grad = array, requires_grad

    def detach(self) -> Recording:
        return Recording(self.array, False)

    def __array__(self, *args: Any, **named: Any) -> np.ndarray:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.array

    def __dlpack__(self, **options: Any) -> Any:
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_tensors_that_record_gradients_are_detached(module: Module):
    outputs = module(Recording(X.copy()), N)
    np.testing.assert_allclose(outputs["y"], np.exp(X), rtol=1e-5)
    into = np.zeros((2, 3), np.float32)
    module.run([X, N], output={"y": Recording(into, requires_grad=False)})
    np.testing.assert_allclose(into, np.exp(X), rtol=1e-5)
    with pytest.raises(InputError, match="cannot be written into the given tensor"):
        module.run([X, N], output={"y": Recording(into)})
