"""The loss of face boxes in PyTorch, compared with PyTorch's own operators."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from tvmflow.errors import InputError, OperatorError, ShapeError
from tvmflow.ops.ragged import pack

pytestmark = pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
if find_spec("torch"):
    import torch

    from tvmflow.ops.torch import check_values, giou, giou_loss, to_device

SAMPLES, BOXES = 5, 23
FORMS = ("count", "mask", "offsets", "y2")


def boxes(*shape, seed=0):
    rng = np.random.default_rng(seed)
    low = rng.random((*shape, 2), np.float32)
    return np.concatenate([low, low + rng.random((*shape, 2), np.float32)], -1)


def plain_giou(pred, target, epsilon=1e-5):
    """GIoU from PyTorch's operators."""

    def area(low, high):
        return (high - low).clamp(min=0).prod(-1)

    low, high = (pred[..., :2], target[..., :2]), (pred[..., 2:], target[..., 2:])
    inter = area(torch.maximum(*low), torch.minimum(*high))
    union = area(low[0], high[0]) + area(low[1], high[1]) - inter
    around = area(torch.minimum(*low), torch.maximum(*high))
    return inter / (union + epsilon) - (around - union) / (around + epsilon)


def batch(form, dtype=None, seed=1):
    """Return predictions, targets padded with garbage, arguments, and the valid targets."""
    counts = np.random.default_rng(seed).integers(0, BOXES + 1, SAMPLES)
    counts[0], counts[1] = 0, BOXES
    samples = [boxes(int(count), seed=10 + seed + i) for i, count in enumerate(counts)]
    ragged = pack(samples)
    target, count = ragged.padded(BOXES)
    valid = torch.arange(BOXES) < torch.from_numpy(counts)[:, None]
    if form != "y2":
        target[~valid.numpy()] = np.nan
    pred = boxes(SAMPLES, BOXES, seed=seed)
    pred[~valid.numpy()] = np.inf
    given = {
        "count": {"count": torch.from_numpy(count)},
        "mask": {"mask": valid},
        "offsets": {"offsets": torch.from_numpy(ragged.offsets.copy()).long()},
        "y2": {},
    }[form]
    targets = ragged.packed if form == "offsets" else target
    dtype = dtype or torch.float32
    tensors = (torch.from_numpy(pred).to(dtype), torch.from_numpy(targets.copy()).to(dtype))
    return *tensors, given, valid


def expected(pred, target, valid):
    """The loss in float64, with predictions and targets that want gradients."""
    pred, target = pred.double().requires_grad_(), target.double().requires_grad_()
    aligned = pred.new_zeros((*valid.shape, 4))
    aligned[valid] = target if target.ndim == 2 else target[valid]
    value = plain_giou(torch.where(valid[..., None], pred, 0), aligned)
    loss = torch.where(valid, value, 0).sum() / valid.sum().clamp(min=1)
    return loss, *torch.autograd.grad(loss, (pred, target))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_loss_and_gradients(form, dtype):
    pred, target, given, valid = batch(form, getattr(torch, dtype))
    pred.requires_grad_()
    target.requires_grad_()
    loss = giou_loss(pred, target, **given)
    assert loss.dtype == pred.dtype
    wanted, *grads = expected(pred.detach(), target.detach(), valid)
    # A result is rounded once, to 24, 11 or 8 bits.
    bits = {"float32": 20, "float16": 10, "bfloat16": 7}[dtype]
    close = {"rtol": 2.0**-bits, "atol": 2.0**-bits * 0.05}
    torch.testing.assert_close(loss.double(), wanted, rtol=close["rtol"], atol=2.0**-bits)
    for found, grad in zip(torch.autograd.grad(loss, (pred, target)), grads, strict=True):
        torch.testing.assert_close(found.double(), grad, **close)
        assert found.dtype == pred.dtype


