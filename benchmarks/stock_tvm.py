"""MobileNetV2 1x3x224x224 fp32: this project, stock TVM and ONNX Runtime side by side.

Stock TVM is ``relax.build`` with target ``opencl`` on the same OpenCL plug-in and
device.  Also measured: the first call of a process with cold and warm program
cache, the time of a compilation, and of ``tvmflow --help``.

    python benchmarks/stock_tvm.py [--size 224]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import in_blocks, in_process, opencl_device, report, summary, write_json

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
    """Stock TVM on the same device: a function that runs one inference, and one that reads it."""
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
    """First call of fresh processes: without any cache, then with this project's alone.

    The driver's own cache is a new folder every time, so that it never helps.
    """
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            for kind in times:
                with tempfile.TemporaryDirectory() as driver_cache:
                    env = {
                        "TVMFLOW_CACHE_DIR": cache,
                        "POCL_CACHE_DIR": driver_cache,
                        "NEO_CACHE_DIR": driver_cache,
                    }
                    times[kind].append(in_process(FIRST_CALL, str(module), env=env)["ms"])
    return times


def help_times(repeats: int) -> list[float]:
    """Milliseconds of ``tvmflow --help``."""
    command = [str(Path(sys.executable).with_name("tvmflow")), "--help"]
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)
        times.append((time.perf_counter() - started) * 1e3)
    return times


def main() -> None:
    """Measure everything side by side and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--output", default="stock_tvm", help="name of the JSON file")
    options = parser.parse_args()
    device = opencl_device()
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mobilenet_v2.onnx"
        build_model("mobilenet_v2", path, size=options.size)
        shape = (1, 3, options.size, options.size)
        feed = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        module = tvmflow.compile(path, target="opencl")
        saved = module.save(Path(folder) / "mobilenet_v2.so")
        stock = stock_runner(path, feed)

        reference = session.run(None, {"input": feed})[0]
        scale = np.abs(reference).max()
        errors = {
            "tvmflow": float(np.abs(module(input=feed)["output"] - reference).max() / scale),
            "stock TVM": float(np.abs(stock() - reference).max() / scale),
        }
        times = in_blocks({
            "tvmflow": lambda: module(input=feed),
            "stock TVM": stock,
            "ONNX Runtime": lambda: session.run(None, {"input": feed}),
        })  # fmt: skip
        first = first_calls(saved, repeats=3)
        compiles = [in_process(COMPILE, str(path)) for _ in range(3)]

    latency = {name: summary(values) for name, values in times.items()}
    ours = latency["tvmflow"]["median_ms"]
    cold, warm = summary(first["cold"]), summary(first["warm"])
    ratios = {
        "stock_tvm_over_tvmflow": round(latency["stock TVM"]["median_ms"] / ours, 2),
        "tvmflow_over_onnxruntime": round(ours / latency["ONNX Runtime"]["median_ms"], 2),
        "warm_over_cold_first_call": round(warm["median_ms"] / cold["median_ms"], 4),
    }
    compile_ms = summary([c["ms"] for c in compiles])
    help_ms = summary(help_times(9))
    report(
        f"MobileNetV2 {shape} on {device['name']}",
        ("", "median ms", "p10", "p90", "times tvmflow", "max rel error"),
        [
            (
                name,
                s["median_ms"],
                s["p10_ms"],
                s["p90_ms"],
                f"{s['median_ms'] / ours:.2f}",
                f"{errors[name]:.1e}" if name in errors else "reference",
            )
            for name, s in latency.items()
        ],
    )
    report(
        "Start and compilation",
        ("", "median ms"),
        [
            ("first call, no cache", cold["median_ms"]),
            ("first call, program cache", warm["median_ms"]),
            ("compile, fresh process", compile_ms["median_ms"]),
            ("tvmflow --help", help_ms["median_ms"]),
        ],
    )
    written = write_json(
        options.output,
        {
            "device": device,
            "network": {"name": "mobilenet_v2", "shape": shape, "dtype": "float32"},
            "latency": latency,
            "ratios": ratios,
            "max_relative_error": errors,
            "first_call": {"cold": cold, "warm": warm},
            "compile": {**compile_ms, "stage_ms": compiles[0]["stages"]},
            "help": help_ms,
        },
    )
    print(f"ratios: {ratios}\nwritten: {written}")


if __name__ == "__main__":
    main()
