"""Measure the cost of a call without its kernels: the time of chains of almost empty kernels.

A chain of 1×1 convolutions of 16 channels of 4×4, which are not fused, takes a time that grows with
its length: the line through these times gives the cost of a call, and of a kernel.  Each engine
runs in its own processes, which take turns; the least of the means of 300 calls counts.

    python benchmarks/host_cost.py

Writes results/host_cost.json.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import onnx
from common import arguments, in_process, network_of, report, write_json
from onnx import helper
from zoo_speed import OURS, driver

#: Lengths of the chains; processes of each; threads.
LENGTHS, ROUNDS, THREADS = (1, 16, 64, 128), 3, (1, 2)
#: Engines, whose drivers are found as in `zoo_speed.py`; ONNX Runtime for comparison.
ENGINES = (*OURS, "ONNX Runtime")


def chain(length: int) -> onnx.ModelProto:
    """Return a model of this many convolutions in a row."""
    generator = np.random.default_rng(0)
    weights = generator.standard_normal((length, 16, 16, 1, 1)).astype(np.float32) / 4
    names = ["x", *(f"y{index}" for index in range(length))]
    nodes = [
        helper.make_node("Conv", [names[i], f"w{i}"], [names[i + 1]], kernel_shape=[1, 1])
        for i in range(length)
    ]
    values = {f"w{i}": weight for i, weight in enumerate(weights)}
    return network_of(nodes, {"x": np.empty((1, 16, 4, 4), np.float32)}, names[-1], values)


#: Code of a process: for each length, the least of five means of 300 calls.
MEASURE = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
import host_cost
engine, threads = sys.argv[2], int(sys.argv[3])
found = {}
for length in host_cost.LENGTHS:
    model, x = host_cost.chain(length), {"x": np.ones((1, 16, 4, 4), np.float32)}
    if engine == "ONNX Runtime":
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        text = model.SerializeToString()
        session = onnxruntime.InferenceSession(text, options, ["CPUExecutionProvider"])
        run = lambda: session.run(None, x)
    else:
        import tvmflow
        module = tvmflow.compile(model, target=host_cost.OURS[engine][0])
        assert len(module.profile(x, 1)) >= length, "the chain was fused"
        run = lambda: module(x)
    for _ in range(100):
        run()
    times = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(300):
            run()
        times.append((time.perf_counter() - started) / 300 * 1e6)
    found[length] = min(times)
print(json.dumps(found))
"""


def measure(engine: str, threads: int) -> dict[str, float]:
    """Time chains in a separate process; return µs by length."""
    environment = {"TVM_NUM_THREADS": str(threads)}
    if library := OURS.get(engine, ("", None))[1]:
        environment |= driver(library)
    return in_process(MEASURE, os.path.dirname(__file__), engine, str(threads), env=environment)


def main() -> int:
    """Measure, print the results and write them."""
    arguments(__doc__).parse_args()
    results: dict[str, Any] = {}
    for _ in range(ROUNDS):
        for engine in ENGINES:
            for threads in THREADS if engine in ("llvm", "ONNX Runtime") else (max(THREADS),):
                times = results.setdefault(f"{engine}, {threads} threads", {})
                for length, time in measure(engine, threads).items():
                    times[length] = min(time, times.get(length, time))
    rows = []
    for name, times in results.items():
        lengths = np.array([int(length) for length in times])
        slope, start = np.polyfit(lengths, list(times.values()), 1)
        times |= {"call_us": round(start, 1), "kernel_us": round(slope, 2)}
        rows.append([name, f"{start:.1f}", f"{slope:.2f}"])
    report("Beside the kernels' work", ["engine", "a call, µs", "a kernel, µs"], rows)
    write_json("host_cost", {"results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
