"""Compile a network for OpenCL, run it, compare it with ONNX Runtime: the short tour.

make demo                                       MobileNetV2 on this machine's OpenCL device
python examples/demo.py --model facebox_net     another of tvmflow's example networks
python examples/demo.py --target llvm           without OpenCL
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

import tvmflow
from tvmflow import models

#: Calls that are measured, of the module and of ONNX Runtime, after some that are not.
RUNS = 100
WARMUP = 5


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=sorted(models.BUILDERS), default="mobilenet_v2")
    parser.add_argument("--target", choices=("opencl", "cuda", "llvm"), default="opencl")
    return parser.parse_args()


def measure(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return a call's milliseconds and its result."""
    start = time.perf_counter()
    result = function()
    return (time.perf_counter() - start) * 1e3, result


def time_reference(model: Path, inputs: dict[str, np.ndarray]) -> dict[str, float]:
    """Return milliseconds of ONNX Runtime on the CPU, with a thread for every core."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = len(os.sched_getaffinity(0))
    settings.log_severity_level = 3
    load, session = measure(
        lambda: onnxruntime.InferenceSession(
            str(model), settings, providers=["CPUExecutionProvider"]
        )
    )
    times = [measure(lambda: session.run(None, inputs))[0] for _ in range(1 + WARMUP + RUNS)]
    median, p90 = np.percentile(times[1 + WARMUP :], [50, 90])
    return {"load": load, "first call": times[0], "median": float(median), "p90": float(p90)}


def device_rows(target: str) -> list[tuple[str, str]]:
    """Describe the device that ran the module, and its driver."""
    device = next(info for info in tvmflow.list_devices() if info.kind == target)
    rows = [("device", device.name)]
    if target == "opencl":
        rows += [("driver", f"{device.platform}, {device.driver}"), ("library", device.library)]
    return rows


def duration(ms: float) -> str:
    """Return a time in the unit that suits it."""
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"


def facts(rows: list[tuple[str, str]]) -> Table:
    """Return names and values as a table without a head."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def stages(module: tvmflow.Module) -> Table:
    """Return the times of the compiler's stages."""
    table = Table(title="Compiled in", title_justify="left")
    times: dict[str, float] = module.metadata["stage_ms"]
    table.add_column("stage")
    table.add_column("time", justify="right")
    for name, ms in times.items():
        table.add_row(name, duration(ms))
    table.add_section()
    table.add_row("all", duration(sum(times.values())), style="bold")
    return table


def latencies(ours: tvmflow.Benchmark, reference: dict[str, float], name: str) -> Table:
    """Return the times of both, side by side."""
    table = Table(title=f"Latency, {ours.runs} calls", title_justify="left")
    table.add_column("")
    table.add_column("tvmflow", justify="right", style="bold")
    table.add_column(f"{name}, CPU", justify="right")
    times = zip(reference, (ours.load_ms, ours.first_ms, ours.median_ms, ours.p90_ms), strict=True)
    for row, ms in times:
        table.add_row(row, duration(ms), duration(reference[row]))
    return table


def accuracy(report: tvmflow.Report) -> str:
    """Say how far the results are from the reference."""
    worst = max(report.outputs, key=lambda output: output.used)
    verdict = "[green]within[/green]" if report.passed else "[red]beyond[/red]"
    return (
        f"Largest error against {report.reference}: {worst.max_abs_error:.2g} absolute, "
        f"{worst.max_rel_error:.2g} relative, {verdict} the tolerance "
        f"of {worst.tolerance.relative:g} ({worst.used:.1%} of it used)"
    )


def run(options: argparse.Namespace, folder: Path, console: Console) -> bool:
    """Go the whole way with one network; return whether its results are right."""
    terminal = Console(stderr=True)
    with terminal.status("building the model") as status:
        model = models.build(options.model, folder / f"{options.model}.onnx")

        def progress(stage: str, index: int, total: int) -> None:
            status.update(f"compiling, stage {index + 1} of {total}: {stage}")

        with tvmflow.compile(model, target=options.target, progress=progress) as compiled:
            path = compiled.save(folder / f"{options.model}.so")
        # Not `with tvmflow.load(…)`, which would load it before the clock runs.
        with closing(tvmflow.load(path)) as module:
            rng = np.random.default_rng(0)
            inputs = {
                info.name: rng.random(info.shape).astype(info.dtype) for info in module.inputs
            }
            status.update("running: the first call builds the kernels, or finds them built")
            ours = tvmflow.bench(module, inputs, runs=RUNS, warmup=WARMUP)
            status.update("running ONNX Runtime")
            reference = time_reference(model, inputs)
            report = tvmflow.verify(model, module, inputs)
    rows = [
        ("model", f"{options.model}, {', '.join(map(str, module.inputs))}"),
        ("target", f"{options.target}, shaped for: {module.metadata['device']}"),
        *device_rows(options.target),
        ("kernels", str(len(module.metadata["kernels"]))),
    ]
    console.print(facts(rows))
    tables = Table.grid(padding=(0, 4))
    tables.add_row(stages(module), latencies(ours, reference, report.reference))
    console.print(tables)
    console.print(accuracy(report))
    return report.passed


def main() -> int:
    """Run the demo; the exit status is 1 when the results are wrong."""
    options, console = arguments(), Console(highlight=False)
    try:
        with tempfile.TemporaryDirectory(prefix="tvmflow-demo-") as folder:
            return 0 if run(options, Path(folder), console) else 1
    except tvmflow.TvmflowError as error:
        Console(stderr=True, highlight=False).print(Text(str(error), style="red"))
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
