"""Measure what the choices of a library cost, and what a tuning on the device gains.

*Host*: for each network, the library as compiled, tuned by `tvmflow_tune`, and compiled with a
journal of `tvmflow tune` for this driver, timed in turn.

*Foreign*: a library for a phone's GPU on this driver, as compiled and tuned, timed in turn.

    python benchmarks/choices.py [--driver libintelocl.so] [--trials 16]
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from common import arguments, in_blocks, report, write_json

import tvmflow
from tvmflow.models import build

NETWORKS = {
    "mobilenet_v1": {}, "mobilenet_v2": {}, "squeezenet": {}, "face_detector": {},
    "resnet50": {"size": 128}, "deit_tiny": {},
}  # fmt: skip
#: Devices of libraries that this driver's machine is not.
FOREIGN = ("adreno", "mali", "nvidia")
CHOICES, BUDGET_MS = 4, 600_000


def main() -> None:
    """Measure, print and write the results."""
    parser = arguments(__doc__)
    parser.add_argument("--driver", default="", help="OpenCL library; default: the loader's first")
    parser.add_argument("--trials", type=int, default=16, help="of each task of the host's tuning")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    options = parser.parse_args()
    if options.driver:
        os.environ["TVMFLOW_OPENCL_LIBRARY"] = options.driver
    results: dict[str, Any] = {"host": {}, "foreign": {}}
    with tempfile.TemporaryDirectory(prefix="tvmflow-") as name:
        folder = Path(name)
        os.environ["TVMFLOW_CACHE_DIR"] = str(folder / "cache")
        for network in options.networks:
            model = build(network, folder / f"{network}.onnx", **NETWORKS[network])
            results["host"][network] = on_host(model, folder, options)
        model = folder / f"{options.networks[0]}.onnx"
        for device in FOREIGN:
            results["foreign"][device] = foreign(model, folder, device)
    about = next(iter(results["host"].values()))["device"]
    results["device"] = about
    print_results(results)
    write_json("choices_intel" if "intel" in options.driver else "choices_pocl", results)


def compiled(model: Path, path: Path, **options: Any) -> dict[str, float]:
    """Compile a library; return seconds and bytes."""
    begin = time.perf_counter()
    with tvmflow.compile(model, target="opencl", format="standalone", **options) as module:
        module.save(path)
    return {"seconds": time.perf_counter() - begin, "bytes": path.stat().st_size}


def tuned(path: Path) -> dict[str, Any]:
    """Tune a library until nothing is left; return the time and the report's numbers."""
    begin = time.perf_counter()
    with tvmflow.load(path) as module:
        result = module.tune(BUDGET_MS)
    assert result.is_complete
    names = ("choices", "used", "ms", "network_us", "device")
    wrong = sum(each["standing"] == "wrong" for each in result.report["times"])
    found = {name: result.report[name] for name in names}
    return {"seconds": time.perf_counter() - begin, "wrong": wrong, **found}


def seconds_of(paths: dict[str, Path]) -> dict[str, float]:
    """Return the median seconds of a run of each library, in blocks of runs in turn."""
    modules = {name: tvmflow.load(path) for name, path in paths.items()}
    rng = np.random.default_rng(1)
    runs = {}
    for name, module in modules.items():
        feeds = {
            info.name: rng.standard_normal(info.logical_shape or info.shape).astype(info.dtype)
            for info in module.inputs
        }
        runs[name] = lambda module=module, feeds=feeds: module(feeds)
    return {name: median(times) * 1e-3 for name, times in in_blocks(runs).items()}


def on_host(model: Path, folder: Path, options: Any) -> dict[str, Any]:
    """Measure a network whose kernels are for this machine's processor."""
    paths = {name: folder / f"{model.stem}_{name}.so" for name in ("default", "choices", "journal")}
    found: dict[str, Any] = {}
    found["default"] = compiled(model, paths["default"], device="cpu")
    found["choices"] = compiled(model, paths["choices"], device="cpu", choices=CHOICES)
    found["tuning"] = tuned(paths["choices"])
    journal = folder / f"{model.stem}.journal"
    begin = time.perf_counter()
    tvmflow.tune(
        model, journal, target="opencl", device="cpu", trials=options.trials, seed=1, compare=False
    )
    found["host_tuning_seconds"] = time.perf_counter() - begin
    compiled(model, paths["journal"], device="cpu", journals=[journal])
    found["run_seconds"] = seconds_of(paths)
    found["device"] = found["tuning"].pop("device")
    return found


def foreign(model: Path, folder: Path, device: str) -> dict[str, Any]:
    """Measure a network whose kernels are for a GPU."""
    paths = {name: folder / f"{device}_{name}.so" for name in ("default", "choices")}
    found: dict[str, Any] = {
        "default": compiled(model, paths["default"], device=device),
        "choices": compiled(model, paths["choices"], device=device, choices=CHOICES),
        "tuning": tuned(paths["choices"]),
    }
    found["run_seconds"] = seconds_of(paths)
    return found


def print_results(results: dict[str, Any]) -> None:
    """Print the tables."""
    ratios = []
    for kind in ("host", "foreign"):
        rows = []
        for name, found in results[kind].items():
            run, tuning = found["run_seconds"], found["tuning"]
            best = run.get("journal")
            if best:
                ratios.append(run["choices"] / best)
            rows.append(
                (
                    name,
                    *(f"{run[each] * 1e3:.2f}" for each in ("default", "choices")),
                    f"{best * 1e3:.2f}" if best else "-",
                    f"{run['choices'] / best:.3f}" if best else "-",
                    f"{tuning['used']} of {tuning['choices']}",
                    f"{tuning['seconds']:.1f}",
                    f"{found['default']['seconds']:.1f} to {found['choices']['seconds']:.1f}",
                    f"{100 * (found['choices']['bytes'] / found['default']['bytes'] - 1):+.1f} %",
                )
            )
        first = "network" if kind == "host" else "device"
        columns = (first, "default ms", "tuned ms", "host-tuned ms", "ratio", "choices used")
        columns += ("tuning s", "compile s", "bytes")
        report(kind, columns, rows)
    print(f"tuned by host-tuned: mean {geometric_mean(ratios):.3f}, worst {max(ratios):.3f}")


if __name__ == "__main__":
    main()
