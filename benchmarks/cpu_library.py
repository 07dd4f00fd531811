"""Standalone libraries on the CPU beside TVM's virtual machine: time, start, memory, sizes.

Networks are compiled for ``llvm`` in both forms, and for OpenCL with and without a fallback.  Each
form is timed in processes of its own that take turns; a start is from opening the file to the first
output.  Memory is what no file is behind, with Python's.  Sizes are those of the files.

    python benchmarks/cpu_library.py [--rounds 5] [--networks mobilenet_v2 resnet50]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from common import in_process, report, write_json

import tvmflow
from tvmflow.models import build as build_model
from tvmflow.module.standalone.format import Section
from tvmflow.module.standalone.read import find_plan

#: What the requirement allows: times of TVM's virtual machine.
LIMIT = 1.2
#: A process: the first output, and calls during half a second.
TIMED = """
import json, sys, time
import numpy as np
import tvmflow
started = time.perf_counter()
module = tvmflow.load(sys.argv[1])
rng = np.random.default_rng(0)
feeds = {i.name: rng.random(i.shape, dtype=np.float32) for i in module.inputs}
module(feeds)
first = time.perf_counter() - started
times, end = [], time.perf_counter() + 0.5
while len(times) < 5 or time.perf_counter() < end:
    begin = time.perf_counter()
    module(feeds)
    times.append(time.perf_counter() - begin)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
anonymous = int(status["RssAnon"].split()[0]) / 1024
median = sorted(times)[len(times) // 2]
print(json.dumps({"first_ms": first * 1e3, "ms": median * 1e3, "anonymous_mb": anonymous}))
"""
#: No OpenCL: a library with a fallback takes the CPU.
NO_OPENCL = {"TVMFLOW_OPENCL_LIBRARY": "/nowhere/libOpenCL.so"}
FORMS: dict[str, dict[str, Any]] = {
    "llvm, TVM": {"target": "llvm"},
    "llvm, library": {"target": "llvm", "format": "standalone"},
    "fallback": {
        "target": "opencl", "device": "adreno", "format": "standalone", "fallback": "cpu",
    },
    "opencl": {"target": "opencl", "device": "adreno", "format": "standalone"},
}  # fmt: skip
#: Those that are timed; of the last one only the size is of interest.
TIMED_FORMS = list(FORMS)[:-1]


def measure(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    """All of one network."""
    model = folder / f"{name}.onnx"
    build_model(name, model, **({"size": 64} if name == "facebox_net" else {}))
    paths = {}
    for number, (form, options) in enumerate(FORMS.items()):
        paths[form] = folder / f"lib{name}{number}.so"
        with tvmflow.compile(model, **options) as module:
            module.save(paths[form])
    times: dict[str, list[float]] = {form: [] for form in TIMED_FORMS}
    first: dict[str, list[float]] = {form: [] for form in TIMED_FORMS}
    memory: dict[str, float] = {}
    for _ in range(rounds):
        for form in TIMED_FORMS:
            found = in_process(TIMED, str(paths[form]), env=NO_OPENCL)
            times[form].append(found["ms"])
            first[form].append(found["first_ms"])
            memory[form] = found["anonymous_mb"]
    plan = find_plan(paths["llvm, library"])
    assert plan is not None
    return {
        "kernels": len(plan[Section.LAUNCHES]),
        "ms": {form: statistics.median(values) for form, values in times.items()},
        "first_ms": {form: statistics.median(values) for form, values in first.items()},
        "anonymous_mb": memory,
        "kb": {form: path.stat().st_size / 1024 for form, path in paths.items()},
        "weights_kb": int(plan.header["weight_bytes"]) / 1024,
    }


def main() -> None:
    """Measure the networks, print tables, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--networks", nargs="+", default=["mobilenet_v2", "resnet50", "facebox_net"]
    )
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.networks:
            results[name] = measure(name, Path(folder), options.rounds)
    rows = []
    for name, found in results.items():
        base = found["ms"]["llvm, TVM"]
        for form in TIMED_FORMS:
            ratio = found["ms"][form] / base
            verdict = "" if ratio <= LIMIT else "missed"
            told = (found[key][form] for key in ("first_ms", "anonymous_mb"))
            numbers = (found["ms"][form], ratio, *told)
            rows.append((name, form, *(f"{n:.3f}" for n in numbers), verdict))
    columns = ("network", "form", "ms", "of TVM's", "first output ms", "anonymous MB", "")
    report("Standalone libraries on the CPU", columns, rows)
    report(
        "Sizes in KB",
        ("network", "weights", "opencl", "with the CPU", "more", "llvm, library"),
        [
            (
                name,
                *(f"{n:.0f}" for n in (
                    found["weights_kb"], found["kb"]["opencl"], found["kb"]["fallback"],
                    found["kb"]["fallback"] - found["kb"]["opencl"], found["kb"]["llvm, library"],
                )),
            )
            for name, found in results.items()
        ],
    )  # fmt: skip
    print(f"written: {write_json('cpu_library', {'results': results})}")


if __name__ == "__main__":
    main()
