"""Operators whose boxes are texels of images."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from support import boxes
from support.small_operators import SHIFTED, rows_of

from tvmflow.devices.target import resolve
from tvmflow.errors import CompileError, InputError, OperatorError, TargetError
from tvmflow.ir.operators import OPERATORS
from tvmflow.ir.tensors import TensorType
from tvmflow.ops import memory
from tvmflow.ops.compiled import compile_operator
from tvmflow.runtime.devices import DeviceInfo, opencl_devices
from tvmflow.verify.tolerance import OPERATOR, assert_close

pytestmark = pytest.mark.opencl


def compiled(operator, device="nvidia", **inputs):
    return compile_operator(operator, "opencl", device, inputs=inputs, storage="texture")


def check(function, arrays):
    operator = function.operator
    expected = operator.evaluate(arrays, operator.complete({}))
    for got, value in zip(function(*arrays), expected, strict=True):
        assert_close(got, value, OPERATOR, operator.name)


def source(function):
    return "".join(kernels.inspect_source() for kernels in function.program.module.imports)


def stored(tensor):
    return tvm_ffi.get_global_func("tvmflow.opencl.storage")(tensor)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize(("device", "dtype"), [("nvidia", "float32"), ("cpu", "float16")])
@pytest.mark.parametrize("form", ["count", "offsets"])
def test_gradients_of_the_loss(device, dtype, form, rng):
    """Read and written as texels; packed targets are an image of one row."""
    kinds = {"pred": dtype, "target": dtype, "grad_loss": dtype, "valid": "int32", form: "int32"}
    if form == "offsets":
        kinds["target"] = f"{dtype}[P, 4]"
    function = compiled(OPERATORS["GIoULossGrad"], device, **kinds)
    images = set(re.findall(r"image2d_array_t (\w+)_ptr", source(function)))
    assert images == {
        "pred",
        "target",
        "grad_pred",
        "grad_rows" if form == "offsets" else "grad_target",
    }
    for shape in [(3, 5), (7, 37)]:
        given = boxes.batch(rng, shape, form, dtype, boxes=boxes.sized)
        check(function, given.gradient_arrays(3.0))


def test_results_in_images_are_taken_as_they_are():
    """Decoded boxes go from one kernel to the next in their image."""
    decode = compiled("BoxDecode", deltas="float32[N, 4]")
    giou = compiled("GIoU", pred="float32[M, 4]", target="float32[M, 4]")
    rows = tvm.runtime.tensor(rows_of((6, 4)), tvm.opencl(0))
    (decoded,) = decode(rows, rows)
    assert stored(decoded) == "6x1"
    assert giou.memory.bring(decoded, 16) is decoded
    (found,) = giou(decoded, decode(rows, rows)[0])
    assert stored(found) == ""
    expected = OPERATORS["GIoU"].evaluate([decoded.numpy()] * 2, giou.attributes)[0]
    assert_close(found.numpy(), expected, OPERATOR)


def test_tensors_stored_otherwise_are_copied():
    """From an image to a buffer and back, and from 16 bits to 32."""
    device, spec, rows = tvm.opencl(0), resolve("opencl", "cpu"), rows_of((6, 4))
    buffers, images = (memory.Memory(spec, name, device) for name in memory.STORAGES)
    for source_of in (buffers, images):
        for dtype in ("float32", "float16"):
            given = source_of.empty(TensorType((6, 4), dtype)).copyfrom(rows)
            for place, found in ((buffers, ""), (images, "6x1")):
                brought = place.bring(given, 16)
                assert stored(brought) == found
                assert np.array_equal(brought.numpy(), rows.astype(dtype))
                assert (brought is given) == (place is source_of and dtype == "float32")


def test_no_boxes(rng):
    function = compiled("GIoULoss", count="int32")
    empty = np.zeros((3, 0, 4), "float32")
    loss, valid = function(empty, empty, np.zeros(3, "int32"))
    assert (loss, valid) == (0, 0)


def test_an_image_that_is_too_large_is_refused():
    function = compiled("BoxDecode", deltas="float32[N, 4]")
    limit = opencl_devices()[0].image2d_max_width
    rows = np.zeros((limit + 1, 4), "float32")
    message = (
        rf"is given deltas float32\[{limit + 1}, 4\], an image of {limit + 1}x1 texels; the "
        rf"device's are at most {limit}x{limit}"
    )
    with pytest.raises(InputError, match=message) as caught:
        function(rows, rows)
    assert 'storage="buffer"' in caught.value.remedy


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"storage": "image"}, TargetError, "the storage 'image' failed: expected 'buffer' or"),
        ({"target": "llvm"}, TargetError, "images of OpenCL, which the target llvm has not"),
        ({"inputs": {"x": "bfloat16"}}, OperatorError, r"its x is bfloat16\[N, 4\], and images"),
    ],
)
def test_what_has_no_images_is_refused(arguments, error, message):
    given = {"target": "opencl", "storage": "texture", **arguments}
    with pytest.raises(error, match=message):
        compile_operator(SHIFTED, **given)


def test_a_device_without_images_is_refused(monkeypatch):
    bare = DeviceInfo("opencl", 0, "A bare device", max_work_group_size=64)
    monkeypatch.setattr(memory, "opencl_devices", lambda: [bare])
    with pytest.raises(TargetError, match="the device A bare device has no images"):
        compiled(SHIFTED, "cpu")


def test_numbers_that_are_no_boxes_are_refused():
    """One number for each of four boxes is no texel that one work-item writes."""
    with pytest.raises(CompileError, match="stores single channels of the texture giou"):
        compiled("GIoU", pred="float32[B, 4, 4]", target="float32[B, 4, 4]")
