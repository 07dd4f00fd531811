"""MobileNetV2 1x3x224x224 fp32 as a standalone library, beside the Relax VM on the same kernels.

For each CPU OpenCL driver found: latency, also of a library with a fallback in both its forms,
start of a process with and without cached binaries, memory, and whether memory grows; then the
fallback's start and memory, the host's work for a kernel, with an OpenCL library that does nothing,
and the size of the library. A driver's own cache never helps.

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
from tvmflow.module.standalone.read import EncodedPlan, find_plans

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

from drivers import DRIVERS  # noqa: E402 - found in the tests' folder
from fake_opencl import build_fake  # noqa: E402 - found in the tests' folder

#: Of each kind, in fresh processes.
STARTS = 7
FORMS: dict[str, dict[str, Any]] = {
    "tvm": {},
    "standalone": {"format": "standalone"},
    "fallback": {"format": "standalone", "fallback": "cpu"},
}
#: What the requirement allows.
LIMITS = {
    "times the Relax VM's latency": 1.0,
    "second start of the first": 0.05,
    "us of the host for a kernel": 3.0,
    "KB of the library besides weights": 400.0,
    "MB besides plan and weights": 5.0,
    "MB besides them, without a driver's": 5.0,
    "times the library's latency, with a fallback": 1.02,
    "KB that a fallback adds": 400.0,
    "MB of growth": 1.0,
}

#: All forms in one process, each called in turn; arguments are folder, three modules, rounds.
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
output = np.empty(standalone.outputs[0].shape, np.float32)

def through_c(path, backend):
    library, model = Library(path), ctypes.c_void_p()
    options = Options(ctypes.sizeof(Options), cache_folder=cache_folder().encode())
    options.opencl_library = next(library.encode() for library in opencl_libraries() if library)
    options.backend = backend
    assert library["create"](ctypes.byref(options), ctypes.byref(model)) == 0

    def call():
        assert library["set_input"](model, 0, 0, feed.ctypes.data, feed.nbytes) == 0
        assert library["run"](model) == 0
        assert library["get_output"](model, 0, 0, output.ctypes.data, output.nbytes) == 0

    call()
    error = float(np.abs(output - expected).max() / np.abs(expected).max())
    return call, error, json.loads(library["describe"](model))["device"]

OPENCL, CPU = 1, 2
alone, _, device = through_c(sys.argv[3], OPENCL)
opencl, _, _ = through_c(sys.argv[4], OPENCL)
cpu, cpu_error, _ = through_c(sys.argv[4], CPU)
calls = {
    "Relax VM": lambda: relax(feed),
    "standalone": alone,
    "standalone, tvmflow.load": lambda: standalone(feed),
    "with a fallback, on OpenCL": opencl,
    "with a fallback, on the CPU": cpu,
}
times = in_turn(calls, rounds=int(sys.argv[5]), warmup=10)
print(json.dumps({
    "times": times, "device": device, "cpu_error": cpu_error,
    "error": float(np.abs(found - expected).max() / np.abs(expected).max()),
}))
"""

#: From nothing to the first output, as an application waits for it.
START = """
import json, sys, time
import numpy as np
import tvmflow
module = tvmflow.load(sys.argv[1], backend=sys.argv[2])
feed = np.zeros(module.inputs[0].shape, np.float32)
started = time.perf_counter()
module(feed)
print(json.dumps({"ms": (time.perf_counter() - started) * 1e3}))
"""

