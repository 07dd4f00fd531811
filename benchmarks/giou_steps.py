"""The steps that make the loss of face boxes faster: their data, and what each of them runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import giou_torch as plain
import numpy as np
import torch

from tvmflow.ops import giou_reference as reference
from tvmflow.ops.ragged import pack

if TYPE_CHECKING:
    from giou_modules import Functions

Run = Callable[[], Any]


class Data:
    """A batch as a loader gives it, and on the device in every form.

    Samples have any number of boxes, in fp32; or, as in pictures of people, |N(0, 3)|, in uint8
    (pixels), with predictions in bf16.
    """

    def __init__(self, batch: int, boxes: int, device: str, seed: int = 1, *, faces: bool = False):
        rng = np.random.default_rng(seed)
        self.device, self.boxes, self.dtype = device, boxes, "uint8" if faces else "float32"
        if faces:
            self.counts = np.rint(abs(rng.normal(0, 3, batch))).astype(int).clip(max=boxes)
        else:
            self.counts = rng.integers(0, boxes + 1, batch)
        # Corners are from 0 to 2.
        scale = 127 if faces else 1
        self.samples = [(_boxes(rng, int(n)) * scale).astype(self.dtype) for n in self.counts]
        pred = torch.from_numpy(_boxes(rng, batch, boxes) * np.float32(scale))
        self.pred = pred.to(device, torch.bfloat16 if faces else torch.float32)
        self.list = self.copy_list()
        self.packed, self.offsets = self.copy_ragged()
        self.target, self.count = self.copy_padded()
        self.mask = torch.arange(boxes, device=device) < self.count[:, None]

    def copy_list(self) -> list[Any]:
        """A copy for each sample."""
        return [torch.from_numpy(sample).to(self.device, copy=True) for sample in self.samples]

    def copy_concatenated(self) -> Any:
        """One copy; the numbers of boxes stay on the host."""
        return torch.from_numpy(np.concatenate(self.samples)).to(self.device)

    def copy_padded(self) -> tuple[Any, Any]:
        """Two copies, of as many boxes as there may be."""
        target, count = pack(self.samples, self.dtype).padded(self.boxes)
        return torch.from_numpy(target).to(self.device), torch.from_numpy(count).to(self.device)

    def copy_ragged(self) -> tuple[Any, Any]:
        """One copy of the valid boxes and the offsets."""
        batch = pack(self.samples, self.dtype)
        buffer = torch.from_numpy(batch.buffer).to(self.device)
        packed = buffer[: batch.box_bytes].view(getattr(torch, self.dtype)).view(-1, 4)
        return packed, buffer[batch.box_bytes :].view(torch.int32)


def _boxes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    low = rng.random((*shape, 2), np.float32)
    return np.concatenate([low, low + rng.random((*shape, 2), np.float32)], -1)


def steps(data: Data, functions: Functions) -> dict[str, dict[str, Run]]:
    """Copy and loss of each step, the loss from predictions that want a gradient."""
    pred = data.pred.clone().requires_grad_()
    # `tolist` waits for a GPU; the loader knows the numbers.
    counts = data.counts.tolist()
    compiled = torch.compile(plain.by_padding)
    losses: dict[str, tuple[Run, Run]] = {
        "loop": (data.copy_list, lambda: plain.by_loop(pred, data.list)),
        "concatenation": (
            data.copy_concatenated,
            lambda: plain.by_concatenation(pred, data.packed, counts),
        ),
        "padding": (data.copy_padded, lambda: plain.by_padding(pred, data.target, data.count)),
        "padding, torch.compile": (
            data.copy_padded,
            lambda: compiled(pred, data.target, data.count),
        ),
    }
    found = {
        name: {"copy": copy, "loss": loss, "backward": _backward(loss, pred)}
        for name, (copy, loss) in losses.items()
    }
    count = ("count", data.pred, data.target, data.count)
    ragged = ("offsets", data.pred, data.packed, data.offsets)
    for name, copy, inputs, skip in (
        ("tvmflow, fused", data.copy_padded, count, "none"),
        ("tvmflow, conditional", data.copy_padded, count, ""),
        ("tvmflow, ragged", data.copy_ragged, ragged, ""),
    ):
        found[name] = {
            "copy": copy,
            "loss": lambda inputs=inputs, skip=skip: functions.loss(*inputs, skip=skip)[0],
            "backward": _own_backward(functions, inputs),
        }
    return found


def _backward(loss: Run, pred: Any) -> Run:
    """The loss's gradient by the prediction, with the loss that it needs."""
    return lambda: torch.autograd.grad(loss(), pred)[0]


def _own_backward(functions: Functions, inputs: tuple[Any, ...]) -> Run:
    one = inputs[1].new_ones(())

    def run() -> Any:
        _, valid = functions.loss(*inputs)
        return functions.gradient(*inputs, valid=valid, grad=one)

    return run


def check(found: dict[str, dict[str, Run]], data: Data) -> None:
    """Every step's loss and gradient, against NumPy's float64."""
    pred, target = (t.cpu().double().numpy() for t in (data.pred, data.target))
    # A bf16 has 8 bits: what it rounds is half of the last one.
    limits = (1e-5, 1e-4) if data.pred.dtype == torch.float32 else (2**-8, 2**-7)
    valid = np.arange(data.boxes) < data.counts[:, None]
    number = max(valid.sum(), 1)
    loss = reference.giou(pred, target)[valid].sum() / number
    grad, _ = reference.giou_gradients(pred, target, valid / number)
    for name, runs in found.items():
        error = abs(runs["loss"]().item() - loss)
        worst = np.abs(
            runs["backward"]().cpu().double().numpy() - np.where(valid[..., None], grad, 0)
        ).max()
        if error > limits[0] or worst > limits[1] * np.abs(grad).max():
            raise SystemExit(f"{name} is wrong: loss by {error:.2g}, gradient by {worst:.2g}")
