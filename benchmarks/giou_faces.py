"""The loss in training: a picture has few faces, boxes are bytes, and predictions bf16.

1,024 pictures with |N(0, 3)| faces in 256 slots, and FaceBoxNet under ``torch.compile``: copies to
the device, forward and backward of each step, a trace of each, and what skipping gains by the size
of what is skipped.  `giou.py --case faces` runs it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import giou_repeated as body
import giou_torch as plain
import numpy as np
import torch
from chart import curves
from common import RESULTS, in_turn, missing, report, write_json
from giou_steps import Data, check
from onnx_torch import OnnxModule

from tvmflow.models import make
from tvmflow.module.files import write_file

if TYPE_CHECKING:
    from giou_modules import Functions

Run = Callable[[], Any]

#: Milliseconds that were published for such steps on an NVIDIA L4, in their order; nothing tells
#: for certain which of our rows each is.
PUBLISHED_L4_MS = (938, 25, 1.84, 0.629, 0.623)


class _Loss(torch.autograd.Function):
    """A compiled loss and its gradient."""

    @staticmethod
    def forward(ctx: Any, pred: Any, functions: Functions, form: str, skip: str, *rest: Any) -> Any:
        loss, ctx.valid = functions.loss(form, pred, *rest, skip=skip)
        ctx.functions, ctx.form, ctx.inputs = functions, form, (pred, *rest)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        by_pred = ctx.functions.gradient(ctx.form, *ctx.inputs, valid=ctx.valid, grad=grad)
        return by_pred, *[None] * (len(ctx.inputs) + 2)


def rows(data: Data, functions: Functions) -> dict[str, tuple[Run, Callable[..., Any]]]:
    """How each step copies a batch's targets, and its loss of predictions and what was copied."""
    counts = data.counts.tolist()
    compiled = torch.compile(plain.by_padding)

    def padded(skip: str) -> Callable[..., Any]:
        return lambda pred, given: _Loss.apply(pred, functions, "count", skip, *given)

    return {
        "naive loop": (data.copy_list, plain.by_loop),
        "concatenated": (
            data.copy_ragged,
            lambda pred, given: plain.by_concatenation(pred, given[0], counts),
        ),
        "padded": (data.copy_padded, lambda pred, given: plain.by_padding(pred, *given)),
        "padded, torch.compile": (data.copy_padded, lambda pred, given: compiled(pred, *given)),
        "tvmflow, fused": (data.copy_padded, padded("none")),
        "tvmflow, conditional": (data.copy_padded, padded("")),
        "tvmflow, ragged": (
            data.copy_ragged,
            lambda pred, given: _Loss.apply(pred, functions, "offsets", "", *given),
        ),
    }


def apart(name: str, forward: Run, inputs: Sequence[Any], device: str) -> dict[str, Run]:
    """Forward and backward as two runs, to be called in this order."""
    kept: list[Any] = []

    def run_forward() -> None:
        kept[:] = [forward()]
        _wait(device)

    def run_backward() -> None:
        # A graph serves once; warming up calls this again and again.
        result = kept.pop() if kept else forward()
        torch.autograd.grad(result, inputs, torch.ones_like(result))
        _wait(device)

    return {f"{name}: forward": run_forward, f"{name}: backward": run_backward}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def network(data: Data, size: int) -> tuple[Run, list[Any]]:
    """FaceBoxNet in bf16 under ``torch.compile`` as a run to its boxes, and its weights."""
    batch = len(data.counts)
    model = OnnxModule(make("facebox_net", size=size, boxes=data.boxes, batch=batch))
    model = model.to(data.device, torch.bfloat16)
    weights = [weight.requires_grad_() for weight in model.buffers()]
    image = torch.rand(batch, 1, size, size, device=data.device, dtype=torch.bfloat16)
    compiled = torch.compile(model)
    return lambda: compiled(image), weights


