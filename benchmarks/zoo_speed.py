"""Times of the zoo's networks on this machine's CPU, next to ONNX Runtime, OpenVINO and ncnn.

Each network is exported (`zoo.py`, which verifies them) and compiled, untuned.  Then each engine
has a process of its own, in which it and ONNX Runtime take turns of a third of a second, with a
pause between, as threads of some engines spin for a while after a call.  OpenCL modules run on
PoCL and on Intel's runtime, where these are installed.

    python -m pip install '.[zoo,peers,cpu-opencl]'
    python benchmarks/zoo_speed.py [--only resnet] [--kinds float int8] [--exports FOLDER]

Geometric means and the slowest networks are printed; results/zoo_speed.json is written after each
network, and what is there already is measured again only with --again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from ctypes.util import find_library
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import peers
import zoo
from common import RESULTS, arguments, collect, in_blocks, report

import tvmflow

#: Names of engines; what tvmflow's are compiled for, and the library that opens the driver.
OURS: dict[str, tuple[str, str | None]] = {
    "llvm": ("llvm", None),
    "opencl, PoCL": ("opencl", find_library("pocl")),
    "opencl, Intel": ("opencl", f"{sys.prefix}/lib/libintelocl.so"),
}
OTHERS: dict[str, Callable[[Path, np.ndarray], peers.Runner]] = {
    "OpenVINO": peers.openvino, "ncnn": peers.ncnn(vulkan=False),
}  # fmt: skip
#: Outputs that differ more, by their largest number, are of another network.  In 8 bits a step of
#: an early layer moves them, and `zoo.py` says what is right.
DIFFERENT, DIFFERENT_INT8 = 2e-2, 0.3


def time_engine(path: Path, engine: str, module: Path | None) -> dict[str, Any]:
    """Time an engine and ONNX Runtime in turn, in a process of its own."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = zoo.feeds(path, 0)
    wanted = session.run(None, given)
    result: dict[str, Any] = {}
    if module is not None:
        opened = tvmflow.load(module)
        started = time.perf_counter()
        got = opened(given)
        result["first_call_s"] = round(time.perf_counter() - started, 2)
        error = max(
            float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))
            for a, b in zip(got, wanted, strict=True)
            if b.dtype.kind == "f" and b.size
        )
        result["kernels"] = len(opened.metadata["kernels"])
        run: Callable[[], Any] = lambda: opened(given)  # noqa: E731
    else:
        if len(given) != 1:
            return {"missing": "it is measured with one input"}
        run = OTHERS[engine](path, next(iter(given.values())))
        error = float(np.abs(run().ravel() - wanted[0].ravel()).max() / np.abs(wanted[0]).max())
    if error > (DIFFERENT_INT8 if path.name.endswith(".int8.onnx") else DIFFERENT):
        return {"missing": f"its result differs by {error:.1%}"}
    both = in_blocks({"ONNX Runtime": lambda: session.run(None, given), engine: run})
    times = {name: round(statistics.median(found), 4) for name, found in both.items()}
    return {**result, "median_ms": times[engine], "onnxruntime_ms": times["ONNX Runtime"]}


def driver(library: str) -> dict[str, str]:
    """Return the environment of a process whose OpenCL driver is this library."""
    return {"TVMFLOW_OPENCL_LIBRARY": library, "TVMFLOW_OPENCL_DEVICE": ""}


