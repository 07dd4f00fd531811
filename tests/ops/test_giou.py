"""GIoU, its loss and the gradients: compiled once, called with random batches of any size."""

from __future__ import annotations

import dataclasses
import itertools
import re
from functools import cache

import numpy as np
import pytest
from support import boxes
from support.knob_choices import candidates
from support.turns import in_turn

from tvmflow.devices.target import PRESETS, resolve
from tvmflow.errors import InputError, OperatorError, ShapeError
from tvmflow.ir.operators import OPERATORS
from tvmflow.ir.tensors import dtype_from_name
from tvmflow.ops.compiled import compile_operator
from tvmflow.ops.program import build
from tvmflow.ops.signature import read_signature
from tvmflow.schedules.boxes import per_box as schedule
from tvmflow.verify.tolerance import OPERATOR, assert_close

TARGETS = [
    pytest.param("llvm", "cpu", id="llvm"),
    *(
        pytest.param("opencl", device, id=f"opencl-{device}", marks=pytest.mark.opencl)
        for device in ("cpu", "nvidia")
    ),
]
CPUS = ("llvm", "opencl-cpu")
WAYS = (*CPUS, "opencl-nvidia")
DTYPES = ("float32", "float16", "bfloat16")
#: Samples and boxes: fewer than a vector's lanes, multiples of 16 and others; none.
SHAPES = [(1, 1), (3, 5), (2, 16), (7, 33), (4, 257), (65, 8), (2, 0), (1, 2100)]


@cache
def compiled(name, target, device, kinds):
    return compile_operator(name, target, device, inputs=dict(kinds))


def call(name, target, device, arrays):
    """Return results of the operator, compiled for the dtypes and ranks of the arrays alone."""
    operator = OPERATORS[name]
    kinds = tuple(
        (operand.name, f"{array.dtype.name}[{_extents(operand, array, arrays)}]")
        for operand, array in zip(operator.inputs, arrays, strict=True)
        if array is not None
    )
    return compiled(name, target, device, kinds)(*arrays)


def _extents(operand, array, arrays):
    """Return ``P, 4`` for a target that has other rows than the predictions."""
    if operand.name == "target" and array.ndim != arrays[0].ndim:
        return "P, 4"
    return next(s for s in operand.shapes if len([*filter(None, s.split(","))]) == array.ndim)


def check(name, target, device, arrays, tolerance=None):
    """Compare with the reference in float64."""
    operator = OPERATORS[name]
    expected = operator.evaluate(arrays, operator.complete({}))
    found = call(name, target, device, arrays)
    for got, value in zip(found, expected, strict=True):
        assert_close(got, value, tolerance or OPERATOR, name)


# -- pairs --------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs(target, device, dtype, rng):
    """The boxes have ties, are empty or inverted, and have NaN in each coordinate."""
    kind = dtype_from_name(dtype)
    for shape in [*SHAPES, (5,), (40,)]:
        pred, given = (boxes.corners(rng, *shape).astype(kind) for _ in range(2))
        grad = rng.normal(size=shape).astype(kind)
        for array in (pred, given):
            array[rng.random(array.shape) < 0.02] = np.nan
        check("GIoU", target, device, [pred, given])
        if dtype == "float32":
            # Without an area, a derivative is 1 / epsilon, which 16 bits cannot represent.
            check_gradients(target, device, [pred, given, grad])
        usual = [boxes.sized(rng, *shape).astype(kind) for _ in range(2)]
        check("GIoUGrad", target, device, [*usual, grad])


def check_gradients(target, device, arrays):
    """Compare pair by pair: a large one leaves the others exact.

    For two nearly equal boxes, terms as large as the weight cancel each other.
    """
    operator = OPERATORS["GIoUGrad"]
    expected = np.concatenate(operator.evaluate(arrays, operator.complete({})), -1)
    got = np.concatenate(call("GIoUGrad", target, device, arrays), -1)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    largest = np.maximum(np.nanmax(np.abs(expected), -1, initial=0), np.abs(arrays[2]))
    assert np.nanmax(np.abs(got - expected) / largest[..., None], initial=0) < 2e-6


