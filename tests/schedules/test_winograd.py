"""Winograd's convolution: exact matrices, right results, and the choice of it."""

from __future__ import annotations

import itertools
import logging
import re
from contextlib import closing
from fractions import Fraction

import numpy as np
import onnx
import pytest
from onnx import helper
from support.onnx_models import expected, model_of
from support.turns import in_turn

import tvmflow
from tvmflow.devices.target import PRESETS
from tvmflow.errors import CompileError
from tvmflow.graph.layout.algorithms import WORTH, Convolution, choose, cost, impossible
from tvmflow.schedules.winograd import TAPS, matrices, transformed_weight
from tvmflow.verify.tolerance import OPERATOR, assert_close, compare

WINOGRAD = {"winograd2": 2, "winograd4": 4}


def dense(matrix):
    return np.array([[float(value) for value in row] for row in matrix])


# -- the matrices ---------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", WINOGRAD.values())
def test_the_matrices_are_exact(outputs):
    m, rng = matrices(outputs), np.random.default_rng(0)
    taken = outputs + TAPS - 1
    d = [Fraction(int(v)) for v in rng.integers(-9, 9, taken)]
    g = [Fraction(int(v)) for v in rng.integers(-9, 9, TAPS)]

    def times(matrix, vector):
        return [sum(c * v for c, v in zip(row, vector, strict=True)) for row in matrix]

    products = [a * b for a, b in zip(times(m.g, g), times(m.bt, d), strict=True)]
    direct = [sum(g[k] * d[i + k] for k in range(TAPS)) for i in range(outputs)]
    assert times(m.at, products) == direct


@pytest.mark.parametrize("outputs", WINOGRAD.values())
def test_two_dimensions_in_float64(outputs):
    m, rng = matrices(outputs), np.random.default_rng(1)
    d = rng.standard_normal((outputs + 2, outputs + 2))
    weight = rng.standard_normal((1, 1, 3, 3))
    v = dense(m.bt) @ d @ dense(m.bt).T
    got = dense(m.at) @ (transformed_weight(weight, outputs)[:, :, 0, 0] * v) @ dense(m.at).T
    windows = np.lib.stride_tricks.sliding_window_view(d, (3, 3))
    np.testing.assert_allclose(got, (windows * weight[0, 0]).sum((2, 3)), atol=1e-13)


def test_constants_of_the_kernels_are_exact_in_fp32():
    for outputs in WINOGRAD.values():
        m = matrices(outputs)
        for value in (v for matrix in (m.at, m.bt) for row in matrix for v in row):
            assert Fraction(float(np.float32(float(value)))) == value


def test_f2_has_the_published_matrices():
    m = matrices(2)
    assert dense(m.bt).tolist() == [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]]
    assert dense(m.g).tolist() == [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]


# -- numbers ----------------------------------------------------------------------------------


