"""The loss's schedule: any extents, forms of validity and knobs; one compilation for all sizes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache

import numpy as np
import onnx
import pytest
import tvm
from cuda_host import cuda_host
from onnx import TensorProto, helper
from operators import build, references
from tvm import te, tirx

import tvmflow
import tvmflow.codegen.opencl_source  # TVM calls it back with the source of kernels
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE
from tvmflow.devices.target import PRESETS, resolve
from tvmflow.ir.operator import DOMAIN, dtype_of
from tvmflow.ir.operators import OPERATORS
from tvmflow.ops.compiled import compile_operator
from tvmflow.schedules import schedule_function
from tvmflow.schedules.boxes import masked_mean
from tvmflow.verify.tolerance import OPERATOR, assert_close

LOSS = OPERATORS["GIoULoss"]

#: Positions of the operator's inputs.
FORMS = {"count": 2, "mask": 3, "offsets": 4, "positive": None}
CPU, GPU = ("none", "warp", "list"), ("none", "element", "warp", "list")

#: Samples and boxes: nothing but ends of vectors, one sample, several chunks, a page's worth.
SIZES = [(1, 1), (3, 5), (2, 16), (4, 37), (1, 2500), (33, 256)]

OPENCL = [
    pytest.param("opencl", device, marks=pytest.mark.opencl, id=device)
    for device in ("cpu", "nvidia")
]
DEVICES = [pytest.param("llvm", "cpu", id="llvm"), *OPENCL]


def allows(form: str, skip: str, cpu: bool) -> bool:
    """What the constraints let through."""
    if skip == "none":
        return form != "offsets"
    return skip != "warp" or cpu or form in ("count", "offsets")


def cases(skips: Sequence[str], cpu: bool) -> list[tuple[str, str]]:
    return [(form, skip) for form in FORMS for skip in skips if allows(form, skip, cpu)]


# -- functions of any size, and what they are given -----------------------------------------


def function(form: str, dtype: str = "float32", integers: str = "int32") -> tirx.PrimFunc:
    """The loss of a batch whose extents are variables."""
    samples, boxes, rows = (tirx.Var(name, "int32") for name in ("B", "M", "P"))
    shape = (samples, boxes, 4)
    inputs = [te.placeholder(shape, dtype, "pred")]
    inputs.append(te.placeholder((rows, 4) if form == "offsets" else shape, dtype, "target"))
    arguments: list[te.Tensor | None] = [*inputs, None, None, None]
    shapes = {"count": (samples,), "mask": (samples, boxes), "offsets": (samples + 1,)}
    if form in shapes:
        kind = "uint8" if form == "mask" else integers
        inputs.append(te.placeholder(shapes[form], kind, form))
        arguments[FORMS[form]] = inputs[-1]
    return te.create_prim_func([*inputs, *LOSS.compute(arguments, LOSS.attributes)])


def scheduled(form: str, target: str, device: str, knobs: Mapping | None, dtype: str = "float32"):
    integers = "int64" if dtype == "float16" else "int32"
    found = schedule_function(function(form, dtype, integers), resolve(target, device), knobs)
    assert found.family == masked_mean.NAME
    assert found.source == ("heuristic" if knobs is None else "given")
    return found


@cache
def compiled(form: str, target: str, device: str, skip: str | None, dtype: str = "float32"):
    """A function for tensors of any size; small groups, so that there are many."""
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


def batch(form: str, samples: int, boxes: int, dtype: str = "float32") -> list[np.ndarray]:
    """Inputs; what is not valid is NaN or infinity."""
    rng = np.random.default_rng(samples * 1000 + boxes)
    corners = rng.random((2, samples, boxes, 2)) * 20
    sides = rng.random((2, samples, boxes, 2)) * 10 - 1
    pred, target = np.concatenate([corners, corners + sides], -1).astype(dtype_of(dtype))
    counts = rng.integers(0, boxes + 1, samples)
    valid = np.arange(boxes) < counts[:, None]
    if form in ("mask", "positive"):
        valid = rng.random((samples, boxes)) < 0.6
    pred[~valid], target[~valid] = np.nan, np.inf
    integers = "int64" if dtype == "float16" else "int32"
    if form == "count":
        return [pred, target, counts.astype(integers)]
    if form == "mask":
        return [pred, target, valid.astype("uint8")]
    if form == "offsets":
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(integers)
        return [pred, target[valid], offsets]
    target[..., 3] = np.where(valid, np.abs(target[..., 3]) + dtype_of(dtype).type(1), 0)
    return [pred, target]


def reference(form: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    given = [*arrays[:2], None, None, None]
    if form != "positive":
        given[FORMS[form]] = arrays[2]
    return LOSS.evaluate(given, LOSS.attributes)


def run(loss, arrays: Sequence[np.ndarray], target: str) -> list[np.ndarray]:
    device = tvm.device(target if target != "llvm" else "cpu")
    outputs = [
        tvm.runtime.tensor(np.full((), 7, dtype), device) for dtype in (arrays[0].dtype, "int32")
    ]
    loss(*(tvm.runtime.tensor(array, device) for array in arrays), *outputs)
    return [output.numpy() for output in outputs]


def check(loss, form: str, target: str, dtype: str = "float32") -> None:
    for size in SIZES:
        arrays = batch(form, *size, dtype)
        found, expected = run(loss, arrays, target), reference(form, arrays)
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
@pytest.mark.parametrize(("form", "skip"), [("mask", "list"), ("offsets", "warp")])
def test_vectors_in_opencl(form: str, skip: str):
    check(compiled(form, "opencl", "cpu", skip), form, "opencl")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_heuristics_in_16_bits(form: str, dtype: str):
    check(compiled(form, "llvm", "cpu", None, dtype), form, "llvm", dtype)


@pytest.mark.opencl
def test_bfloat16_in_opencl():
    check(
        compiled("positive", "opencl", "nvidia", None, "bfloat16"), "positive", "opencl", "bfloat16"
    )


@pytest.mark.parametrize(("target", "device"), DEVICES)
@pytest.mark.parametrize("form", ["count", "offsets"])
def test_wrong_numbers_stay_inside(form: str, target: str, device: str):
    """Counts and offsets are clamped, as in the reference."""
    arrays = batch(form, 4, 37)
    arrays[0], arrays[1] = (np.nan_to_num(a, posinf=3.0) for a in arrays[:2])
    wrong = [-(2**31), 38, 2**31 - 1, 5]
    arrays[2] = np.array(wrong if form == "count" else [*wrong, 9], "int32")
    found = run(compiled(form, target, device, None), arrays, target)
    assert found[1] == reference(form, arrays)[1]
    assert np.isfinite(found[0])


@pytest.mark.parametrize(("target", "device"), DEVICES)
def test_no_valid_box(target: str, device: str):
    pred, boxes, _ = batch("count", 3, 37)
    found = run(
        compiled("count", target, device, None), [pred, boxes, np.zeros(3, "int32")], target
    )
    assert found == [0, 0]


@pytest.mark.parametrize(("target", "device"), DEVICES)
def test_the_same_bits_each_time(target: str, device: str):
    loss, arrays = compiled("mask", target, device, None), batch("mask", 33, 256)
    assert len({run(loss, arrays, target)[0].tobytes() for _ in range(5)}) == 1


@pytest.mark.opencl
@pytest.mark.parametrize("skip", GPU)
def test_boxes_in_textures(skip: str):
    """Images of a row for each sample; a box is one texel."""
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
        arrays = batch("count", *size)
        found, expected = loss(*arrays), reference("count", arrays)
        assert found[1] == expected[1]
        assert_close(found[0], expected[0], OPERATOR)


# -- in networks --------------------------------------------------------------------------


def network(form: str, arrays: Sequence[np.ndarray]) -> tuple[onnx.ModelProto, dict]:
    """A node, whose integers come as floats; and feeds."""
    inputs = {"pred": arrays[0], "target": arrays[1]}
    names, nodes = ["pred", "target", *[""] * 3], []
    if form != "positive":
        kind = TensorProto.UINT8 if form == "mask" else TensorProto.INT32
        nodes.append(helper.make_node("Cast", ["numbers"], [form], to=kind))
        names[FORMS[form]], inputs["numbers"] = form, arrays[2].astype("float32")
    nodes.append(helper.make_node("GIoULoss", names, ["loss", "valid"], domain=DOMAIN))
    shapes = {name: array.shape for name, array in inputs.items()}
    return build(nodes, shapes, ["loss", "valid"], element_type=None), inputs


def knobs_of(skip: str) -> dict[str, dict]:
    chosen = {"groups": 3, "group_size": 32, "boxes": 2, "skip": skip}
    # A mask is converted by way of 32 bits.
    return dict.fromkeys(("GIoULoss", "fused_cast_GIoULoss", "fused_cast_cast1_GIoULoss"), chosen)


def compare(outputs: Mapping[str, np.ndarray], form: str, arrays: Sequence[np.ndarray]) -> None:
    expected = reference(form, arrays)
    assert outputs["valid"] == expected[1]
    assert_close(outputs["loss"], expected[0], OPERATOR)


@pytest.mark.cuda_host
@pytest.mark.parametrize(("form", "skip"), cases(GPU, cpu=False))
def test_cuda_kernels_on_the_host(form: str, skip: str):
    arrays = batch(form, 7, 37)
    model, feeds = network(form, arrays)
    with closing(tvmflow.compile(model, target="cuda", knobs=knobs_of(skip))) as module:
        (entry,) = module.metadata["schedules"].values()
        assert (entry["family"], entry["source"]) == (masked_mean.NAME, "given")
        compare(cuda_host()(module, feeds), form, arrays)


@pytest.mark.oclgrind
@pytest.mark.opencl
@pytest.mark.parametrize(
    ("form", "skip", "device"),
    [
        ("count", "warp", "adreno"),
        ("offsets", "element", "adreno"),
        ("positive", "list", "adreno"),
        ("offsets", None, "cpu"),
        ("mask", None, "cpu"),
    ],
)
def test_kernels_are_clean(form: str, skip: str | None, device: str, under_oclgrind):
    """Nothing is read outside of a tensor, and no item reads what another one writes."""
    arrays = batch(form, 3, 37)
    model, feeds = network(form, arrays)
    knobs = knobs_of(skip) if skip else None
    with tvmflow.compile(model, target="opencl", device=device, knobs=knobs) as module:
        compare(under_oclgrind()(module, feeds), form, arrays)


@pytest.mark.parametrize(("target", "device"), DEVICES)
def test_what_is_no_row_is_read_number_by_number(target: str, device: str):
    """A factor for each box is fused into the loss, and stands by itself in memory."""
    nodes = [
        helper.make_node("Mul", ["x", "factors"], ["pred"]),
        helper.make_node("GIoULoss", ["pred", "target"], ["loss", "valid"], domain=DOMAIN),
    ]
    shapes = {"x": (3, 37, 4), "factors": (3, 37, 1), "target": (3, 37, 4)}
    model = build(nodes, shapes, ["loss", "valid"], element_type=None)
    pred, boxes = batch("positive", 3, 37)
    feeds = {"x": pred, "factors": np.linspace(0.5, 2, 111, dtype="float32").reshape(3, 37, 1)}
    feeds["target"] = boxes
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
    """Of 64 items: six steps of a prefix sum and one after it, and two around the list's use."""
    plain = source("mask", "nvidia").count("barrier(")
    assert source("mask", "nvidia", skip="list").count("barrier(") == plain + 9


@pytest.mark.parametrize(
    ("form", "device", "change", "sentence"),
    [
        ("offsets", "nvidia", {"skip": "none"}, "Packed boxes that are not valid may not be read"),
        ("mask", "nvidia", {"skip": "warp"}, "warps skip boxes after a limit"),
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
