"""Operators in PyTorch: shared memory, gradients, `torch.compile`."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from support.small_operators import SHIFTED

from tvmflow.errors import InputError, OperatorError, ShapeError

pytestmark = pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
if find_spec("torch"):
    import torch

    from tvmflow.ops import torch as ops

    DTYPES = [torch.float32, torch.float16, torch.bfloat16]
else:
    DTYPES = []


def rows(*shape, dtype=None, seed=7):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(values).to(dtype or torch.float32)


def decoded(deltas, anchors):
    """BoxDecode in PyTorch's own operators."""
    size = anchors[:, 2:] - anchors[:, :2]
    centre = (anchors[:, :2] + anchors[:, 2:]) / 2 + deltas[..., :2] * size
    half = size * torch.exp(deltas[..., 2:].clamp(max=np.log(1000 / 16))) / 2
    return torch.cat([centre - half, centre + half], -1)


def anchors_of(count):
    low = rows(count, 2).abs()
    return torch.cat([low, low + rows(count, 2, seed=8).abs()], -1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_and_gradients(dtype):
    shifted = ops.torch_operator(SHIFTED)
    x, shift = rows(5, 4, dtype=dtype).requires_grad_(), rows(4, dtype=dtype)
    (y,) = shifted(x, shift)
    assert y.dtype == dtype
    torch.testing.assert_close(y, 2 * x + shift)
    y.backward(rows(5, 4, dtype=dtype, seed=9))
    torch.testing.assert_close(x.grad, 2 * rows(5, 4, dtype=dtype, seed=9))
    (y,) = shifted(x, factor=-1.5)
    torch.testing.assert_close(y, -1.5 * x)
    x.grad = None
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, -1.5))


def test_box_decode_as_autograd_has_it():
    decode = ops.torch_operator("BoxDecode")
    deltas, anchors = (0.3 * rows(3, 50, 4)).requires_grad_(), anchors_of(50)
    (boxes,) = decode(deltas, anchors)
    expected = decoded(deltas.double(), anchors.double())
    torch.testing.assert_close(boxes.double(), expected, rtol=1e-5, atol=1e-6)
    grad = rows(3, 50, 4, seed=2)
    (own,) = torch.autograd.grad(boxes, deltas, grad)
    (theirs,) = torch.autograd.grad(expected, deltas, grad.double())
    torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-6)


def test_memory_is_shared(monkeypatch):
    from tvmflow.ops.compiled import CompiledOperator

    seen = []
    run = CompiledOperator.run

    def record(self, inputs, outputs, own):
        seen.append([t.data_ptr() for t in (*inputs, *outputs)])
        run(self, inputs, outputs, own)

    monkeypatch.setattr(CompiledOperator, "run", record)
    shifted = ops.torch_operator(SHIFTED)
    x = rows(100, 4)
    # A part of a tensor is read where it is; other strides are copied.
    for part, copied in ((x, False), (x[1:], False), (x[::2], True), (x.T.contiguous().T, True)):
        seen.clear()
        (y,) = shifted(part)
        torch.testing.assert_close(y, 2 * part)
        ((first, result),) = seen
        assert (first == part.data_ptr()) != copied
        assert result == y.data_ptr()


@pytest.mark.slow
def test_inside_torch_compile():
    decode = ops.torch_operator("BoxDecode")

    def step(deltas, anchors):
        (boxes,) = decode(torch.tanh(deltas), anchors)
        return (boxes * boxes).mean()

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for samples, count in ((2, 9), (3, 9), (3, 31)):
        deltas, anchors = rows(samples, count, 4).requires_grad_(), anchors_of(count)
        own = torch.autograd.grad(compiled(deltas, anchors), deltas)[0]
        eager = torch.autograd.grad(step(deltas, anchors), deltas)[0]
        torch.testing.assert_close(own, eager)


def test_a_graph_without_breaks():
    """As torch.compile, without a compiler for what is around the operator."""
    shifted = ops.torch_operator(SHIFTED)

    def step(x, shift):
        return (shifted(torch.tanh(x), shift)[0] ** 2).sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    for count in (3, 8):
        x, shift = rows(count, 4).requires_grad_(), rows(4)
        own = torch.autograd.grad(compiled(x, shift), x)[0]
        torch.testing.assert_close(own, torch.autograd.grad(step(x, shift), x)[0])


@pytest.mark.parametrize("name", ["box_decode", "shifted"])
def test_opcheck(name):
    if name == "shifted":
        ops.torch_operator(SHIFTED)
        arguments = (rows(5, 4).requires_grad_(), rows(4), None, 2.0, [0])
    else:
        ops.torch_operator("BoxDecode")
        deltas = (0.3 * rows(2, 5, 4)).requires_grad_()
        arguments = (deltas, anchors_of(5), float(np.log(1000 / 16)), [0])
    torch.library.opcheck(getattr(torch.ops.tvmflow, name).default, arguments)


def test_what_does_not_fit_is_refused():
    decode, shifted = ops.torch_operator("BoxDecode"), ops.torch_operator(SHIFTED)
    with pytest.raises(ShapeError, match=r"deltas \[2, 5, 3\] and anchors \[5, 4\]"):
        decode(rows(2, 5, 3), anchors_of(5))
    with pytest.raises(OperatorError, match=r"is float64\[2, 5, 4\], expected float32"):
        decode(rows(2, 5, 4).double(), anchors_of(5))
    with pytest.raises(InputError, match="deltas on meta, anchors on cpu; expected all on the"):
        decode(torch.empty(2, 5, 4, device="meta"), anchors_of(5))
    with pytest.raises(InputError, match="is given keep -2"):
        shifted(rows(2, 4), None, torch.tensor(-2, dtype=torch.int32))
    with pytest.raises(OperatorError, match="There is no operator 'Decode'"):
        ops.torch_operator("Decode")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_ragged_batch_is_one_tensor(dtype):
    from tvmflow.ops.ragged import pack

    samples = [rows(n, 4, seed=n).numpy() for n in (3, 0, 2)]
    packed, offsets = ops.to_device(pack(samples, dtype), "cpu")
    assert packed.dtype == getattr(torch, dtype)
    assert offsets.tolist() == [0, 3, 3, 5]
    torch.testing.assert_close(packed, torch.from_numpy(np.concatenate(samples)).to(packed.dtype))
    assert packed.untyped_storage().data_ptr() == offsets.untyped_storage().data_ptr()