@pytest.mark.parametrize("target_dtype", ["uint8", "int16", "int32", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_targets_as_they_are_loaded(dtype, target_dtype):
    """No operator of PyTorch converts anything, under autocast neither."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    names = []
    pred = (torch.from_numpy(boxes(SAMPLES, BOXES)) * 100).to(getattr(torch, dtype))
    target = (torch.from_numpy(boxes(SAMPLES, BOXES, seed=2)) * 120).to(
        getattr(torch, target_dtype)
    )
    count = torch.tensor([0, 23, 7, 1, 9])
    valid = torch.arange(BOXES) < count[:, None]
    pred.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), Recorded():
        loss = giou_loss(pred, target, count)
    assert names == ["tvmflow.giou_loss.default"]
    loss.backward()
    assert loss.dtype == pred.grad.dtype == pred.dtype
    assert target.grad is None
    wide = pred.detach().double().requires_grad_()
    wanted = torch.where(valid, plain_giou(wide, target.double()), 0).sum() / valid.sum()
    wanted.backward()
    bits = {"float32": 20, "bfloat16": 7}[dtype]
    torch.testing.assert_close(loss.double(), wanted, rtol=2.0**-bits, atol=2.0**-bits)
    largest = float(wide.grad.abs().max())
    torch.testing.assert_close(
        pred.grad.double(), wide.grad, rtol=2.0**-bits, atol=2.0**-bits * 0.05 * largest
    )


@pytest.mark.parametrize("form", ["count", "offsets"])
def test_gradcheck(form):
    """PyTorch's own differences, in fp64."""
    pred, target, given, _ = batch(form, torch.float64)
    pair = [torch.nan_to_num(t, nan=0.5, posinf=1.0).requires_grad_() for t in (pred, target)]

    def loss(a, b):
        return giou_loss(a, b, **given)

    assert torch.autograd.gradcheck(loss, pair)


def test_second_derivatives_are_refused():
    pair = [torch.from_numpy(boxes(2, 3, seed=s)).double().requires_grad_() for s in (1, 2)]
    with pytest.raises(OperatorError, match=r"GIoULossGrad failed: it has no gradient.* second"):
        torch.autograd.gradgradcheck(giou_loss, pair)


def test_giou_of_pairs():
    pred, target = (torch.from_numpy(boxes(3, 17, seed=s)).requires_grad_() for s in (1, 2))
    weights = torch.from_numpy(np.random.default_rng(3).standard_normal((3, 17)))
    found = giou(pred, target)
    wanted = plain_giou(pred.double(), target.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
    own = torch.autograd.grad(found, (pred, target), weights.float())
    theirs = torch.autograd.grad(wanted, (pred, target), weights)
    for a, b in zip(own, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_that_nobody_wants_are_not_computed(monkeypatch):
    from tvmflow.ops.compiled import CompiledOperator

    results = []
    run = CompiledOperator.run

    def record(self, inputs, outputs, own):
        results.append(len(outputs))
        run(self, inputs, outputs, own)

    monkeypatch.setattr(CompiledOperator, "run", record)
    pred, target, given, _ = batch("count")
    giou_loss(pred.requires_grad_(), target, **given).backward()
    assert results == [2, 1]
    assert target.grad is None


@pytest.mark.parametrize("form", ["count", "offsets"])
def test_a_graph_without_breaks(form):
    pred, target, given, _ = batch(form)
    pred = torch.nan_to_num(pred, posinf=1.0)

    def step(x):
        return 1 - giou_loss(torch.sigmoid(x), target, **given)

    x = torch.logit(pred / 2.5).requires_grad_()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    (own,) = torch.autograd.grad(compiled(x), x)
    (eager,) = torch.autograd.grad(step(x), x)
    torch.testing.assert_close(own, eager)
    assert own.abs().max() > 0


@pytest.mark.parametrize("form", FORMS)
def test_opcheck(form):
    pred, target, given, _ = batch(form)
    inputs = [torch.nan_to_num(t, nan=0.5, posinf=1.0).requires_grad_() for t in (pred, target)]
    forms = [given.get(name) for name in ("count", "mask", "offsets")]
    arguments = (*inputs, *forms, 1e-5, [0, 1])
    giou_loss(*inputs, *forms)
    torch.library.opcheck(torch.ops.tvmflow.giou_loss.default, arguments)


def test_a_ragged_batch_in_one_copy():
    samples = [boxes(n, seed=n) for n in (4, 0, 9)]
    packed, offsets = to_device(pack(samples), "cpu")
    pred = torch.from_numpy(boxes(3, 9))
    found = giou_loss(pred, packed, offsets=offsets)
    target, count = pack(samples).padded(9)
    padded = giou_loss(pred, torch.from_numpy(target), torch.from_numpy(count))
    torch.testing.assert_close(found, padded)


@pytest.mark.parametrize("shape", [(0, 7), (3, 0), (0, 0)])
def test_batches_without_boxes(shape):
    pred = torch.empty(*shape, 4, requires_grad=True)
    for given in (
        {"target": torch.empty(*shape, 4)},
        {"target": torch.empty(0, 4), "offsets": torch.zeros(shape[0] + 1, dtype=torch.int32)},
    ):
        loss = giou_loss(pred, **given)
        assert loss == 0
        loss.backward()
        assert pred.grad.shape == pred.shape


def test_what_does_not_fit_is_refused():
    pred, target, given, _ = batch("count")
    count = given["count"]
    with pytest.raises(ShapeError, match=r"pred \[5, 23, 4\] and target \[4, 23, 4\]"):
        giou_loss(pred, target[1:], count)
    with pytest.raises(OperatorError, match=r"'pred' of GIoULoss is int32\[5, 23, 4\]"):
        giou_loss(pred.int(), target.int(), count)
    for wrong in (BOXES + 1, -1):
        count[3] = wrong
        with pytest.raises(InputError, match=f"{wrong} boxes in sample 3, expected 0 to 23"):
            giou_loss(pred, target, count)
        with pytest.raises(InputError, match=f"{wrong} boxes in sample 3"):
            check_values("GIoULoss", pred, target, count, None, None)
    packed, offsets = torch.rand(9, 4), torch.tensor([0, 4, 3, 5, 7, 9])
    with pytest.raises(InputError, match=r"of -1 boxes in sample 1"):
        giou_loss(pred, packed, offsets=offsets)
    offsets[2], offsets[5] = 4, 10
    with pytest.raises(InputError, match=r"offsets\[5\] = 10, expected 0 to 9"):
        giou_loss(pred, packed, offsets=offsets, check=True)
