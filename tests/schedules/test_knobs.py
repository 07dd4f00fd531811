"""Knobs: what the heuristics choose is allowed, what is not allowed is refused, all are right."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from quick_knobs import is_quick
from turns import in_turn

import tvmflow
from tvmflow.schedules import FAMILIES
from tvmflow.schedules.boxes import Shape as BoxShape
from tvmflow.schedules.conv2d_shape import Shape as ConvShape
from tvmflow.schedules.dense import COLUMNS, PACKED, ROWS
from tvmflow.schedules.dense import Shape as DenseShape
from tvmflow.schedules.depthwise import Shape as WindowShape
from tvmflow.schedules.fallback import Shape as FallbackShape
from tvmflow.schedules.family import Proposal, accepted, candidates, read_knobs, refusal
from tvmflow.schedules.gemv import Shape as GemvShape
from tvmflow.schedules.grouped import Shape as GroupedShape
from tvmflow.schedules.masked_mean import Shape as MeanShape
from tvmflow.schedules.matmul import Shape as MatmulShape
from tvmflow.schedules.matmul import padded
from tvmflow.schedules.moving import Shape as MovingShape
from tvmflow.schedules.reduction import Shape as ReductionShape
from tvmflow.schedules.resize import Shape as ResizeShape
from tvmflow.schedules.rows import Shape as RowShape
from tvmflow.schedules.transpose import Shape as TransposeShape
from tvmflow.schedules.winograd_input import Shape as InputShape
from tvmflow.schedules.winograd_output import Shape as OutputShape
from tvmflow.schedules.winograd_product import Shape as ProductShape
from tvmflow.target import PRESETS
from tvmflow.tolerance import assert_close

BY_NAME = {family.NAME: family for family in FAMILIES}


def conv_shapes(rng, lanes):
    return conv_shape(rng, lanes, rng.choice([1, 3, 5, 7]))


def pointwise_shapes(rng, lanes):
    return replace(conv_shape(rng, lanes, 1), padded=False)


def conv_shape(rng, lanes, kernel):
    pick = rng.choice
    return ConvShape(
        pick([1, 2]), pick([1, 3, 8, 40]), pick([1, 7, 13, 112]), pick([1, 5, 14, 112]), lanes,
        pick([1, 3, 16, 30, 512]), kernel, kernel,
        padded=kernel > 1, texture=rng.random() < 0.5,
        weights=pick(["texture", "buffer", "half"]), input_block=pick([lanes, lanes // 4]),
    )  # fmt: skip


def window_shapes(rng, lanes):
    pick = rng.choice
    extents = (pick([1, 2]), pick([1, 5, 60]), pick([1, 7, 30, 112]), pick([1, 7, 31, 112]))
    kernel, dilation = pick([2, 3, 5]), pick([1, 1, 2])
    return WindowShape(
        *extents, lanes, kernel, 3, stride_h=pick([1, 2]), stride_w=pick([1, 2]),
        span_h=dilation * (kernel - 1) + 1, span_w=2 * dilation + 1,
        padded=rng.random() < 0.5, texture=rng.random() < 0.5,
    )  # fmt: skip


def grouped_shapes(rng, lanes):
    pick = rng.choice
    extents = (pick([1, 2]), pick([1, 5]), pick([1, 7, 30]), pick([1, 7, 31]))
    taps, strides = pick([1, 2, 3, 5]), pick([1, 2, 3])
    inputs = pick([1, 2, 6, 16])
    shared = pick([1, 2, lanes])
    return GroupedShape(
        *extents, lanes, inputs, taps, taps, shared=shared, stride_h=strides, stride_w=strides
    )


def dense_shapes(rng, lanes):
    pick = rng.choice
    return DenseShape(pick([PACKED, COLUMNS, ROWS]), pick([1, 3, 64]), pick([1, 10, 63]))


def reduction_shapes(rng, lanes):
    pick = rng.choice
    reduced, positions = pick([1, 2, 49, 1000, 100003]), rng.random() < 0.3
    along = pick([1, 1, reduced])
    across = 1 if along > 1 else pick([1, 7, 56])
    return ReductionShape(
        across * pick([1, 3, 1280]), reduced, along=along, across=across,
        broadcast=not positions and rng.random() < 0.3, positions=positions,
    )  # fmt: skip


def mean_shapes(rng, lanes):
    pick = rng.choice
    limited = rng.random() < 0.5
    packed = limited and rng.random() < 0.5
    return MeanShape(pick([0, 1, 1024]), pick([0, 5, 256]), limited=limited, packed=packed)


def row_shapes(rng, lanes):
    pick = rng.choice
    blocked = rng.random() < 0.3
    across = 1 if blocked else pick([1, 7, 56])
    length = pick([1, 2, 49, 1000, 100003])
    return RowShape(across * pick([1, 3, 64]), length, across=across, blocked=blocked)


def tile_shapes(rng, lanes):
    pick = rng.choice
    extents = (pick([16, 36]), pick([1, 3, 16]), pick([1, 4, 7, 56]), pick([1, 4, 13]), lanes)
    padded, texture = rng.random() < 0.5, rng.random() < 0.5
    return InputShape(*extents, padded=padded, texture=texture)


def product_shapes(rng, lanes):
    pick = rng.choice
    extents = (pick([16, 36]), pick([1, 3, 16]), pick([1, 4, 7, 56]), pick([1, 4, 13]), lanes)
    return ProductShape(*extents, pick([3, 18, 64]), texture=rng.random() < 0.5)


def output_shapes(rng, lanes):
    pick, outputs = rng.choice, rng.choice([2, 4])
    height, width = pick([1, 4, 13]) * outputs, pick([1, 4, 13]) * outputs
    return OutputShape(pick([1, 2]), pick([1, 3, 16]), height, width, lanes, outputs=outputs)


def moving_shapes(rng, lanes):
    inner, texels = rng.choice([1, 4, 7, 97, 196, 4096]), rng.random() < 0.3
    wide = [v for v in (1, 2, 4, 8, 16) if v <= lanes and inner % v == 0]
    inner, widest = (4, rng.choice([1, 4])) if texels else (inner, max(wide))
    return MovingShape(rng.choice([1, 3, 64, 5000]), inner, widest, texels=texels)


def resize_shapes(rng, lanes):
    pick = rng.choice
    return ResizeShape(pick([1, 14, 448]), pick([1, 7, 97, 224]), pick([1, lanes]), texels=False)


def transpose_shapes(rng, lanes):
    pick = rng.choice
    reads, writes = pick([(False, False), (True, False), (False, True)])
    rows, columns = pick([4, 7, 64, 97, 1001]), pick([4, 30, 128, 1000])
    return TransposeShape(
        pick([1, 2, 12]), 4 if reads else rows, 4 if writes else columns,
        reads_texels=reads, writes_texels=writes,
    )  # fmt: skip


def matmul_shapes(rng, lanes):
    pick = rng.choice
    extents = [padded(pick([1, 7, 40, 197, 512, 1001])) for _ in range(2)]
    return MatmulShape(pick([1, 12]), *extents, pick([8, 16, 64, 200, 3072]))


def gemv_shapes(rng, lanes):
    pick = rng.choice
    form = pick([PACKED, COLUMNS, ROWS])
    return GemvShape(form, pick([1, 4]), pick([1, 10, 63, 256]), pick([16, 96, 1024]))


def box_shapes(rng, lanes):
    pick = rng.choice
    return BoxShape(
        pick([0, 1, 64]), pick([0, 1, 37, 5000]), pick([1, 2]), whole=pick([True, False])
    )


SHAPES = {
    "boxes": box_shapes,
    "moving": moving_shapes,
    "transpose": transpose_shapes,
    "resize": resize_shapes,
    "fallback": lambda rng, lanes: FallbackShape(rng.choice([1, 2, 9])),
    "winograd_input": tile_shapes,
    "winograd_product": product_shapes,
    "winograd_output": output_shapes,
    "conv2d": conv_shapes,
    "conv2d_1x1": pointwise_shapes,
    "depthwise": window_shapes,
    "pooling": window_shapes,
    "grouped": grouped_shapes,
    "conv2d_transpose": grouped_shapes,
    "dense": dense_shapes,
    "reduction": reduction_shapes,
    "masked_mean": mean_shapes,
    "softmax": row_shapes,
    "normalization": row_shapes,
    "gemv": gemv_shapes,
    "matmul": matmul_shapes,
}


@pytest.mark.parametrize("device", PRESETS)
@pytest.mark.parametrize("name", SHAPES)
def test_heuristics_keep_the_constraints(name, device):
    family, preset, rng = BY_NAME[name], PRESETS[device], random.Random(0)
    for _ in range(200):
        shape = SHAPES[name](rng, preset.channel_block)
        knobs = family.heuristic(shape, preset)
        assert refusal(family, knobs, shape, preset) is None, (shape, knobs)


@pytest.mark.parametrize("name", ["conv2d", "conv2d_1x1"])
def test_what_a_cpu_unrolls_is_bounded(name):
    family = BY_NAME[name]
    form = {"padded": False, "texture": False, "weights": "buffer", "input_block": 16}
    shape = ConvShape(1, 36, 14, 14, 16, 96, 1, 1, **form)
    knobs = replace(family.heuristic(shape, PRESETS["cpu"]), tile_o=1, tile_h=1, tile_w=14)
    for unroll_i, allowed in ((4, True), (8, True), (16, False)):
        chosen = replace(knobs, unroll_i=unroll_i)
        found = refusal(family, chosen, shape, PRESETS["cpu"])
        assert (found is None) == allowed, (unroll_i, found)
    assert "is at most 112" in found


@pytest.mark.parametrize("name", SHAPES)
def test_a_space_has_several_candidates_and_all_are_allowed(name):
    family, preset, rng = BY_NAME[name], PRESETS["adreno"], random.Random(1)
    counts = []
    for _ in range(20):
        shape = SHAPES[name](rng, preset.channel_block)
        found = list(candidates(family, shape, preset))
        assert len(found) == len(set(found)) >= 1
        counts.append(len(found))
    # Winograd's transforms are sums of neighbours: little but the length of a row to choose.
    assert max(counts) > (4 if name in ("winograd_input", "winograd_output") else 20)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.NAME)
def test_every_knob_is_explained(family):
    for field in dataclasses.fields(family.Knobs):
        assert field.metadata["sentence"].endswith(".")
    assert family.__doc__


def network():
    """A pointwise, two 3x3, a depthwise and a grouped convolution, a transposed one and a pool."""
    rng = np.random.default_rng(3)

    def weight(name, *shape):
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        values = (rng.standard_normal(shape) * scale).astype(np.float32)
        return numpy_helper.from_array(values, name)

    weights = [
        weight("w0", 6, 5, 1, 1), weight("w1", 10, 6, 3, 3), weight("w2", 10, 1, 3, 3),
        weight("w3", 6, 5, 3, 3), weight("w4", 6, 7, 2, 2), weight("w5", 9, 112),
        weight("w6", 5, 5, 3, 3),
    ]  # fmt: skip
    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w6"], ["z"], **same),
        helper.make_node("Conv", ["z", "w0"], ["a"]),
        helper.make_node("Conv", ["a", "w1"], ["b"], **same),
        helper.make_node("Conv", ["b", "w2"], ["c"], group=10, **same),
        helper.make_node("Conv", ["c", "w3"], ["d"], group=2, **same),
        helper.make_node("ConvTranspose", ["d", "w4"], ["e"], strides=[2, 2]),
        helper.make_node("MaxPool", ["e"], ["f"], kernel_shape=[3, 3], strides=[3, 3]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("Gemm", ["g", "w5"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "knobs",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 5, 6, 6))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 9))],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


#: The tensors that are computed otherwise than directly.
ALGORITHMS = {"z": "winograd4", "b": "direct"}


@cache
def schedules(device):
    """The network compiled with the heuristics' knobs: what each function was given."""
    options = {"target": "opencl", "device": device, "algorithms": ALGORITHMS}
    with tvmflow.compile(network(), **options) as module:
        return module.metadata["schedules"]


