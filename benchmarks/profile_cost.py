"""What profiles cost where nobody asks for one, and whether their kernels' times are the whole's.

*Off*: calls of a module with the plug-in as it is, beside one built of the same sources without
the profiler's test at each launch and with queues that do not measure; each in a process of its
own, in turn.  Then the first process profiles the module, and calls are timed again.

*Sums*: the kernels' times beside what a run takes on the device's queue, from the begin of the
first kernel to the end of the last one, by the same clock.

*Module*: time and bytes of what compilations keep for profiles.

    python benchmarks/profile_cost.py [--networks mobilenet_v2,squeezenet,resnet50] [--rounds 30]
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from common import in_process, in_turn, opencl_device, report, write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from drivers import processor_drivers

import tvmflow
from tvmflow.models import build as build_model

ROOT = Path(__file__).parents[1]
#: What the requirements allow.
LIMIT_OFF, LIMIT_SUM = 0.05, 0.10
#: Between two looks at the clock: long beside what a system does in between now and then.
ASKED_MS = 100.0

#: Answers each line of its input with a line: `run N` with the milliseconds of a call, of N;
#: `profile N` the same, behind a profile.
_WORKER = """
import json, sys, time
from tvmflow.runtime import plugin
from pathlib import Path
plugin.LIBRARY = Path(sys.argv[2] or plugin.LIBRARY)
import tvmflow
from tvmflow.module.samples import random_inputs
module = tvmflow.load(sys.argv[1])
values = random_inputs(module, 0)
module(values)
print("ready", flush=True)
for line in sys.stdin:
    what, calls = line.split()
    if what == "profile":
        tvmflow.profile(module, values, runs=3, analyse=False)
    started = time.perf_counter()
    for _ in range(int(calls)):
        module(values)
    print((time.perf_counter() - started) * 1e3 / int(calls), flush=True)
"""

_SUMS = """
import json, sys, tvmflow
found = tvmflow.profile(sys.argv[1], runs=int(sys.argv[2]), analyse=False)
print(json.dumps({
    "device": found.device.name, "driver": found.device.driver, "launches": len(found.kernels),
    "kernels_ms": found.kernels_ms, "queue_ms": found.queue_ms,
    "call_ms": found.whole.median_ms, "host_ms": found.host_ms,
}))
"""


class Worker:
    """A process that calls a module with one of the plug-ins."""

    def __init__(self, module: Path, library: Path | None):
        arguments = [str(module), "" if library is None else str(library)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the process that calls {module} did not start")

    def ask(self, calls: int, what: str = "run") -> float:
        """Milliseconds of a call, the mean of so many."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{what} {calls}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def plugin_without_profiler(folder: Path) -> Path:
    """Build the plug-in of sources in which nothing can be measured."""
    for path in ROOT.iterdir():
        if path.name not in ("native", "setup.py", "build", ".git"):
            (folder / path.name).symlink_to(path)
    shutil.copy(ROOT / "setup.py", folder)
    shutil.copytree(ROOT / "native", folder / "native")
    for name, before, after in (
        ("profiler.h", "return sessions_.load(std::memory_order_relaxed) != 0;", "return false;"),
        ("device.cc", "CL_QUEUE_PROFILING_ENABLE", "0"),
    ):
        path = folder / "native" / "opencl" / name
        text = path.read_text()
        if text.count(before) != 1:
            raise RuntimeError(
                f"{path.name} has no single {before!r}: this benchmark is out of date"
            )
        path.write_text(text.replace(before, after))
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "lib"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stderr[-2000:]}")
    (library,) = (folder / "lib").rglob("libtvmflow_opencl.so")
    return library


def off(module: Path, library: Path, rounds: int) -> dict[str, float]:
    """Calls with and without the profiler, and after a profile; ratios by rounds."""
    workers = {"without": Worker(module, library), "off": Worker(module, None)}
    calls = max(1, round(ASKED_MS / workers["off"].ask(5)))
    asks = {name: partial(worker.ask, calls) for name, worker in workers.items()}
    before = in_turn(asks, rounds=rounds)
    workers["off"].ask(1, "profile")
    after = in_turn(asks, rounds=rounds)
    for worker in workers.values():
        worker.close()

    def ratio(times: Mapping[str, list[float]]) -> float:
        pairs = zip(times["off"], times["without"], strict=True)
        return round(statistics.median(one / other for one, other in pairs) - 1, 4)

    # What `in_turn` times is a request of several calls; the answers are the same but for that.
    return {
        "calls": calls,
        "without_ms": round(statistics.median(before["without"]) / calls, 3),
        "off_ms": round(statistics.median(before["off"]) / calls, 3),
        "overhead": ratio(before),
        "overhead_after_a_profile": ratio(after),
    }


