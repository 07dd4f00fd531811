"""MobileNetV2 1x3x224x224 fp32: this project, stock TVM and ONNX Runtime side by side.

Stock TVM is ``relax.build`` with target ``opencl`` on the same OpenCL plug-in and
device.  Also measured: the first call of a process with cold and warm program
cache, the time of a compilation, and of ``tvmflow --help``.

    python benchmarks/stock_tvm.py [--size 224]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from common import (
    arguments,
    in_blocks,
    in_process,
    in_turn,
    opencl_device,
    report,
    summary,
    write_json,
)
from peers import onnxruntime

import tvmflow
from tvmflow.models import build as build_model

#: Loads a module and runs it once: what an application waits for at its start.
FIRST_CALL = """
import json, sys, time
import numpy as np
import tvmflow
module = tvmflow.load(sys.argv[1])
inputs = {i.name: np.zeros(i.shape, i.dtype) for i in module.inputs}
started = time.perf_counter()
module(**inputs)
print(json.dumps({"ms": (time.perf_counter() - started) * 1e3}))
"""

COMPILE = """
import json, sys, time
started = time.perf_counter()
import tvmflow
module = tvmflow.compile(sys.argv[1], target="opencl")
print(json.dumps({"ms": (time.perf_counter() - started) * 1e3,
                  "stages": module.metadata["stage_ms"]}))
"""


def stock_runner(path: Path, feed: np.ndarray):
    """Return what runs one inference with stock TVM on the same device."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    mod = from_onnx(onnx.load(path), keep_params_in_input=False)
    mod = relax.transform.DecomposeOpsForInference()(mod)
    target = tvm.target.Target("opencl", host="llvm")
    executable = relax.build(mod, target=target)
    device = tvm.device("opencl", 0)
    machine = relax.VirtualMachine(executable, device)

    def run() -> np.ndarray:
        return machine["main"](tvm.runtime.tensor(feed, device)).numpy()

    return run


def first_calls(module: Path, repeats: int) -> dict[str, list[float]]:
    """Time the first call of fresh processes: without any cache, then with this project's alone.

    The driver's own cache is a new folder every time, so that it never helps.
    """
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            for kind in times:
                with tempfile.TemporaryDirectory() as driver_cache:
                    env = dict.fromkeys(("POCL_CACHE_DIR", "NEO_CACHE_DIR"), driver_cache)
                    env["TVMFLOW_CACHE_DIR"] = cache
                    times[kind].append(in_process(FIRST_CALL, str(module), env=env)["ms"])
    return times


def main() -> None:
    """Measure everything side by side and write the results."""
    options = arguments(__doc__, size=224).parse_args()
    device = opencl_device()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mobilenet_v2.onnx"
        build_model("mobilenet_v2", path, size=options.size)
        shape = (1, 3, options.size, options.size)
        feed = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        theirs = onnxruntime(path, feed)
        module = tvmflow.compile(path, target="opencl")
        saved = module.save(Path(folder) / "mobilenet_v2.so")
        stock = stock_runner(path, feed)

        reference = theirs()
        scale = np.abs(reference).max()
        results = {"tvmflow": module(input=feed)["output"], "stock TVM": stock()}
        errors = {n: float(np.abs(y - reference).max() / scale) for n, y in results.items()}
        times = in_blocks({
            "tvmflow": lambda: module(input=feed),
            "stock TVM": stock,
            "ONNX Runtime": theirs,
        })  # fmt: skip
        first = {kind: summary(ms) for kind, ms in first_calls(saved, repeats=3).items()}
        compiles = [in_process(COMPILE, str(path)) for _ in range(3)]

    latency = {name: summary(values) for name, values in times.items()}
    ours, cold, warm = (
        each["median_ms"] for each in (latency["tvmflow"], first["cold"], first["warm"])
    )
    ratios = {
        "stock_tvm_over_tvmflow": round(latency["stock TVM"]["median_ms"] / ours, 2),
        "tvmflow_over_onnxruntime": round(ours / latency["ONNX Runtime"]["median_ms"], 2),
        "warm_over_cold_first_call": round(warm / cold, 4),
    }
    compile_ms = summary([c["ms"] for c in compiles])
    command = [str(Path(sys.executable).with_name("tvmflow")), "--help"]
    run_help = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    help_ms = summary(in_turn({"help": run_help}, rounds=9, warmup=0)["help"])
    rows = [
        (
            *(name, s["median_ms"], s["p10_ms"], s["p90_ms"], f"{s['median_ms'] / ours:.2f}"),
            f"{errors[name]:.1e}" if name in errors else "reference",
        )
        for name, s in latency.items()
    ]
    columns = ("", "median ms", "p10", "p90", "times tvmflow", "max rel error")
    report(f"MobileNetV2 {shape} on {device['name']}", columns, rows)
    starts = {
        "first call, no cache": cold,
        "first call, program cache": warm,
        "compile, fresh process": compile_ms["median_ms"],
        "tvmflow --help": help_ms["median_ms"],
    }
    report("Start and compilation", ("", "median ms"), list(starts.items()))
    results = {
        "device": device,
        "network": {"name": "mobilenet_v2", "shape": shape, "dtype": "float32"},
        "latency": latency,
        "ratios": ratios,
        "max_relative_error": errors,
        "first_call": first,
        "compile": {**compile_ms, "stage_ms": compiles[0]["stages"]},
        "help": help_ms,
    }
    print(f"ratios: {ratios}\nwritten: {write_json('stock_tvm', results)}")


if __name__ == "__main__":
    main()
