"""The loss of face boxes step by step: loop, concatenation, padding, one fused kernel, skipping.

    python benchmarks/giou.py [--batch 1024] [--boxes 256] [--rounds 30]

measures what there is: an NVIDIA GPU, else the CPU.  Where the machine with the GPU lacks a
compiler or TVM's own, functions are compiled elsewhere first:

    python benchmarks/giou.py --compile-only DIR [--target cuda] [--arch sm_90]
    python benchmarks/giou.py --functions DIR

``--case faces`` measures what training is like: few faces a picture, uint8 targets, bf16
predictions, forward and backward apart; see `giou_faces.py`.

It ends with status 0 and one sentence where PyTorch is missing, or a GPU that DIR is for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chart import bars
from common import RESULTS, in_turn, missing, report, write_json

Run = Callable[[], Any]

#: How many tensors of boxes a loss reads, and its gradient reads and writes: a copy that moves
#: as many bytes is what they are compared with.
TENSORS = {"loss": 2, "backward": 3}
#: Batches and boxes: a GPU's caches hold the first, not the last.
SIZES = ((1024, 256), (16384, 256))


def synchronized(run: Run, device: str) -> Run:
    """The run and the wait for it."""
    if device == "cpu":
        return run
    import torch

    def complete() -> Any:
        result = run()
        torch.cuda.synchronize()
        return result

    return complete


def as_graph(run: Run, device: str, repeats: int = 20) -> tuple[Run, int]:
    """Several runs as one CUDA graph, so that kernels are measured and not launches."""
    if device == "cpu":
        return run, 1
    import torch

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    return synchronized(graph.replay, device), repeats


def measure_steps(data: Any, functions: Any, rounds: int, network: Run) -> dict[str, Any]:
    """The table: copy, forward of the network, loss, loss and backward, in ms a step."""
    from giou_steps import check, steps

    found = steps(data, functions)
    check(found, data)
    results: dict[str, Any] = {}
    for row in ("copy", "loss", "backward"):
        runs = {name: synchronized(entry[row], data.device) for name, entry in found.items()}
        # A loop is a thousand times as long as the others: fewer rounds of it.
        slow = {"loop": runs.pop("loop")}
        times = in_turn(slow, rounds=max(2, rounds // 10), warmup=1) | in_turn(runs, rounds=rounds)
        for name, each in times.items():
            results.setdefault(name, {})[row] = _ms(each)
    forward = in_turn({"network": synchronized(network, data.device)}, rounds=max(3, rounds // 3))
    for entry in results.values():
        entry["forward"] = _ms(forward["network"])
    return results


def _ms(times: list[float]) -> float:
    return float(f"{statistics.median(times):.4g}")


def network(batch: int, size: int, boxes: int, device: str) -> Run:
    """The forward pass of FaceBoxNet, in PyTorch in every step."""
    import torch
    from onnx_torch import OnnxModule

    from tvmflow.models import make

    net = OnnxModule(make("facebox_net", size=size, boxes=boxes, batch=batch)).to(device)
    image = torch.rand(batch, 1, size, size, device=device)

    def run() -> Any:
        with torch.no_grad():
            return net(image)

    return run


# -- how fast -----------------------------------------------------------------------------


def speed(batch: int, boxes: int, device: str, functions: Any, rounds: int) -> dict[str, Any]:
    """Kernels' times: ours beside PyTorch, a copy of as many bytes, and ways of skipping."""
    import torch
    from giou_steps import Data, steps

    data = Data(batch, boxes, device)
    found = steps(data, functions)
    runs: dict[str, Run] = {}
    for name in ("padding", "padding, torch.compile", "tvmflow, conditional", "tvmflow, ragged"):
        runs[f"{name}: loss"] = found[name]["loss"]
        runs[f"{name}: backward"] = found[name]["backward"]
    for row, tensors in TENSORS.items():
        # A copy reads and writes: half of the bytes each.
        half = torch.empty(data.pred.numel() * tensors // 2, device=device)
        into = torch.empty_like(half)
        runs[f"copy: {row}"] = lambda half=half, into=into: into.copy_(half)
    rows = len(data.packed)
    alone = data.pred.reshape(-1, 4)[:rows][None].contiguous()
    ends = torch.tensor([0, rows], dtype=torch.int32, device=device)
    whole = ("offsets", alone, data.packed, ends)
    runs["valid boxes alone: loss"] = lambda: functions.loss(*whole)
    forms = {"count": data.count, "mask": data.mask, "offsets": data.offsets}
    for form, given in forms.items():
        target = data.packed if form == "offsets" else data.target
        for skip in ("none", "element", "warp", "list"):
            if functions.has(form, skip):
                inputs = (form, data.pred, target, given)
                runs[f"{form}, skip {skip}: loss"] = lambda i=inputs, s=skip: functions.loss(
                    *i, skip=s
                )
    graphs = {name: as_graph(run, device) for name, run in runs.items()}
    times = in_turn({name: run for name, (run, _) in graphs.items()}, rounds=rounds)
    return {name: _ms([t / graphs[name][1] for t in each]) for name, each in times.items()}


def table_of_steps(results: dict[str, Any], title: str) -> None:
    """Print copy, forward, loss and backward of each step."""
    rows = ("copy", "forward", "loss", "backward")
    lines = [[name, *(entry[row] for row in rows)] for name, entry in results.items()]
    report(title, ("ms a step", *rows), lines)


def table_of_speed(times: dict[str, float], title: str) -> None:
    """Print times, beside PyTorch's best and a copy of the same bytes."""
    lines = []
    for name, ms in times.items():
        row = "backward" if name.endswith("backward") else "loss"
        eager, fast = (times[f"{way}: {row}"] for way in ("padding", "padding, torch.compile"))
        ratios = (eager / ms, fast / ms, ms / times[f"copy: {row}"])
        lines.append([name, ms, *(f"{ratio:.2f}" for ratio in ratios)])
    columns = ("", "ms", "faster than eager", "than torch.compile", "times a copy")
    report(title, columns, lines)


def measure(folder: Path, options: argparse.Namespace) -> None:
    """All tables, the JSON and the chart."""
    import torch
    from giou_modules import Functions
    from giou_steps import Data

    functions = Functions(folder)
    device = "cuda" if functions.manifest["target"] == "cuda" else "cpu"
    name = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    if options.case == "faces":
        import giou_faces

        giou_faces.measure(functions, name, options)
        return
    data = Data(options.batch, options.boxes, device)
    forward = network(options.batch, options.size, options.boxes, device)
    table = measure_steps(data, functions, options.rounds, forward)
    title = f"{name}: batch {options.batch}, up to {options.boxes} boxes"
    table_of_steps(table, title)
    results: dict[str, Any] = {
        "device": name, "torch": torch.__version__, "batch": options.batch,
        "boxes": options.boxes, "image": options.size, "steps_ms": table, "speed_ms": {},
    }  # fmt: skip
    sizes = SIZES if device == "cuda" and not options.quick else ((options.batch, options.boxes),)
    for batch, boxes in sizes:
        times = speed(batch, boxes, device, functions, options.rounds)
        table_of_speed(times, f"{name}: kernels, batch {batch}, up to {boxes} boxes")
        results["speed_ms"][f"{batch}x{boxes}"] = times
    if options.quick:
        return
    file = "giou_cuda" if device == "cuda" else "giou_cpu"
    print(f"written: {write_json(file, results)}")
    groups = {
        row: {n: entry[row] for n, entry in table.items()} for row in ("copy", "loss", "backward")
    }
    (RESULTS / f"{file}.svg").write_text(bars(f"Milliseconds a step. {title}", groups))


def main() -> None:
    """Compile, measure, or both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--compile-only", type=Path, metavar="DIR")
    step.add_argument("--functions", type=Path, metavar="DIR")
    parser.add_argument("--case", choices=["loss", "faces"], default="loss")
    parser.add_argument("--target", choices=["cuda", "llvm"], help="default: what there is")
    parser.add_argument("--arch", default="sm_90", help="of the GPU's machine code")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--boxes", type=int, default=256, help="of a sample, at most")
    parser.add_argument("--size", type=int, default=32, help="pixels of FaceBoxNet's image")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repetitions", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64],
                        help="of a kernel's body (faces)")  # fmt: skip
    parser.add_argument("--traces", type=Path, metavar="DIR", help="of each step (faces)")
    parser.add_argument("--quick", action="store_true", help="one size, nothing is written")
    options = parser.parse_args()
    if options.functions and not (options.functions / "functions.json").exists():
        parser.error(f"{options.functions} has no functions; make them with --compile-only")
    if options.functions:
        case = json.loads((options.functions / "functions.json").read_text()).get("case", "loss")
        if case != options.case:
            parser.error(f"{options.functions} has functions of --case {case}, not {options.case}")
    target = options.target or _found_target(options.functions)
    if not options.compile_only and (reason := missing(target)):
        print(f"{reason}: nothing measured")
        sys.exit(0)
    if options.functions:
        measure(options.functions, options)
        return
    # Only here: measuring may have to do without TVM's compiler.
    from giou_modules import compile_functions

    sizes = {name: getattr(options, name) for name in ("batch", "boxes", "repetitions")}
    given = (target, options.arch, options.case)
    if options.compile_only:
        compile_functions(options.compile_only, *given, **sizes)
        return
    with tempfile.TemporaryDirectory() as folder:
        compile_functions(Path(folder), *given, **sizes)
        measure(Path(folder), options)


def _found_target(folder: Path | None) -> str:
    """What functions were compiled for; else CUDA where PyTorch finds a GPU."""
    if folder is not None:
        return str(json.loads((folder / "functions.json").read_text())["target"])
    if find_spec("torch"):
        import torch

        return "cuda" if torch.cuda.is_available() else "llvm"
    return "llvm"


if __name__ == "__main__":
    main()
