"""Samples a second over batches, threads and devices: of this machine, and of servers by RPC.

MobileNetV2 and FaceBoxNet, on ``llvm`` and OpenCL, over batches and threads; then on two devices
of PoCL, which share its threads of all cores, and on two servers of a farm on this machine, which
have half of the cores each.

    python benchmarks/scaling.py [--networks mobilenet_v2,facebox_net] [--targets llvm,opencl]
        [--batches 1,2,4,8] [--seconds 2]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from common import opencl_device, report, write_json

from tvmflow.compiler.options import CompileOptions
from tvmflow.explain.scaling.devices import DevicePool, FarmDevices, LocalDevices
from tvmflow.explain.scaling.measure import Scaling, scale
from tvmflow.explain.scaling.sources import Network, from_models
from tvmflow.models import build

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import farms

CORES = len(os.sched_getaffinity(0))
KEY = "bench"
#: Height and width of the pictures; at 224, FaceBoxNet would have 2.5 GB of weights for each batch.
SIZES = {"mobilenet_v2": 224, "facebox_net": 64}


def network(name: str, target: str, batches: list[int], folder: Path) -> Network:
    """Compile a network for each batch."""
    models = []
    for batch in batches:
        models.append(folder / f"{name}_{batch}.onnx")
        build(name, models[-1], size=SIZES[name], batch=batch)
    return from_models(models, folder, CompileOptions(target=target), print)


def measure(compiled: Network, place: DevicePool, **numbers: Any) -> dict[str, Any]:
    """Measure and print."""
    result = scale(compiled, place, batches=[*compiled.modules], watch=print, **numbers)
    show(result)
    return result.described()


def show(result: Scaling) -> None:
    """Print points and laws."""
    rows = [
        (p.devices, p.batch, p.threads or "", *(f"{x:.1f}" if x is not None else "" for x in (
            p.median_ms, p.items_per_s, p.low_per_s, p.high_per_s)),
         "measured" if p.measured else "predicted" if p.laws else p.why_not)
        for p in result.points
    ]  # fmt: skip
    columns = ("devices", "batch", "threads", "median ms", "samples/s", "low", "high", "how")
    report(f"{result.target} on {result.device_name}", columns, rows)
    for law in result.laws:
        print(law.described())


def pocl_twice(compiled: Network, here: LocalDevices, seconds: float) -> dict[str, Any]:
    """Two devices of PoCL; a process has one pool of threads for all of them."""
    place = replace(here, infos=tuple(replace(here.infos[0], index=i) for i in range(2)))
    # For the process that measures; this one has its devices already.
    with mock.patch.dict(os.environ, POCL_DEVICES="pthread pthread"):
        return measure(compiled, place, devices=[1, 2], seconds=seconds)


def two_servers(
    compiled: Network, here: LocalDevices, folder: Path, seconds: float
) -> dict[str, Any]:
    """Two servers, each with threads for half of the cores."""
    half = max(CORES // 2, 1)
    with closing(farms.Farm(folder)) as farm:
        for _ in range(2):
            farm.serve(KEY, **here.environment(half))
        servers = FarmDevices.find(farm.address, KEY, compiled.target, 0, None)
        measured = measure(compiled, servers, devices=[1, 2, 4], seconds=seconds)
    return {"threads_each": half, **measured}


def main() -> None:
    """Measure every network on every target, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(SIZES), help="by commas")
    parser.add_argument("--targets", default="llvm,opencl", help="by commas")
    parser.add_argument("--batches", default="1,2,4,8", help="by commas")
    parser.add_argument("--seconds", type=float, default=2.0, help="for the calls of each point")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    results: dict[str, Any] = {}
    targets = options.targets.split(",")
    if "opencl" in targets:
        results["opencl_device"] = opencl_device()
    threads = sorted({1, CORES, 4 * CORES})
    for name in options.networks.split(","):
        for target in targets:
            with tempfile.TemporaryDirectory() as text:
                folder = Path(text)
                compiled = network(name, target, batches, folder)
                place, seconds = LocalDevices.find(target, 0), options.seconds
                here = measure(compiled, place, threads=threads, devices=[1, 2], seconds=seconds)
                found = results[f"{name}/{target}"] = {"size": SIZES[name], "here": here}
                if target == "opencl":
                    found["pocl_twice"] = pocl_twice(compiled, place, seconds)
                found["rpc"] = two_servers(compiled, place, folder, seconds)
    print(f"written: {write_json('scaling', results)}")


if __name__ == "__main__":
    main()
