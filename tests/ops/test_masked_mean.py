"""Schedule of the loss: any extents, forms of validity and knobs; compiled once for all sizes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from support import boxes
from support.cuda_host import cuda_host
from support.operators import build, references
from tvm import te, tirx

import tvmflow
import tvmflow.codegen.opencl_source  # registers the callback that gets kernels' source
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE
from tvmflow.devices.target import PRESETS, resolve
from tvmflow.ir.operator import DOMAIN
from tvmflow.ir.operators import OPERATORS
from tvmflow.ops.compiled import compile_operator
from tvmflow.schedules import schedule_function
from tvmflow.schedules.boxes import masked_mean
from tvmflow.verify.tolerance import OPERATOR, assert_close

LOSS = OPERATORS["GIoULoss"]

FORMS = ("none", "count", "bytes", "offsets")
CPU, GPU = ("none", "warp", "list"), ("none", "element", "warp", "list")

#: Samples and boxes: only remainders of vectors, one sample, several chunks, many rows.
SIZES = [(1, 1), (3, 5), (2, 16), (4, 37), (1, 2500), (33, 256)]

OPENCL = [
    pytest.param("opencl", device, marks=pytest.mark.opencl, id=device)
    for device in ("cpu", "nvidia")
]
DEVICES = [pytest.param("llvm", "cpu", id="llvm"), *OPENCL]


def allows(form: str, skip: str, cpu: bool) -> bool:
    """Return whether the constraints allow a combination."""
    if skip == "none":
        return form != "offsets"
    return skip != "warp" or cpu or form in ("count", "offsets")


def cases(skips: Sequence[str], cpu: bool) -> list[tuple[str, str]]:
    return [(form, skip) for form in FORMS for skip in skips if allows(form, skip, cpu)]


# -- functions of any size, and what they are given -----------------------------------------


def function(form: str, dtype: str = "float32", integers: str = "int32") -> tirx.PrimFunc:
    """Return the loss of a batch whose extents are variables."""
    samples, most, rows = (tirx.Var(name, "int32") for name in ("B", "M", "P"))
    shape = (samples, most, 4)
    inputs: list[te.Tensor | None] = [
        te.placeholder(shape, dtype, "pred"),
        te.placeholder((rows, 4) if form == "offsets" else shape, dtype, "target"),
        te.placeholder((samples,), integers, "count") if form == "count" else None,
        te.placeholder((samples, most), "uint8", "mask") if form == "bytes" else None,
        te.placeholder((samples + 1,), integers, "offsets") if form == "offsets" else None,
    ]
    given = [tensor for tensor in inputs if tensor is not None]
    return te.create_prim_func([*given, *LOSS.compute(inputs, LOSS.attributes)])


def scheduled(form: str, target: str, device: str, knobs: Mapping | None, dtype: str = "float32"):
    integers = "int64" if dtype == "float16" else "int32"
    found = schedule_function(function(form, dtype, integers), resolve(target, device), knobs)
    assert found.family == masked_mean.NAME
    assert found.source == ("heuristic" if knobs is None else "given")
    return found


@cache
def compiled(form: str, target: str, device: str, skip: str | None, dtype: str = "float32"):
    """Return a function for tensors of any size; its groups are small, so that there are many."""
    spec = resolve(target, device)
    size = (
        {"group_size": 1, "boxes": 1024} if spec.device.is_cpu else {"group_size": 32, "boxes": 2}
    )
    knobs = None if skip is None else {"groups": 3, "skip": skip, **size}
    body = scheduled(form, target, device, knobs, dtype).schedule.mod["main"]
    marks = {"global_symbol": "main", "tirx.is_scheduled": True}
    with spec.tvm_target:
        module = tvm.IRModule({"main": body.with_attrs(marks)})
        return tvm.tirx.build(module, target=spec.tvm_target, pipeline=TIR_PIPELINE)["main"]


def batch(form: str, samples: int, most: int, dtype: str = "float32") -> boxes.Batch:
    """Return inputs; invalid boxes are NaN or infinite."""
    rng = np.random.default_rng(samples * 1000 + most)
    integers = "int64" if dtype == "float16" else "int32"
    return boxes.batch(rng, (samples, most), form, dtype, integers, boxes.sized)


def reference(given: boxes.Batch) -> list[np.ndarray]:
    return LOSS.evaluate(given.arrays(), LOSS.attributes)


def run(loss, given: boxes.Batch, target: str) -> list[np.ndarray]:
    device = tvm.device(target if target != "llvm" else "cpu")
    arrays = [array for array in given.arrays() if array is not None]
    outputs = [
        tvm.runtime.tensor(np.full((), 7, dtype), device) for dtype in (arrays[0].dtype, "int32")
    ]
    loss(*(tvm.runtime.tensor(array, device) for array in arrays), *outputs)
    return [output.numpy() for output in outputs]


def check(loss, form: str, target: str, dtype: str = "float32") -> None:
    for size in SIZES:
        given = batch(form, *size, dtype)
        found, expected = run(loss, given, target), reference(given)
        assert found[1] == expected[1], size
        assert_close(found[0].astype("float32"), expected[0].astype("float32"),
                     {**OPERATOR, "float32": OPERATOR[dtype]}, f"loss of {size}")  # fmt: skip


# -- numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "skip"), cases(CPU, cpu=True))
def test_a_function_for_all_sizes(form: str, skip: str):
    check(compiled(form, "llvm", "cpu", skip), form, "llvm")


@pytest.mark.opencl
@pytest.mark.parametrize(("form", "skip"), cases(GPU, cpu=False))
def test_groups_for_all_sizes(form: str, skip: str):
    check(compiled(form, "opencl", "nvidia", skip), form, "opencl")


@pytest.mark.opencl
@pytest.mark.parametrize(("form", "skip"), [("bytes", "list"), ("offsets", "warp")])
def test_vectors_in_opencl(form: str, skip: str):
    check(compiled(form, "opencl", "cpu", skip), form, "opencl")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_heuristics_in_16_bits(form: str, dtype: str):
    check(compiled(form, "llvm", "cpu", None, dtype), form, "llvm", dtype)


@pytest.mark.parametrize(("target", "device"), DEVICES)
def test_no_valid_box(target: str, device: str):
    given = replace(batch("count", 3, 37), count=np.zeros(3, "int32"))
    assert run(compiled("count", target, device, None), given, target) == [0, 0]


@pytest.mark.parametrize(("target", "device"), DEVICES)
def test_the_same_bits_each_time(target: str, device: str):
    loss, given = compiled("bytes", target, device, None), batch("bytes", 33, 256)
    assert len({run(loss, given, target)[0].tobytes() for _ in range(5)}) == 1


@pytest.mark.opencl
@pytest.mark.parametrize("skip", GPU)
def test_boxes_in_textures(skip: str):
    """Images have a row per sample; a box is one texel."""
    knobs = {"groups": 3, "group_size": 32, "boxes": 2, "skip": skip}
    loss = compile_operator(
        LOSS, "opencl", "nvidia", inputs={"count": "int32"}, knobs=knobs, storage="texture"
    )
    chosen = loss.program.scheduled
    assert (chosen.family, chosen.source) == (masked_mean.NAME, "given")
    text = loss.program.module.imports[0].inspect_source()
    assert "image2d_array_t" in text
    assert "at_float4(" not in text
    for size in [(3, 5), (7, 37)]:
        given = batch("count", *size)
        found, expected = loss(given.pred, given.target, given.count), reference(given)
        assert found[1] == expected[1]
        assert_close(found[0], expected[0], OPERATOR)


# -- in networks --------------------------------------------------------------------------


def network(given: boxes.Batch) -> tuple[onnx.ModelProto, dict]:
    """Return a model of one node whose integers arrive as floats, and its feeds."""
    names, nodes, feeds = [], [], {}
    for operand, array in zip(LOSS.inputs, given.arrays(), strict=True):
        names.append("" if array is None else operand.name)
        if array is None or array.dtype == np.float32:
            feeds |= {} if array is None else {operand.name: array}
            continue
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        nodes.append(helper.make_node("Cast", ["numbers"], [operand.name], to=kind))
        feeds["numbers"] = array.astype("float32")
    nodes.append(helper.make_node("GIoULoss", names, ["loss", "valid"], domain=DOMAIN))
    shapes = {name: array.shape for name, array in feeds.items()}
    return build(nodes, shapes, ["loss", "valid"], element_type=None), feeds


def knobs_of(skip: str) -> dict[str, dict]:
    chosen = {"groups": 3, "group_size": 32, "boxes": 2, "skip": skip}
    # A mask is converted in two steps, through 32 bits.
    return dict.fromkeys(("GIoULoss", "fused_cast_GIoULoss", "fused_cast_cast1_GIoULoss"), chosen)


def compare(outputs: Mapping[str, np.ndarray], given: boxes.Batch) -> None:
    expected = reference(given)
    assert outputs["valid"] == expected[1]
    assert_close(outputs["loss"], expected[0], OPERATOR)


@pytest.mark.cuda_host
@pytest.mark.parametrize(("form", "skip"), cases(GPU, cpu=False))
def test_cuda_kernels_on_the_host(form: str, skip: str):
    given = batch(form, 7, 37)
    model, feeds = network(given)
    with closing(tvmflow.compile(model, target="cuda", knobs=knobs_of(skip))) as module:
        (entry,) = module.metadata["schedules"].values()
        assert (entry["family"], entry["source"]) == (masked_mean.NAME, "given")
        compare(cuda_host()(module, feeds), given)


@pytest.mark.oclgrind
@pytest.mark.opencl
@pytest.mark.parametrize(
    ("form", "skip", "device"),
    [
        ("count", "warp", "adreno"),
        ("offsets", "element", "adreno"),
        ("none", "list", "adreno"),
        ("offsets", None, "cpu"),
        ("bytes", None, "cpu"),
    ],
)
def test_kernels_are_clean(form: str, skip: str | None, device: str, under_oclgrind):
    """No read is out of bounds, and no item reads what another one writes."""
    given = batch(form, 3, 37)
    model, feeds = network(given)
    knobs = knobs_of(skip) if skip else None
    with tvmflow.compile(model, target="opencl", device=device, knobs=knobs) as module:
        compare(under_oclgrind()(module, feeds), given)


@pytest.mark.parametrize(("target", "device"), DEVICES)
def test_what_is_no_row_is_read_number_by_number(target: str, device: str):
    """A factor per box is fused into the loss, and is not contiguous with others in memory."""
    nodes = [
        helper.make_node("Mul", ["x", "factors"], ["pred"]),
        helper.make_node("GIoULoss", ["pred", "target"], ["loss", "valid"], domain=DOMAIN),
    ]
    shapes = {"x": (3, 37, 4), "factors": (3, 37, 1), "target": (3, 37, 4)}
    model = build(nodes, shapes, ["loss", "valid"], element_type=None)
    given = batch("none", 3, 37)
    factors = np.linspace(0.5, 2, 111, dtype="float32").reshape(3, 37, 1)
    feeds = {"x": given.pred, "factors": factors, "target": given.target}
    expected = references(model, feeds)
    with tvmflow.compile(model, target=target, device=device) as module:
        assert [e["family"] for e in module.metadata["schedules"].values()] == [masked_mean.NAME]
        outputs = module(**feeds)
    assert outputs["valid"] == expected[1]
    assert_close(outputs["loss"], expected[0], OPERATOR)


# -- what is generated --------------------------------------------------------------------


def source(form: str, device: str, **changed: object) -> str:
    knobs = {"groups": 8, "group_size": 64, "boxes": 1, "skip": "element", **changed}
    body = scheduled(form, "opencl", device, knobs).schedule.mod["main"]
    spec = resolve("opencl", device)
    marks = {"global_symbol": "main", "tirx.is_scheduled": True}
    with spec.tvm_target:
        module = tvm.IRModule({"main": body.with_attrs(marks)})
        built = tvm.tirx.build(module, target=spec.tvm_target, pipeline=TIR_PIPELINE)
    return "".join(device_code.inspect_source() for device_code in built.imports)


def test_a_box_is_one_load():
    text = source("count", "nvidia")
    assert text.count("at_float4(pred_ptr") == text.count("at_float4(target_ptr") == 1
    assert "pred_ptr[" not in text
    assert "target_ptr[" not in text


@pytest.mark.parametrize(("groups", "kernels"), [(1, 1), (8, 2)])
def test_one_group_needs_one_launch(groups: int, kernels: int):
    text = source("count", "nvidia", groups=groups)
    assert text.count(") {\n  ") >= kernels
    assert ("main_kernel_1" in text) == (kernels == 2)


def test_only_a_list_needs_barriers_in_the_loop():
    """64 items need six steps of a prefix sum and one after it, and two around the list's use."""
    plain = source("bytes", "nvidia").count("barrier(")
    assert source("bytes", "nvidia", skip="list").count("barrier(") == plain + 9


@pytest.mark.parametrize(
    ("form", "device", "change", "sentence"),
    [
        ("offsets", "nvidia", {"skip": "none"}, "Packed boxes that are not valid may not be read"),
        ("bytes", "nvidia", {"skip": "warp"}, "warps skip boxes after a limit"),
        ("count", "cpu", {"skip": "element"}, "Lanes of a vector cannot part ways"),
        ("count", "nvidia", {"skip": "half"}, "skip is none, element, warp or list"),
        ("count", "nvidia", {"group_size": 48}, "group_size is a power of 2"),
        ("count", "nvidia", {"skip": "list", "group_size": 1024, "boxes": 8}, "local memory"),
    ],
)
def test_knobs_that_do_not_fit_are_refused(form, device, change, sentence, caplog):
    size = 1 if PRESETS[device].is_cpu else 64
    knobs = {"groups": 8, "group_size": size, "boxes": 2, "skip": "warp", **change}
    with caplog.at_level(logging.WARNING, logger="tvmflow"):
        found = schedule_function(function(form), resolve("opencl", device), knobs)
    assert (found.family, found.source) == (masked_mean.NAME, "heuristic")
    assert sentence in caplog.text