#: Resident memory of a process that opens the driver, unless the module runs on the CPU, and then,
#: with a number of runs, the module; arguments are module, backend, runs.
MEMORY = """
import ctypes, json, sys, time
import numpy as np
import tvmflow
from tvmflow.module.standalone.binding import opencl_libraries

def status():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {key: int(fields[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM")}

module = tvmflow.load(sys.argv[1], backend=sys.argv[2])
feed = np.zeros(module.inputs[0].shape, np.float32)

def open_driver():
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
    queue = function(9, pointer, pointer, pointer, flags, pointer)(context, device, 0, None)
    assert context and queue

found = {}
if sys.argv[2] == "opencl":
    started = time.perf_counter()
    open_driver()
    found["opened_ms"] = (time.perf_counter() - started) * 1e3
found["before"] = status()
runs = int(sys.argv[3])
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


def starts(
    module: Path, env: dict[str, str], repeats: int, backend: str = "opencl"
) -> dict[str, list[float]]:
    """First outputs of fresh processes: without any cache, and then with ours alone."""
    times: dict[str, list[float]] = {"cold": [], "cached": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            for kind in times:
                with tempfile.TemporaryDirectory() as driver_cache:
                    folders = {"TVMFLOW_CACHE_DIR": cache, **driver_caches(driver_cache)}
                    started = in_process(START, str(module), backend, env=env | folders)
                    times[kind].append(started["ms"])
    return times


def driver_caches(folder: str) -> dict[str, str]:
    """Where drivers keep what they have built."""
    return {"POCL_CACHE_DIR": folder, "NEO_CACHE_DIR": folder, "HOME": folder}


def measure(
    driver: dict[str, str], paths: dict[str, Path], rounds: int, runs: int
) -> dict[str, Any]:
    """Everything that depends on the driver."""
    found: dict[str, Any] = {}
    for kind in ("latency", "memory"):
        # Each with a cache of its own: the plug-in has PoCL build other variants of kernels.
        with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as driver_cache:
            env = {**driver, "TVMFLOW_CACHE_DIR": cache, **driver_caches(driver_cache)}
            if kind == "latency":
                folder = str(Path(__file__).parent)
                arguments = (folder, *map(str, paths.values()), str(rounds))
                found |= in_process(LATENCY, *arguments, env=env)
            else:
                # With binaries that are there, so that memory of compilers is not counted.
                arguments = (str(paths["standalone"]), "opencl")
                in_process(START, *arguments, env=env)
                found["memory_mb"] = in_process(MEMORY, *arguments, str(runs), env=env)
    return found | {"starts": starts(paths["standalone"], driver, STARTS)}


def judged(results: dict[str, Any], sizes: dict[str, float]) -> dict[str, float]:
    """What the limits are for."""
    times = {name: summary(values)["median_ms"] for name, values in results["times"].items()}
    start = {name: summary(values)["median_ms"] for name, values in results["starts"].items()}
    memory = results["memory_mb"]
    return {
        "times the Relax VM's latency": times["standalone"] / times["Relax VM"],
        "times the library's latency, with a fallback": (
            times["with a fallback, on OpenCL"] / times["standalone"]
        ),
        "second start of the first": start["cached"] / start["cold"],
        "MB besides plan and weights": besides(memory, sizes),
        "MB of growth": growth(memory),
    }


def growth(memory: dict[str, Any]) -> float:
    """Memory after all runs, less what was taken after a tenth of them."""
    return memory["late"]["VmRSS"] - memory["early"]["VmRSS"]


def besides(memory: dict[str, Any], sizes: dict[str, float]) -> float:
    """Memory at its peak and in the end, less what the driver, the plan and the weights take."""
    taken = max(memory["late"][field] - memory["before"][field] for field in ("VmRSS", "VmHWM"))
    return taken - sizes["plan_mb"] - sizes["weights_mb"]


def sizes_of(library: Path, plan: EncodedPlan) -> dict[str, float]:
    """Of a file, its weights, and what else a plan allocates."""
    weights = int(plan.header["weight_bytes"])
    return {
        "library_mb": library.stat().st_size / 2**20,
        "weights_mb": weights / 2**20,
        "plan_mb": (int(plan[Section.ALLOCATIONS]["bytes"].sum()) - weights) / 2**20,
    }


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
        paths = {form: folder / f"{form}.so" for form in FORMS}
        for form, path in paths.items():
            compiled = tvmflow.compile(network, target="opencl", device="cpu", **FORMS[form])
            compiled.save(path)
            compiled.close()
        module, fallback = paths["standalone"], paths["fallback"]
        plan, _, cpu_plan = *find_plans(module), *find_plans(fallback)
        sizes, cpu_sizes = sizes_of(module, plan), sizes_of(fallback, cpu_plan)
        for driver in DRIVERS:
            if driver.name not in ("system-pocl", "intel") or not driver.path:
                continue
            variables = driver.variables(driver.path)
            measured = measure(variables, paths, options.rounds, options.runs)
            measured["judged"] = judged(measured, sizes)
            results["drivers"][driver.name] = measured
            rows += [(driver.name, *row) for row in verdicts(measured["judged"])]
        fake = str(build_fake(folder, "-O2"))
        env = {"FAKE_OPENCL_STUB": "1", "FAKE_OPENCL_EXTENSIONS": "cl_khr_command_buffer"}
        us = in_process(OVERHEAD, str(module), fake, env=env)
        # Its memory objects are real, and it keeps nothing else.
        env = {"TVMFLOW_OPENCL_LIBRARY": fake, "TVMFLOW_CACHE": "0"}
        memory = in_process(MEMORY, str(module), "opencl", "100", env=env)
        on_cpu = {
            "first_ms": summary(starts(fallback, {}, STARTS, "cpu")["cold"])["median_ms"],
            "memory_mb": in_process(MEMORY, str(fallback), "cpu", str(options.runs)),
            "sizes": cpu_sizes,
        }
        launches = len(plan[Section.LAUNCHES])
        common = {
            "us of the host for a kernel": us["one by one"] / launches,
            "KB of the library besides weights": (sizes["library_mb"] - sizes["weights_mb"]) * 1024,
            "KB that a fallback adds": (cpu_sizes["library_mb"] - sizes["library_mb"]) * 1024,
            "MB besides them, without a driver's": besides(memory, sizes),
        }
        on_cpu["judged"] = {
            "MB besides plan and weights": besides(on_cpu["memory_mb"], cpu_sizes),
            "MB of growth": growth(on_cpu["memory_mb"]),
        }
    rows += [("any", *row) for row in verdicts(common)]
    rows += [("fallback", *row) for row in verdicts(on_cpu["judged"])]
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
    print(f"first output of the fallback, on the CPU: {on_cpu['first_ms']:.0f} ms")
    results |= {
        "common": common,
        "fallback": on_cpu,
        "run_of_stub_us": us,
        "launches": launches,
        "sizes": sizes,
    }
    print(f"written: {write_json(options.output, results)}")


def verdicts(values: dict[str, float]) -> list[tuple[str, str, str, str]]:
    """Rows of the table: what, measured, limit, and whether it is kept."""
    return [
        (name, f"{value:.3f}", str(LIMITS[name]), "" if value <= LIMITS[name] else "missed")
        for name, value in values.items()
    ]


if __name__ == "__main__":
    main()
