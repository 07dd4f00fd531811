"""How long compilation takes: wall and processor seconds, and the compiler's stages.

Networks of `models/`, and DenseNet-121 that comes with `onnx`, are compiled in a process of their
own each, for each target.  With --before PYTHON the same is done in turn by the Python of another
environment, which has an earlier version installed.

    python benchmarks/compile_time.py --before ../earlier/.venv/bin/python
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

NETWORKS = ("mobilenet_v2", "resnet50", "deit_tiny", "densenet121")
TARGETS = ("llvm", "opencl")


def measure(network: str, target: str) -> dict[str, Any]:
    """Compile a network; what is imported meanwhile counts."""
    import onnx

    import tvmflow
    from tvmflow import models

    data = Path(onnx.__file__).parent / "backend/test/data/light"
    light = data / f"light_{network}.onnx"
    model = light if light.exists() and network == "densenet121" else models.make(network)
    started, used = time.perf_counter(), time.process_time()
    with tvmflow.compile(model, target=target) as module:
        wall, cpu = time.perf_counter() - started, time.process_time() - used
        return {
            "wall_s": round(wall, 2),
            "cpu_s": round(cpu, 2),
            "functions": len(module.metadata["schedules"]),
            "stage_ms": module.metadata["stage_ms"],
        }


def main() -> int:
    """Measure all, in turn where there are two versions."""
    from common import RESULTS, in_process, report, write_json

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=[*TARGETS])
    parser.add_argument("--before", help="a Python that has an earlier version of tvmflow")
    parser.add_argument("--output", type=Path, default=RESULTS / "compile_time.json")
    options = parser.parse_args()
    pythons = {**({"before": options.before} if options.before else {}), "now": sys.executable}
    # The other environment has neither this file nor what is beside it.
    code = Path(__file__).read_text(encoding="utf-8")
    results: dict[str, Any] = {}
    rows = []
    for network in options.networks:
        for target in options.targets:
            name = f"{network}, {target}"
            for version, python in pythons.items():
                one = in_process(code, "--work", network, target, python=python)
                results.setdefault(name, {})[version] = one
                longest = sorted(one["stage_ms"].items(), key=lambda item: -item[1])[:5]
                stages = ", ".join(f"{stage} {ms / 1e3:.1f}" for stage, ms in longest)
                rows.append([name, version, one["wall_s"], one["cpu_s"], stages])
                write_json(options.output, {"results": results})
    report("Compilation", ["network", "version", "wall s", "CPU s", "longest stages, s"], rows)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        print(json.dumps(measure(*sys.argv[2:4])))
    else:
        sys.exit(main())
