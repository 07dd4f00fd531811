"""MobileNetV2 1x3x224x224 fp32 as a standalone library, beside the Relax VM on the same kernels.

For each CPU OpenCL driver found: latency, start of a process with and without cached
binaries, memory, and whether memory grows; then the host's work for a kernel, with an OpenCL
library that does nothing, and the size of the library. A driver's own cache never helps.

    python benchmarks/standalone.py [--rounds 60] [--runs 10000] [--size 224]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import in_process, opencl_device, report, summary, write_json

import tvmflow
from tvmflow.models import build as build_model
from tvmflow.module.standalone.format import Section
from tvmflow.module.standalone.read import find_plan

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

from drivers import DRIVERS  # noqa: E402 - found in the tests' folder
from fake_opencl import build_fake  # noqa: E402 - found in the tests' folder

#: What the requirement allows.
LIMITS = {
    "times the Relax VM's latency": 1.0,
    "second start of the first": 0.05,
    "us of the host for a kernel": 3.0,
    "KB of the library besides weights": 400.0,
    "MB besides plan and weights": 5.0,
    "MB besides them, without a driver's": 5.0,
    "MB of growth": 1.0,
}

#: Both forms in one process, each called in turn; arguments are folder, two modules, rounds.
LATENCY = """
import ctypes, json, sys
sys.path.insert(0, sys.argv[1])
from common import in_turn
import numpy as np
import tvmflow
from tvmflow.module.standalone.binding import Library, Options
from tvmflow.module.standalone.binding import cache_folder, opencl_libraries

relax, standalone = tvmflow.load(sys.argv[2]), tvmflow.load(sys.argv[3])
shape = relax.inputs[0].shape
feed = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
expected, found = (module(feed)[0] for module in (relax, standalone))
library, model = Library(sys.argv[3]), ctypes.c_void_p()
options = Options(ctypes.sizeof(Options), cache_folder=cache_folder().encode())
options.opencl_library = next(library.encode() for library in opencl_libraries() if library)
assert library["create"](ctypes.byref(options), ctypes.byref(model)) == 0
output = np.empty(standalone.outputs[0].shape, np.float32)

def through_c():
    assert library["set_input"](model, 0, 0, feed.ctypes.data, feed.nbytes) == 0
    assert library["run"](model) == 0
    assert library["get_output"](model, 0, 0, output.ctypes.data, output.nbytes) == 0

calls = {
    "Relax VM": lambda: relax(feed),
    "standalone": through_c,
    "standalone, tvmflow.load": lambda: standalone(feed),
}
times = in_turn(calls, rounds=int(sys.argv[4]), warmup=10)
print(json.dumps({
    "times": times, "device": json.loads(library["describe"](model))["device"],
    "error": float(np.abs(found - expected).max() / np.abs(expected).max()),
}))
"""

#: From nothing to the first output, as an application waits for it.
START = """
import json, sys, time
import numpy as np
import tvmflow
module = tvmflow.load(sys.argv[1])
feed = np.zeros(module.inputs[0].shape, np.float32)
started = time.perf_counter()
module(feed)
print(json.dumps({"ms": (time.perf_counter() - started) * 1e3}))
"""

#: Resident memory of a process that opens the driver and then, with a number of runs, the module.
MEMORY = """
import ctypes, json, sys, time
import numpy as np
import tvmflow
from tvmflow.module.standalone.binding import opencl_libraries

