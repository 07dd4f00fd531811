"""The reference of GIoU: known values, and derivatives computed in another way."""

from __future__ import annotations

import numpy as np
import pytest
from support import boxes, duals

from tvmflow.ir.operators import OPERATORS
from tvmflow.ops.giou_reference import giou, giou_gradients

EPSILON = 1e-5


def plain(pair: list[duals.Dual]) -> duals.Dual:
    """Return the GIoU of eight numbers, by its definition."""
    px1, py1, px2, py2, tx1, ty1, tx2, ty2 = pair
    area = {}
    for name, (x1, y1, x2, y2) in {
        "pred": (px1, py1, px2, py2),
        "target": (tx1, ty1, tx2, ty2),
        "inter": (
            duals.maximum(px1, tx1), duals.maximum(py1, ty1),
            duals.minimum(px2, tx2), duals.minimum(py2, ty2),
        ),
        "around": (
            duals.minimum(px1, tx1), duals.minimum(py1, ty1),
            duals.maximum(px2, tx2), duals.maximum(py2, ty2),
        ),
    }.items():  # fmt: skip
        area[name] = duals.positive(x2 - x1) * duals.positive(y2 - y1)
    union = area["pred"] + area["target"] - area["inter"]
    return area["inter"] / (union + EPSILON) - (area["around"] - union) / (area["around"] + EPSILON)


@pytest.mark.parametrize(
    ("pred", "target", "expected"),
    [
        ([0, 0, 2, 2], [0, 0, 2, 2], 4 / (4 + EPSILON)),
        # They share a quarter each: 1/7 of the union; 2 of the enclosing 9 belong to neither.
        ([0, 0, 2, 2], [1, 1, 3, 3], 1 / (7 + EPSILON) - 2 / (9 + EPSILON)),
        # Disjoint: 2 of 3 belong to one of them.
        ([0, 0, 1, 1], [2, 0, 3, 1], -1 / (3 + EPSILON)),
        # Next to each other.
        ([0, 0, 1, 1], [1, 0, 2, 1], 0),
        # An inverted box is empty; its corners count for the enclosing box.
        ([3, 3, 1, 1], [0, 0, 2, 2], -(0 - 0) / (4 + EPSILON)),
        ([4, 4, 3, 3], [0, 0, 2, 2], -(9 - 4) / (9 + EPSILON)),
        # Two points: the enclosing box and the intersection are empty.
        ([1, 1, 1, 1], [1, 1, 1, 1], 0),
        ([0, 0, 0, 0], [1, 1, 1, 1], -1 / (1 + EPSILON)),
        # A line without an area.
        ([0, 0, 2, 0], [0, 0, 2, 2], 0),
    ],
)
def test_known_values(pred, target, expected):
    value = giou(np.array(pred, np.float64), np.array(target, np.float64))
    assert value == pytest.approx(expected, abs=1e-15)


def test_values_and_derivatives_by_dual_numbers(rng):
    """Covers ties, empty and inverted boxes, and disjoint boxes."""
    for pred, target in (
        (boxes.corners(rng, 400), boxes.corners(rng, 400)),
        (boxes.sized(rng, 100), boxes.sized(rng, 100)),
    ):
        weight = rng.normal(size=len(pred))
        by_pred, by_target = giou_gradients(pred, target, weight)
        value = giou(pred, target)
        for row in range(len(pred)):
            expected = plain(duals.variables([*pred[row], *target[row]]))
            assert value[row] == pytest.approx(expected.value, abs=1e-12)
            got = np.concatenate([by_pred[row], by_target[row]])
            np.testing.assert_allclose(got, weight[row] * expected.slope, rtol=1e-9, atol=1e-9)


