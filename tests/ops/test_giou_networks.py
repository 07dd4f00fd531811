"""GIoU and its gradients as nodes of networks: on every target, fused, without races."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper
from support import boxes
from support.cuda_host import cuda_host
from support.onnx_models import model_of
from support.turns import in_turn

import tvmflow
from tvmflow.errors import ModelError, UnsupportedModelError
from tvmflow.ir.operator import DOMAIN
from tvmflow.ir.operators import OPERATORS
from tvmflow.ir.tensors import dtype_from_name
from tvmflow.verify.tolerance import OPERATOR, assert_close

TARGETS = [
    pytest.param("llvm", "cpu", id="llvm"),
    pytest.param("cuda", "nvidia", id="cuda", marks=pytest.mark.cuda_host),
    *(
        pytest.param("opencl", device, id=f"opencl-{device}", marks=pytest.mark.opencl)
        for device in ("cpu", "adreno")
    ),
]
#: Samples and boxes, with a remainder after whole vectors.
SHAPE = (3, 37)


def network(name, arrays, more=()):
    """Return a model of one node, and of nodes that compute ``y`` from its first result."""
    operator = OPERATORS[name]
    given = [(o.name, a) for o, a in zip(operator.inputs, arrays, strict=True) if a is not None]
    names = [o.name if a is not None else "" for o, a in zip(operator.inputs, arrays, strict=True)]
    outputs = [o.name for o in operator.outputs]
    results = operator.evaluate(arrays, operator.complete({}))
    node = helper.make_node(name, names, outputs, name, domain=DOMAIN)

    wanted = {n: (a.shape, a.dtype) for n, a in zip(outputs, results, strict=True)}
    if more:
        wanted = {"y": results[0].shape}
    inputs = {n: (np.shape(a), np.asarray(a).dtype) for n, a in given}
    return model_of([node, *more], inputs, wanted, opset=18), dict(given), results


def run(module, feeds, target):
    return cuda_host()(module, feeds) if target == "cuda" else module(**feeds)


def pair(rng):
    pred, target = (boxes.corners(rng, *SHAPE).astype("f4") for _ in range(2))
    pred[0, 3, 1] = np.nan
    return pred, target


@pytest.mark.parametrize(("target", "device"), TARGETS)
def test_giou_and_what_is_fused_to_it(target, device, rng):
    """As a producer of the usual ``1 - giou`` it is one kernel."""
    more = [
        helper.make_node("Constant", [], ["one"], value_float=1.0),
        helper.make_node("Sub", ["one", "giou"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["y"]),
    ]
    model, feeds, results = network("GIoU", pair(rng), more)
    with closing(tvmflow.compile(model, target=target, device=device)) as module:
        (got,) = run(module, feeds, target).values()
        schedules = module.metadata["schedules"].values()
    assert_close(got, (1 - results[0]) ** 2, OPERATOR)
    assert [choice["family"] for choice in schedules] == ["boxes"]


@pytest.mark.parametrize(
    ("form", "target", "device"),
    in_turn(boxes.FORMS, TARGETS, ("llvm", "opencl-cpu"), ("cuda", "opencl-adreno")),
)
def test_gradients_of_the_loss(target, device, form, rng):
    arrays = boxes.batch(rng, SHAPE, form).gradient_arrays(2.0)
    model, feeds, results = network("GIoULossGrad", arrays)
    with closing(tvmflow.compile(model, target=target, device=device)) as module:
        found = run(module, feeds, target)
        schedules = module.metadata["schedules"].values()
    for got, expected in zip(found.values(), results, strict=True):
        assert_close(got, expected, OPERATOR, form)
    assert {choice["family"] for choice in schedules} == {"boxes"}


# -- element types ------------------------------------------------------------------------

#: Dtypes of predictions and targets, on every target; ``float64`` only for both.
MIXED = [
    *((p, t) for p in ("float32", "float16") for t in ("uint8", "int16", "int32")),
    ("float32", "float16"), ("float16", "float32"), ("float16", "float16"), ("float64", "float64"),
]  # fmt: skip


def mixed(rng, *dtypes):
    """Return a batch with integers as targets, which all dtypes can hold."""
    given = boxes.batch(rng, SHAPE, "none", boxes=boxes.sized)
    pred, target = ((box + 2) * 30 for box in (given.pred, np.round(given.target)))
    # Boxes that do not count have y2 = 0, and nothing beyond the range of integers.
    target[..., 3] = np.where(given.target[..., 3] > 0, np.maximum(target[..., 3], 1), 0)
    target = np.where(np.isfinite(target), target, 0)
    return replace(given, pred=pred.astype(dtypes[0]), target=target.astype(dtypes[1]))


@pytest.mark.parametrize(
    ("name", "pred", "boxes_of", "target", "device"),
    in_turn(
        [(name, *dtypes) for dtypes in MIXED for name in ("GIoULoss", "GIoULossGrad")],
        TARGETS,
        ("llvm", "opencl-cpu"),
        ("cuda", "opencl-adreno"),
    ),
)
def test_predictions_and_targets_of_two_dtypes(target, device, name, pred, boxes_of, rng):
    """Each pair has its own schedule, without arithmetic that OpenCL devices may lack."""
    given = mixed(rng, pred, boxes_of)
    arrays = given.arrays() if name == "GIoULoss" else given.gradient_arrays(20.0)
    model, feeds, results = network(name, arrays)
    with closing(tvmflow.compile(model, target=target, device=device)) as module:
        found = run(module, feeds, target)
        families = {choice["family"] for choice in module.metadata["schedules"].values()}
        needed = module.metadata["extensions"]
    for got, expected in zip(found.values(), results, strict=True):
        assert np.asarray(got).dtype == expected.dtype
        assert_close(np.asarray(got), expected, OPERATOR, f"{pred}, {boxes_of}")
    assert families <= {"boxes", "masked_mean"}
    doubles = target == "opencl" and pred == "float64"
    assert needed == (["cl_khr_fp64"] if doubles else [])


@pytest.mark.parametrize(
    ("dtypes", "error", "message"),
    [
        (("float64", "float32"), ModelError, "expected float64 for both or for neither"),
        (("float16", "float64"), ModelError, "expected float64 for both or for neither"),
        (("float64", "uint8"), ModelError, "expected float64 for both or for neither"),
        (("bfloat16", "uint8"), UnsupportedModelError, "'pred' has the element type BFLOAT16"),
        (("float32", "bfloat16"), UnsupportedModelError, "'target' has the element type BFLOAT16"),
    ],
)
@pytest.mark.parametrize("target", ["llvm", "opencl", "cuda"])
def test_other_dtypes_are_refused(target, dtypes, error, message, rng):
    kinds = (dtype_from_name(dtype) for dtype in dtypes)
    pair = [(boxes.sized(rng, 3, 5) * 20 + 40).astype(kind) for kind in kinds]
    model = network("GIoU", [array.astype("f4") for array in pair])[0]
    for tensor, array in zip(model.graph.input, pair, strict=True):
        tensor.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    with pytest.raises(error, match=message):
        tvmflow.compile(model, target=target, device="auto" if target == "llvm" else "nvidia")


@pytest.mark.oclgrind
@pytest.mark.parametrize("device", ["cpu", "mali"])
@pytest.mark.parametrize("form", ["bytes", "offsets"])
def test_nothing_is_read_or_written_outside(device, form, rng, under_oclgrind):
    arrays = boxes.batch(rng, SHAPE, form).gradient_arrays(2.0)
    model, feeds, results = network("GIoULossGrad", arrays)
    with closing(tvmflow.compile(model, target="opencl", device=device)) as module:
        for got, expected in zip(under_oclgrind()(module, feeds).values(), results, strict=True):
            assert_close(got, expected, OPERATOR)
