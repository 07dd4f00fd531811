"""Steps from a loop over samples to one fused loss: their data, and what each of them runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm_ffi
from torch import Tensor

from tvmflow.ops import giou_reference as reference
from tvmflow.ops.ragged import pack

Run = Callable[[], Any]
EPSILON = 1e-5


class Data:
    """A batch as a loader gives it, and on the device in every form.

    In the case ``loss`` samples have any number of boxes, in fp32. In ``faces`` they have |N(0, 3)|
    as pictures of people do, in uint8 (pixels), with predictions in bf16.
    """

    def __init__(self, case: str, batch: int, boxes: int, device: str):
        rng = np.random.default_rng(1)
        faces = case == "faces"
        self.device, self.boxes, self.dtype = device, boxes, "uint8" if faces else "float32"
        if faces:
            self.counts = np.rint(abs(rng.normal(0, 3, batch))).astype(int).clip(max=boxes)
        else:
            self.counts = rng.integers(0, boxes + 1, batch)
        # Corners are from 0 to 2.
        scale = 127 if faces else 1
        self.samples = [(_boxes(rng, int(n)) * scale).astype(self.dtype) for n in self.counts]
        pred = torch.from_numpy(_boxes(rng, batch, boxes) * np.float32(scale))
        # Copied, because kernels read whole vectors: NumPy aligns its arrays to 16 bytes only.
        self.pred = pred.to(device, torch.bfloat16 if faces else torch.float32, copy=True)

    def copy_list(self) -> list[Tensor]:
        """Copy each sample by itself."""
        return [torch.from_numpy(sample).to(self.device, copy=True) for sample in self.samples]

    def copy_padded(self) -> tuple[Tensor, Tensor]:
        """Copy as many boxes of each sample as there may be, and their counts."""
        target, count = pack(self.samples, self.dtype).padded(self.boxes)
        return torch.from_numpy(target).to(self.device), torch.from_numpy(count).to(self.device)

    def copy_ragged(self) -> tuple[Tensor, Tensor]:
        """Copy the valid boxes and their offsets at once."""
        batch = pack(self.samples, self.dtype)
        buffer = torch.from_numpy(batch.buffer).to(self.device)
        packed = buffer[: batch.box_bytes].view(getattr(torch, self.dtype)).view(-1, 4)
        return packed, buffer[batch.box_bytes :].view(torch.int32)


def _boxes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    low = rng.random((*shape, 2), np.float32)
    return np.concatenate([low, low + rng.random((*shape, 2), np.float32)], -1)


# -- PyTorch ------------------------------------------------------------------------------


def giou(pred: Tensor, target: Tensor) -> Tensor:
    """Return the GIoU of pairs of boxes ``[..., 4]``, in fp32."""
    pred, target = pred.float(), target.float()

    def area(low: Tensor, high: Tensor) -> Tensor:
        side = (high - low).clamp(min=0)
        return side[..., 0] * side[..., 1]

    p1, p2, t1, t2 = pred[..., :2], pred[..., 2:], target[..., :2], target[..., 2:]
    inter = area(torch.maximum(p1, t1), torch.minimum(p2, t2))
    union = area(p1, p2) + area(t1, t2) - inter
    around = area(torch.minimum(p1, t1), torch.maximum(p2, t2))
    return inter / (union + EPSILON) - (around - union) / (around + EPSILON)


def by_loop(pred: Tensor, targets: Sequence[Tensor]) -> Tensor:
    """Sum up sample by sample: many small kernels."""
    total, number = pred.new_zeros(()), 0
    for boxes, target in zip(pred, targets, strict=True):
        total = total + giou(boxes[: len(target)], target).sum()
        number += len(target)
    return total / max(number, 1)


def by_concatenation(pred: Tensor, packed: Tensor, counts: Sequence[int]) -> Tensor:
    """Concatenate the valid boxes of all samples."""
    own = torch.cat([boxes[:count] for boxes, count in zip(pred, counts, strict=True)])
    return giou(own, packed).sum() / max(len(packed), 1)


def by_padding(pred: Tensor, target: Tensor, count: Tensor) -> Tensor:
    """Compute all boxes, and mask those that are not valid."""
    valid = torch.arange(pred.shape[1], device=pred.device) < count[:, None]
    total = torch.where(valid, giou(pred, target), 0).sum()
    return total / valid.sum().clamp(min=1)


# -- compiled functions -------------------------------------------------------------------


class Function:
    """A compiled function on PyTorch's tensors, without anything of TVM's compiler."""

    def __init__(self, folder: Path, entry: Mapping[str, Any]):
        self._library = tvm_ffi.load_module(folder / entry["file"])
        self._function = self._library[entry["function"]]
        self._workspaces = entry["workspaces"]

    def __call__(self, *tensors: Tensor) -> None:
        """Call it with the inputs, then the outputs."""
        own = [
            torch.empty(shape, dtype=getattr(torch, dtype), device=tensors[0].device)
            for shape, dtype in self._workspaces
        ]
        self._function(*tensors, *own)


class Functions:
    """The functions of a folder that `giou_kernels.py` has written."""

    def __init__(self, folder: Path):
        import tvm  # noqa: F401 (the runtime, which libraries find in the process)

        self.manifest = json.loads((folder / "functions.json").read_text())
        self.device = "cuda" if self.manifest["target"] == "cuda" else "cpu"
        if self.device == "cuda":
            from cuda_code import use_machine_code

            use_machine_code(folder)
        self._loaded = {
            (e["operator"], e["form"], e["skip"]): Function(folder, e)
            for e in self.manifest["entries"]
        }
        self.repeated = {
            (e["form"], e["skip"], e["repeats"]): Function(folder, e)
            for e in self.manifest["repeated"]
        }

    def loss(self, form: str, skip: str, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the number of valid boxes."""
        pred = inputs[0]
        result = torch.empty((), dtype=pred.dtype, device=pred.device)
        valid = torch.empty((), dtype=torch.int32, device=pred.device)
        self._loaded["GIoULoss", form, skip](*inputs, result, valid)
        return result, valid

    def gradient(self, form: str, *inputs: Tensor) -> Tensor:
        """Return the gradient by the prediction; the last input is ``grad_loss``."""
        result = torch.empty_like(inputs[0])
        self._loaded["GIoULossGrad", form, ""](*inputs, result)
        return result