def test_derivatives_are_those_of_pytorch(rng):
    """Each operand of a tie gets half; a clamp at 0 passes the gradient."""
    torch = pytest.importorskip("torch")
    pair = torch.tensor(boxes.corners(rng, 2, 500), requires_grad=True)
    (p1, p2), (t1, t2) = ((box[:, :2], box[:, 2:]) for box in pair)
    sides = {
        "pred": p2 - p1,
        "target": t2 - t1,
        "inter": torch.minimum(p2, t2) - torch.maximum(p1, t1),
        "around": torch.maximum(p2, t2) - torch.minimum(p1, t1),
    }
    area = {name: x[:, 0] * x[:, 1] for name, x in ((n, s.clamp(min=0)) for n, s in sides.items())}
    union = area["pred"] + area["target"] - area["inter"]
    around = area["around"]
    value = area["inter"] / (union + EPSILON) - (around - union) / (around + EPSILON)
    value.sum().backward()
    given = pair.detach().numpy()
    np.testing.assert_allclose(giou(*given), value.detach().numpy(), rtol=1e-12)
    for got, expected in zip(giou_gradients(*given, np.ones(500)), pair.grad.numpy(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("place", range(8))
def test_a_nan_reaches_the_value_and_all_derivatives(place, rng):
    pair = boxes.corners(rng, 50, 2)
    pair.reshape(50, 8)[:, place] = np.nan
    pred, target = pair[:, 0], pair[:, 1]
    assert np.isnan(giou(pred, target)).all()
    assert np.isnan(giou_gradients(pred, target, np.ones(50))).all()


@pytest.mark.parametrize("form", boxes.FORMS)
def test_the_loss_is_the_mean_over_what_counts(form, rng):
    """Compare with loops over samples and boxes; boxes that do not count are NaN or infinite."""
    operator = OPERATORS["GIoULoss"]
    given = boxes.batch(rng, (5, 7), form, "float64")
    loss, valid = operator.reference(given.arrays(), operator.complete({}))
    values = []
    for sample in range(5):
        for place in range(7):
            target = given.target[sample, place] if form != "offsets" else None
            if form == "none":
                counts = target[3] > 0
            elif form == "count":
                counts = place < given.count[sample]
            elif form == "offsets":
                row = given.offsets[sample] + place
                counts = row < given.offsets[sample + 1]
                target = given.target[row] if counts else None
            else:
                counts = given.mask[sample, place] != 0
            if counts:
                pair = duals.variables([*given.pred[sample, place], *target])
                values.append(plain(pair).value)
    assert valid == len(values) > 0
    assert loss == pytest.approx(np.mean(values), abs=1e-12)


@pytest.mark.parametrize("form", boxes.FORMS)
def test_gradients_of_the_loss_are_its_slopes(form, rng):
    loss, gradient = OPERATORS["GIoULoss"], OPERATORS["GIoULossGrad"]
    given = boxes.batch(rng, (3, 4), form, "float64", boxes=boxes.sized)
    results = gradient.reference(given.gradient_arrays(1.5), gradient.complete({}))
    for array, slopes in zip((given.pred, given.target), results, strict=True):
        assert slopes.shape == array.shape
        assert np.isfinite(slopes).all()
        assert (slopes[~np.isfinite(array)] == 0).all()
        for index in zip(*np.nonzero(np.isfinite(array)), strict=True):
            middle, values = array[index], []
            for step in (1e-6, -1e-6):
                array[index] = middle + step
                values.append(loss.reference(given.arrays(), loss.complete({}))[0])
            array[index] = middle
            slope = 1.5 * (values[0] - values[1]) / 2e-6
            assert slopes[index] == pytest.approx(slope, abs=1e-6)


def test_nothing_counts():
    loss, gradient = OPERATORS["GIoULoss"], OPERATORS["GIoULossGrad"]
    pred, target = np.full((2, 3, 4), np.nan), np.full((2, 3, 4), np.inf)
    arrays = [pred, target, np.zeros(2, np.int32), None, None]
    assert loss.reference(arrays, loss.complete({})) == [0, 0]
    slopes = gradient.reference([*arrays, np.int32(0), np.float64(1)], gradient.complete({}))
    assert (np.array(slopes) == 0).all()
