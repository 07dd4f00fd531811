"""How the kernels of the example networks fill phones' GPUs, from their schedules alone.

Of every kernel with at least 1 % of a network's multiply-adds: work-items, waves for each shader
core, filled lanes, reads and writes for each multiply-add. Needs neither a GPU nor its compiler,
and takes seconds. What an earlier state gave is compared with, if it is named.

    python benchmarks/gpu_launches.py [--networks resnet50 ...] [--gpus adreno-740 ...]
        [--dtype fp16] [--storage buffer] [--before OLD.json] [--no-kernels]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import arguments, arrow, earlier, report, write_json
from launches import Launch, launches, with_arithmetic
from same_kernels import NETWORKS
from tvm import IRModule, tirx

from tvmflow import models
from tvmflow.compiler.compilation import Compilation
from tvmflow.compiler.driver import run_stages
from tvmflow.compiler.options import CompileOptions
from tvmflow.compiler.scheduling import schedule_module
from tvmflow.devices.gpus import Gpu, find_gpu
from tvmflow.explain.isa.findings import LANES_FILLED, WAVES_A_CORE

GPUS = ("adreno-660", "adreno-740", "adreno-830", "mali-g610", "mali-g57")
_COLUMNS = ("filled", "lanes", "working", "waves a core", "few waves")


def before_scheduling(network: str, preset: str, **options: Any) -> Compilation:
    """Compile an example network up to the stage that schedules its primary functions."""
    return until_scheduling(models.make(network, **NETWORKS[network]), preset, **options)


def until_scheduling(model: Any, preset: str, **options: Any) -> Compilation:
    """Compile a model, or a file of one, up to the stage that schedules its primary functions."""
    job = Compilation(model, CompileOptions(target="opencl", device=preset, **options))
    run_stages(job, until="weights")
    return job


def scheduled(job: Compilation) -> dict[str, tirx.PrimFunc]:
    """Schedule the primary functions with most arithmetic by their heuristics."""
    chosen = set(with_arithmetic(job.mod))
    functions = {gv: f for gv, f in job.mod.functions.items() if gv.name_hint in chosen}
    return {
        gv.name_hint: function.with_attr("global_symbol", gv.name_hint)
        for gv, function in schedule_module(IRModule(functions), job.target)[0].functions.items()
    }


def network_launches(network: str, preset: str, **options: Any) -> list[Launch]:
    """Return the launches of a network's kernels with most arithmetic, for a device's preset."""
    job = before_scheduling(network, preset, **options)
    return launches(job.mod, scheduled(job), job.target)


def summary(found: Sequence[Launch], gpu: Gpu) -> dict[str, Any]:
    """Summarise how a network's launches fill a GPU, weighted by arithmetic."""
    total = sum(launch.share for launch in found)

    def mean(values: Sequence[float]) -> float:
        pairs = zip(found, values, strict=True)
        return round(sum(launch.share * value for launch, value in pairs) / total, 3)

    few = [launch for launch in found if launch.waves_a_core(gpu) < WAVES_A_CORE]
    return {
        "kernels": len(found),
        "share": round(total, 3),
        # In groups that fill their waves' lanes well enough: 95 % are wanted.
        "filled": mean([launch.lanes(gpu) >= LANES_FILLED for launch in found]),
        "lanes": mean([launch.lanes(gpu) for launch in found]),
        "working": mean([launch.working for launch in found]),
        # Capped at what a core holds: more are no gain.
        "waves a core": mean([min(launch.waves_a_core(gpu), gpu.waves or 1) for launch in found]),
        "few waves": {launch.kernel: launch.why_few(gpu, 4) for launch in few},
        "reads": mean([launch.reads for launch in found]),
        "writes": mean([launch.writes for launch in found]),
    }


def described(launch: Launch) -> dict[str, Any]:
    """Return a kernel's figures for all GPUs."""
    return {
        "calls": launch.calls,
        "share": round(launch.share, 4),
        "group": "·".join(map(str, launch.group)),
        "groups": launch.groups,
        "items": launch.items,
        "working": round(launch.working, 3),
        "reads": round(launch.reads, 4),
        "writes": round(launch.writes, 5),
        "registers": launch.registers,
        "spilled": launch.spilled_bytes,
    }


def show_kernels(title: str, found: Sequence[Launch], gpu: Gpu) -> None:
    """Print a line for each kernel of a network on a GPU."""
    heads = (*described(found[0]), "a core", "lanes", "held")
    print(f"\n{title}\n{'kernel':40}", *(f"{head[:9]:>9}" for head in heads))
    for launch in found:
        own = f"{launch.waves_a_core(gpu):.1f}", f"{launch.lanes(gpu):.0%}", launch.held(gpu)
        cells = (*described(launch).values(), *own)
        print(f"{launch.kernel[:40]:40}", *(f"{cell!s:>9}" for cell in cells))


def show_summaries(results: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Print a row for each network and GPU, and a sentence for each kernel with few waves."""
    rows = []
    for name, found in results.items():
        old = before.get(name, found)
        cells = []
        for column in _COLUMNS:
            pair = old[column], found[column]
            cells.append(arrow(*(map(len, pair) if column == "few waves" else pair)))
        rows.append([name, *cells])
    report("Launches, weighted by arithmetic", ["network", *_COLUMNS], rows)
    for name, found in results.items():
        for kernel, reason in found["few waves"].items():
            print(f"{name}: {kernel} has fewer than {WAVES_A_CORE} waves a core: {reason}.")


def main() -> int:
    """Schedule, analyse, compare."""
    parser = arguments(__doc__, networks=tuple(NETWORKS), gpus=GPUS, dtype="fp32", storage="auto")
    parser.add_argument("--before", type=Path, help="what this wrote for an earlier state")
    parser.add_argument("--no-kernels", action="store_true", help="print only each network's row")
    options = parser.parse_args()
    before = earlier(options.before)
    results: dict[str, Any] = {}
    kernels: dict[str, Any] = {}
    for network in options.networks:
        found: dict[str, list[Launch]] = {}
        for gpu in map(find_gpu, options.gpus):
            preset, name = gpu.preset, f"{network}, {gpu.name}"
            if preset not in found:
                found[preset] = network_launches(
                    network, preset, dtype=options.dtype, storage=options.storage
                )
                of_all = {launch.kernel: described(launch) for launch in found[preset]}
                kernels[f"{network}, {preset}"] = of_all
            results[name] = summary(found[preset], gpu)
            if not options.no_kernels:
                show_kernels(name, found[preset], gpu)
    show_summaries(results, before)
    whole = vars(options) | {"before": None, "no_kernels": False} == vars(parser.parse_args([]))
    if whole:
        print(f"written: {write_json('gpu_launches', {'results': results, 'kernels': kernels})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
