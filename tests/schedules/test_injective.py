"""Injective operators: each that moves elements, plain and blocked, in each kind of storage."""

from __future__ import annotations

import logging
import re
from functools import cache

import numpy as np
import pytest
import tvm
from support.injective_networks import blocked, ints, plain
from support.knob_choices import candidates
from support.onnx_models import expected as onnx_runtime
from support.row_reductions import schedules
from support.turns import in_turn
from tvm import te, tirx

import tvmflow
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE
from tvmflow.devices.target import resolve, with_storage
from tvmflow.schedules import injective, schedule_function
from tvmflow.schedules.common import Workload
from tvmflow.verify.tolerance import OPERATOR, STORED_AS_HALF, assert_close

CASES = {"plain": plain, "blocked_8": lambda: blocked(8), "blocked_7": lambda: blocked(7)}
VARIANTS = {
    "llvm": {"target": "llvm"},
    "cpu": {"target": "opencl", "device": "cpu"},
    "cpu_half": {"target": "opencl", "device": "cpu", "dtype": "fp16"},
    "adreno_texture": {"target": "opencl", "device": "adreno", "storage": "texture"},
    "adreno_texture_half": {
        "target": "opencl", "device": "adreno", "storage": "texture", "dtype": "fp16",
        "accumulate": "fp32",
    },
    "mali_buffer": {"target": "opencl", "device": "mali", "storage": "buffer"},
    "nvidia_half": {"target": "opencl", "device": "nvidia", "storage": "buffer", "dtype": "fp16"},
}  # fmt: skip


WAYS = [pytest.param(v, id=v, marks=[] if v == "llvm" else [pytest.mark.opencl]) for v in VARIANTS]
#: Variants that cases take in turn; running all for each takes minutes.
TURNS = ("llvm", "cpu", "adreno_texture_half", *VARIANTS)


@cache
def expected(case):
    model = CASES[case]()
    rng = np.random.default_rng(3)
    feeds = {}
    for info in model.graph.input:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        values = rng.standard_normal(shape).astype(np.float32)
        feeds[info.name] = ints(-24, 3, 7, -1, 23) if info.name == "i" else values
    return feeds, onnx_runtime(model, feeds)


@pytest.mark.parametrize(("case", "variant"), in_turn(CASES, WAYS, TURNS))
def test_injective_operators_are_right(variant, case):
    feeds, references = expected(case)
    half = VARIANTS[variant].get("dtype") == "fp16"
    with tvmflow.compile(CASES[case](), **VARIANTS[variant]) as module:
        outputs = module(**feeds)
        for info, reference in zip(module.outputs, references, strict=True):
            table = STORED_AS_HALF if half else OPERATOR
            assert_close(outputs[info.name], reference, table, info.name)
        families = {kernel["family"] for kernel in module.metadata["kernels"]}
    assert "moving" in families
    assert case != "plain" or "transpose" in families


def test_cuda_kernels_are_generated():
    module = tvmflow.compile(plain(), target="cuda")
    families = {kernel["family"] for kernel in module.metadata["kernels"]}
    module.close()
    assert {"moving", "transpose"} <= families


# -- what the schedules look like ----------------------------------------------------------


def scheduled(function, device, storage="buffer"):
    spec = with_storage(resolve("opencl", device), storage)
    with spec.tvm_target:
        return schedule_function(function, spec)


def computed(shapes, result, value, dtype="float32"):
    tensors = [te.placeholder(shape, dtype, name=f"x{i}") for i, shape in enumerate(shapes)]
    made = te.compute(result, lambda *i: value(*tensors, *i), name="y")
    return te.create_prim_func([*tensors, made])


def concat(axis, first, second):
    """Build a concatenation of two tensors along an axis of pictures."""
    result = list(first)
    result[axis] += second[axis]

    def value(a, b, *index):
        place = list(index)
        place[axis] = index[axis] - first[axis]
        return tirx.if_then_else(index[axis] < first[axis], a(*index), b(*place))

    return computed([first, second], result, value)


def test_axes_that_fit_each_other_are_fused():
    """Channels are concatenated in whole pictures: 11x13 pixels are one loop of 143."""
    function = concat(1, (2, 3, 11, 13), (2, 5, 11, 13))
    found = scheduled(function, "adreno")
    assert found.family == "moving"
    assert found.shape == {"outer": 16, "inner": 143, "lanes": 1, "texels": False}
    assert scheduled(concat(1, (2, 3, 12, 13), (2, 5, 12, 13)), "adreno").shape["lanes"] == 4


@pytest.mark.parametrize("storage", ["texture", "buffer"])
@pytest.mark.parametrize("channels", [8, 7])
def test_four_channels_are_stored_together(channels, storage):
    """Padding, concatenation, slices, gathers, depth and space, and resizes write vectors."""
    kinds = set()
    for name, found in schedules(blocked(channels), "adreno", storage=storage).items():
        if found.family not in ("moving", "resize", "transpose") or name.startswith("unpack"):
            continue
        sch = found.schedule
        *_, block = sch.get_child_blocks(sch.get_sblock("root", func_name="main"))
        kinds.add(re.sub(r"\d*$", "", name.removeprefix("fused_").split("_")[-1]))
        innermost = sch.get(sch.get_loops(block)[-1])
        assert int(innermost.extent) == 4, name
        if storage == "texture":
            # A vector that cannot be gathered is assembled in registers, and written as a texel.
            assert "texture" in sch.get(block).writes[0].source.scope(), name
        else:
            assert innermost.kind == tirx.ForKind.VECTORIZED, name
    assert kinds >= {"pad", "concat", "slice", "take", "view", "resize"}


