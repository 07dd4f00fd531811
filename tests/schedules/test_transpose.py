"""Transpositions: tiles that are transposed in registers, any knobs, and reasons to decline."""

from __future__ import annotations

import logging
import re

import numpy as np
import onnx
import pytest
import tvm
from support.knob_choices import candidates
from support.operators import check, single
from tvm import te, tirx

import tvmflow
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE
from tvmflow.devices.target import PRESETS, resolve, with_storage
from tvmflow.ir.scope import interface_scope
from tvmflow.ir.signatures import with_scopes
from tvmflow.schedules import schedule_function, transpose
from tvmflow.schedules.common import Workload
from tvmflow.schedules.family import Declined
from tvmflow.verify.compare import verify
from tvmflow.verify.tolerance import OPERATOR, assert_close


def spec_of(device):
    return with_storage(resolve("opencl", device), "buffer")


def turned(shape, axes, add=0.0):
    """Build a permutation of a tensor, with a summand."""
    x = te.placeholder(shape, "float32", name="x")
    back = np.argsort(axes)
    result = [shape[a] for a in axes]
    y = te.compute(result, lambda *i: x(*(i[int(a)] for a in back)) + add, name="y")
    return te.create_prim_func([x, y])


def built(function, spec):
    named = function.with_attrs({"global_symbol": "turned", "tirx.is_scheduled": True})
    with spec.tvm_target:
        return tvm.compile(
            tvm.IRModule({"turned": named}), target=spec.tvm_target, tir_pipeline=TIR_PIPELINE
        )


def source(function, device):
    spec = spec_of(device)
    scheduled = schedule_function(function, spec)
    text = built(scheduled.schedule.mod["main"], spec).mod.imports[0].inspect_source()
    return scheduled, text[text.rindex("__kernel") :]


@pytest.mark.parametrize(("device", "tile"), [("cpu", 8), ("adreno", 4), ("mali", 4)])
def test_a_tile_is_read_and_written_in_vectors(device, tile):
    scheduled, text = source(turned((64, 96), (1, 0)), device)
    assert scheduled.family == "transpose"
    assert (scheduled.knobs["rows"], scheduled.knobs["columns"]) == (tile, tile)
    assert len(re.findall(rf"at_float{tile}\(x_ptr", text)) == tile
    assert len(re.findall(rf"put_float{tile}\(y_ptr", text)) == tile
    # No element of the tensors is read or written separately.
    assert not re.search(r"[xy]_ptr\[", text)


def test_groups_of_a_gpu_are_squares():
    """8 x 8 work-items have tiles of 4 x 4: lines of 32 elements on both sides."""
    assert items_of(turned((128, 256), (1, 0))) == {"x": 8, "y": 8}


@pytest.mark.parametrize(("places", "deep"), [(224, 4), (223, 4), (3, 3)])
def test_groups_of_few_tiles_have_items_along_other_axes(places, deep):
    """14 items are a quarter of a wave of 64; some places are not divided by the group."""
    assert items_of(turned((places, 4, 56), (0, 2, 1))) == {"x": 1, "y": 14, "z": deep}


def items_of(function) -> dict[str, int]:
    """Return a group's items along each axis."""
    sch = source(function, "adreno")[0].schedule
    found = [sch.get(loop) for loop in sch.get_loops(sch.get_sblock("y"))]
    bound = [loop for loop in found if loop.thread_binding is not None]
    tags = {str(loop.thread_binding.thread_tag): int(loop.extent) for loop in bound}
    return {tag[-1]: extent for tag, extent in tags.items() if tag.startswith("thread")}


def test_a_group_transposes_its_tile_in_local_memory():
    """8 x 8 items have tiles of 4 x 4: 32 rows of 32 elements, and one against bank conflicts."""
    spec = spec_of("adreno")
    function = turned((64, 96), (1, 0))
    knobs = transpose.Knobs(rows=4, columns=4, tiles=1, share=True, group_size=64)
    scheduled = transpose.apply(Workload.of(function, spec), knobs)
    text = built(scheduled.mod["main"], spec).mod.imports[0].inspect_source()
    text = text[text.rindex("__kernel") :]
    assert f"__local float x_reindex_shared_ptr[{32 * 33}]" in text
    assert text.count("barrier(CLK_LOCAL_MEM_FENCE)") == 1
    # Both sides are in vectors of neighbours: groups read and write whole rows of a tile.
    assert len(re.findall(r"at_float4\(x_ptr", text)) == 1
    assert len(re.findall(r"put_float4\(y_ptr", text)) == 4


def test_vectors_of_cuda_are_aligned():
    """The rows of local memory have an odd length: CUDA writes them element by element."""
    spec = resolve("cuda")
    knobs = transpose.Knobs(rows=4, columns=4, tiles=1, share=True, group_size=64)
    scheduled = transpose.apply(Workload.of(turned((64, 96), (1, 0)), spec), knobs)
    text = scheduled.mod["main"].script()
    assert text.count("T.vectorized") == 1
    assert schedule_function(turned((64, 96), (1, 0)), spec).knobs["rows"] == 4


def test_axes_that_no_vector_divides_go_through_local_memory():
    scheduled, text = source(turned((97, 143), (1, 0)), "adreno")
    assert scheduled.family == "transpose"
    assert scheduled.knobs["share"]
    assert "barrier(CLK_LOCAL_MEM_FENCE)" in text


