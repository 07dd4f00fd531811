"""Modules of several shapes: results, splitting and padding, shared weights, refusals."""

from __future__ import annotations

import copy
from contextlib import closing

import numpy as np
import pytest
from onnx import helper
from support import open_networks
from support.networks import NETWORKS
from support.operators import build

import tvmflow
from tvmflow.errors import CompileError, InputError, ModelError, ShapeError
from tvmflow.module.bench import benchmark
from tvmflow.module.metadata import check_module
from tvmflow.module.schema import SchemaError
from tvmflow.module.shapes import counts
from tvmflow.verify.compare import verify
from tvmflow.verify.tolerance import assert_close, table_for

#: Batches 1, 2 and 4 of two sizes.
SEVERAL = {"shapes": {"x": ("1..4", 3, "?", "?")}, "at": [(12, 12), (9, 31)]}
SIZES = ((12, 12), (9, 31))
CONFIGURATIONS = {
    "llvm": {"target": "llvm"},
    "buffers": {"device": "adreno", "storage": "buffer"},
    "textures": {"device": "adreno", "storage": "texture"},
    "fp16": {"device": "adreno", "dtype": "fp16", "accumulate": "fp32"},
    "cpu": {"device": "cpu"},
    "kept": {"device": "adreno", "keep_layout": {"x": "nchw4c"}},
}


def is_right(module, model, shape, seed=0, **options):
    x = open_networks.values(shape, seed)
    (result,) = module.run([x], **options)
    (expected,) = open_networks.reference(model, {"x": x})
    assert_close(result, expected, table=table_for(module.metadata))


@pytest.fixture(scope="module")
def network():
    return open_networks.classifier()


@pytest.fixture(scope="module")
def module(network):
    with closing(tvmflow.compile(network, target="llvm", **SEVERAL)) as compiled:
        yield compiled


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    "name", ["llvm", *(pytest.param(n, marks=pytest.mark.opencl) for n in list(CONFIGURATIONS)[1:])]
)
def test_every_shape_is_right(name, network):
    options = {"target": "opencl", **CONFIGURATIONS[name]}
    with tvmflow.compile(network, **options, **SEVERAL) as module:
        assert [v.inputs[0].logical_shape or v.inputs[0].shape for v in module.variants] == [
            (batch, 3, *size) for size in SIZES for batch in (1, 2, 4)
        ]
        # Back and forth: no shape affects the next call.
        for seed, batch in enumerate((4, 1, 2, 4)):
            for size in SIZES:
                is_right(module, network, (batch, 3, *size), seed)
        for batch in (3, 5, 9):
            is_right(module, network, (batch, 3, *SIZES[1]))
        is_right(module, network, (3, 3, *SIZES[0]), pad_batch=True)
        is_right(module, network, (7, 3, *SIZES[0]), pad_batch=True)


def test_the_first_shape_is_the_default(module):
    assert module.inputs == module.variants[0].inputs
    assert module.metadata["options"]["shapes"]["x"] == ["1..4", 3, "?", "?"]
    assert "and 5 other shapes" in repr(module)
    assert "other shapes" not in repr(module.variants[1])
    one = module.variants[0]
    assert one.variants == (one,)


def test_weights_are_stored_once_and_memory_is_that_of_the_largest(module, network):
    with closing(tvmflow.compile(network, target="llvm", shapes={"x": (1, 3, 12, 12)})) as single:
        # Some weights are arranged for one shape: none here.
        assert module.artifact.weights_bytes == single.artifact.weights_bytes
    peaks = [variant.metadata["memory"]["peak_bytes"] for variant in module.variants]
    assert module.metadata["shared_memory_bytes"] == max(peaks)


def test_a_module_of_one_shape_is_what_it_was(network):
    with closing(tvmflow.compile(network, target="llvm", shapes={"x": (1, 3, 12, 12)})) as single:
        about = single.metadata
        assert about["format"] == 1
        assert not {"variants", "batch", "shared_memory_bytes"} & about.keys()
        assert "at" not in about["options"]
        names = set(about)
    options = {"shapes": {"x": ("1..1", 3, "?", "?")}, "at": [(12, 12)]}
    with closing(tvmflow.compile(network, target="llvm", **options)) as same:
        assert set(same.metadata) == names
        assert same.metadata["options"]["shapes"] == {"x": [1, 3, 12, 12]}


