"""Machine code of the example networks for phones' GPUs, which need not be here.

Every network is compiled for textures and buffers, in fp32 and fp16, and its kernels by the
compilers of the GPUs (`tvmflow isa --setup` fetches them).  A second file, with what an earlier
state gave, is compared with.

    python benchmarks/gpu_code.py [--gpus adreno-660 ...] [--networks ...] [--before OLD.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from common import report, write_json
from same_kernels import NETWORKS

import tvmflow
from tvmflow import models
from tvmflow.devices.gpus import find_gpu
from tvmflow.errors import DeviceError
from tvmflow.explain.isa.mesa import find_tree
from tvmflow.explain.isa.report import SUITE, machine_code

FORMS = {
    "texture": {"storage": "texture"},
    "buffer": {"storage": "buffer"},
    "texture fp16": {"storage": "texture", "dtype": "fp16"},
    "texture fp16 sums": {"storage": "texture", "dtype": "fp16", "accumulate": "fp16"},
}
_COLUMNS = ("kernels", "slots", "idle", "mad in hot code", "waves", "lanes", "spills")


def measured(path: Path, gpu: str, suite: str) -> dict[str, Any]:
    """Sums and means over the kernels of a module, and each kernel's own numbers."""
    found = machine_code(path, find_gpu(gpu), suite=suite)
    kernels = found.kernels
    hot = sum(each.hot.issue for each in kernels)
    return {
        "compiler": found.compiler,
        "failures": [failure.kernel for failure in found.failures],
        "kernels": len(kernels),
        "slots": sum(each.whole.issue for each in kernels),
        "idle": sum(each.whole.idle for each in kernels),
        "mad in hot code": round(sum(each.hot.multiply_adds for each in kernels) / max(hot, 1), 3),
        "waves": round(sum(each.waves for each in kernels) / max(len(kernels), 1), 2),
        "lanes": round(sum(each.lanes_filled or 0 for each in kernels) / max(len(kernels), 1), 3),
        "spills": sum(each.spills for each in kernels),
        "by kernel": {
            each.kernel: {
                "group": each.group,
                "groups": each.groups,
                "registers": each.registers,
                "waves": each.waves,
                "slots": each.whole.issue,
                "idle": each.whole.idle,
                "hot slots": each.hot.issue,
                "hot multiply-adds": each.hot.multiply_adds,
                "spills": each.spills,
            }
            for each in kernels
        },
    }


def main() -> int:
    """Compile, count, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    parser.add_argument("--gpus", nargs="+", default=["adreno-660", "adreno-740", "adreno-830"])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=[*FORMS])
    parser.add_argument("--suite", default=SUITE, help="of Debian, whose Mesa compiles")
    parser.add_argument("--before", type=Path, help="what this wrote for an earlier state")
    options = parser.parse_args()
    try:
        for gpu in options.gpus:
            find_tree(find_gpu(gpu), options.suite)
    except DeviceError as error:
        print(f"Skipped: {error}")
        return 0
    before = json.loads(options.before.read_text())["results"] if options.before else {}
    results: dict[str, Any] = {}
    for network, form in product(options.networks, options.forms):
        with tempfile.TemporaryDirectory() as folder:
            model = models.make(network, **NETWORKS[network])
            compiled = tvmflow.compile(model, target="opencl", device="adreno", **FORMS[form])
            path = compiled.save(Path(folder) / "module.so")
            for gpu in options.gpus:
                name = f"{network}, {form}, {gpu}"
                results[name] = measured(path, gpu, options.suite)
                print(name, {column: results[name][column] for column in _COLUMNS}, flush=True)
    rows = []
    for name, found in results.items():
        old = before.get(name, found)
        cells = [
            str(found[c]) if old[c] == found[c] else f"{old[c]} → {found[c]}" for c in _COLUMNS
        ]
        rows.append([name, *cells])
    report("Machine code", ["network", *_COLUMNS], rows)
    earlier = {name: {c: old[c] for c in _COLUMNS} for name, old in before.items()}
    print(write_json("gpu_code", {"results": results, "before": earlier}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
