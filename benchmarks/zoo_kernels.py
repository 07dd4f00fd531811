"""Report where the zoo's networks lose time on this CPU: by schedule family, and by kernel.

Each network is exported (`zoo.py`), compiled for ``llvm``, untuned, and profiled: `tvmflow profile`
reports which share of the machine's roofline each kernel reaches at its operations per byte.
*Lost* is the rest of its time.  Then whole calls are timed with one thread and with one thread per
core, in processes that take turns.

    python -m pip install '.[zoo]'
    python benchmarks/zoo_kernels.py [--only resnet] [--exports FOLDER] [--again]

results/zoo_kernels.json is written after each network; networks it holds are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import zoo
from common import RESULTS, arguments, calls_for, collect, report
from zoo_speed import exported

import tvmflow

#: Seconds of each call of a process, and processes for each number of threads.
SECONDS, ROUNDS = 0.7, 2
#: Number of kernels in the results of a network: those that lose the most time.
KEPT = 3
FAMILY_COLUMNS = ("family", "networks", "launches", "of the time", "lost", "reached")
KERNEL_COLUMNS = ("network", "family", "node", "µs", "lost of the network", "GFLOP/s", "GB/s",
                  "of the roofline", "bound")  # fmt: skip


def profiled(module: Path) -> dict[str, Any]:
    """Profile a module in a separate process; return times and shares of the roofline."""
    profile = tvmflow.profile(module, runs=20)
    total = sum(kernel.median_us for kernel in profile.kernels)
    families: dict[str, dict[str, float]] = {}
    kernels = []
    for kernel in profile.kernels:
        lost = kernel.median_us * (1 - min(kernel.roofline_share or 0.0, 1.0))
        cell = families.setdefault(kernel.family, {"launches": 0, "us": 0.0, "lost_us": 0.0})
        cell["launches"] += 1
        cell["us"] += kernel.median_us
        cell["lost_us"] += lost
        kernels.append({
            "family": kernel.family, "nodes": list(kernel.nodes), "us": round(kernel.median_us, 1),
            "lost_us": round(lost, 1), "lost_share": round(lost / total, 4),
            "gflops": kernel.gflops, "gbps": kernel.gbps, "bound": kernel.bound,
            "share": kernel.roofline_share,
        })  # fmt: skip
    kernels.sort(key=lambda kernel: -kernel["lost_us"])
    limits = profile.ceilings
    return {
        "kernels_us": round(total, 1), "launches": len(profile.kernels), "families": families,
        "slowest": kernels[:KEPT],
        "fp32_gflops": limits and limits.fp32_gflops, "copy_gbps": limits and limits.copy_gbps,
    }  # fmt: skip


def timed(module: Path, path: Path) -> dict[str, Any]:
    """Return the median time of a call, with the process's number of threads."""
    given = zoo.feeds(path, 0)
    with tvmflow.load(module) as opened:
        opened(given)
        times = calls_for(SECONDS, lambda: opened(given), least=3)
    return {"ms": round(statistics.median(times), 4)}


def measure(path: Path, folder: Path) -> dict[str, Any]:
    """Compile a network, profile it, and time it with one thread and with all."""
    module = folder / "module.so"
    with tvmflow.compile(path, target="llvm") as compiled:
        compiled.save(module)
    this = [sys.executable, __file__, "--module", str(module)]
    result = zoo.in_process(this)
    threads: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for count in counts():
            environment = {**os.environ, "TVM_NUM_THREADS": str(count)}
            found = zoo.in_process([*this, "--time", str(path)], environment)
            threads[str(count)].append(found.get("ms", float("nan")))
    return result | {"threads_ms": {count: min(found) for count, found in threads.items()}}


def counts() -> list[int]:
    """Return the numbers of threads that this machine has cores for: 1, 2 and 4."""
    return [count for count in (1, 2, 4) if count <= len(os.sched_getaffinity(0))]


def family_rows(results: dict[str, Any]) -> list[list[Any]]:
    """Return for each family its networks, launches, mean share of their time, and lost share."""
    parts: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for result in results.values():
        for family, cell in result["families"].items():
            total = result["kernels_us"]
            parts[family].append((cell["launches"], cell["us"] / total, cell["lost_us"] / total))
    rows = []
    for family, cells in sorted(parts.items(), key=lambda item: -sum(c[2] for c in item[1])):
        launches, time_share, lost = (sum(column) for column in zip(*cells, strict=True))
        mean_time, mean_lost = time_share / len(results), lost / len(results)
        reached = 1 - lost / time_share
        shares = (f"{mean_time:.1%}", f"{mean_lost:.1%}", f"{reached:.0%}")
        rows.append([family, len(cells), int(launches), *shares])
    return rows


def kernel_rows(results: dict[str, Any], count: int = 10) -> Iterator[list[Any]]:
    """Yield the kernels that lose most of their network's time, one per network."""
    worst = [(result["slowest"][0], name) for name, result in results.items()]
    worst.sort(key=lambda item: -item[0]["lost_share"])
    for kernel, name in worst[:count]:
        rates = [f"{kernel[rate] or 0:.0f}" for rate in ("gflops", "gbps")]
        share = "" if kernel["share"] is None else f"{kernel['share']:.0%}"
        nodes = kernel["nodes"][0][:28] if kernel["nodes"] else ""
        yield [
            name, kernel["family"], nodes, f"{kernel['us']:.0f}", f"{kernel['lost_share']:.0%}",
            *rates, share, kernel["bound"] or "",
        ]  # fmt: skip


def threads(results: dict[str, Any]) -> str:
    """Return a sentence on the gain of all threads."""
    gains = {
        name: result["threads_ms"]["1"] / result["threads_ms"][most]
        for name, result in results.items()
        if (most := max(result["threads_ms"], key=int)) != "1"
    }
    if not gains:
        return "This machine has one core."
    least = sorted(gains.items(), key=lambda item: item[1])[:3]
    told = ", ".join(f"{name} {gain:.2f}" for name, gain in least)
    mean = statistics.geometric_mean(gains.values())
    return f"With all cores, calls are {mean:.2f} times as fast as with one; least so {told}."


def measured(architecture: zoo.Architecture, exports: Path | None) -> dict[str, Any] | None:
    """Export a network and measure it; return ``None`` if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return measure(exported(architecture, "float", exports or Path(folder)), Path(folder))
        except Exception as error:  # noqa: BLE001 (PyTorch's exporter, or ours)
            print(f"{architecture.name}: {str(error).splitlines()[0][:100]}", flush=True)
            return None


def line(name: str, result: dict[str, Any]) -> str:
    """Return the line to print for a network."""
    return f"{name}: {result.get('kernels_us')} µs, {result['threads_ms']}"


def main() -> int:
    """Measure the networks that have no results yet, one by one."""
    parser = arguments(__doc__, only=[""], output=RESULTS / "zoo_kernels.json")
    parser.add_argument("--exports", type=Path, help="a folder that keeps the networks' files")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--module", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--time", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.module:
        found = timed(options.module, options.time) if options.time else profiled(options.module)
        print(json.dumps(found))
        return 0
    jobs = [
        (each.name, partial(measured, each, options.exports)) for each in zoo.chosen(options.only)
    ]
    done = collect(options.output, jobs, line, again=options.again)
    done = {name: result for name, result in done.items() if "families" in result}
    report("Families", FAMILY_COLUMNS, family_rows(done))
    report("The kernels with most lost time", KERNEL_COLUMNS, list(kernel_rows(done)))
    print(threads(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