@pytest.mark.onnxruntime
def test_shapes_are_modules_of_their_own(module, network, tmp_path):
    import onnx

    path = tmp_path / "network.onnx"
    onnx.save(network, path)
    one = module.variants[4]
    assert one.inputs[0].shape == (2, 3, 9, 31)
    assert verify(path, one).passed
    assert benchmark(one, runs=2, warmup=0).median_ms > 0
    values = {"x": open_networks.values((2, 3, 9, 31))}
    kernels = {kernel["name"] for kernel in one.metadata["kernels"]}
    assert {kernel.kernel for kernel in one.profile(values, runs=1)} <= kernels
    assert kernels != {kernel["name"] for kernel in module.variants[0].metadata["kernels"]}
    # The view accepts only its own shape.
    with pytest.raises(InputError, match=r"takes \[2, 3, 9, 31\]"):
        one(x=open_networks.values((1, 3, 12, 12)))
    assert "9×31" in one._repr_html_()
    assert "6 shapes" in module._repr_html_()


@pytest.mark.onnxruntime
def test_a_saved_module_has_all_shapes(module, network, tmp_path):
    module.save(tmp_path / "net.so")
    with tvmflow.load(tmp_path / "net.so") as loaded:
        loaded.artifact.check()
        is_right(loaded, network, (5, 3, 9, 31))


def test_a_shape_that_is_not_there_names_the_nearest(module):
    with pytest.raises(
        InputError, match=r"not x \[1, 3, 10, 31\]; the nearest is x \[1, 3, 9, 31\]"
    ):
        module(x=open_networks.values((1, 3, 10, 31)))
    with pytest.raises(InputError, match=r"batch dimension is missing"):
        module(x=open_networks.values((3, 12, 12)))
    with pytest.raises(InputError, match="float64"):
        module(x=np.zeros((1, 3, 12, 12)))
    with pytest.raises(InputError, match="runs in parts"):
        module.run([open_networks.values((3, 3, 12, 12))], output="dlpack")
    with pytest.raises(InputError, match="no sum"):
        module(x=np.zeros((0, 3, 12, 12), np.float32))


@pytest.mark.parametrize(
    ("wanted", "compiled", "pad", "expected"),
    [
        (5, (8, 4, 2, 1), False, [4, 1]),
        (20, (8, 4, 2, 1), False, [8, 8, 4]),
        (9, (8, 4, 3), False, [3, 3, 3]),
        (5, (8, 4), False, None),
        (5, (8, 4), True, [8]),
        (3, (8, 4), True, [4]),
        (17, (8, 4), True, [8, 8, 4]),
        (16, (8, 4), True, [8, 8]),
        (1_000_003, (64, 63), False, [64] * 15565 + [63] * 69),
        (0, (2, 1), False, None),
    ],
)
def test_parts_of_a_batch(wanted, compiled, pad, expected):
    found = counts(wanted, compiled, pad)
    if expected is not None and wanted > 1000:
        assert found is not None
        assert sum(found) == wanted
    else:
        assert found == expected


def test_a_batch_that_depends_on_its_samples_has_no_parts():
    model = open_networks.mixing()
    options = {"target": "llvm", "shapes": {"x": ("2..4", 3, 4, 4)}}
    with closing(tvmflow.compile(model, **options)) as module:
        batch = module.metadata["batch"]
        assert not batch["proven"]
        assert batch["node"] == "over_samples (Softmax)"
        for size in (2, 4):
            is_right(module, model, (size, 3, 4, 4))
        with pytest.raises(InputError, match=r"at node over_samples \(Softmax\): it works along"):
            module(x=open_networks.values((6, 3, 4, 4)))
        with pytest.raises(InputError, match="not proven"):
            module.run([open_networks.values((3, 3, 4, 4))], pad_batch=True)


def test_knobs_of_any_shape(network):
    """The knobs that `inspect --schedules` prints for a shape can be given again."""
    options = {"target": "llvm", "shapes": {"x": ("1..2", 3, 12, 12)}}
    with closing(tvmflow.compile(network, **options)) as first:
        own = set(first.variants[1].metadata["schedules"])
        own -= set(first.variants[0].metadata["schedules"])
        name = next(n for n in sorted(own) if "conv2d" in n)
        knobs = dict(first.variants[1].metadata["schedules"][name]["knobs"])
    with closing(tvmflow.compile(network, knobs={name: knobs}, **options)) as again:
        assert again.variants[1].metadata["schedules"][name]["source"] == "given"
        is_right(again, network, (2, 3, 12, 12))


