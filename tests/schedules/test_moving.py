"""Moving elements: every operator that does, plain and blocked, wherever tensors are kept."""

from __future__ import annotations

import logging
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from operators import random
from tvm import te, tirx

import tvmflow
from tvmflow.schedules import moving, schedule_function
from tvmflow.schedules.common import Workload
from tvmflow.schedules.family import candidates
from tvmflow.target import resolve, with_storage
from tvmflow.tir_pipeline import TIR_PIPELINE
from tvmflow.tolerance import OPERATOR, STORED_AS_HALF, assert_close


def ints(*values):
    return np.array(values, np.int64)


class Outputs:
    """A model with an output for each operator."""

    def __init__(self, **inputs):
        self.inputs, self.nodes, self.constants = inputs, [], {}
        self.outputs = []

    def constant(self, array):
        name = f"k{len(self.constants)}"
        self.constants[name] = array
        return name

    def node(self, operator, *operands, to=None, **attributes):
        """Add a node; arrays among its operands become constants."""
        names = [o if isinstance(o, str) else self.constant(o) for o in operands]
        result = to or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [result], **attributes))
        if to:
            self.outputs.append(to)
        return result

    def model(self):
        kinds = {"i": TensorProto.INT64}
        graph = helper.make_graph(
            self.nodes,
            "moves",
            [
                helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), s)
                for n, s in self.inputs.items()
            ],
            [onnx.ValueInfoProto(name=n) for n in self.outputs],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", 18)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def scaled(factor):
    return np.array([1, 1, factor, factor], np.float32)


RESIZES = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
                "nearest_mode": "floor"},
    "linear": {"mode": "linear"},
    "corners": {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    "cubic": {"mode": "cubic"},
}  # fmt: skip
PADS = ints(0, 0, 1, 2, 0, 0, 2, 1)


def spatial(g, x, to):
    """Operators on a picture, each into an output that ``to`` makes of it and a name."""
    to(g.node("Pad", x, PADS), "pad_zeros")
    to(g.node("Pad", x, ints(0, 1, 0, 2, 0, 3, 0, 0), np.float32(1.5)), "pad_channels")
    for mode in ("reflect", "edge", "wrap"):
        to(g.node("Pad", x, PADS, mode=mode), f"pad_{mode}")
    for name, attributes in RESIZES.items():
        factor = 2.0 if name in ("nearest", "corners") else 1.5
        to(g.node("Resize", x, "", scaled(factor), **attributes), f"resize_{name}")
    to(g.node("Slice", x, ints(1, 1, 0), ints(6, 9, 9), ints(1, 2, 3), ints(2, 1, 3)), "slice")
    to(g.node("Gather", x, ints(4, 1, 1, 6), axis=1), "channels")
    to(g.node("Gather", x, ints(4, 1, 1, 6, 0), axis=3), "columns")
    to(g.node("Transpose", x, perm=[0, 1, 3, 2]), "turned")
    to(g.node("Concat", x, g.node("Neg", x), axis=1), "concat_channels")
    to(g.node("Concat", x, g.node("Neg", x), axis=3), "concat_columns")


