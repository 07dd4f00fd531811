"""Every family's CUDA kernels, and small networks, against ONNX Runtime, without a GPU."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import numpy as np
import onnx
import pytest
from support.checks import check_outputs
from support.cuda_host import cuda_host
from support.networks import NETWORKS
from support.onnx_models import model_of
from support.operators import check, conv, feeds_for, random, single

import tvmflow
from tvmflow.models import build as build_model
from tvmflow.schedules import FAMILIES

pytestmark = [pytest.mark.cuda_host, pytest.mark.onnxruntime]


def gemm(rows, inputs, outputs):
    """Build a dense layer with a bias."""
    constants = {"w": random((outputs, inputs), inputs**-0.5), "b": random((outputs,))}
    return single("Gemm", [(rows, inputs)], constants, transB=1)


def transposed_convolution():
    weight = {"w": random((6, 5, 3, 3))}
    options = {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}
    return single("ConvTranspose", [(1, 6, 7, 7)], weight, **options)


def layer_norm(rows, length):
    constants = {"s": random((length,), seed=3) + 2, "b": random((length,), seed=4)}
    return single("LayerNormalization", [(rows, length)], constants, opset=17)


def arg_max():
    return model_of("y = ArgMax<axis = 1>(x0)", {"x0": (3, 777)})


def booleans():
    """Build comparisons whose booleans are combined, stored and read, four channels at once."""
    constants = {"w": random((16, 6, 3, 3)), "v": random((1, 16, 1, 1)), "zero": np.float32(0)}
    constants["mask"] = np.arange(16).reshape(1, 16, 1, 1) % 3 == 0
    nodes = """
        a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Greater(a, zero) c = Xor(b, mask)
        d = Cast<to = 1>(c) y = Conv(d, v) z = Where(c, a, zero)
    """
    return model_of(nodes, {"x": (1, 6, 5, 5)}, "y z", constants)


def scatter():
    """Build a scatter, whose loops TVM wrote itself."""
    updates = {"i": np.array([[0, 1], [2, 6]]), "u": random((2, 3))}
    return single("ScatterND", [(4, 7, 3)], updates, opset=18, reduction="add")


def quantized():
    """Build a network of 8-bit tensors whose sums need 32 bits."""
    rng = np.random.default_rng(2)
    weight = rng.integers(0, 256, (301, 33)).astype(np.uint8)
    constants = {"xz": np.uint8(7), "w": weight, "wz": np.uint8(3)}
    nodes = "b = Cast<to = 2>(x) y = MatMulInteger(b, w, xz, wz)"
    return model_of(nodes, {"x": (5, 301)}, "y", constants)


def quantized_conv():
    """Build dot products of four bytes: a window with padding, and one batch of pixels."""
    rng = np.random.default_rng(2)
    constants = {
        "w": rng.integers(-128, 128, (18, 30, 3, 3)).astype(np.int8), "xz": np.uint8(113),
        "v": rng.integers(-128, 128, (9, 18, 1, 1)).astype(np.int8),
    }  # fmt: skip
    nodes = """
        a = Abs(x) b = Cast<to = 2>(a) c = ConvInteger<pads = [1, 1, 1, 1]>(b, w, xz)
        d = Cast<to = 2>(c) y = ConvInteger(d, v)
    """
    return model_of(nodes, {"x": (1, 30, 7, 9)}, "y", constants)


#: Networks with channels, rows and columns that are no whole vectors, tiles or work-groups, and the
#: families that each needs.
CASES = {
    "conv": (partial(conv, (2, 31, 9, 5), 18), {"conv2d"}),
    "conv_first": (partial(conv, (1, 3, 33, 29), 20, (7, 7), stride=2, pad=3), {"conv2d"}),
    "conv_dilated": (partial(conv, (1, 9, 13, 17), 20, dilation=2, pad=2), {"conv2d"}),
    "conv_residual": (partial(conv, (1, 18, 9, 9), 18, residual=True), {"conv2d"}),
    "pointwise": (partial(conv, (1, 24, 13, 11), 37, (1, 1), pad=0), {"conv2d_1x1"}),
    "pointwise_split": (partial(conv, (1, 515, 3, 7), 130, (1, 1), pad=0), {"conv2d_1x1"}),
    "pointwise_product": (partial(conv, (1, 72, 11, 11), 150, (1, 1), pad=0), {"gemm_simt"}),
    "pointwise_strided": (
        partial(conv, (1, 24, 13, 13), 20, (1, 1), pad=0, stride=2), {"conv2d_1x1"}
    ),
    "depthwise": (partial(conv, (1, 18, 14, 13), 18, (5, 5), pad=2, groups=18), {"depthwise"}),
    "depthwise_strided": (partial(conv, (2, 7, 9, 9), 7, groups=7, stride=2), {"depthwise"}),
    "grouped": (partial(conv, (1, 6, 9, 9), 10, groups=2), {"grouped"}),
    "transposed": (transposed_convolution, {"conv2d_transpose"}),
    "max_pool": (
        partial(single, "MaxPool", [(1, 5, 10, 10)], kernel_shape=[3, 3], strides=[2, 2],
                ceil_mode=1),
        {"pooling"},
    ),
    "average_pool": (
        partial(single, "AveragePool", [(2, 7, 9, 11)], kernel_shape=[3, 3], pads=[1] * 4),
        {"pooling"},
    ),
    "gemv": (partial(gemm, 1, 1024, 126), {"gemv"}),
    "gemv_3_rows": (partial(gemm, 3, 256, 37), {"gemv"}),
    # The last work-group has items beyond the last column.
    "dense": (partial(gemm, 17, 33, 1001), {"dense"}),
    "matmul": (partial(single, "MatMul", [(3, 65, 70), (3, 70, 37)]), {"matmul"}),
    "quantized": (quantized, {"dense"}),
    "quantized_conv": (quantized_conv, {"conv2d", "conv2d_1x1"}),
    "softmax": (partial(single, "Softmax", [(5, 1003)], axis=1), {"softmax"}),
    "softmax_channels": (partial(single, "Softmax", [(1, 7, 5, 9)], axis=1), {"softmax"}),
    # Two work-groups share the row.
    "softmax_long": (partial(single, "Softmax", [(1, 20011)], axis=1), {"softmax"}),
    "layer_norm": (partial(layer_norm, 7, 197), {"normalization"}),
    "mean_of_maps": (partial(single, "GlobalAveragePool", [(1, 7, 19, 19)]), {"reduction"}),
    "mean_of_all": (
        partial(single, "ReduceMean", [(300, 301)], opset=11, keepdims=0), {"reduction"}
    ),
    "booleans": (booleans, {"conv2d"}),
    "arg_max": (arg_max, {"reduction"}),
    "turned": (partial(single, "Transpose", [(2, 24, 40)], perm=[0, 2, 1]), {"transpose"}),
    "turned_in_shared_memory": (
        partial(single, "Transpose", [(33, 47)], perm=[1, 0]), {"transpose"}
    ),
    "resize": (
        partial(single, "Resize", [(1, 3, 6, 7)],
                {"roi": np.array([], np.float32), "scales": np.array([1, 1, 2, 3], np.float32)},
                mode="linear"),
        {"resize"},
    ),
    "sampled": (
        partial(single, "GridSample", [(1, 5, 6, 7)],
                {"grid": np.linspace(-1.1, 0.9, 24, dtype=np.float32).reshape(1, 3, 4, 2)}),
        {"grid_sample"},
    ),
    "moved": (partial(single, "Concat", [(1, 3, 5, 5), (1, 5, 5, 5)], axis=1), {"moving"}),
    "running_sum": (
        partial(single, "CumSum", [(3, 41)], {"axis": np.array(1, np.int64)}), {"moving"}
    ),
    "scatter": (scatter, {"fallback"}),
}  # fmt: skip


#: Cases that are similar to others in the list; compiling them takes minutes.
ALIKE = {
    *("conv_dilated", "pointwise_split", "pointwise_strided", "depthwise_strided"),
    *("average_pool", "gemv_3_rows", "softmax_channels", "mean_of_maps", "turned", "running_sum"),
    *("conv_first", "conv_residual", "quantized", "softmax_long"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow if c in ALIKE else ()) for c in CASES]
)
def test_operator(case):
    model, families = CASES[case]
    assert families <= set(check(model(), "cuda", "nvidia"))


@pytest.mark.parametrize(
    "algorithm", [pytest.param("winograd2", marks=pytest.mark.slow), "winograd4"]
)
def test_winograd(algorithm):
    model = conv((1, 18, 13, 9), 30)
    assert set(check(model, "cuda", "nvidia", algorithms={"y0": algorithm})) >= WINOGRAD


WINOGRAD = {"winograd_input", "winograd_product", "winograd_output"}


def test_every_family_is_there():
    # Products of 16 bits are in test_gemm.py; custom operators and open extents in tests/ops;
    # other families with their own loops in test_recurrent.py and test_selection.py.
    elsewhere = {"gemm_tensor", "masked_mean", "boxes", "open_extents", *WINOGRAD}
    elsewhere |= {"compaction", "nms", "recurrent", "attention", "attention_groups"}
    covered = elsewhere.union(*(families for _, families in CASES.values()))
    assert covered == {family.NAME for family in FAMILIES}


def mobilenet(folder, builder="mobilenet_v2", **parameters):
    build_model(builder, folder / "model.onnx", size=32, **parameters)
    return onnx.load(folder / "model.onnx")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("mobilenet_v2", marks=pytest.mark.slow),
        pytest.param("bottlenecks", marks=pytest.mark.slow),
        "channel_shuffle",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in NETWORKS
            if name.startswith(("inception", "squeeze_and_excite", "u_net", "channels_"))
        ),
    ],
)
def test_network(name, tmp_path):
    model = NETWORKS[name]() if name in NETWORKS else mobilenet(tmp_path, width=0.35)
    with closing(tvmflow.compile(model, target="cuda")) as module:
        check_outputs(model, module, feeds_for(model), run=cuda_host())