def module_cost(model: Path, output: Path, target: str) -> dict[str, Any]:
    """Compile once, and see what is kept for profiles."""
    from tvmflow.compiler import generate

    spent: dict[str, float] = {}

    def timed(name: str) -> Any:
        function = getattr(generate, name)

        def run(*arguments: Any) -> Any:
            started = time.process_time()
            result = function(*arguments)
            spent[name] = time.process_time() - started
            return result

        return run

    names = ("pack_functions", "fusion_left")
    originals = {name: getattr(generate, name) for name in names}
    for name in names:
        setattr(generate, name, timed(name))
    try:
        started = time.process_time()
        with tvmflow.compile(model, target=target) as module:
            total = time.process_time() - started
            meta, functions = module.metadata, module.read_functions()
            module.save(output)
    finally:
        for name, function in originals.items():
            setattr(generate, name, function)
    kept = len(json.dumps([meta["nodes"], meta["fusion_left"]]))
    return {
        "compile_s": round(total, 2),
        **{f"{name}_s": round(seconds, 3) for name, seconds in spent.items()},
        "file_bytes": output.stat().st_size,
        "functions_bytes": len(functions),
        "names_and_fusion_bytes": kept,
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default="mobilenet_v2,squeezenet,resnet50")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--runs", type=int, default=20, help="of each profile")
    options = parser.parse_args()
    networks = options.networks.split(",")
    results: dict[str, Any] = {"device": opencl_device(), "off": {}, "sums": {}, "module": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tree").mkdir()
        library = plugin_without_profiler(folder / "tree")
        modules = {n: folder / f"{n}.so" for n in networks}
        for network, path in modules.items():
            model = build_model(network, folder / f"{network}.onnx")
            for target in ("llvm", "opencl"):
                cost = module_cost(model, path, target)
                results["module"][f"{network} {target}"] = cost
        # Its kernels take microseconds: what is left is the time of launching.
        modules["mobilenet_v2 of 32x32"] = small = folder / "small.so"
        model = build_model("mobilenet_v2", folder / "small.onnx", size=32)
        module_cost(model, small, "opencl")
        for network, path in modules.items():
            results["off"][network] = off(path, library, options.rounds)
            for driver in processor_drivers(quick=False):
                assert driver.path
                env = driver.variables(driver.path)
                found = in_process(_SUMS, str(path), str(options.runs), env=env)
                found["sum_of_queue"] = round(found["kernels_ms"] / found["queue_ms"], 4)
                results["sums"][f"{network} {driver.name}"] = found
    _print(results)
    worst = max(max(r["overhead"], r["overhead_after_a_profile"]) for r in results["off"].values())
    results["within_limits"] = {
        "off": worst < LIMIT_OFF,
        # Kernels of microseconds are no measure of it.
        "sums": all(
            abs(1 - found["sum_of_queue"]) < LIMIT_SUM
            for name, found in results["sums"].items()
            if "32x32" not in name
        ),
    }
    print("Within the limits:", results["within_limits"])
    print("Wrote", write_json("profile_cost", results))


def _print(results: Mapping[str, Any]) -> None:
    report(
        "Calls with the profiler off",
        ("network", "without it, ms", "off, ms", "overhead", "after a profile"),
        [
            (name, r["without_ms"], r["off_ms"], f"{r['overhead']:+.1%}",
             f"{r['overhead_after_a_profile']:+.1%}")
            for name, r in results["off"].items()
        ],
    )  # fmt: skip
    report(
        "Kernels of a run",
        ("network, driver", "launches", "sum, ms", "queue, ms", "sum of queue", "call, ms"),
        [
            (name, r["launches"], f"{r['kernels_ms']:.2f}", f"{r['queue_ms']:.2f}",
             f"{r['sum_of_queue']:.1%}", f"{r['call_ms']:.2f}")
            for name, r in results["sums"].items()
        ],
    )  # fmt: skip
    report(
        "What modules carry for profiles",
        ("network", "compilation, s", "functions, s", "fusion, s", "file, MB", "functions, kB",
         "names, kB"),
        [
            (name, r["compile_s"], r["pack_functions_s"], r["fusion_left_s"],
             f"{r['file_bytes'] / 1e6:.1f}", f"{r['functions_bytes'] / 1e3:.0f}",
             f"{r['names_and_fusion_bytes'] / 1e3:.0f}")
            for name, r in results["module"].items()
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