@cache
def plain():
    """All of them on plain tensors, and what has other shapes."""
    g = Outputs(x=(2, 7, 12, 10), m=(40, 24), p=(13, 17), i=(5,))

    def to(value, name):
        g.node("Mul", value, np.float32(0.5), to=name)

    spatial(g, "x", to)
    to(g.node("Transpose", "x", perm=[0, 2, 3, 1]), "nhwc")
    to(g.node("Transpose", "x", perm=[3, 0, 2, 1]), "scattered")
    to(g.node("Transpose", "m", perm=[1, 0]), "matrix")
    to(g.node("Transpose", "p", perm=[1, 0]), "primes")
    turned = g.node("Transpose", "m", perm=[1, 0])
    to(g.node("Add", turned, random((24, 1))), "matrix_and_rows")
    to(g.node("Transpose", g.node("Reshape", "m", ints(4, 5, 6, 8)), perm=[0, 3, 2, 1]), "nested")
    to(g.node("Gather", "m", "i", axis=0), "rows")
    to(g.node("Gather", "m", "i", axis=1), "some_columns")
    to(g.node("Where", g.node("Greater", "p", np.float32(0)), "p", random((17,))), "where")
    to(g.node("Tile", "p", ints(2, 3)), "tile")
    to(g.node("Expand", g.node("Slice", "p", ints(0), ints(1), ints(1)), ints(9, 13, 17)), "expand")
    picture = g.node("Reshape", "m", ints(1, 8, 10, 12))
    for mode in ("DCR", "CRD"):
        to(g.node("DepthToSpace", picture, blocksize=2, mode=mode), f"to_space_{mode}")
    to(g.node("SpaceToDepth", picture, blocksize=2), "to_depth")
    for axis in (0, 1):
        to(g.node("CumSum", "p", np.array(axis, np.int64)), f"running_sum_{axis}")
    return g.model()


@cache
def blocked(channels):
    """All of them between convolutions, whose tensors are in blocks of channels."""
    g = Outputs(x=(1, 3, 12, 10))
    rng = np.random.default_rng(7)

    def weight(outputs, inputs):
        values = rng.standard_normal((outputs, inputs, 1, 1)) / np.sqrt(inputs)
        return values.astype(np.float32)

    x = g.node("Conv", "x", weight(channels, 3))
    extents = {"pad_channels": channels + 4, "slice": 3, "channels": 4,
               "concat_channels": 2 * channels, "to_space": channels // 4,
               "to_depth": channels * 4}  # fmt: skip

    def to(value, name):
        g.node("Conv", value, weight(5, extents.get(name, channels)), to=name)

    spatial(g, x, to)
    if channels % 4 == 0:
        to(g.node("DepthToSpace", x, blocksize=2), "to_space")
    to(g.node("SpaceToDepth", x, blocksize=2), "to_depth")
    return g.model()


CASES = {"plain": plain, "blocked_8": lambda: blocked(8), "blocked_7": lambda: blocked(7)}
VARIANTS = {
    "llvm": {"target": "llvm"},
    "cpu": {"target": "opencl", "device": "cpu"},
    "cpu_half": {"target": "opencl", "device": "cpu", "dtype": "fp16"},
    "adreno_texture": {"target": "opencl", "device": "adreno", "storage": "texture"},
    "adreno_texture_half": {
        "target": "opencl", "device": "adreno", "storage": "texture", "dtype": "fp16"
    },
    "mali_buffer": {"target": "opencl", "device": "mali", "storage": "buffer"},
    "nvidia_half": {"target": "opencl", "device": "nvidia", "storage": "buffer", "dtype": "fp16"},
}  # fmt: skip


#: The rest of them takes minutes.
QUICK = ("llvm", "cpu", "adreno_texture_half")


def marks_of(variant):
    marks = [] if variant == "llvm" else [pytest.mark.opencl]
    return marks if variant in QUICK else [*marks, pytest.mark.slow]


@cache
def expected(case):
    model = CASES[case]()
    rng = np.random.default_rng(3)
    feeds = {}
    for info in model.graph.input:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        values = rng.standard_normal(shape).astype(np.float32)
        feeds[info.name] = ints(-24, 3, 7, -1, 23) if info.name == "i" else values
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return feeds, session.run(None, feeds)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("variant", [pytest.param(v, marks=marks_of(v)) for v in VARIANTS])
def test_every_move_is_right(variant, case):
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
    """Two tensors along an axis of pictures."""
    result = list(first)
    result[axis] += second[axis]

    def value(a, b, *index):
        place = list(index)
        place[axis] = index[axis] - first[axis]
        return tirx.if_then_else(index[axis] < first[axis], a(*index), b(*place))

    return computed([first, second], result, value)