@pytest.mark.parametrize(("target", "device"), TARGETS)
def test_large_and_small_boxes(target, device, rng):
    """Test pixels of a large picture, and fractions of it."""
    for scale in (1e4, 1e-2):
        pred, given = (boxes.sized(rng, 3, 50) * scale for _ in range(2))
        check("GIoU", target, device, [pred.astype("f4"), given.astype("f4")])


# -- the loss -----------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "target", "device"), in_turn(boxes.FORMS, TARGETS, CPUS))
def test_loss(target, device, form, rng):
    for number, shape in enumerate(SHAPES):
        given = boxes.batch(rng, shape, form, "float32", ("int32", "int64")[number % 2])
        check("GIoULoss", target, device, given.arrays())


@pytest.mark.parametrize(("form", "target", "device"), in_turn(boxes.FORMS, TARGETS, CPUS))
def test_gradients_of_the_loss(target, device, form, rng):
    """Gradients of boxes that do not count are 0, whatever the boxes hold."""
    for number, shape in enumerate(SHAPES):
        given = boxes.batch(rng, shape, form, "float32", ("int32", "int64")[number % 2])
        arrays = given.gradient_arrays(-1.5)
        check("GIoULossGrad", target, device, arrays)
        found = call("GIoULossGrad", target, device, arrays)
        for array, got in zip((given.pred, given.target), found, strict=True):
            assert (got[~np.isfinite(array).all(-1)] == 0).all()


@pytest.mark.parametrize(
    ("form", "dtype", "target", "device"),
    in_turn(itertools.product(["none", "offsets"], DTYPES[1:]), TARGETS, WAYS),
)
def test_16_bits(target, device, dtype, form, rng):
    for shape in ((3, 5), (7, 33)):
        given = boxes.batch(rng, shape, form, dtype, boxes=boxes.sized)
        check("GIoULoss", target, device, given.arrays())
        check("GIoULossGrad", target, device, given.gradient_arrays(20.0))


@pytest.mark.parametrize(("target", "device"), TARGETS[:1])
@pytest.mark.parametrize("form", boxes.FORMS)
def test_one_sample_without_its_dimension(target, device, form, rng):
    for most in (1, 16, 37):
        given = boxes.batch(rng, (1, most), form).of_one_sample()
        check("GIoULoss", target, device, given.arrays())
        check("GIoULossGrad", target, device, given.gradient_arrays(0.5))


@pytest.mark.parametrize(("target", "device"), TARGETS[::2])
def test_a_nan_that_counts_reaches_the_loss_and_its_box_alone(target, device, rng):
    given = boxes.batch(rng, (2, 19), "count", boxes=boxes.sized)
    given.count[:] = 18
    given.pred[:, :18] = boxes.sized(rng, 2, 18)
    given.target[:, :18] = boxes.sized(rng, 2, 18)
    given.target[1, 17, 2] = np.nan
    loss, valid = call("GIoULoss", target, device, given.arrays())
    assert np.isnan(loss)
    assert valid == 36
    for got in call("GIoULossGrad", target, device, given.gradient_arrays(1.0)):
        assert np.isnan(got[1, 17]).all()
        got[1, 17] = 0
        assert np.isfinite(got).all()


