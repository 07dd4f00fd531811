"""Matrix products: any batch, extents and device; tiles in local memory; sums of few rows."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from onnx import helper
from support.checks import options_of
from support.knob_choices import candidates
from support.onnx_models import expected
from support.operators import build
from support.operators import random as normal
from support.turns import in_turn

import tvmflow
from tvmflow.devices.target import PRESETS
from tvmflow.schedules import gemv, matmul
from tvmflow.verify.tolerance import OPERATOR, STORED_AS_HALF, assert_close

#: Target, device, storage and dtype.
TARGETS = [
    pytest.param(("llvm", "cpu", "buffer", "fp32"), id="llvm"),
    *(
        pytest.param(("opencl", *rest), id="-".join(rest), marks=pytest.mark.opencl)
        for rest in (
            ("cpu", "buffer", "fp32"),
            ("cpu", "texture", "fp16"),
            ("adreno", "texture", "fp32"),
            ("mali", "buffer", "fp16"),
        )
    ),
]

#: Variants that take turns: 32 bits on a CPU, and the others.
TURNS = (
    ("llvm", "cpu-buffer-fp32"),
    ("cpu-texture-fp16", "adreno-texture-fp32", "mali-buffer-fp16"),
)

#: Shapes of both operands; the extents of their products are no multiples of tiles.
COMPUTED = {
    "matrices": ((64, 48), (48, 40)),
    "odd": ((7, 13), (13, 31)),
    "attention": ((1, 3, 37, 24), (1, 3, 24, 37)),
    "broadcast_left": ((2, 1, 13, 33), (3, 33, 18)),
    "broadcast_right": ((3, 5, 6), (6, 7)),
    "matrix_times_batch": ((20, 9), (4, 9, 31)),
    "one_row": ((1, 96), (96, 50)),
    "prime": ((1, 197, 16), (1, 16, 101)),
    "few_columns": ((3, 99, 8), (3, 8, 7)),
}

#: Left operand and constant weights.
CONSTANT = {
    "sequence": ((1, 19, 30), (30, 33)),
    "few_rows_each": ((12, 3, 5), (5, 7)),
    "batch": ((2, 9, 10, 11), (11, 20)),
    "gemv": ((1, 256), (256, 126)),
    "gemv_3_rows": ((3, 96), (96, 7)),
    "gemv_long": ((1, 4096), (4096, 20)),
    "gemv_176_items": ((2, 176), (176, 44)),
}


def product(shapes, weights=None, activation=None):
    constants = {} if weights is None else {"w": weights}
    inputs = {"a": shapes[0]} if weights is not None else {"a": shapes[0], "w": shapes[1]}
    nodes = [helper.make_node("MatMul", ["a", "w"], ["p"])]
    if activation:
        nodes.append(helper.make_node(activation, ["p"], ["y"]))
    return build(nodes, inputs, ["y" if activation else "p"], constants)


def check(model, feeds, reference, mode):
    with tvmflow.compile(model, **options_of(mode)) as m:
        (output,) = m(**feeds).values()
        table = STORED_AS_HALF if mode[3] == "fp16" else OPERATOR
        assert_close(output, reference.astype(np.float32), table)
        return [kernel["family"] for kernel in m.metadata["kernels"]]


@pytest.mark.parametrize(("case", "mode"), in_turn(COMPUTED, TARGETS, *TURNS))
def test_product_of_computed_matrices(case, mode):
    shapes = COMPUTED[case]
    feeds = {"a": normal(shapes[0], seed=1), "w": normal(shapes[1], seed=2)}
    reference = np.tanh(feeds["a"].astype(np.float64) @ feeds["w"].astype(np.float64))
    families = check(product(shapes, activation="Tanh"), feeds, reference, mode)
    assert ("dense" if mode[1] == "cpu" else "matmul") in families


@pytest.mark.parametrize(("case", "mode"), in_turn(CONSTANT, TARGETS, *TURNS))
def test_product_with_weights(case, mode):
    shapes = CONSTANT[case]
    weights = normal(shapes[1], shapes[1][0] ** -0.5, seed=2)
    feeds = {"a": normal(shapes[0], seed=1)}
    reference = np.maximum(feeds["a"].astype(np.float64) @ weights.astype(np.float64), 0)
    model = product(shapes, weights, activation="Relu")
    families = check(model, feeds, reference, mode)
    assert ("gemv" if case.startswith("gemv") and mode[1] != "cpu" else "dense") in families


@pytest.mark.opencl
@pytest.mark.parametrize("transposed", [False, True], ids=["columns", "rows"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("device", ["adreno", "nvidia"])
def test_few_rows_with_weights_that_stay_as_they_are(device, rows, transposed):
    """Weights are read unpacked, as large ones are; here they are inputs."""
    shape = (36, 256) if transposed else (256, 36)
    nodes = [helper.make_node("MatMul", ["a", "wt" if transposed else "w"], ["y"])]
    if transposed:
        nodes.insert(0, helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]))
    model = build(nodes, {"a": (rows, 256), "w": shape}, ["y"])
    feeds = {"a": normal((rows, 256), seed=1), "w": normal(shape, seed=2)}
    weights = feeds["w"].T if transposed else feeds["w"]
    reference = feeds["a"].astype(np.float64) @ weights
    assert "gemv" in check(model, feeds, reference, ("opencl", device, "buffer", "fp32"))


def kernel_source(model, folder, device, **options):
    with tvmflow.compile(model, target="opencl", device=device, dump_ir=folder, **options):
        pass
    (path,) = folder.glob("*_build.*.opencl")
    return path.read_text().split("// Function:")[-1]


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "group"),
    [(64, 64, 32, (8, 8)), (3168, 8, 8, (99, 1)), (800, 16, 16, (25, 2)), (52, 16, 32, (26, 2))],
)
def test_groups_of_few_columns_have_many_rows(rows, columns, depth, group):
    knobs = matmul.heuristic(matmul.Shape(8, rows, columns, depth), PRESETS["adreno"])
    assert (knobs.group_m, knobs.group_n) == group


def test_tiles_are_in_local_memory(tmp_path):
    """There are two tiles, two barriers a step, and no test between the products."""
    source = kernel_source(product(((64, 64), (64, 64))), tmp_path, "adreno")
    assert source.count("__local float") == 2
    assert source.count("barrier(CLK_LOCAL_MEM_FENCE)") == 2
    products = [line for line in source.splitlines() if "matmul_left_shared" in line]
    assert not any("?" in line or "if (" in line for line in products)
    assert "put_float4(" in source


@pytest.mark.parametrize("units", [32, 37])
def test_sums_of_a_cpu_stay_in_registers(units, tmp_path):
    """Only constants index the sums; results that are selected one by one come from a copy."""
    source = kernel_source(product(((13, 8), (8, units))), tmp_path, "cpu")
    kernel = source.split("__kernel void dense_kernel")[-1]
    name = "dense_local_local_ptr" if units % 16 else "dense_local_ptr"
    indices = [part.split("]")[0] for part in kernel.split(name + "[")[1:]]
    assert len(indices) > 10
    assert all(index.isdigit() for index in indices)
    hot = kernel.split("for (")[1].split("\n  }")[0]
    assert name in hot
    assert "if (" not in hot


def test_items_of_a_group_share_a_column(tmp_path):
    model = product(((1, 256), (256, 8)), normal((256, 8), seed=2))
    source = kernel_source(model, tmp_path, "nvidia", storage="buffer")
    # Both levels of the tree use the same memory, one after the other.
    assert source.count("barrier(CLK_LOCAL_MEM_FENCE)") == 3
    assert source.count("__local float4") == 1


@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(4))
def test_any_knobs_are_right(seed):
    rng = random.Random(seed)
    shapes = ((2, 40, 24), (2, 24, 56))
    shape = matmul.Shape(2, matmul.padded(40), matmul.padded(56), 24)
    few = gemv.Shape("dense_packed", 2, 12, 240)
    for family, facts, model, feeds in (
        (matmul, shape, product(shapes), dict(zip("aw", shapes, strict=True))),
        (gemv, few, product(((2, 240), None), normal((240, 47), seed=2)), {"a": (2, 240)}),
    ):
        knobs = rng.choice(list(candidates(family, facts, PRESETS["adreno"])))
        values = {name: normal(s, seed=3) for name, s in feeds.items()}
        (reference,) = expected(model, values)
        name = "matmul" if family is matmul else "dense"
        with tvmflow.compile(
            model, target="opencl", device="adreno", knobs={name: dataclasses.asdict(knobs)}
        ) as module:
            assert module.metadata["schedules"][name]["source"] == "given"
            assert module.metadata["schedules"][name]["shape"] == dataclasses.asdict(facts)
            (output,) = module(**values).values()
        assert_close(output, reference, OPERATOR)


@pytest.mark.oclgrind
@pytest.mark.opencl
@pytest.mark.parametrize("device", ["adreno", "mali", "nvidia"])
def test_local_memory_has_no_races(device, under_oclgrind):
    weights = normal((48, 9), seed=2)
    for model, shapes in (
        (product(((2, 13, 20), (2, 20, 11))), {"a": (2, 13, 20), "w": (2, 20, 11)}),
        (product(((3, 48), None), weights), {"a": (3, 48)}),
        (product(((1, 32), (32, 24))), {"a": (1, 32), "w": (32, 24)}),
    ):
        feeds = {name: normal(shape, seed=3) for name, shape in shapes.items()}
        with tvmflow.compile(model, target="opencl", device=device) as module:
            (output,) = under_oclgrind()(module, feeds).values()
        right = feeds.get("w", weights).astype(np.float64)
        assert_close(output, (feeds["a"].astype(np.float64) @ right).astype(np.float32), OPERATOR)