def test_axes_that_fit_each_other_become_one():
    """Channels are concatenated in whole pictures: 11x13 pixels are one loop of 143."""
    function = concat(1, (2, 3, 11, 13), (2, 5, 11, 13))
    found = scheduled(function, "adreno")
    assert found.family == "moving"
    assert found.shape == {"outer": 16, "inner": 143, "lanes": 1, "texels": False}
    assert scheduled(concat(1, (2, 3, 12, 13), (2, 5, 12, 13)), "adreno").shape["lanes"] == 4


def test_seams_of_rows_are_loops_of_their_own_on_a_cpu():
    """Two parts of a row of 60: one loop over 40 elements and one over 20, without a test."""
    function = concat(2, (8, 9, 40), (8, 9, 20))
    text = scheduled(function, "cpu").schedule.mod["main"].script()
    assert "range(40)" in text
    assert "range(40, 60)" in text
    source = source_of(scheduled(function, "cpu").schedule.mod["main"], "cpu")
    assert "if" not in source.split("{", 1)[1]


def source_of(function, device):
    spec = with_storage(resolve("opencl", device), "buffer")
    named = function.with_attrs({"global_symbol": "moved", "tirx.is_scheduled": True})
    with spec.tvm_target:
        built = tvm.compile(
            tvm.IRModule({"moved": named}), target=spec.tvm_target, tir_pipeline=TIR_PIPELINE
        )
    source = built.mod.imports[0].inspect_source()
    return source[source.rindex("__kernel") :]


@pytest.mark.parametrize("device", ["cpu", "adreno"])
def test_sums_are_stored_as_vectors_without_index_arithmetic(device):
    function = computed([(4, 64, 56, 28)] * 2, (4, 64, 56, 28), lambda a, b, *i: a(*i) + b(*i))
    source = source_of(scheduled(function, device).schedule.mod["main"], device)
    assert f"vstore{16 if device == 'cpu' else 4}" in source
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
    """A function with a seam and one without, for every choice of knobs."""
    spec = with_storage(resolve("opencl", device), "buffer")
    rng = np.random.default_rng(5)
    functions = [
        concat(2, (3, 5, 12), (3, 5, 10)),
        computed([(3, 5, 16)], (3, 6, 16), lambda a, i, j, k: a[i, tirx.max(j - 1, 0), k] + 1),
    ]
    for function in functions:
        shape = moving.match(Workload.of(function, spec))
        arrays = [
            rng.standard_normal([int(d) for d in p.shape]).astype(np.float32)
            for p in function.params
        ]
        if len(arrays) == 3:
            expected = np.concatenate(arrays[:2], axis=2)
        else:
            expected = arrays[0][:, [0, 0, 1, 2, 3, 4]] + 1
        chosen = list(candidates(moving, shape, spec.device))
        assert len(chosen) >= 4
        for knobs in chosen[:: max(1, len(chosen) // 6)]:
            workload = Workload.of(function, spec)
            schedule = moving.apply(workload, knobs)
            named = schedule.mod["main"].with_attrs(
                {"global_symbol": "moved", "tirx.is_scheduled": True}
            )
            with spec.tvm_target:
                run = tvm.compile(
                    tvm.IRModule({"moved": named}),
                    target=spec.tvm_target,
                    tir_pipeline=TIR_PIPELINE,
                )["moved"]
            tensors = [tvm.runtime.tensor(a, tvm.opencl()) for a in arrays]
            run(*tensors)
            assert_close(tensors[-1].numpy(), expected, OPERATOR, str(knobs))


# -- what does not fit ---------------------------------------------------------------------


def test_families_say_why_they_decline(caplog):
    function = computed([(6, 7)], (6, 7), lambda a, i, j: a[i, j] + 1)
    with caplog.at_level(logging.DEBUG, logger="tvmflow"):
        assert scheduled(function, "adreno").family == "moving"
    assert "transpose declines: nothing is read along another axis than written" in caplog.text