@pytest.mark.parametrize(("target", "device"), TARGETS)
def test_counts_and_offsets_out_of_range_read_nothing_else(target, device, rng):
    """Unchecked counts and offsets are clamped."""
    given = boxes.batch(rng, (3, 6), "none", boxes=boxes.sized)
    given.pred[:], given.target[:] = boxes.sized(rng, 3, 6), boxes.sized(rng, 3, 6)
    count = np.array([-5, 2**40 + 3, 6])
    packed = given.target.reshape(18, 4)[:12]
    offsets = np.array([-7, 4, 2**35, 2**36])
    for arrays, rows in (
        ([given.pred, given.target, count, None, None], (0, 6, 6)),
        ([given.pred, packed, None, None, offsets], (4, 6, 0)),
    ):
        operator = OPERATORS["GIoULoss"]
        _, valid = operator.evaluate(arrays, operator.complete({}))
        assert valid == sum(rows)
        for name in ("GIoULoss", "GIoULossGrad"):
            given_arrays = [*arrays, *([valid, np.float32(1)] if name.endswith("Grad") else [])]
            expected = OPERATORS[name].evaluate(given_arrays, operator.complete({}))
            kinds = tuple(
                (o.name, f"{a.dtype.name}[{_extents(o, a, arrays)}]")
                for o, a in zip(OPERATORS[name].inputs, given_arrays, strict=True)
                if a is not None
            )
            function = compiled(name, target, device, kinds)
            tensors = [
                None if a is None else function.memory.bring(np.asarray(a), 1) for a in given_arrays
            ]
            results = [
                function.memory.empty(k) for k in function.result_types(_types(given_arrays))
            ]
            workspaces = [function.memory.workspace(kind) for kind in function.workspaces]
            function.run([t for t in tensors if t is not None], results, workspaces)
            for got, value in zip(results, expected, strict=True):
                assert_close(got.numpy(), value, OPERATOR, name)


def _types(arrays):
    from tvmflow.ir.tensors import TensorType

    return [None if a is None else TensorType(a.shape, a.dtype.name) for a in arrays]


