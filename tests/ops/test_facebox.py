"""FaceBoxNet, its loss and the gradient of the loss, compiled together."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import tvmflow
from tvmflow.models import make
from tvmflow.ops import giou_reference
from tvmflow.ops.onnx_form import op_runs
from tvmflow.verify.tolerance import assert_close

SAMPLES, BOXES = 3, 9


@pytest.fixture(scope="module")
def model():
    return make("facebox_loss", size=32, boxes=BOXES, batch=SAMPLES)


@pytest.fixture(scope="module")
def feeds():
    rng = np.random.default_rng(1)
    low = rng.random((SAMPLES, BOXES, 2), np.float32)
    target = np.concatenate([low, low + rng.random((SAMPLES, BOXES, 2), np.float32)], -1)
    count = np.array([4, 0, BOXES], np.int32)
    # Padding boxes must not influence results.
    target[np.arange(BOXES) >= count[:, None]] = np.nan
    image = rng.random((SAMPLES, 1, 32, 32), np.float32)
    return {"image": image, "target": target, "count": count}


@pytest.fixture(scope="module")
def reference(model, feeds):
    return ReferenceEvaluator(model, new_ops=op_runs()).run(None, feeds)


@pytest.mark.parametrize(
    ("target", "device", "storage"),
    [
        ("llvm", "auto", "auto"),
        pytest.param("opencl", "cpu", "buffer", marks=[pytest.mark.opencl, pytest.mark.slow]),
        pytest.param("opencl", "adreno", "texture", marks=pytest.mark.opencl),
        pytest.param("opencl", "mali", "buffer", marks=[pytest.mark.opencl, pytest.mark.slow]),
    ],
)
def test_network_loss_and_gradient(model, feeds, reference, target, device, storage):
    with tvmflow.compile(model, target=target, device=device, storage=storage) as module:
        found = module(feeds)
        families = {entry["family"] for entry in module.metadata["schedules"].values()}
    assert {"masked_mean", "boxes"} <= families
    for name, expected in zip(found.keys(), reference, strict=True):
        assert_close(found[name], expected, name=name)


def test_the_gradient_leads_to_a_smaller_loss(model, feeds, reference):
    """A step along it, by the mathematics in float64."""
    boxes, loss, grad = (np.asarray(each, np.float64) for each in reference)
    valid = np.arange(BOXES) < feeds["count"][:, None]

    def loss_of(pred):
        giou = giou_reference.giou(pred[valid], feeds["target"].astype(np.float64)[valid])
        return 1 - giou.mean()

    assert abs(loss_of(boxes) - loss) < 1e-6
    assert loss_of(boxes - 0.01 * grad) < loss_of(boxes)
    assert not grad[~valid].any()
