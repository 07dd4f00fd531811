"""A detector's head and its loss, forward and backward, compiled together."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.operators import build, random, references
from support.turns import in_turn

import tvmflow
from tvmflow.ir.operator import DOMAIN
from tvmflow.verify.tolerance import NETWORK, STORED_AS_HALF, assert_close

SAMPLES, BOXES, ROWS = 3, 12, 20

#: Forms of validity: position among the inputs, and values.
FORMS = {
    "coordinates": (None, None),
    "count": (0, np.array([2, 0, 12])),
    "mask": (1, np.random.default_rng(4).uniform(size=(SAMPLES, BOXES)) > 0.4),
    "offsets": (2, np.array([0, 7, 8, 20])),
}

TARGETS = [
    pytest.param("llvm", "cpu", id="llvm"),
    *(
        pytest.param("opencl", device, id=f"opencl-{device}", marks=pytest.mark.opencl)
        for device in ("cpu", "adreno")
    ),
]
CPUS = ("llvm", "opencl-cpu")


def boxes(*shape: int) -> np.ndarray:
    corners, sizes = np.abs(random((2, *shape, 2), seed=7))
    return np.concatenate([corners, corners + sizes + 0.1], -1)


def network(form: str, integers: str, backward: bool) -> tuple[onnx.ModelProto, dict]:
    """Offsets to boxes to the loss, with the gradients of offsets and targets; and inputs."""
    place, values = FORMS[form]
    target = boxes(ROWS) if form == "offsets" else boxes(SAMPLES, BOXES)
    validity, constants = ["", "", ""], {"anchors": boxes(BOXES), "one": np.float32(1)}
    feeds = {"x": random((SAMPLES, BOXES, 4)), "target": target}
    if place is not None:
        validity[place] = form
        # Constants, which are not folded: the boxes are not.
        constants[form] = values if values.dtype == bool else values.astype(integers)

    def node(name: str, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
        return helper.make_node(name, inputs, outputs, outputs[0], domain=DOMAIN)

    nodes = [
        helper.make_node("Tanh", ["x"], ["offsets_of_boxes"]),
        node("BoxDecode", ["offsets_of_boxes", "anchors"], ["boxes"]),
        node("GIoULoss", ["boxes", "target", *validity], ["loss", "valid"]),
        node("GIoULossGrad", ["boxes", "target", *validity, "valid", "one"], ["gp", "by_target"]),
        node("BoxDecodeGrad", ["offsets_of_boxes", "anchors", "gp"], ["by_offsets"]),
    ]
    shapes = {name: array.shape for name, array in feeds.items()}
    outputs = ["loss", "by_offsets", "by_target"] if backward else ["loss"]
    model = build(nodes if backward else nodes[:3], shapes, outputs, constants)
    valid = helper.make_tensor_value_info("valid", TensorProto.INT32, ())
    model.graph.output.append(valid)
    return model, feeds


@pytest.mark.parametrize(
    ("form", "integers", "target", "device"),
    in_turn(
        [*((form, "int32") for form in FORMS), ("count", "int64"), ("offsets", "int64")],
        TARGETS,
        CPUS,
    ),
)
def test_forward(form: str, integers: str, target: str, device: str):
    """Boxes are computed where the loss reads them: one function, and nothing between."""
    model, feeds = network(form, integers, backward=False)
    with closing(tvmflow.compile(model, target=target, device=device)) as module:
        schedules = {n: s["family"] for n, s in module.metadata["schedules"].items()}
        assert schedules == {"fused_tir_tanh_BoxDecode_GIoULoss": "masked_mean"}
        found = module(**feeds)
        for info, expected in zip(module.outputs, references(model, feeds), strict=True):
            assert_close(found[info.name], expected, NETWORK, info.name)


@pytest.mark.parametrize(
    ("form", "integers", "target", "device"),
    in_turn([("mask", "int32"), ("count", "int64"), ("offsets", "int32")], TARGETS, CPUS),
)
def test_backward(form: str, integers: str, target: str, device: str):
    model, feeds = network(form, integers, backward=True)
    with closing(tvmflow.compile(model, target=target, device=device)) as module:
        assert "boxes" in {s["family"] for s in module.metadata["schedules"].values()}
        found = module(**feeds)
        for info, expected in zip(module.outputs, references(model, feeds), strict=True):
            assert_close(found[info.name], expected, NETWORK, info.name)


@pytest.mark.opencl
def test_stored_in_16_bits():
    model, feeds = network("count", "int32", backward=False)
    options = {"device": "adreno", "storage": "texture", "dtype": "fp16"}
    with closing(tvmflow.compile(model, target="opencl", **options)) as module:
        found = module(**feeds)
        for info, expected in zip(module.outputs, references(model, feeds), strict=True):
            assert_close(found[info.name], expected, STORED_AS_HALF, info.name)