@pytest.fixture
def compiled():
    return schedules("adreno")


def choices(device, seed, allowed):
    """Random knobs that are allowed, for every function that has some."""
    rng = random.Random(seed)
    shapes = {
        "moving": MovingShape,
        "transpose": TransposeShape,
        "fallback": FallbackShape,
        "dense": DenseShape,
        "gemv": GemvShape,
        "matmul": MatmulShape,
        "conv2d": ConvShape,
        "conv2d_1x1": ConvShape,
        "depthwise": WindowShape,
        "pooling": WindowShape,
        "grouped": GroupedShape,
        "conv2d_transpose": GroupedShape,
        "winograd_input": InputShape,
        "winograd_product": ProductShape,
        "winograd_output": OutputShape,
    }
    chosen = {}
    for name, entry in schedules(device).items():
        if not entry["knobs"]:
            continue
        family, shape = BY_NAME[entry["family"]], shapes[entry["family"]](**entry["shape"])
        found = [k for k in candidates(family, shape, PRESETS[device]) if allowed(k)]
        chosen[name] = dataclasses.asdict(rng.choice(found))
    return chosen


WAYS = [
    pytest.param("adreno", "texture", id="texture"),
    pytest.param("adreno", "buffer", id="buffer"),
    pytest.param("cpu", "buffer", id="cpu"),
]
SLOW = [
    pytest.param(seed, *way.values, marks=pytest.mark.slow, id=f"{seed}-{way.id}")
    for seed in range(3, 12)
    for way in WAYS
]


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("seed", "device", "storage"), [*in_turn(range(3), WAYS, ("texture", "buffer")), *SLOW]
)
def test_any_knobs_are_right(seed, device, storage):
    """Small tiles, in slow tests any that the spaces have."""
    model = network()
    knobs = choices(device, seed, is_quick if seed < 3 else lambda _: True)
    with tvmflow.compile(
        model,
        target="opencl",
        device=device,
        storage=storage,
        algorithms=ALGORITHMS,
        knobs=knobs,
    ) as module:
        taken = module.metadata["schedules"]
        assert {entry["source"] for entry in taken.values() if entry["knobs"]} == {"given"}
        x = np.random.default_rng(seed).standard_normal((1, 5, 6, 6)).astype(np.float32)
        reference = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
        assert_close(module(x=x)["y"], reference)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tile_w": 64}, "must fit the device's registers"),
        ({"unroll_i": 4}, "unroll_i must divide"),
        ({"group_size": 4096}, "at most what the device accepts"),
        ({"tile_w": "wide"}, "'tile_w' must be a positive number, not 'wide'"),
        ({"tile_w": 0}, "'tile_w' must be a positive number, not 0"),
        ({"tile_d": 1}, "There is no knob 'tile_d'; there are tile_o"),
        ({"stage_input": 1}, "'stage_input' must be true or false, not 1"),
    ],
)
def test_bad_knobs_are_refused(compiled, caplog, change, sentence):
    name, entry = next(i for i in compiled.items() if i[1]["family"] == "conv2d")
    proposal = Proposal("given", {**entry["knobs"], **change})
    shape = ConvShape(**entry["shape"])
    with caplog.at_level(logging.WARNING, logger="tvmflow"):
        assert accepted(BY_NAME["conv2d"], shape, PRESETS["adreno"], proposal, name) is None
    assert f"The knobs given for {name} do not fit" in caplog.text
    assert sentence in caplog.text
    assert "They are not used." in caplog.text


def test_in_place_of_bad_knobs_the_heuristic_is_used(compiled, caplog):
    name = next(n for n, entry in compiled.items() if entry["family"] == "conv2d")
    knobs = {name: {**compiled[name]["knobs"], "tile_w": 64}}
    with (
        caplog.at_level(logging.WARNING, logger="tvmflow"),
        tvmflow.compile(
            network(), target="opencl", device="adreno", algorithms=ALGORITHMS, knobs=knobs
        ) as module,
    ):
        assert module.metadata["schedules"] == compiled
    assert f"The knobs given for {name} do not fit" in caplog.text


def test_a_missing_knob_is_named():
    with pytest.raises(ValueError, match="The knob 'tile_w' is missing"):
        read_knobs(BY_NAME["depthwise"], {"tile_h": 1, "stage_input": False, "group_size": 64})


def test_knobs_of_no_function_are_mentioned(caplog):
    with caplog.at_level(logging.WARNING, logger="tvmflow"):
        tvmflow.compile(network(), target="llvm", knobs={"fused_nothing": {}}).close()
    assert "fused_nothing, which is no primary function here" in caplog.text


def test_schedules_are_independent_of_a_json_round_trip(compiled):
    assert json.loads(json.dumps(compiled)) == compiled