def network(inputs, outputs, height, width, pads=(1, 1, 1, 1), batch=1, before=False, **attributes):
    """Build a convolution with bias, a residual if the shapes are equal, and ReLU."""
    rng = np.random.default_rng(inputs * height + width)
    kernel = attributes.pop("kernel", 3)
    groups = attributes.get("group", 1)
    shape = (outputs, inputs // groups, kernel, kernel)
    weight = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    bias = rng.standard_normal(outputs)
    constants = {"w": weight.astype(np.float32), "b": bias.astype(np.float32)}
    nodes = [helper.make_node("Tanh", ["x"], ["t"])] if before else []
    last = "t" if before else "x"
    nodes += [
        helper.make_node("Conv", [last, "w", "b"], ["c"], name="layer", pads=pads, **attributes)
    ]
    same = inputs == outputs and pads == (1, 1, 1, 1) and not attributes
    nodes += [helper.make_node("Add", ["c", last], ["r"])] if same else []
    nodes += [helper.make_node("Relu", ["r" if same else "c"], ["y"])]
    model = model_of(nodes, {"x": (batch, inputs, height, width)}, "y", constants, opset=18)
    return onnx.shape_inference.infer_shapes(model)


#: Channels that fill no block, extents that no tile divides, padding on some sides, batches.
CASES = {
    "18 channels of 13x9": (18, 30, 13, 9),
    "a picture in two images": (3, 18, 7, 7, (1, 1, 1, 1), 2),
    "a residual": (30, 30, 14, 14),
    "no padding": (5, 8, 8, 8, (0, 0, 0, 0)),
    "uneven padding": (6, 7, 10, 11, (2, 1, 0, 2), 2),
}

#: Device and storage: lanes of 16 and of 4, buffers and textures; they take turns.
KINDS = [
    pytest.param(*kind, id="-".join(kind))
    for kind in (("cpu", "buffer"), ("adreno", "texture"), ("adreno", "buffer"), ("nvidia", "auto"))
]


def run(model, dtype="fp32", **options):
    """Check a network's results and return the module's metadata."""
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    (reference,) = expected(model, {"x": x})
    with tvmflow.compile(model, dtype=dtype, **options) as module:
        tolerance = OPERATOR["float16" if dtype == "fp16" else "float32"]
        result = compare("y", module(x=x)["y"], reference, tolerance)
        assert result.passed, result
        return module.metadata


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("algorithm", "case", "device", "storage"),
    in_turn(itertools.product(WINOGRAD, CASES), KINDS, [kind.id for kind in KINDS]),
)
def test_right_numbers(algorithm, case, device, storage):
    options = {"target": "opencl", "device": device, "storage": storage}
    meta = run(network(*CASES[case]), algorithms={"layer": algorithm}, **options)
    families = [entry["family"] for entry in meta["schedules"].values()]
    assert [f for f in families if "winograd" in f or "conv" in f] == [
        "winograd_input",
        "winograd_product",
        "winograd_output",
    ]


@pytest.mark.parametrize("algorithm", WINOGRAD)
def test_on_llvm(algorithm):
    run(network(18, 30, 13, 9), target="llvm", algorithms={"layer": algorithm})


@pytest.mark.opencl
@pytest.mark.parametrize(("device", "storage"), [("cpu", "buffer"), ("adreno", "texture")])
def test_f2_stored_in_16_bits(device, storage):
    options = {"dtype": "fp16", "accumulate": "fp32", "algorithms": {"layer": "winograd2"}}
    meta = run(network(64, 64, 9, 7), target="opencl", device=device, storage=storage, **options)
    stored = {p["tensor"]: p["stored_as"] for p in meta["placements"]}
    (tiles,) = (kind for name, kind in stored.items() if name.endswith("_tiles"))
    assert tiles == "float16"


def test_f4_would_lose_too_much_of_16_bits():
    """It is refused because rounding tiles, weights and products to 16 bits has a large error."""
    rng = np.random.default_rng(2)
    used = {}
    for outputs in WINOGRAD.values():
        m, taken = matrices(outputs), outputs + 2
        d = rng.standard_normal((64, 64, taken, taken)).astype(np.float16)
        w = (rng.standard_normal((16, 64, 3, 3)) / 24).astype(np.float16)
        half = np.float16
        v = np.einsum("pk,cikl,ql->pqci", dense(m.bt), d, dense(m.bt), optimize=True)
        u = transformed_weight(w.astype(np.float64), outputs).astype(half).astype(np.float64)
        products = u @ v.astype(half).astype(np.float64)
        products = products.astype(half).astype(np.float64)
        got = np.einsum("yp,pqoi,xq->oiyx", dense(m.at), products, dense(m.at), optimize=True)
        windows = np.lib.stride_tricks.sliding_window_view(d.astype(np.float64), (3, 3), (2, 3))
        reference = np.einsum("ciyxpq,ocpq->oiyx", windows, w.astype(np.float64), optimize=True)
        used[outputs] = compare("y", got, reference, OPERATOR["float16"]).used
    assert used[2] < 1 < used[4]