@pytest.mark.parametrize(("target", "device"), TARGETS[::2])
def test_all_knobs_are_right(target, device, rng):
    """Test the gradients with other knobs than the heuristic's."""
    preset, operator = PRESETS[device], OPERATORS["GIoULossGrad"]
    given = boxes.batch(rng, (7, 300), "offsets", boxes=boxes.sized)
    arrays = given.gradient_arrays(3.0)
    expected = operator.evaluate(arrays, operator.complete({}))
    kinds = {"target": "float32[P, 4]", "offsets": "int32"}
    allowed = list(candidates(schedule, schedule.Shape(0, 0, 2, whole=True), preset))
    for knobs in rng.choice(np.array(allowed, object), 3, replace=False):
        function = compile_operator(
            operator, target, device, inputs=kinds, knobs=dataclasses.asdict(knobs)
        )
        assert function.program.scheduled.knobs == dataclasses.asdict(knobs)
        for got, value in zip(function(*arrays), expected, strict=True):
            assert_close(got, value, OPERATOR, str(knobs))


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["GIoU", "GIoUGrad", "GIoULossGrad"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda_reads_and_writes_whole_boxes(name, dtype):
    """Each box takes one load and one store of 16 bytes, or of 8 with 16-bit numbers."""
    operator = OPERATORS[name]
    packed = "Loss" in name
    kinds = {"pred": f"{dtype}[B, M, 4]", "target": f"{dtype}[{'P' if packed else 'B, M'}, 4]"}
    kinds |= {"offsets": "int32"} if packed else {}
    program = build(
        operator, read_signature(operator, kinds), operator.complete({}),
        range(len(operator.outputs)), resolve("cuda", "nvidia"),
    )  # fmt: skip
    assert program.scheduled.family == "boxes"
    (kernels,) = program.module.imports
    source = kernels.inspect_source()
    vector = {"float32": "float4", "float16": "half4", "bfloat16": "nv_bfloat164"}[dtype]
    assert source.count(f"*({vector}*)(pred_ptr") == source.count(f"*({vector}*)(target_ptr") == 1
    assert not re.search(r"\b(pred|target|grad_pred|grad_target|grad_rows)_ptr\[", source)


# -- dtypes -------------------------------------------------------------------------------

INTEGERS = ("uint8", "int16", "int32")


def typed(rng, shape, form, dtypes):
    """Return a batch with predictions and targets of two dtypes; integers use their whole range."""
    given = boxes.batch(rng, shape, form, boxes=boxes.sized)
    pred, target = dtypes
    low, high = (np.iinfo(target).min, np.iinfo(target).max) if target in INTEGERS else (-9, 9)
    # Extents are alike, so that no fp16 prediction is infinite, and not all boxes are disjoint.
    limits = np.finfo("float16").max if pred == "float16" else np.inf

    def spread(*shape):
        first, last = np.sort(rng.uniform(low, high, (2, *shape, 2)), axis=0)
        return np.concatenate([first, last], -1)

    pred_boxes = spread(*shape).clip(-limits, limits)
    rows = spread(*given.target.shape[:-1])
    if form == "none":
        # Boxes that count have a positive y2; unsigned ones have 0 if they do not count.
        rows[..., 3] = np.where(given.target[..., 3] > 0, np.maximum(rows[..., 3], 1), min(low, 0))
    elif target not in INTEGERS:
        rows[~np.isfinite(given.target)] = np.nan
    else:
        rows.reshape(-1, 4)[-1] = low, low, high, high
    return dataclasses.replace(
        given,
        pred=pred_boxes.astype(dtype_from_name(pred)),
        target=rows.astype(dtype_from_name(target)),
    )


@pytest.mark.parametrize(
    ("dtypes", "form", "target", "device"),
    in_turn(
        zip(
            [(p, t) for p in DTYPES for t in (*INTEGERS, *DTYPES) if p != t],
            itertools.cycle(["none", "offsets", "count"]),
            strict=False,
        ),
        TARGETS[:2],
        WAYS[:2],
    ),
)
def test_targets_of_other_dtypes(target, device, dtypes, form, rng):
    """Kernels convert the targets; results have the dtype of the predictions."""
    for shape in ((3, 5), (7, 33)):
        given = typed(rng, shape, form, dtypes)
        check("GIoULoss", target, device, given.arrays())
        arrays = given.gradient_arrays(20.0)
        check("GIoULossGrad", target, device, arrays)
        for got in call("GIoULossGrad", target, device, arrays):
            assert got.dtype == given.pred.dtype


@pytest.mark.parametrize("form", ["none", "count", "offsets"])
def test_doubles(form, rng):
    """All bits are kept, which fp32 at any step would lose."""
    for shape in ((3, 5), (7, 33)):
        given = boxes.batch(rng, shape, form, "float64", boxes=boxes.sized)
        check("GIoULoss", "llvm", "cpu", given.arrays())
        check("GIoULossGrad", "llvm", "cpu", given.gradient_arrays(20.0))


def test_doubles_are_the_hosts():
    kinds = {"pred": "float64", "target": "float64", "count": "int32"}
    with pytest.raises(
        OperatorError,
        match=r"for opencl failed: its pred is float64\[B, M, 4\], "
        "expected float32 or float16 or bfloat16",
    ):
        compile_operator("GIoULoss", "opencl", "cpu", inputs=kinds)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_two_negative_sides_make_no_area(dtype):
    """Check the example of docs/giou.md, and the formula that is often copied."""
    pred, target = np.array([[0, 0, 40, 45]], "f4"), np.array([[78, 95, 88, 105]])
    (p1, p2), (t1, t2) = ((box[0, :2].astype("f8"), box[0, 2:]) for box in (pred, target))
    inter = (np.minimum(p2, t2) - np.maximum(p1, t1)).prod()
    union = (p2 - p1).prod() + (t2 - t1).prod() - inter
    around = (np.maximum(p2, t2) - np.minimum(p1, t1)).prod()
    assert (inter, union, around) == (1900, 0, 9240)
    copied = inter / (union + 1e-5) - (around - union) / (around + 1e-5)
    assert copied == pytest.approx(1.9e8, rel=1e-6)
    (got,) = call("GIoU", "llvm", "cpu", [pred, target.astype(dtype)])
    assert got[0] == pytest.approx(1900 / 9240 - 1, abs=1e-6)
    assert round(float(got[0]), 3) == -0.794


# -- what is refused ----------------------------------------------------------------------


def zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


REFUSED = {
    "five numbers": ([zeros(2, 3, 5), zeros(2, 3, 5)], ShapeError, r"pred \[2, 3, 5\], expected"),
    "other batch": (
        [zeros(2, 3, 4), zeros(3, 3, 4)],
        ShapeError,
        r"pred \[2, 3, 4\] and target \[3, 3, 4\]",
    ),
    "integers": (
        [zeros(2, 3, 4, dtype="int32"), zeros(2, 3, 4, dtype="int32")],
        OperatorError,
        r"'pred' of GIoULoss is int32\[2, 3, 4\]",
    ),
    "two forms": (
        [zeros(2, 3, 4), zeros(2, 3, 4), zeros(2, dtype="int32"), zeros(2, 3, dtype="bool")],
        ShapeError,
        r"count \[2\] and mask \[2, 3\], expected at most one",
    ),
    "counts": (
        [zeros(2, 3, 4), zeros(2, 3, 4), zeros(3, dtype="int32")],
        ShapeError,
        r"count \[3\], expected count \[2\]",
    ),
    "offsets": (
        [zeros(2, 3, 4), zeros(5, 4), None, None, zeros(2, dtype="int32")],
        ShapeError,
        r"offsets \[2\], expected offsets \[3\]",
    ),
    "bytes for predictions": (
        [zeros(2, 3, 4, dtype="uint8"), zeros(2, 3, 4)],
        OperatorError,
        r"'pred' of GIoULoss is uint8\[2, 3, 4\], expected float32 or float16 or bfloat16",
    ),
    "64-bit integers for targets": (
        [zeros(2, 3, 4), zeros(2, 3, 4, dtype="int64")],
        OperatorError,
        r"'target' of GIoULoss is int64\[2, 3, 4\], expected .* or uint8 or int16 or int32",
    ),
    "doubles and floats": (
        [zeros(2, 3, 4, dtype="float64"), zeros(2, 3, 4)],
        ShapeError,
        r"expected float64 for both or for neither",
    ),
    "a large count": (
        [zeros(2, 3, 4), zeros(2, 3, 4), np.array([3, 4])],
        InputError,
        r"count of 4 boxes in sample 1, expected 0 to 3",
    ),
    "a negative count": (
        [zeros(2, 3, 4), zeros(2, 3, 4), np.array([-1, 3])],
        InputError,
        r"count of -1 boxes in sample 0, expected 0 to 3",
    ),
    "offsets that go back": (
        [zeros(2, 3, 4), zeros(5, 4), None, None, np.array([0, 3, 2])],
        InputError,
        r"of -1 boxes in sample 1, expected 0 to 3",
    ),
    "offsets beyond the rows": (
        [zeros(2, 3, 4), zeros(5, 4), None, None, np.array([0, 3, 6])],
        InputError,
        r"offsets\[2\] = 6, expected 0 to 5, the rows of target \[5, 4\]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case):
    arrays, error, message = REFUSED[case]
    function = compile_operator_for(arrays)
    with pytest.raises(error, match=message):
        function(*arrays)


@cache
def _any():
    return compile_operator("GIoULoss", inputs={"count": "int64"})


def compile_operator_for(arrays):
    """Return an operator compiled for something: it reports errors of shapes first."""
    offsets = len(arrays) > 4 and arrays[4] is not None
    if offsets:
        return compile_operator("GIoULoss", inputs={"target": "float32[P, 4]", "offsets": "int64"})
    return _any()