def trace(folder: Path, name: str, run: Run, device: str) -> None:
    """Write what PyTorch's profiler sees of a run, for chrome://tracing and Perfetto."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    run()
    _wait(device)
    with torch.profiler.profile(activities=kinds) as profile:
        run()
        _wait(device)
    file = name.replace("tvmflow, ", "").replace(", ", "_").replace(" ", "_")
    profile.export_chrome_trace(str(folder / f"{file}.json"))


# -- skipping -----------------------------------------------------------------------------


def skipping(data: Data, functions: Functions, rounds: int) -> dict[str, dict[int, float]]:
    """Milliseconds of the loss by form and way of skipping, over the repetitions of its body.

    With ``count``, a picture's faces are its first boxes; with ``mask``, any.
    """
    rng = np.random.default_rng(2)
    first = np.arange(data.boxes) < data.counts[:, None]
    anywhere = rng.permuted(first, axis=1)
    target = torch.from_numpy(rng.permuted(data.target.cpu().numpy(), axis=1)).to(data.device)
    forms = {"count": (data.count, first), "mask": (torch.from_numpy(anywhere), anywhere)}
    forms["mask"] = (forms["mask"][0].to(data.device), anywhere)
    runs: dict[tuple[str, str, int], Run] = {}
    for (form, skip, repeats), function in functions.repeated().items():
        given, valid = forms[form]
        loss = torch.empty((), device=data.device)
        number = torch.empty((), dtype=torch.int32, device=data.device)
        run = _repeated(function, (data.pred, target, given, loss, number), data.device)
        run()
        pred, wanted = (t.cpu().float().numpy() for t in (data.pred, target))
        expected = body.loss_of(pred, wanted, valid, repeats)
        if abs(loss.item() - expected) > 1e-5 * repeats or number.item() != valid.sum():
            raise SystemExit(f"{form}, skip {skip}, {repeats} repetitions: {loss.item()} is wrong, "
                             f"expected {expected}")  # fmt: skip
        runs[form, skip, repeats] = run
    times = in_turn({str(key): run for key, run in runs.items()}, rounds=rounds)
    found: dict[str, dict[int, float]] = {}
    for form, skip, repeats in runs:
        ms = statistics.median(times[str((form, skip, repeats))])
        found.setdefault(f"{form}, {skip}", {})[repeats] = float(f"{ms:.4g}")
    return found


def _repeated(function: Callable[..., None], tensors: Sequence[Any], device: str) -> Run:
    def run() -> None:
        function(*tensors)
        _wait(device)

    return run


# -- all of it ----------------------------------------------------------------------------


def measure(functions: Functions, name: str, options: Any) -> None:
    """Tables, the JSON, the plot and the traces."""
    device = "cuda" if functions.manifest["target"] == "cuda" else "cpu"
    batch, boxes = functions.manifest["batch"], functions.manifest["boxes"]
    data = Data(batch, boxes, device, faces=True)
    pred = data.pred.clone().requires_grad_()
    net, weights = network(data, options.size)
    found = rows(data, functions)
    copies = {"copy per sample": data.copy_list, "copy once": data.copy_ragged}
    losses = {row: partial(loss, pred, copy()) for row, (copy, loss) in found.items()}
    gradients = {
        row: {"loss": run, "backward": lambda run=run: torch.autograd.grad(run(), pred)[0]}
        for row, run in losses.items()
    }
    check(gradients, data)
    runs: dict[str, Run] = {}
    for row, copy in copies.items():
        runs[f"{row}: copy"] = lambda copy=copy: (copy(), _wait(device))
    for row, run in losses.items():
        runs |= apart(row, run, [pred], device)
    slow = {key: runs.pop(key) for key in [k for k in runs if k.startswith("naive loop")]}
    slow |= apart("network, torch.compile", net, weights, device)
    few = max(3, options.rounds // 5)
    times = in_turn(slow, rounds=few, warmup=2) | in_turn(runs, rounds=options.rounds)
    table: dict[str, dict[str, float]] = {row: {} for row in (*copies, *losses)}
    for key, each in times.items():
        row, part = key.split(": ")
        table.setdefault(row, {})[part] = float(f"{statistics.median(each):.4g}")
    parts = ("copy", "forward", "backward")
    title = f"{name}: {batch} pictures of |N(0, 3)| faces, {boxes} slots, uint8 and bf16"
    lines = [[row, *(entry.get(part, "") for part in parts)] for row, entry in table.items()]
    report(title, ("ms", *parts), lines)
    gpu = missing("cuda")
    print(f"CUDA: {gpu}, not measured." if gpu else f"CUDA: {torch.cuda.get_device_name()}.")
    print("Published for an NVIDIA L4, for orientation, ms in the order of their steps: "
          f"{', '.join(map(str, PUBLISHED_L4_MS))}.")  # fmt: skip

    by_skip = skipping(data, functions, options.rounds)
    repetitions = functions.manifest["repetitions"]
    lines = [[way, *(by_skip[way][n] for n in repetitions)] for way in by_skip]
    columns = ("ms", *(f"×{n}" for n in repetitions))
    report(f"{name}: loss, by what skips boxes, its body × times", columns, lines)
    if options.traces:
        options.traces.mkdir(parents=True, exist_ok=True)
        for row, copy in copies.items():
            trace(options.traces, row, copy, device)
        for row, (copy, loss) in found.items():
            trace(
                options.traces, row,
                lambda copy=copy, loss=loss: torch.autograd.grad(loss(net(), copy()), weights),
                device,
            )  # fmt: skip
        print(f"traces of a whole step each: {options.traces}")
    if options.quick:
        return
    file = f"giou_faces_{device}"
    written = write_json(file, {
        "device": name, "torch": torch.__version__, "batch": batch, "boxes": boxes,
        "faces": int(data.counts.sum()), "image": options.size, "ms": table,
        "cuda": f"{gpu}, not measured" if gpu else torch.cuda.get_device_name(),
        "published_l4_ms_in_order": PUBLISHED_L4_MS, "ms_by_repetitions": by_skip,
    })  # fmt: skip
    picture = curves(
        f"The loss by what skips boxes without a face. {name}, batch {batch}, {boxes} slots",
        ("repetitions of the body", "ms"), by_skip,
    )  # fmt: skip
    write_file(RESULTS / f"{file}.svg", picture)
    print(f"written: {written}, {RESULTS / f'{file}.svg'}")
