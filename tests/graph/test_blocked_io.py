"""Inputs and outputs that the application has in the blocked layout, as buffers and images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.networks import Graph
from support.onnx_models import expected as onnx_runtime
from support.onnx_models import model_of

import tvmflow
from tvmflow.devices.target import PRESETS
from tvmflow.errors import CompileError, InputError, TargetError
from tvmflow.frontend.load import load_model
from tvmflow.graph.layout.interface import block_interface
from tvmflow.graph.layout.layout import LayoutPass
from tvmflow.ir.tensors import TensorInfo
from tvmflow.module.blocked_layout import from_image, to_blocked, to_image, to_logical
from tvmflow.verify.tolerance import NETWORK, STORED_AS_HALF, assert_close

FORMS = ("nchw4c", "texture")


def outputs(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """The model with further outputs."""
    for name in names:
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return onnx.shape_inference.infer_shapes(model)


def residual(channels: int) -> onnx.ModelProto:
    """Return outputs ``t3``, after two convolutions; ``t1``, their input; ``t4``, a sum."""
    g = Graph(1, channels, 9, 7)
    first = g.relu(g.conv("x", channels, 3))
    last = g.relu(g.conv(first, 18, 3))
    total = g.node("Add", [first, "x"], channels)
    return outputs(g.model(last), first, total)


def reference(model: onnx.ModelProto, x: np.ndarray) -> dict[str, np.ndarray]:
    names = [output.name for output in model.graph.output]
    return dict(zip(names, onnx_runtime(model, {"x": x}), strict=True))


def picture(model: onnx.ModelProto, seed: int = 0) -> np.ndarray:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_garbage(info: TensorInfo, x: np.ndarray) -> np.ndarray:
    """The blocked form with NaN in the lanes that are padding."""
    n, blocks, height, width, lanes = info.shape
    full = np.full((n, blocks * lanes, height, width), np.nan, x.dtype)
    full[:, : x.shape[1]] = x
    split = full.reshape(n, blocks, lanes, height, width).transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(split)


def check(model, module, table=NETWORK):
    """Blocked and logical inputs, whose padding says nothing, give what ONNX Runtime gives."""
    x = picture(model)
    expected = reference(model, x)
    (info,) = module.inputs
    fed = (x, with_garbage(info, x)) if info.layout else (x,)
    for value in fed:
        results = module(x=value)
        for output, got in zip(module.outputs, results, strict=True):
            assert got.shape == output.shape
            assert_close(to_logical(output, got), expected[output.name], table)


def functions(module) -> list[str]:
    return [kernel["function"] for kernel in module.metadata["kernels"]]


@pytest.mark.opencl
@pytest.mark.parametrize("storage", ["texture", "buffer", "auto"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("channels", [1, 3, 6, 18])
def test_inputs_and_outputs_are_right_in_any_storage(channels, form, storage):
    model = residual(channels)
    other = FORMS[1 - FORMS.index(form)]
    kept = {"x": form, "t3": form, "t1": other}
    with tvmflow.compile(model, device="adreno", storage=storage, keep_layout=kept) as module:
        check(model, module)
        # Only the sum is plain, and is computed so at once.
        packing = [f for f in functions(module) if "pack" in f]
        assert len(packing) == 1
        assert packing[0].endswith("unpack")


@pytest.mark.opencl
@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_textures_need_no_copies(storage):
    model = residual(6)
    kept = {"x": "texture", "t3": "texture", "t1": "texture"}
    with tvmflow.compile(model, device="adreno", storage=storage, keep_layout=kept) as module:
        assert not [f for f in functions(module) if f.startswith("copy")]
        check(model, module)
        results = [t for t in module.metadata["memory"]["tensors"] if t["block"] is None]
        # The plain sum, t4, is the third.
        assert [(t["storage"], t["image"]) for t in results if t["storage"] == "texture"] == [
            ("texture", "7x18"), ("texture", "7x45"),
        ]  # fmt: skip


@pytest.mark.opencl
def test_what_a_module_says_of_them():
    kept = {"x": "texture", "t1": "nchw4c"}
    with tvmflow.compile(residual(6), device="adreno", keep_layout=kept) as module:
        (x,) = module.inputs
        assert x == TensorInfo(
            "x", (1, 2, 9, 7, 4), "float32",
            logical_shape=(1, 6, 9, 7), scope="global.texture:p1", image="7x18",
        )  # fmt: skip
        first = module.outputs[1]
        assert (first.shape, first.logical_shape) == ((1, 2, 9, 7, 4), (1, 6, 9, 7))
        assert (first.layout, first.scope) == ("NCHW4c", None)
        assert module.outputs[0] == TensorInfo("t3", (1, 18, 9, 7), "float32")
        assert module.metadata["inputs"][0]["layout"] == "NCHW4c"
        assert module.metadata["options"]["keep_layout"] == kept
        placed = {p["tensor"]: p for p in module.metadata["placements"]}
        assert placed["x"]["reason"] == "an input that is kept as a texture"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.opencl
def test_outputs_that_are_one_tensor_or_an_input(form):
    g = Graph(1, 6, 5, 7)
    y = g.relu(g.conv("x", 6))
    names = [g.node("Identity", [source], 6) for source in (y, y, "x", "x")]
    model = outputs(g.model(y), *names)
    kept = {names[0]: "nchw4c", names[1]: "texture", names[2]: form, "x": form}
    with tvmflow.compile(model, device="adreno", keep_layout=kept) as module:
        check(model, module)
    # The input stays as in ONNX, and an output that is the same does not.
    del kept["x"]
    with tvmflow.compile(model, device="adreno", keep_layout=kept) as module:
        check(model, module)


@pytest.mark.opencl
@pytest.mark.parametrize("kept", [{"x": "texture", "y": "nchw4c"}, {"x": "nchw4c", "y": "texture"}])
def test_a_network_that_only_renames_converts(kept):
    model = model_of("y = Identity(x)", {"x": (1, 6, 5, 7)}, {"y": (1, 6, 5, 7)}, opset=18)
    with tvmflow.compile(model, device="adreno", keep_layout=kept) as module:
        check(model, module)


@pytest.mark.opencl
@pytest.mark.parametrize("channels", [1, 6])
@pytest.mark.parametrize("form", FORMS)
def test_an_output_that_is_a_constant(channels, form):
    g = Graph(1, channels, 5, 7)
    y = g.relu(g.conv("x", channels))
    constant = g.node("Identity", [g.weights(1, channels, 3, 2)], channels)
    model = outputs(g.model(y), constant)
    with tvmflow.compile(model, device="adreno", keep_layout={constant: form}) as module:
        check(model, module)


@pytest.mark.opencl
def test_an_input_that_is_read_in_the_plain_layout_is_unpacked():
    g = Graph(1, 6, 5, 7)
    turned = g.node("Transpose", ["x"], 5, perm=[0, 2, 3, 1])
    model = g.model(g.node("Softmax", [turned], 5, axis=1))
    for form in FORMS:
        with tvmflow.compile(model, device="adreno", keep_layout={"x": form}) as module:
            check(model, module)


@pytest.mark.opencl
@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_half_textures_at_the_interface(storage):
    model = residual(6)
    kept = {"x": "texture", "t3": "texture", "t1": "nchw4c"}
    options = {"storage": storage, "dtype": "fp16", "accumulate": "fp32", "keep_layout": kept}
    with tvmflow.compile(model, device="adreno", **options) as module:
        assert module.inputs[0].scope == "global.texture-half:p1"
        assert [info.dtype for info in module.outputs] == ["float32"] * 3
        check(model, module, STORED_AS_HALF)


@pytest.mark.opencl
def test_a_texture_passes_from_module_to_module():
    model = residual(6)
    options = {"device": "adreno", "storage": "texture"}
    kept = {"t1": "texture", "t3": "nchw4c"}
    x = picture(model)
    with (
        tvmflow.compile(model, keep_layout=kept, **options) as first,
        tvmflow.compile(model, keep_layout={"x": "texture", **kept}, **options) as second,
    ):
        middle = first.run({"x": x}, output="dlpack")
        expected = reference(model, reference(model, x)["t1"])
        got = second(x=middle["t1"])
        for info, array in zip(second.outputs, got, strict=True):
            assert_close(to_logical(info, array), expected[info.name])
        # It was taken as it is: the same image comes back.
        (taken,) = second._opened().bring([middle["t1"]], reuse=True)
        assert taken.data_ptr() == middle["t1"].data_ptr()
        with (
            tvmflow.compile(model, keep_layout={"x": "nchw4c"}, **options) as third,
            pytest.raises(InputError, match="in an image of 7x18 texels, but"),
        ):
            third(x=middle["t1"])


@pytest.mark.opencl
def test_buffers_of_the_device_are_brought_into_the_image():
    import tvm

    model = residual(3)
    x = picture(model)
    for form in FORMS:
        with tvmflow.compile(model, device="adreno", keep_layout={"x": form}) as module:
            (info,) = module.inputs
            for array in (x, to_blocked(info, x)):
                for place in (tvm.cpu(), tvm.device("opencl", 0)):
                    got = module(x=tvm.runtime.tensor(array, place))
                    assert_close(got["t3"], reference(model, x)["t3"])


@pytest.mark.opencl
@pytest.mark.parametrize("shape", [(1, 2, 9, 7, 3), (1, 5, 9, 7), (1, 2, 7, 9, 4)])
def test_arrays_of_another_shape_are_refused(shape):
    with (
        tvmflow.compile(residual(6), device="adreno", keep_layout={"x": "texture"}) as module,
        pytest.raises(InputError, match=r"takes \[1, 2, 9, 7, 4\]"),
    ):
        module(x=np.zeros(shape, np.float32))


def test_blocks_on_the_host():
    model = residual(6)
    with tvmflow.compile(model, target="llvm", keep_layout={"x": "nchw4c", "t1": "nchw4c"}) as m:
        check(model, m)
        assert m.outputs[1].shape == (1, 2, 9, 7, 4)


@pytest.mark.parametrize("channels", [3, 8, 24, 32])
def test_high_pictures_stand_side_by_side(channels):
    info = TensorInfo("x", (2, channels, 5, 3), "float32")
    device = replace(PRESETS["adreno"], image_extent=40)
    _, (kept,), _ = block_interface({"x": "texture"}, [info], [], device)
    x = np.random.default_rng(0).standard_normal(info.shape).astype(np.float32)
    array = to_blocked(kept, x)
    width, height = map(int, kept.image.split("x"))
    texels = to_image(kept, array).reshape(height, width, 4)
    panels = int(kept.scope.rpartition(":p")[2])
    blocks = kept.shape[1]
    for n in range(2):
        for block in range(blocks):
            row = (n * (blocks // panels) + block // panels) * 5
            column = block % panels * 3
            np.testing.assert_array_equal(
                texels[row : row + 5, column : column + 3], array[n, block]
            )
    np.testing.assert_array_equal(from_image(kept, to_image(kept, array)), array)
    np.testing.assert_array_equal(to_logical(kept, array), x)
    assert (panels > 1) == (blocks * 10 > 40)


@pytest.mark.opencl
def test_panels_side_by_side_on_the_device(monkeypatch):
    monkeypatch.setitem(PRESETS, "adreno", replace(PRESETS["adreno"], image_extent=30))
    model = residual(16)
    kept = {"x": "texture", "t1": "texture"}
    with tvmflow.compile(model, device="adreno", storage="texture", keep_layout=kept) as module:
        assert module.inputs[0].scope == "global.texture:p2"
        check(model, module)


@pytest.mark.parametrize(
    ("kept", "options", "error", "message"),
    [
        ({"y": "nchw4c"}, {}, CompileError, "no input or output 'y'.*it has x, t3, t1, t4"),
        ({"t33": "texture"}, {}, CompileError, "nearest are t3"),
        ({"x": "nhwc"}, {}, CompileError, "'x' is 'nhwc'; expected one of nchw4c, texture"),
        ({"x": "texture"}, {"target": "llvm"}, TargetError, "llvm has no texture storage"),
        (
            {"t3": "texture"},
            {"storage_overrides": {"t3": "buffer"}},
            CompileError,
            "ask for a buffer for the tensor t3, but it is an output that is kept as a texture",
        ),
    ],
)
def test_what_cannot_be_kept(kept, options, error, message):
    options = {"target": "opencl", **options}
    device = {} if options["target"] == "llvm" else {"device": "adreno"}
    with pytest.raises(error, match=message):
        tvmflow.compile(residual(6), keep_layout=kept, **device, **options)


@pytest.mark.parametrize(
    ("shape", "dtype", "form", "limits", "message"),
    [
        ((1, 10), "float32", "nchw4c", {}, "only tensors of 4 axes"),
        ((1, 3, 4, 5, 6), "float32", "nchw4c", {}, "only tensors of 4 axes"),
        ((1, 3, 4, 5), "int64", "nchw4c", {}, "only tensors of float32"),
        ((1, 12, 4, 5), "float32", "texture", {"image_extent": 10}, "at most 10x10 texels"),
        ((1, 3, 4, 5), "float32", "texture", {"image_extent": 0}, "the device has no images"),
    ],
)
def test_tensors_without_such_a_form(shape, dtype, form, limits, message):
    device = replace(PRESETS["adreno"], **limits)
    with pytest.raises(CompileError, match=message) as caught:
        block_interface({"x": form}, [TensorInfo("x", shape, dtype)], [], device)
    assert "x" in caught.value.remedy


def test_the_layout_pass_starts_and_ends_in_blocks():
    imported = load_model(residual(6))
    device = PRESETS["adreno"]
    kept, _, _ = block_interface(
        {"x": "nchw4c", "t3": "nchw4c", "t1": "nchw4c", "t4": "nchw4c"},
        imported.inputs, imported.outputs, device,
    )  # fmt: skip
    text = LayoutPass(imported.mod, device, interface=kept).run().script()
    assert "pack" not in text
    assert "pack" in LayoutPass(imported.mod, device).run().script()
