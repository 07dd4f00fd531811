"""Scaffolding of the benchmarks: arguments, timing in turn, the machine, tables and JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tvmflow.module.files import write_file

RESULTS = Path(__file__).parent / "results"
#: Seconds of a block and of the pause between two, and blocks of each candidate (`in_blocks`).
BLOCK_S, PAUSE_S, BLOCKS = 0.35, 0.15, 3
#: Columns of a line of JSON.
WIDTH = 110
_PACKAGES = ("tvmflow", "apache-tvm", "apache-tvm-ffi", "onnxruntime", "onnx", "numpy")


def arguments(doc: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with a script's first line as help, and an option for each default.

    A list takes several values, of the type of its first one; a tuple some of its own values.
    """
    parser = argparse.ArgumentParser(description=doc.strip().splitlines()[0])
    for name, default in defaults.items():
        options: dict[str, Any] = {"default": default, "help": "default: %(default)s"}
        if isinstance(default, tuple):
            options |= {"nargs": "+", "choices": default}
        elif isinstance(default, list):
            options |= {"nargs": "+", "type": type(default[0])}
        else:
            options["type"] = type(default)
        parser.add_argument(f"--{name}", **options)
    return parser


def network_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, Any],
    output: str = "y",
    weights: Mapping[str, Any] | None = None,
) -> Any:
    """Return an ONNX model of these nodes, with inputs of the arrays' shapes and dtypes."""
    import onnx
    from onnx import helper

    def typed(name: str, array: Any) -> Any:
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )

    result = helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)
    values = [onnx.numpy_helper.from_array(array, n) for n, array in (weights or {}).items()]
    graph = helper.make_graph(
        nodes, "network", [typed(*i) for i in inputs.items()], [result], values
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def missing(target: str) -> str | None:
    """Return what a comparison with PyTorch lacks here; only ``cuda`` needs a GPU."""
    if not find_spec("torch"):
        return "PyTorch is not installed"
    import torch

    if target == "cuda" and not torch.cuda.is_available():
        return "PyTorch finds no NVIDIA GPU"
    return None


def in_turn(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 30,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
    timed: Callable[[Callable[[], Any]], float] | None = None,
) -> dict[str, list[float]]:
    """Time each candidate once a round, one after the other; milliseconds.

    Whatever disturbs the machine for a while disturbs all of them.  ``timed`` runs a candidate and
    returns a time in units of its own.
    """

    def by_clock(run: Callable[[], Any]) -> float:
        started = clock()
        run()
        return (clock() - started) * 1e3

    for run in candidates.values():
        for _ in range(warmup):
            run()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            times[name].append((timed or by_clock)(run))
    return times


def in_blocks(candidates: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Time each candidate for :data:`BLOCK_S` a round, with pauses between; milliseconds.

    Threads of some engines spin for a while after a call, on the cores of whoever is next.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(BLOCKS):
        for name, run in candidates.items():
            time.sleep(PAUSE_S)
            run()
            times[name] += calls_for(BLOCK_S, run)
    return times


def calls_for(seconds: float, run: Callable[[], Any], least: int = 1) -> list[float]:
    """Return the times of calls one after the other for so long; milliseconds."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end or len(times) < least:
        run()
        times.append((time.perf_counter() - started) * 1e3)
    return times


def summary(times_ms: Sequence[float]) -> dict[str, float]:
    """Return the median and the deciles of a list of times, and their number."""
    deciles = statistics.quantiles(times_ms, n=10) if len(times_ms) > 1 else [times_ms[0]] * 9
    return {
        "median_ms": round(statistics.median(times_ms), 3),
        "p10_ms": round(deciles[0], 3),
        "p90_ms": round(deciles[-1], 3),
        "runs": len(times_ms),
    }


def in_process(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run Python code in a fresh process; it prints one JSON object on its last line."""
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"the measuring process failed:\n{result.stderr[-2000:]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def machine() -> dict[str, Any]:
    """Return the processor, its cores, the system and the versions of what is measured."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":", 1)[1].strip() for line in facts if line.startswith("model name"))
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": next(names, platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "date": date.today().isoformat(),
    }


def opencl_device() -> dict[str, Any]:
    """Return the OpenCL device that runs the benchmark; exit with status 0 where there is none."""
    from tvmflow.runtime.devices import list_devices

    for info in list_devices():
        if info.kind == "opencl":
            return {"name": info.name, "driver": info.driver, "version": info.version}
    print("no OpenCL device: nothing measured")
    sys.exit(0)


def report(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table."""
    table = Table(title=title)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console().print(table)


def arrow(before: object, now: object) -> str:
    """Return a table's cell: the value, with an earlier one that differs before an arrow."""
    return str(now) if before == now else f"{before} → {now}"


def earlier(path: Path | None) -> dict[str, Any]:
    """Return the results of a file that a benchmark wrote; none where there is no file."""
    if path is None or not path.exists():
        return {}
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["results"]
    return results


def collect(
    path: Path,
    jobs: Iterable[tuple[str, Callable[[], dict[str, Any] | None]]],
    line: Callable[[str, dict[str, Any]], str],
    *,
    again: bool,
) -> dict[str, Any]:
    """Measure what a file of results lacks, and write the file after each job.

    A job that returns nothing is left out.  Results have the processor with them, because those of
    one day may be of another machine than those of the day before.
    """
    done = earlier(path)
    for name, measure in jobs:
        if name in done and not again:
            continue
        if (result := measure()) is not None:
            done[name] = {"cpu": machine()["cpu"], **result}
            print(line(name, done[name]), flush=True)
            write_json(path, {"results": done})
    return done


def json_text(value: Any, indent: str = "") -> str:
    """Return JSON in which whatever fits into a line stands on one."""
    line = json.dumps(value)
    if len(line) + len(indent) <= WIDTH or not isinstance(value, dict | list):
        return line
    inner = f"{indent} "
    if isinstance(value, dict):
        start, end = "{", "}"
        items = [f"{json.dumps(str(k))}: {json_text(v, inner)}" for k, v in value.items()]
    else:
        start, end = "[", "]"
        items = [json_text(each, inner) for each in value]
    return f"{start}\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}{end}"


def write_json(name: str | Path, results: Mapping[str, Any]) -> Path:
    """Write results with the machine's description to ``results/NAME.json``, or to a path."""
    RESULTS.mkdir(exist_ok=True)
    path = name if isinstance(name, Path) else RESULTS / f"{name}.json"
    plain = json.loads(json.dumps({"machine": machine(), **results}))
    write_file(path, json_text(plain) + "\n")
    return path