def status():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {key: int(fields[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM")}

module = tvmflow.load(sys.argv[1])
feed = np.zeros(module.inputs[0].shape, np.float32)
started = time.perf_counter()
cl = ctypes.CDLL(next(library for library in opencl_libraries() if library))
platform, device, pointer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p
find = cl.clGetExtensionFunctionAddress
find.restype, find.argtypes = pointer, [ctypes.c_char_p]
get_platforms = find(b"clIcdGetPlatformIDsKHR")
get_platforms = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, pointer, pointer)(get_platforms)
assert get_platforms(1, ctypes.byref(platform), None) == 0

def function(index, result, *parameters):
    # From the driver's dispatch table: drivers that a loader opens export no more.
    table = ctypes.cast(platform, ctypes.POINTER(ctypes.POINTER(pointer)))[0]
    return ctypes.CFUNCTYPE(result, *parameters)(table[index])

number, flags = ctypes.c_uint, ctypes.c_uint64
get_devices = function(2, ctypes.c_int, pointer, flags, number, pointer, pointer)
assert get_devices(platform, 0xFFFFFFFF, 1, ctypes.byref(device), None) == 0
create_context = function(4, pointer, *[pointer] * 6)
context = create_context(None, 1, ctypes.addressof(device), None, None, None)
assert context and function(9, pointer, pointer, pointer, flags, pointer)(context, device, 0, None)
opened_ms = (time.perf_counter() - started) * 1e3
found = {"driver": status(), "opened_ms": opened_ms}
runs = int(sys.argv[2])
if runs:
    module(feed)
    found["first"] = status()
    for index in range(runs):
        if index == runs // 10:
            found["early"] = status()
        module(feed)
    found["late"] = status()
print(json.dumps(found))
"""

#: The time of runs that do nothing but enqueue: each kernel by itself, and a recording.
OVERHEAD = """
import ctypes, json, sys, time
import tvmflow
from tvmflow.module.standalone.binding import Library, Options
library, found = Library(sys.argv[1]), {}
for name, flags in (("one by one", 2), ("recorded", 0)):
    options = Options(ctypes.sizeof(Options), 0, flags, sys.argv[2].encode())
    model = ctypes.c_void_p()
    assert library["create"](ctypes.byref(options), ctypes.byref(model)) == 0
    run, times = library["run"], []
    for _ in range(2000):
        started = time.perf_counter()
        run(model)
        times.append((time.perf_counter() - started) * 1e6)
    found[name] = sorted(times)[len(times) // 2]
print(json.dumps(found))
"""


def starts(module: Path, env: dict[str, str], repeats: int) -> dict[str, list[float]]:
    """First outputs of fresh processes: without any cache, and then with ours alone."""
    times: dict[str, list[float]] = {"cold": [], "cached": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            for kind in times:
                with tempfile.TemporaryDirectory() as driver_cache:
                    folders = {"TVMFLOW_CACHE_DIR": cache, **driver_caches(driver_cache)}
                    times[kind].append(in_process(START, str(module), env=env | folders)["ms"])
    return times


def driver_caches(folder: str) -> dict[str, str]:
    """Where drivers keep what they have built."""
    return {"POCL_CACHE_DIR": folder, "NEO_CACHE_DIR": folder, "HOME": folder}


def measure(
    driver: dict[str, str], relax: Path, module: Path, rounds: int, runs: int
) -> dict[str, Any]:
    """Everything that depends on the driver."""
    found: dict[str, Any] = {}
    for kind in ("latency", "memory"):
        # Each with a cache of its own: the plug-in has PoCL build other variants of kernels.
        with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as driver_cache:
            env = {**driver, "TVMFLOW_CACHE_DIR": cache, **driver_caches(driver_cache)}
            if kind == "latency":
                folder = str(Path(__file__).parent)
                arguments = (folder, str(relax), str(module), str(rounds))
                found |= in_process(LATENCY, *arguments, env=env)
            else:
                # With binaries that are there, so that memory of compilers is not counted.
                in_process(START, str(module), env=env)
                found["memory_mb"] = in_process(MEMORY, str(module), str(runs), env=env)
    return found | {"starts": starts(module, driver, 3)}


def judged(results: dict[str, Any], sizes: dict[str, float]) -> dict[str, float]:
    """What the limits are for."""
    times = {name: summary(values)["median_ms"] for name, values in results["times"].items()}
    start = {name: summary(values)["median_ms"] for name, values in results["starts"].items()}
    memory = results["memory_mb"]
    return {
        "times the Relax VM's latency": times["standalone"] / times["Relax VM"],
        "second start of the first": start["cached"] / start["cold"],
        "MB besides plan and weights": besides(memory, sizes),
        "MB of growth": memory["late"]["VmRSS"] - memory["early"]["VmRSS"],
    }


def besides(memory: dict[str, Any], sizes: dict[str, float]) -> float:
    """Memory at its peak and in the end, less what the driver, the plan and the weights take."""
    taken = max(memory["late"][field] - memory["driver"][field] for field in ("VmRSS", "VmHWM"))
    return taken - sizes["plan_mb"] - sizes["weights_mb"]


def main() -> None:
    """Measure everything and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--output", default="standalone", help="name of the JSON file")
    options = parser.parse_args()
    opencl_device()

    results: dict[str, Any] = {"drivers": {}}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        network = folder / "mobilenet_v2.onnx"
        build_model("mobilenet_v2", network, size=options.size)
        paths = {form: folder / f"{form}.so" for form in ("tvm", "standalone")}
        for form, path in paths.items():
            compiled = tvmflow.compile(network, target="opencl", device="cpu", format=form)
            compiled.save(path)
            compiled.close()
        module = paths["standalone"]
        plan = find_plan(module)
        assert plan is not None
        weights = int(plan.header["weight_bytes"])
        allocations = plan[Section.ALLOCATIONS]
        sizes = {
            "library_mb": module.stat().st_size / 2**20,
            "weights_mb": weights / 2**20,
            "plan_mb": (int(allocations["bytes"].sum()) - weights) / 2**20,
        }
        for driver in DRIVERS:
            if driver.name not in ("system-pocl", "intel") or not driver.path:
                continue
            measured = measure(
                driver.variables(driver.path), paths["tvm"], module, options.rounds, options.runs
            )
            measured["judged"] = judged(measured, sizes)
            results["drivers"][driver.name] = measured
            rows += [(driver.name, *row) for row in verdicts(measured["judged"])]
        fake = str(build_fake(folder, "-O2"))
        env = {"FAKE_OPENCL_STUB": "1", "FAKE_OPENCL_EXTENSIONS": "cl_khr_command_buffer"}
        us = in_process(OVERHEAD, str(module), fake, env=env)
        # Its memory objects are real, and it keeps nothing else.
        env = {"TVMFLOW_OPENCL_LIBRARY": fake, "TVMFLOW_CACHE": "0"}
        memory = in_process(MEMORY, str(module), "100", env=env)
        launches = len(plan[Section.LAUNCHES])
        common = {
            "us of the host for a kernel": us["one by one"] / launches,
            "KB of the library besides weights": (module.stat().st_size - weights) / 1024,
            "MB besides them, without a driver's": besides(memory, sizes),
        }
    rows += [("any", *row) for row in verdicts(common)]
    report("Standalone MobileNetV2", ("driver", "", "measured", "limit", ""), rows)
    for driver, measured in results["drivers"].items():
        columns = ("", "median ms", "p10", "p90")
        times = {**measured["times"], **{f"start, {k}": v for k, v in measured["starts"].items()}}
        summaries = {name: summary(values) for name, values in times.items()}
        report(
            f"{driver}: {measured['device']['name']}",
            columns,
            [(n, s["median_ms"], s["p10_ms"], s["p90_ms"]) for n, s in summaries.items()],
        )
        print(f"opening the driver alone: {measured['memory_mb']['opened_ms']:.0f} ms")
        measured["times"] = summaries
        # Where it lies on this machine tells nothing.
        measured["device"].pop("library", None)
        del measured["starts"]
    results |= {"common": common, "run_of_stub_us": us, "launches": launches, "sizes": sizes}
    print(f"written: {write_json(options.output, results)}")


def verdicts(values: dict[str, float]) -> list[tuple[str, str, str, str]]:
    """Rows of the table: what, measured, limit, and whether it is kept."""
    return [
        (name, f"{value:.3f}", str(LIMITS[name]), "" if value <= LIMITS[name] else "missed")
        for name, value in values.items()
    ]


if __name__ == "__main__":
    main()
