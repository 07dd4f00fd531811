"""The loss of face boxes next to PyTorch: loop, concatenation, padding, one fused kernel, skipping.

    python benchmarks/giou.py [--case loss|faces] [--batch 1024] [--boxes 256] [--rounds 30]

measures on an NVIDIA GPU if there is one, else on the CPU.  ``loss`` has any number of boxes a
sample, in fp32; ``faces`` is like training: few faces a picture, uint8 targets, bf16 predictions.
Tables have the copy of the targets, forward and backward of each step, and what skipping boxes
gains by the size of what is skipped.  Where the machine with the GPU lacks a compiler, functions
are compiled elsewhere first:

    python benchmarks/giou.py --compile-only DIR [--target cuda] [--arch sm_90]
    python benchmarks/giou.py --functions DIR

It ends with status 0 and one sentence where PyTorch is missing, or a GPU that DIR is for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chart import curves
from common import RESULTS, arguments, in_turn, missing, report, write_json

from tvmflow.module.files import write_file

Run = Callable[[], Any]


def network(data: Any, size: int) -> tuple[Run, list[Any]]:
    """Return FaceBoxNet under ``torch.compile`` as a run to its boxes, and its weights."""
    import torch
    from onnx_torch import OnnxModule

    from tvmflow.models import make

    batch = len(data.counts)
    model = OnnxModule(make("facebox_net", size=size, boxes=data.boxes, batch=batch))
    model = model.to(data.device, data.pred.dtype)
    weights = [weight.requires_grad_() for weight in model.buffers()]
    image = torch.rand(batch, 1, size, size, device=data.device, dtype=data.pred.dtype)
    compiled = torch.compile(model)
    return lambda: compiled(image), weights


def apart(name: str, forward: Run, inputs: Sequence[Any], wait: Run) -> dict[str, Run]:
    """Return forward and backward as two runs, to be called in this order."""
    import torch

    kept: list[Any] = []

    def run_forward() -> None:
        kept[:] = [forward()]
        wait()

    def run_backward() -> None:
        # A graph serves once; warming up calls this again and again.
        result = kept.pop() if kept else forward()
        torch.autograd.grad(result, inputs, torch.ones_like(result))
        wait()

    return {f"{name}: forward": run_forward, f"{name}: backward": run_backward}


def trace(folder: Path, name: str, run: Run, wait: Run) -> None:
    """Write what PyTorch's profiler sees of a run, for chrome://tracing and Perfetto."""
    import torch

    run()
    wait()
    with torch.profiler.profile() as profile:
        run()
        wait()
    file = name.replace("tvmflow, ", "").replace(", ", "_").replace(" ", "_")
    profile.export_chrome_trace(str(folder / f"{file}.json"))


def _ms(times: Sequence[float]) -> float:
    return float(f"{statistics.median(times):.4g}")