@pytest.mark.nvcc
@pytest.mark.parametrize("algorithm", WINOGRAD)
def test_it_compiles_for_cuda(algorithm):
    options = {"target": "cuda", "algorithms": {"layer": algorithm}}
    with closing(tvmflow.compile(network(18, 30, 13, 9), **options)) as module:
        assert sum("winograd" in kernel["name"] for kernel in module.metadata["kernels"]) == 3


# -- the kernels --------------------------------------------------------------------------------


@pytest.mark.opencl
def test_the_epilogue_is_fused_into_the_output_transform():
    """There are three kernels: the last has bias, residual and ReLU; a producer has its own."""
    model = network(32, 32, 12, 12, before=True)
    meta = run(model, target="opencl", device="adreno", algorithms={"layer": "winograd4"})
    names = [kernel["function"] for kernel in meta["kernels"] if "winograd" in kernel["function"]]
    assert names[:2] == ["winograd_input", "winograd_product"]
    assert re.fullmatch(r"fused_winograd_output_add\d*_add\d*_relu\d*", names[2])
    assert len(names) == 3


@pytest.mark.opencl
def test_no_choice_of_a_row_is_left_in_the_kernels(tmp_path):
    model = network(32, 32, 16, 16, (0, 0, 0, 0))
    options = {"target": "opencl", "device": "cpu", "storage": "buffer", "dump_ir": tmp_path}
    with tvmflow.compile(model, algorithms={"layer": "winograd4"}, **options):
        (dump,) = tmp_path.glob("*_build.0.opencl")
    source = dump.read_text()
    body = source[source.index("// Function: winograd_input_kernel") :]
    body = body[body.index("{") : body.index("// Function", 10)]
    assert "put_float16" in body
    assert "?" not in body
    assert "select" not in body


@pytest.mark.oclgrind
@pytest.mark.opencl
@pytest.mark.parametrize(("device", "storage"), [("adreno", "texture"), ("mali", "buffer")])
@pytest.mark.parametrize("algorithm", WINOGRAD)
def test_no_kernel_goes_out_of_bounds(algorithm, device, storage, under_oclgrind):
    model = network(6, 7, 10, 11, (2, 1, 0, 2), 2)
    x = np.random.default_rng(5).standard_normal((2, 6, 10, 11)).astype(np.float32)
    with tvmflow.compile(
        model, device=device, storage=storage, algorithms={"layer": algorithm}
    ) as module:
        assert any("winograd_output" in kernel["name"] for kernel in module.metadata["kernels"])
        outputs = under_oclgrind()(module, {"x": x})
    assert_close(outputs["y"], expected(model, {"x": x})[0], OPERATOR)


# -- the choice ---------------------------------------------------------------------------------


def layer(inputs=64, outputs=64, extent=56, **changes):
    values = {
        "batch": 1, "inputs": inputs, "outputs": outputs, "height": extent, "width": extent,
        "kernel": (3, 3), "strides": (1, 1), "dilation": (1, 1),
        "groups": 1,
    }  # fmt: skip
    return Convolution(**{**values, **changes})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kernel": (5, 5)}, "it has a 5×5 window"),
        ({"kernel": (1, 3)}, "it has a 1×3 window"),
        ({"strides": (2, 2)}, "it has strides of 2 and 2"),
        ({"dilation": (1, 2)}, "it has dilations of 1 and 2"),
        ({"groups": 4}, "it has 4 groups"),
        ({"groups": 64}, "it has 64 groups"),
    ],
)
def test_convolutions_that_winograd_cannot_compute(change, reason):
    convolution = layer(**change)
    assert impossible(convolution, "winograd2", PRESETS["cpu"], False) == reason
    assert impossible(convolution, "direct", PRESETS["cpu"], False) is None
    chosen = choose("c", convolution, PRESETS["cpu"], None, False)
    assert (chosen.algorithm, chosen.reason) == ("direct", reason)
    with pytest.raises(
        CompileError, match=f"winograd2 was asked for the convolution c, but {reason}"
    ):
        choose("c", convolution, PRESETS["cpu"], "winograd2", False)