@pytest.mark.oclgrind
@pytest.mark.opencl
def test_transposing_in_local_memory_has_no_races(under_oclgrind):
    """Some axes are divided by the group's tile, others are not."""
    for shape in ((17, 30), (32, 48)):
        model = single("Transpose", [shape], perm=[1, 0])
        x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
        rows, columns = (2, 1) if shape == (17, 30) else (4, 4)
        knobs = {"rows": rows, "columns": columns, "tiles": 1, "share": True, "group_size": 64}
        options = {"target": "opencl", "device": "adreno", "knobs": {"transpose": knobs}}
        with tvmflow.compile(model, **options) as module:
            (choice,) = module.metadata["schedules"].values()
            assert (choice["family"], choice["source"]) == ("transpose", "given")
            outputs = under_oclgrind()(module, {"x0": x})
        assert np.array_equal(outputs["y"], x.T)


def test_channels_of_a_texture_are_read_once():
    """From an image of blocks of four channels to plain channels, one read serves four elements."""
    x = te.placeholder((1, 3, 10, 7, 4), "float32", name="x")
    y = te.compute((1, 12, 10, 7), lambda n, k, h, w: x[n, k // 4, h, w, k % 4], name="y")
    scope = interface_scope((1, 3, 10, 7, 4), PRESETS["adreno"])
    function = with_scopes(te.create_prim_func([x, y]), [scope, None])
    found = schedule_function(function, spec_of("adreno"))
    assert found.family == "transpose"
    text = built(found.schedule.mod["main"], spec_of("adreno")).mod.imports[0].inspect_source()
    text = text[text.rindex("__kernel") :]
    assert text.count("READ_IMAGEF") + text.count("read_imagef") == 1
    assert len(re.findall(r"y_ptr\[.*\] = ", text)) == 4


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(
            "c = Conv(x, w) t = SpaceToDepth<blocksize = 2>(c) y = Add(t, z)", id="part of a texel"
        ),
        pytest.param("c = Conv(x, v) y = Mul(c, u)", id="two textures"),
    ],
)
def test_elements_of_several_texels_are_no_vector(nodes, dtype, tmp_path, caplog):
    """Another texture is read besides the texels that are transposed."""
    text = (
        '<ir_version: 10, opset_import: ["": 18]> net (float[1,6,6,4] x) => (float y) {'
        f" {nodes} }}"
    )
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(5)
    shapes = {"w": (1, 6, 1, 1), "v": (16, 6, 1, 1), "z": (1, 4, 3, 2), "u": (1, 16, 6, 4)}
    for name, shape in shapes.items():
        if any(name in node.input for node in model.graph.node):
            value = rng.standard_normal(shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "net.onnx")
    options = {"device": "adreno", "storage": "texture", "dtype": dtype, "accumulate": "fp32"}
    with tvmflow.compile(tmp_path / "net.onnx", target="opencl", **options) as module:
        found = [choice["family"] for choice in module.metadata["schedules"].values()]
        assert "transpose" in found
        verify(tmp_path / "net.onnx", module).raise_if_failed()
    assert "the fallback is used" not in caplog.text


@pytest.mark.opencl
@pytest.mark.parametrize("device", ["cpu", "adreno"])
@pytest.mark.parametrize("shape", [(24, 30), (7, 143), (17, 64)])
def test_all_knobs_are_right(device, shape):
    spec = spec_of(device)
    x = np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32)
    function = turned(x.shape, (0, 2, 1), add=0.5)
    try:
        found = transpose.match(Workload.of(function, spec))
    except Declined:
        return
    chosen = list(candidates(transpose, found, spec.device))
    for knobs in chosen[:: max(1, len(chosen) // 8)]:
        schedule = transpose.apply(Workload.of(function, spec), knobs)
        y = tvm.runtime.empty((2, shape[1], shape[0]), "float32", tvm.opencl())
        built(schedule.mod["main"], spec)["turned"](tvm.runtime.tensor(x, tvm.opencl()), y)
        assert_close(y.numpy(), x.transpose(0, 2, 1) + np.float32(0.5), OPERATOR, str(knobs))


@pytest.mark.opencl
@pytest.mark.parametrize("perm", [(3, 1, 2, 0), (1, 3, 0, 2), (2, 3, 0, 1)])
@pytest.mark.parametrize("device", ["cpu", "nvidia"])
def test_permutations(device, perm):
    assert check(single("Transpose", [(4, 6, 5, 8)], perm=list(perm)), "opencl", device) == [
        "transpose"
    ]


def test_axes_without_a_tile_are_left_to_others(caplog):
    with caplog.at_level(logging.DEBUG, logger="tvmflow"):
        assert schedule_function(turned((101, 103), (1, 0)), spec_of("cpu")).family == "moving"
    assert "transpose declines: no tile divides 103 x 101" in caplog.text


def test_a_guarded_read_is_not_copied():
    """Channels after the last must not be read, even if they are replaced later."""
    x = te.placeholder((3, 64), "float32", name="x")
    y = te.compute(
        (64, 4), lambda i, k: tirx.if_then_else(k < 3, x[k, i], tirx.const(0.0)), name="y"
    )
    function = te.create_prim_func([x, y])
    assert schedule_function(function, spec_of("adreno")).family == "moving"
