"""Samples a second over batches, threads and devices: of this machine, and of servers by RPC.

MobileNetV2 and FaceBoxNet, on ``llvm`` and OpenCL, over batches and threads; then on two devices
that have half of the cores each: PoCL twice, and two servers of a farm on this machine.

    python benchmarks/scaling.py [--networks mobilenet_v2,facebox_net] [--targets llvm,opencl]
        [--size 224] [--batches 1,2,4,8] [--seconds 2]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import opencl_device, report, write_json

from tvmflow.models import build
from tvmflow.scaling.measure import Scaling, scale
from tvmflow.scaling.places import Farm, Local, Place
from tvmflow.scaling.sources import Network, from_models

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import farms

CORES = len(os.sched_getaffinity(0))
KEY = "bench"


def network(name: str, target: str, batches: list[int], size: int, folder: Path) -> Network:
    """Compile a network for each batch."""
    models = []
    for batch in batches:
        models.append(folder / f"{name}_{batch}.onnx")
        build(name, models[-1], size=size, batch=batch)
    return from_models(
        *(models, folder), target=target, device="auto", host=None, shapes={}, watch=print
    )


def measure(compiled: Network, place: Place, **numbers: Any) -> dict[str, Any]:
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


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes that measure; this one has its devices already."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def two_devices(compiled: Network, folder: Path, seconds: float) -> dict[str, Any]:
    """Half of the cores for each of two devices: of PoCL, and of two servers."""
    half = max(CORES // 2, 1)
    found: dict[str, Any] = {"threads_each": half}
    limits = {"TVM_NUM_THREADS": str(half), "POCL_MAX_PTHREAD_COUNT": str(half)}
    with variables(limits):
        if compiled.target == "opencl":
            first = Local.find("opencl", 0)
            with variables({"POCL_DEVICES": "pthread pthread"}):
                place = Local(
                    tuple(replace(first.infos[0], index=i) for i in range(2)), first.cores
                )
                found["pocl_twice"] = measure(compiled, place, devices=[1, 2], seconds=seconds)
        with closing(farms.Farm(folder)) as farm:
            for _ in range(2):
                farm.serve(KEY)
            servers = Farm.find(farm.address, KEY, compiled.target, 0, None)
            found["rpc"] = measure(compiled, servers, devices=[1, 2, 4], seconds=seconds)
    return found


def main() -> None:
    """Measure every network on every target, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default="mobilenet_v2,facebox_net", help="by commas")
    parser.add_argument("--targets", default="llvm,opencl", help="by commas")
    parser.add_argument("--size", type=int, default=224, help="of the pictures")
    parser.add_argument("--batches", default="1,2,4,8", help="by commas")
    parser.add_argument("--seconds", type=float, default=2.0, help="for the calls of each point")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    results: dict[str, Any] = {"size": options.size}
    targets = options.targets.split(",")
    if "opencl" in targets:
        results["opencl_device"] = opencl_device()
    threads = sorted({1, CORES, 4 * CORES})
    for name in options.networks.split(","):
        for target in targets:
            with tempfile.TemporaryDirectory() as text:
                folder = Path(text)
                compiled = network(name, target, batches, options.size, folder)
                place = Local.find(target, 0)
                seconds = options.seconds
                results[f"{name}/{target}"] = {
                    "here": measure(
                        compiled, place, threads=threads, devices=[1, 2], seconds=seconds
                    ),
                    **two_devices(compiled, folder, seconds),
                }
    print(f"written: {write_json('scaling', results)}")


if __name__ == "__main__":
    main()
