"""Sums in 16 bits: which are taken so, with what code, and how exactly."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime
import pytest
from support.half_device import half_device
from support.networks import NETWORKS, Graph

import tvmflow
from tvmflow.compiler.compilation import Compilation
from tvmflow.compiler.options import CompileOptions
from tvmflow.devices.target import PRESETS
from tvmflow.errors import DeviceError, TargetError
from tvmflow.ir.half_sums import LARGEST_WINDOW, MOST_PRODUCTS, may_sum_in_half
from tvmflow.models import build
from tvmflow.module import session
from tvmflow.runtime.devices import DeviceInfo
from tvmflow.verify.compare import table_for, verify
from tvmflow.verify.tolerance import STORED_AS_HALF, compare, tolerance_for

#: Direct, grouped and transposed convolution, concat, residuals, resize, a gate, a dense layer.
SMALL = (
    "fire",
    "bottlenecks",
    "channel_shuffle",
    "transposed",
    "u_net",
    "squeeze_and_excite",
    "channels_Softmax",
    "channels_Flatten",
)
#: Textures, vectors of 4 lanes in buffers, and of 16; the last two with fewer networks.
CASES = [
    *((name, "adreno", "texture") for name in SMALL),
    *((name, "adreno", "buffer") for name in ("bottlenecks", "transposed", "channels_Flatten")),
    *((name, "cpu", "buffer") for name in ("fire", "channel_shuffle", "squeeze_and_excite")),
]


def compiled(model, device="adreno", storage="texture", **options):
    return tvmflow.compile(
        model, device=device, storage=storage, dtype="fp16", accumulate="fp16", **options
    )


def sources(model, folder, **options):
    """Return the source of each kernel by its name, without macros."""
    compiled(model, dump_ir=folder, **options).close()
    text = next(folder.glob("8_build.*.opencl")).read_text()
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    bodies = re.split(r"__kernel void (\w+)\([^;{]*\{", text)
    return dict(zip(bodies[1::2], bodies[2::2], strict=True))


# -- which sums ---------------------------------------------------------------------------------


def mixed():
    """Return a network with convolutions, average pooling, a softmax and a dense layer."""
    g = Graph(1, 3, 20, 20)
    x = g.relu(g.conv("x", 7, 3))
    x = g.node("AveragePool", [x], 7, kernel_shape=[3, 3], strides=[2, 2])
    x = g.node("AveragePool", [x], 7, kernel_shape=[9, 9])
    x = g.node("MaxPool", [g.conv(x, 6)], 6, kernel_shape=[1, 1])
    x = g.node("Softmax", [x], 6, axis=1)
    x = g.node("GlobalAveragePool", [x], 6)
    x = g.node("Flatten", [x], 6)
    return g.model(g.node("Gemm", [x, g.weights(6, 10)], 10))


def test_sums_that_are_narrowed_are_recorded():
    with_sums = compiled(mixed())
    # The convolutions of 3x3x3 and 7 products, the window of 3x3, and the dense layer.
    assert sorted(with_sums.metadata["half_sums"]) == [6, 7, 9, 27]
    assert with_sums.metadata["extensions"] == ["cl_khr_fp16"]
    assert with_sums.metadata["options"]["accumulate"] == "fp16"
    without = tvmflow.compile(mixed(), device="adreno", dtype="fp16", accumulate="fp32")
    assert without.metadata["half_sums"] == without.metadata["extensions"] == []
    assert without.metadata["options"]["accumulate"] == "fp32"


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"device": "adreno", "dtype": "fp16"}, "mixed"),
        ({"device": "mali", "dtype": "fp16"}, "mixed"),
        ({"device": "adreno"}, "fp32"),
        ({"device": "nvidia", "dtype": "fp16"}, "fp32"),
        ({"device": "cpu", "dtype": "fp16"}, "fp32"),
        ({"target": "cuda", "dtype": "fp16"}, "fp32"),
        ({"device": "cpu", "dtype": "fp16", "accumulate": "mixed"}, "mixed"),
    ],
)
def test_what_auto_stands_for(options, chosen):
    assert Compilation(None, CompileOptions(**options)).options.accumulate == chosen


def test_all_sums_of_mobilenet_are_narrowed(tmp_path):
    build("mobilenet_v2", tmp_path / "model.onnx", size=32, width=0.35)
    with_sums = compiled(tmp_path / "model.onnx")
    # 52 convolutions and the classifier.
    assert len(with_sums.metadata["half_sums"]) == 53
    with_sums.close()


def test_limits_of_what_is_narrowed():
    weight = np.linspace(-3, 3, 12, dtype=np.float32)
    assert may_sum_in_half(MOST_PRODUCTS, weight)
    assert not may_sum_in_half(MOST_PRODUCTS + 1, weight)
    assert may_sum_in_half(LARGEST_WINDOW)
    assert not may_sum_in_half(LARGEST_WINDOW + 1)
    assert may_sum_in_half(12, weight * 20000)
    assert not may_sum_in_half(12, weight * 30000)


@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_only_kernels_with_such_sums_compute_in_half(storage, tmp_path):
    kernels = sources(mixed(), tmp_path, storage=storage)
    narrow = {name for name, body in kernels.items() if re.search(r"\bhalf\d* ", body)}
    anchors = {re.sub(r"\d+(?=_|$)", "", name) for name in narrow}
    assert any("conv2d" in name for name in anchors)
    assert any("pool" in name for name in anchors)
    assert any("dense" in name for name in anchors)
    assert not any("softmax" in name or "mean" in name or "max" in name for name in anchors)
    # The window of 9x9 is the other average.
    assert sum("pool" in name for name in narrow) == 1


# -- the code ------------------------------------------------------------------------------------


def test_textures_are_read_as_half_into_registers_of_half(tmp_path):
    kernels = sources(NETWORKS["fire"](squeeze=5), tmp_path)
    (body,) = (b for name, b in kernels.items() if "conv2d1" in name)
    assert "half4 conv2d_local_ptr" in body
    assert "half4 param_0_local_ptr" in body
    # The weights and the input; the bias of the epilogue is fp32.
    assert body.count("READ_IMAGEH(param_0_ptr") > 0
    assert "READ_IMAGEF(param_0_ptr" not in body
    assert "READ_IMAGEF(param_1_ptr" in body
    assert "write_imagef" in body


def test_padding_is_read_as_halves(tmp_path):
    kernels = sources(NETWORKS["fire"](), tmp_path)
    (body,) = (b for name, b in kernels.items() if "conv2d_add_relu" in name)
    assert "READ_IMAGEF(x_0_blocked" not in body
    assert "read_imageh(x_0_blocked" in body


def test_buffers_are_read_without_a_conversion(tmp_path):
    kernels = sources(NETWORKS["fire"](), tmp_path, storage="buffer")
    (body,) = (b for name, b in kernels.items() if "conv2d1" in name)
    assert "tvmflow_half_read4" in body
    assert not re.search(r"convert_half4\(+tvmflow_half_load4", body)
    assert "tvmflow_half_store4" in body


# -- right on a device -------------------------------------------------------------------------


def check(model, device, storage, rng, tmp_path):
    module = compiled(model, device, storage)
    feeds = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in module.inputs}
    got = half_device().run(module, feeds, tmp_path)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    table = table_for(module.metadata)
    for info, reference in zip(module.outputs, expected, strict=True):
        result = compare(info.name, got[info.name], reference, tolerance_for("float32", table))
        assert result.passed, result
    return module.metadata


@pytest.mark.opencl
@pytest.mark.parametrize(("name", "device", "storage"), CASES)
def test_networks(name, device, storage, rng, tmp_path):
    metadata = check(NETWORKS[name](), device, storage, rng, tmp_path)
    assert metadata["half_sums"]


@pytest.mark.slow
@pytest.mark.opencl
def test_mobilenet(rng, tmp_path):
    """52 layers in sequence; `test_networks` has the storages."""
    build("mobilenet_v2", tmp_path / "model.onnx", size=32, width=0.35)
    check(onnx.load(tmp_path / "model.onnx"), "adreno", "texture", rng, tmp_path)


@pytest.mark.opencl
@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_what_is_summed_in_half_stops_growing_and_means_do_not(storage, tmp_path):
    g = Graph(1, 1, 64, 64)
    many = g.constant(np.ones((3000, 1, 1, 1), np.float32))
    x = g.node("Conv", ["x", many], 3000)
    ones = g.constant(np.ones((1, 3000, 1, 1), np.float32))
    x = g.node("Conv", [x, ones], 1)
    model = g.model(g.node("GlobalAveragePool", [x], 1))
    module = compiled(model, storage=storage)
    # Items that sum a part each would not come as far.
    chosen = module.metadata["schedules"]
    split = {n: c["knobs"] for n, c in chosen.items() if "split_i" in c["knobs"]}
    knobs = {name: {**values, "split_i": 1} for name, values in split.items()}
    module = compiled(model, storage=storage, knobs=knobs)
    got = half_device().run(module, {"x": np.ones((1, 1, 64, 64), np.float32)}, tmp_path)
    # 2048 + 1 is 2048 in half; the mean of 4,096 such numbers is exact.
    assert got[module.outputs[0].name].item() == 2048.0


# -- tolerance ----------------------------------------------------------------------------------


def test_verify_allows_what_half_sums_need(tmp_path, monkeypatch, rng):
    path = tmp_path / "model.onnx"
    onnx.save(NETWORKS["fire"](), path)
    module = compiled(str(path))
    table = table_for(module.metadata)
    assert table["float32"].absolute > STORED_AS_HALF["float32"].absolute
    feeds = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in module.inputs}
    (reference,) = onnxruntime.InferenceSession(path).run(None, feeds)
    scale = np.abs(reference).max()
    for error, passes in ((0.9, True), (1.1, False)):
        off = reference.copy()
        index = np.unravel_index(np.abs(reference).argmin(), reference.shape)
        off[index] += error * table["float32"].absolute * scale
        off[index] += np.sign(error) * table["float32"].relative * abs(reference[index]) * error
        monkeypatch.setattr(
            tvmflow.Module, "__call__", lambda self, values, off=off: {self.outputs[0].name: off}
        )
        assert verify(path, module, feeds).passed == passes


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        ({"accumulate": "fp8"}, "The accumulation 'fp8' is not known", "fp32|choose"),
        ({"accumulate": "fp16"}, "Sums in fp16 .* stored in fp32", "Add `dtype=fp16`"),
        ({"accumulate": "mixed"}, "Sums in mixed .* stored in fp32", "Add `dtype=fp16`"),
        (
            {"accumulate": "fp16", "dtype": "fp16", "device": "nvidia"},
            "for the device nvidia, whose OpenCL lacks cl_khr_fp16",
            "`accumulate=fp16`",
        ),
    ],
)
def test_impossible_choices(options, message, remedy):
    with pytest.raises(TargetError, match=message) as error:
        tvmflow.compile(NETWORKS["fire"](), **{"device": "adreno", **options})
    assert re.search(remedy, error.value.remedy)


def test_auto_asks_the_running_device(monkeypatch):
    running = DeviceInfo(
        "opencl", 0, "A small CPU", max_work_group_size=64, image2d_max_width=64,
        image2d_max_height=64, image_max_array_size=64,
    )  # fmt: skip
    monkeypatch.setattr("tvmflow.runtime.devices.opencl_devices", lambda: [running])
    with pytest.raises(TargetError, match="the device A small CPU, whose OpenCL lacks"):
        compiled(NETWORKS["fire"](), device="auto", storage="buffer")
    # The devices of the preset differ: the device that loads the module decides.
    assert PRESETS["cpu"].fp16 is None


@pytest.mark.opencl
def test_loading_says_what_the_device_lacks(monkeypatch, tmp_path):
    module = compiled(NETWORKS["fire"](), device="cpu", storage="buffer")
    lacking = DeviceInfo("opencl", 0, "A small CPU", extensions=("cl_khr_fp64",))
    monkeypatch.setattr(session, "opencl_devices", lambda: [lacking])
    loaded = []
    monkeypatch.setattr(session.tvm_ffi, "load_module", lambda *a, **k: loaded.append(a))
    with pytest.raises(
        DeviceError, match=r"kernels need cl_khr_fp16, .* A small CPU lacks"
    ) as error:
        module.open()
    assert "with `accumulate=fp32`" in error.value.remedy
    assert loaded == []