def measure(path: Path, engines: list[str], folder: Path) -> dict[str, Any]:
    """Compile a network for each target, and time each engine in a process of its own."""
    result: dict[str, Any] = {}
    modules: dict[str, Path] = {}
    for target in dict.fromkeys(OURS[engine][0] for engine in engines if engine in OURS):
        started = time.process_time()
        try:
            module = tvmflow.compile(path, target=target)
        except tvmflow.TvmflowError as error:
            result[target] = {"missing": str(error)[:300]}
            continue
        result[f"compile {target}, CPU s"] = round(time.process_time() - started, 1)
        modules[target] = folder / f"{target}.so"
        module.save(modules[target])
        module.close()
    for engine in engines:
        command = [sys.executable, __file__, "--time", str(path), engine]
        environment = dict(os.environ)
        if engine in OURS:
            target, library = OURS[engine]
            if target not in modules:
                continue
            if target == "opencl":
                if not library or ("/" in library and not Path(library).exists()):
                    result[engine] = {"missing": "its library is not installed"}
                    continue
                environment |= driver(library)
            command += ["--module", str(modules[target])]
        result[engine] = zoo.in_process(command, environment)
    return result


def exported(architecture: zoo.Architecture, kind: str, folder: Path) -> Path:
    """Return the file of a network, exported into the folder if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{architecture.name}.onnx"
    quantized = path.with_suffix(".int8.onnx")
    if kind == "float" and not path.exists():
        zoo.export(architecture, zoo.EXPORTERS[0], path)
    if kind == "int8" and not quantized.exists():
        if path.exists():
            zoo.quantize(path)
        else:
            zoo.export_quantized(architecture, path)
    return path if kind == "float" else quantized


def ratio(result: dict[str, Any], engine: str) -> float | None:
    """Time of an engine by ONNX Runtime's, if it was measured."""
    cell = result.get(engine, {})
    return cell["median_ms"] / cell["onnxruntime_ms"] if "median_ms" in cell else None


def means(results: dict[str, dict[str, Any]]) -> list[list[Any]]:
    """Return a row for each engine: networks, geometric mean, and the slowest."""
    rows = []
    for kind in ("float", "int8"):
        for engine in (*OURS, *OTHERS):
            found = {
                name.split(", ")[0]: time
                for name, result in results.items()
                if name.endswith(kind) and (time := ratio(result, engine)) is not None
            }
            if found:
                worst = sorted(found, key=found.__getitem__)[:-4:-1]
                told = ", ".join(f"{name} {found[name]:.2f}" for name in worst)
                mean = statistics.geometric_mean(found.values())
                rows.append([kind, engine, len(found), f"{mean:.2f}", told])
    return rows


def measured(
    architecture: zoo.Architecture, kind: str, engines: list[str], exports: Path | None
) -> dict[str, Any] | None:
    """Export a network and time it; nothing is returned if it cannot be exported."""
    # Other engines are measured in floats only: ONNX Runtime's 8-bit format is not theirs.
    engines = [engine for engine in engines if kind == "float" or engine in OURS]
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = exported(architecture, kind, exports or Path(folder))
        except Exception as error:  # noqa: BLE001 (PyTorch's, or the quantizer's)
            print(f"{architecture.name}, {kind}: not exported: {str(error).splitlines()[0][:100]}")
            return None
        return measure(path, engines, Path(folder))


def line(name: str, result: dict[str, Any]) -> str:
    """Return what is printed of a network: its times by ONNX Runtime's."""
    times = {engine: ratio(result, engine) for engine in (*OURS, *OTHERS)}
    return f"{name}: {', '.join(f'{e} {time:.2f}' for e, time in times.items() if time)}"


def main() -> int:
    """Measure what is not there yet, network by network."""
    parser = arguments(__doc__, only=[""], engines=(*OURS, *OTHERS), kinds=("float", "int8"),
                       output=RESULTS / "zoo_speed.json")  # fmt: skip
    parser.add_argument("--exports", type=Path, help="a folder that keeps the networks' files")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--time", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--module", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time:
        path, engine = options.time
        print(json.dumps(time_engine(Path(path), engine, options.module)))
        return 0
    jobs = [
        (f"{each.name}, {kind}", partial(measured, each, kind, options.engines, options.exports))
        for each, kind in product(zoo.chosen(options.only), options.kinds)
    ]
    done = collect(options.output, jobs, line, again=options.again)
    columns = ["files", "engine", "networks", "mean", "slowest"]
    report("Times by ONNX Runtime's", columns, means(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