@pytest.mark.opencl
def test_a_schedule_without_code_gives_way_in_all_shapes(monkeypatch, caplog, network):
    from tvmflow.schedules import injective

    def five_lanes(workload, knobs):
        (block,) = workload.blocks[-1:]
        outer, lane = workload.sch.split(
            workload.sch.fuse(*workload.sch.get_loops(block)), [None, 5]
        )
        workload.sch.bind(outer, "blockIdx.x")
        workload.sch.vectorize(lane)
        return workload.sch

    nodes = [helper.make_node("Add", ["x", "one"], ["y"], name="the_sum")]
    model = build(nodes, {"x": (2, 5)}, ["y"], {"one": np.float32(1)})
    model = open_networks.with_open_extents(model, "N", None)
    monkeypatch.setattr(injective, "apply", five_lanes)
    options = {"target": "opencl", "device": "cpu", "shapes": {"x": ("1..2", 5)}}
    with tvmflow.compile(model, **options) as module:
        for size in (1, 2, 3):
            is_right(module, model, (size, 5))
        for variant in module.variants:
            families = {s["family"] for s in variant.metadata["schedules"].values()}
            assert families == {"fallback"}
    assert "node the_sum" in caplog.text


def test_what_does_not_go_with_several_shapes(network):
    with pytest.raises(CompileError, match="CUDA graph"):
        tvmflow.compile(network, target="cuda", device="nvidia", cuda_graph=True, **SEVERAL)
    with pytest.raises(ShapeError, match="at most 16"):
        tvmflow.compile(
            network, target="llvm", shapes={"x": ("1..8", 3, "?", "?")},
            at=[(8, 8), (9, 9), (10, 10), (11, 11), (12, 12)],
        )  # fmt: skip
    with pytest.raises(CompileError, match="positive whole numbers"):
        tvmflow.compile(network, target="llvm", shapes={"x": (1, 3, "?", 8)}, at=[(-1,)])


def test_stages_are_dumped_for_each_shape(network, tmp_path):
    options = {"target": "llvm", "shapes": {"x": ("1..2", 3, 12, 12)}, "dump_ir": tmp_path}
    with closing(tvmflow.compile(network, **options)) as module:
        assert set(module.metadata["stage_ms"]) >= {"import", "lower", "build"}
    names = {path.name for path in tmp_path.iterdir()}
    assert {"3_fuse.py", "3_fuse_1.py", "7_lower.py", "7_lower_1.py", "8_build.vm.txt"} <= names


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("variants",), [], "expected several"),
        (("variants", 1, "entry"), "main", "one entry"),
        (("variants", 1, "weight_names", 0), "nobody", "is no weight"),
        (("variants", 1, "inputs"), [], "are others than"),
        (("variants", 1, "outputs", 0, "dtype"), "int8", "are others than"),
        (("variants", 1, "inputs", 0, "shape"), [1, 3, 12, 12], "same shapes"),
        (("variants", 1, "inputs", 0, "shape"), [1 << 40, 1 << 40, 1, 1], "too large"),
        (("batch", "inputs", "x", "axis"), 4, "axis that is not there"),
        (("batch", "outputs"), {}, "not those of the module"),
        (("batch", "inputs", "y"), {"axis": 0, "each": 1}, "axis that is not there"),
        (("batch", "proven"), "yes", "expected true or false"),
    ],
)
def test_descriptions_that_contradict_themselves(module, path, value, words):
    meta = copy.deepcopy(module.metadata)
    inner = meta
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(SchemaError, match=words):
        check_module(meta)


def test_analyses_see_the_functions_of_their_shape(module):
    from tvmflow.explain.analysis.lowered import functions_of

    one, first = (functions_of(m) for m in (module.variants[4], module))
    assert set(one) == set(module.variants[4].metadata["schedules"])
    assert set(first) == set(module.variants[0].metadata["schedules"])
    assert set(one) != set(first)


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    "storage",
    ["llvm", *(pytest.param(s, marks=pytest.mark.opencl) for s in ("buffer", "texture"))],
)
@pytest.mark.parametrize("name", NETWORKS)
def test_parts_of_networks_that_are_proven(name, storage):
    model = NETWORKS[name]()
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    model = open_networks.with_open_extents(model, "N", *[None] * (len(shape) - 1))
    options = {"target": "opencl", "device": "adreno", "storage": storage}
    options = {"target": "llvm"} if storage == "llvm" else options
    try:
        module = tvmflow.compile(model, shapes={"x": ("1..2", *shape[1:])}, **options)
    except ModelError:
        # Its batch is a constant.
        assert name == "channel_shuffle"
        return
    with module:
        assert module.metadata["batch"]["proven"]
        for size in (1, 5):
            is_right(module, model, (size, *shape[1:]))


def test_results_have_as_many_axes_for_all_shapes():
    nodes = [helper.make_node("Squeeze", ["x"], ["y"])]
    model = build(nodes, {"x": ("n", 1, 4)}, ["y"])
    with pytest.raises(ShapeError, match=r"'y' is float32\[4\] .* float32\[2, 4\] for another"):
        tvmflow.compile(model, target="llvm", shapes={"x": ("1..4", 1, 4)})