@pytest.mark.parametrize("device", PRESETS)
def test_large_layers_use_winograd_and_small_ones_do_not(device):
    preset = PRESETS[device]
    assert choose("c", layer(256, 256, 28), preset, None, False).algorithm in WINOGRAD
    assert choose("c", layer(3, 32, 112), preset, None, False).algorithm == "direct"
    assert choose("c", layer(256, 256, 2), preset, None, False).algorithm == "direct"
    assert choose("c", layer(256, 256, 28), preset, None, True).algorithm != "winograd4"


def test_sums_in_16_bits_are_direct():
    chosen = choose("c", layer(), PRESETS["adreno"], None, half=True, half_sums=True)
    assert (chosen.algorithm, "sums are in 16 bits" in chosen.reason) == ("direct", True)
    with pytest.raises(CompileError, match="sums are in 16 bits"):
        choose("c", layer(), PRESETS["adreno"], "winograd2", half=True, half_sums=True)


def test_a_small_gain_is_not_worth_it():
    """The cost for this map is 0.9 to 1.0 of the direct schedule's."""
    preset = PRESETS["adreno"]
    convolution = layer(72, 72, 56)
    share = cost(convolution, "winograd4", preset) / cost(convolution, "direct", preset)
    assert WORTH < share < 1
    assert choose("c", convolution, preset, None, False).algorithm == "direct"


def test_depthwise_convolutions_refuse_winograd():
    model = network(18, 18, 13, 9, group=18)
    with pytest.raises(CompileError, match=r"winograd2 was asked .* layer, but it has 18 groups"):
        tvmflow.compile(model, target="llvm", algorithms={"layer": "winograd2"})


def test_fp16_refuses_f4():
    options = {"target": "opencl", "device": "adreno", "dtype": "fp16"}
    with pytest.raises(CompileError, match="16 bits") as caught:
        tvmflow.compile(network(18, 30, 13, 9), algorithms={"layer": "winograd4"}, **options)
    assert '`dtype="fp32"`' in str(caught.value)


@pytest.mark.parametrize("name", ["layer", "c"])
def test_names_are_those_of_the_node_or_its_tensor(name):
    model = network(18, 30, 13, 9)
    with tvmflow.compile(model, target="llvm", algorithms={name: "winograd2"}) as module:
        (choice,) = module.metadata["algorithms"]
        assert module.metadata["options"]["algorithms"] == {name: "winograd2"}
    assert choice == {
        "convolution": "layer",
        "algorithm": "winograd2",
        "asked": True,
        "reason": "asked for",
    }


@pytest.mark.parametrize(
    ("algorithms", "message"),
    [
        ({"layr": "winograd2"}, "'layr', which is no convolution.*nearest are layer"),
        ({"y": "winograd2"}, "'y', which is no convolution"),
        ({"layer": "fast"}, "is 'fast'; expected one of direct, gemm, winograd2, winograd4"),
        ({"layer": "winograd2", "c": "direct"}, "both winograd2 and direct"),
    ],
)
def test_names_and_algorithms_that_do_not_exist(algorithms, message):
    with pytest.raises(CompileError, match=message):
        tvmflow.compile(network(18, 30, 13, 9), target="llvm", algorithms=algorithms)


def test_every_convolution_is_logged_with_the_reason(caplog):
    with caplog.at_level(logging.INFO, logger="tvmflow"):
        tvmflow.compile(network(64, 64, 28, 28), target="llvm").close()
    (line,) = (r.getMessage() for r in caplog.records if r.getMessage().startswith("algorithm"))
    assert "layer  winograd4  cost of direct 1.00, winograd2" in line