class Loss(torch.autograd.Function):
    """A compiled loss and its gradient."""

    @staticmethod
    def forward(ctx: Any, pred: Any, functions: Functions, form: str, skip: str, *rest: Any) -> Any:
        """Compute the loss."""
        loss, valid = functions.loss(form, skip, pred, *rest)
        ctx.functions, ctx.form, ctx.inputs = functions, form, (pred, *rest, valid)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Compute the gradient by the prediction."""
        by_pred = ctx.functions.gradient(ctx.form, *ctx.inputs, grad)
        return by_pred, *[None] * (len(ctx.inputs) + 1)


# -- steps --------------------------------------------------------------------------------


def steps(data: Data, functions: Functions) -> dict[str, tuple[Run, Callable[..., Tensor]]]:
    """Return for each step how it copies targets, and its loss of predictions and that copy."""
    # `tolist` of a tensor waits for a GPU; the loader knows the numbers.
    counts = data.counts.tolist()
    compiled = torch.compile(by_padding)

    def own(form: str, skip: str) -> Callable[..., Tensor]:
        return lambda pred, given: Loss.apply(pred, functions, form, skip, *given)

    return {
        "naive loop": (data.copy_list, by_loop),
        "concatenated": (
            data.copy_ragged,
            lambda pred, given: by_concatenation(pred, given[0], counts),
        ),
        "padded": (data.copy_padded, lambda pred, given: by_padding(pred, *given)),
        "padded, torch.compile": (data.copy_padded, lambda pred, given: compiled(pred, *given)),
        "tvmflow, fused": (data.copy_padded, own("count", "none")),
        "tvmflow, conditional": (data.copy_padded, own("count", "")),
        "tvmflow, ragged": (data.copy_ragged, own("offsets", "")),
    }


def check(losses: Mapping[str, Run], pred: Tensor, data: Data) -> None:
    """Compare every step's loss and gradient with NumPy's in float64."""
    target = data.copy_padded()[0].cpu().double().numpy()
    predicted = pred.detach().cpu().double().numpy()
    # A bf16 has 8 bits: rounding moves it by half of the last one.
    limits = (1e-5, 1e-4) if pred.dtype == torch.float32 else (2**-8, 2**-7)
    valid = np.arange(data.boxes) < data.counts[:, None]
    number = max(valid.sum(), 1)
    expected = reference.giou(predicted, target)[valid].sum() / number
    grad, _ = reference.giou_gradients(predicted, target, valid / number)
    wanted = np.where(valid[..., None], grad, 0)
    for name, run in losses.items():
        loss = run()
        found = torch.autograd.grad(loss, pred)[0].cpu().double().numpy()
        error, worst = abs(loss.item() - expected), np.abs(found - wanted).max()
        if error > limits[0] or worst > limits[1] * np.abs(grad).max():
            raise SystemExit(f"{name} is wrong: loss by {error:.2g}, gradient by {worst:.2g}")


def repeated_losses(data: Data, functions: Functions) -> dict[tuple[str, str, int], Run]:
    """Return runs of the losses with a loop around the body, checked against NumPy's float64.

    With ``count``, a sample's valid boxes are its first ones; with ``mask``, any.
    """
    rng = np.random.default_rng(2)
    first = np.arange(data.boxes) < data.counts[:, None]
    anywhere = rng.permuted(first, axis=1)
    padded, count = data.copy_padded()
    target, mask = (
        torch.from_numpy(array).to(data.device, copy=True)
        for array in (rng.permuted(padded.cpu().numpy(), axis=1), anywhere)
    )
    forms = {"count": (count, first), "mask": (mask, anywhere)}
    runs: dict[tuple[str, str, int], Run] = {}
    for (form, skip, repeats), function in functions.repeated.items():
        given, valid = forms[form]
        loss = torch.empty((), device=data.device)
        number = torch.empty((), dtype=torch.int32, device=data.device)
        tensors = (data.pred, target, given, loss, number)
        function(*tensors)
        pairs = [t.cpu().double().numpy()[valid] for t in (data.pred, target)]
        moved = [pairs[0] + turn * functions.manifest["step"] for turn in range(repeats)]
        total = sum(reference.giou(each, pairs[1]).sum() for each in moved)
        expected = float(total / max(valid.sum(), 1))
        if abs(loss.item() - expected) > 1e-5 * repeats or number.item() != valid.sum():
            raise SystemExit(f"{form}, skip {skip}, {repeats} repetitions: {loss.item()} is wrong, "
                             f"expected {expected}")  # fmt: skip
        runs[form, skip, repeats] = lambda function=function, tensors=tensors: function(*tensors)
    return runs