def measure(folder: Path, options: argparse.Namespace) -> None:
    """Print the tables, and write the JSON, the plot and the traces."""
    import torch
    from giou_steps import Data, Functions, check, repeated_losses, steps

    functions = Functions(folder)
    case, device, manifest = functions.manifest["case"], functions.device, functions.manifest
    gpu = device == "cuda"
    wait: Run = torch.cuda.synchronize if gpu else lambda: None
    name = torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads"
    data = Data(case, manifest["batch"], manifest["boxes"], device)
    pred = data.pred.clone().requires_grad_()
    net, weights = network(data, options.size)
    found = steps(data, functions)
    losses = {}
    for row, (copy, loss) in found.items():
        losses[row] = partial(loss, pred, copy())
    check(losses, pred, data)
    runs: dict[str, Run] = {}
    for row, (copy, _) in found.items():
        runs[f"{row}: copy"] = lambda copy=copy: (copy(), wait())
        runs |= apart(row, losses[row], [pred], wait)
    # These take a thousand times as long as the others: fewer rounds.
    slow = {key: runs.pop(key) for key in [k for k in runs if k.startswith("naive loop")]}
    slow |= apart("network, torch.compile", net, weights, wait)
    few = max(3, options.rounds // 5)
    times = in_turn(slow, rounds=few, warmup=2) | in_turn(runs, rounds=options.rounds)
    table: dict[str, dict[str, float]] = {row: {} for row in found}
    for key, each in times.items():
        row, part = key.split(": ")
        table.setdefault(row, {})[part] = _ms(each)
    parts = ("copy", "forward", "backward")
    title = f"{name}: {case}, batch {len(data.counts)}, up to {data.boxes} boxes"
    rows = [[row, *(entry.get(part, "") for part in parts)] for row, entry in table.items()]
    report(title, ("ms", *parts), rows)

    keyed = repeated_losses(data, functions)
    loops = {str(key): lambda run=run: (run(), wait()) for key, run in keyed.items()}
    times = in_turn(loops, rounds=options.rounds)
    by_skip: dict[str, dict[int, float]] = {}
    for form, skip, repeats in keyed:
        ms = _ms(times[str((form, skip, repeats))])
        by_skip.setdefault(f"{form}, {skip}", {})[repeats] = ms
    turns = manifest["repetitions"]
    rows = [[way, *(ms[n] for n in turns)] for way, ms in by_skip.items()]
    columns = ("ms", *(f"×{n}" for n in turns))
    report(f"{name}: loss, by what skips boxes, its body × times", columns, rows)
    if options.traces:
        options.traces.mkdir(parents=True, exist_ok=True)
        for row, (copy, loss) in found.items():
            whole = lambda copy=copy, loss=loss: torch.autograd.grad(loss(net(), copy()), weights)  # noqa: E731
            trace(options.traces, row, whole, wait)
        print(f"traces of a whole step each: {options.traces}")
    if options.quick:
        return
    file = f"giou_{case}_{device}"
    results = {
        "device": name, "torch": torch.__version__, "batch": len(data.counts), "boxes": data.boxes,
        "valid": int(data.counts.sum()), "image": options.size, "ms": table,
        "ms_by_repetitions": by_skip,
    }  # fmt: skip
    picture = curves(
        f"The loss by what skips boxes that are not valid. {title}",
        ("repetitions of the body", "ms"),
        by_skip,
    )
    write_file(RESULTS / f"{file}.svg", picture)
    print(f"written: {write_json(file, results)}, {RESULTS / f'{file}.svg'}")


def main() -> None:
    """Compile, measure, or both."""
    parser = arguments(__doc__, arch="sm_90", batch=1024, boxes=256, size=32, rounds=30,
                       repetitions=[1, 2, 4, 8, 16, 32, 64])  # fmt: skip
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--compile-only", type=Path, metavar="DIR")
    step.add_argument("--functions", type=Path, metavar="DIR")
    parser.add_argument("--case", choices=["loss", "faces"], default="loss")
    parser.add_argument("--target", choices=["cuda", "llvm"], help="default: what there is")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="for a trace of each step")
    parser.add_argument("--quick", action="store_true", help="write nothing")
    options = parser.parse_args()
    target = options.target
    if options.functions:
        file = options.functions / "functions.json"
        if not file.exists():
            parser.error(f"{options.functions} has no functions; make them with --compile-only")
        manifest = json.loads(file.read_text())
        if (case := manifest.get("case", "loss")) != options.case:
            parser.error(f"{options.functions} has functions of --case {case}, not {options.case}")
        target = manifest["target"]
    elif target is None:
        target = "llvm"
        if find_spec("torch"):
            import torch

            target = "cuda" if torch.cuda.is_available() else "llvm"
    if not options.compile_only and (reason := missing(target)):
        print(f"{reason}: nothing measured")
        sys.exit(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.compile_only or options.functions or Path(temporary)
        if not options.functions:
            # Only here: measuring may have to do without TVM's compiler.
            from giou_kernels import compile_functions

            compile_functions(folder, target, options.arch, options.case, options.batch,
                              options.boxes, options.repetitions)  # fmt: skip
        if not options.compile_only:
            measure(folder, options)


if __name__ == "__main__":
    main()