@pytest.mark.parametrize(("channels", "vector"), [(48, 16), (40, 1)])
def test_channels_moved_last_are_vectors_of_a_block_on_a_cpu(channels, vector):
    """The last channels are vectors, as after the depthwise layer of a transformer.

    Blocks, rows, columns and channels of a block become rows and channels.
    """
    blocks = -(-channels // 16)
    x = te.placeholder((1, blocks, 5, 7, 16), name="x")
    turned = te.compute(
        (1, 35, channels), lambda _, p, c: x[0, c // 16, p // 7, p % 7, c % 16] * 2, name="turned"
    )
    found = scheduled(te.create_prim_func([x, turned]), "cpu")
    assert (found.family, found.knobs["vector"]) == ("moving", vector)


def test_seams_of_rows_are_loops_of_their_own_on_a_cpu():
    """Two parts of a row of 60 are one loop over 40 elements and one over 20, without a test."""
    function = concat(2, (8, 9, 40), (8, 9, 20))
    text = scheduled(function, "cpu").schedule.mod["main"].script()
    assert "range(40)" in text
    assert "range(40, 60)" in text
    source = source_of(scheduled(function, "cpu").schedule.mod["main"], "cpu")
    assert "if" not in source.split("{", 1)[1]


def built(function, spec):
    named = function.with_attrs({"global_symbol": "moved", "tirx.is_scheduled": True})
    with spec.tvm_target:
        return tvm.compile(
            tvm.IRModule({"moved": named}), target=spec.tvm_target, tir_pipeline=TIR_PIPELINE
        )


def source_of(function, device):
    source = (
        built(function, with_storage(resolve("opencl", device), "buffer"))
        .mod.imports[0]
        .inspect_source()
    )
    return source[source.rindex("__kernel") :]


@pytest.mark.parametrize("device", ["cpu", "adreno"])
def test_sums_are_stored_as_vectors_without_index_arithmetic(device):
    function = computed([(4, 64, 56, 28)] * 2, (4, 64, 56, 28), lambda a, b, *i: a(*i) + b(*i))
    source = source_of(scheduled(function, device).schedule.mod["main"], device)
    assert f"put_float{16 if device == 'cpu' else 4}" in source
    assert "/" not in source
    assert "%" not in source


def test_work_items_of_a_gpu_compute_several_vectors_far_apart():
    function = computed([(64, 256)], (64, 256), lambda a, i, j: a[i, j] * 2)
    spec = with_storage(resolve("opencl", "adreno"), "buffer")
    knobs = {"vector": 4, "items": 4, "group_size": 64}
    found = schedule_function(function, spec, knobs)
    assert found.source == "given"
    (block,) = (found.schedule.get_sblock("y"),)
    loops = [found.schedule.get(loop) for loop in found.schedule.get_loops(block)]
    assert [int(loop.extent) for loop in loops] == [16, 64, 4, 4]
    assert [loop.thread_binding is not None for loop in loops] == [True, True, False, False]


@pytest.mark.opencl
@pytest.mark.parametrize("device", ["cpu", "adreno"])
def test_all_knobs_are_right(device):
    """A function with a seam and one without are right for every choice of knobs."""
    spec = with_storage(resolve("opencl", device), "buffer")
    rng = np.random.default_rng(5)
    functions = [
        concat(2, (3, 5, 12), (3, 5, 10)),
        computed([(3, 5, 16)], (3, 6, 16), lambda a, i, j, k: a[i, tirx.max(j - 1, 0), k] + 1),
    ]
    for function in functions:
        shape = injective.match(Workload.of(function, spec))
        arrays = [
            rng.standard_normal([int(d) for d in p.shape]).astype(np.float32)
            for p in function.params
        ]
        if len(arrays) == 3:
            expected = np.concatenate(arrays[:2], axis=2)
        else:
            expected = arrays[0][:, [0, 0, 1, 2, 3, 4]] + 1
        chosen = list(candidates(injective, shape, spec.device))
        assert len(chosen) >= 4
        for knobs in chosen[:: max(1, len(chosen) // 6)]:
            schedule = injective.apply(Workload.of(function, spec), knobs)
            tensors = [tvm.runtime.tensor(a, tvm.opencl()) for a in arrays]
            built(schedule.mod["main"], spec)["moved"](*tensors)
            assert_close(tensors[-1].numpy(), expected, OPERATOR, str(knobs))


# -- what does not fit ---------------------------------------------------------------------


def test_families_say_why_they_decline(caplog):
    function = computed([(6, 7)], (6, 7), lambda a, i, j: a[i, j] + 1)
    with caplog.at_level(logging.DEBUG, logger="tvmflow"):
        assert scheduled(function, "adreno").family == "moving"
    assert "transpose declines: nothing is read along another axis than written" in caplog.text
