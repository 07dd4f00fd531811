"""Machine code of the example networks for NVIDIA's GPUs, which need not be here.

Networks are compiled for CUDA in fp16 and fp32, and their kernels by `nvcc` and `nvdisasm`: slots,
registers, spills, products on tensor cores, barriers in the hottest loop, and how many groups a
launch has.  A second file, with what an earlier state gave, is compared with.

    python benchmarks/sass.py [--gpu sm_90] [--networks ...] [--before OLD.json] [--keep DIR]
    python benchmarks/sass.py --modules DIR --output OLD.json
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from common import report, write_json

import tvmflow
from tvmflow import models
from tvmflow.devices.gpus import find_gpu
from tvmflow.errors import DeviceError
from tvmflow.explain.isa.record import KernelCode
from tvmflow.explain.isa.report import machine_code
from tvmflow.runtime.cuda_compiler import find_tool

NETWORKS = ("resnet50", "mobilenet_v2")
DTYPES = ("fp16", "fp32")
_COLUMNS = ("kernels", "slots", "HMMA", "HMMA in hot code", "spills", "under 132 groups")


def loop_barriers(kernel: KernelCode) -> int:
    """Most barriers between a label and a jump back to it."""
    at: dict[str, int] = {}
    lines, most = kernel.listing.splitlines(), 0
    for number, line in enumerate(lines):
        if label := re.match(r"(\.L_\w+):", line):
            at[label[1]] = number
        jump = re.search(r"BRA `\((\.L_\w+)\)", line)
        if jump and jump[1] in at:
            body = lines[at[jump[1]] : number]
            most = max(most, sum(" BAR." in each for each in body))
    return most


def measured(path: Path, gpu: str) -> dict[str, Any]:
    """Sums over the kernels of a module, and each kernel's own numbers."""
    facts = find_gpu(gpu)
    kernels = {}
    for each in machine_code(path, facts).kernels:
        kernels[each.kernel] = {
            "group": each.group, "groups": each.groups, "registers": each.registers,
            "waves": each.waves, "spills": each.spills, "slots": each.whole.issue,
            "hot slots": each.hot.issue, "hot multiply-adds": each.hot.multiply_adds,
            "HMMA": each.listing.count(" HMMA."), "loop barriers": loop_barriers(each),
            "loads": each.whole.loads, "stores": each.whole.stores,
        }  # fmt: skip
    tensor = [k for k in kernels.values() if k["HMMA"]]
    hot = sum(k["hot slots"] for k in tensor)
    return {
        "kernels": len(kernels),
        "slots": sum(k["slots"] for k in kernels.values()),
        "HMMA": sum(k["HMMA"] for k in tensor),
        "HMMA in hot code": round(sum(k["hot multiply-adds"] for k in tensor) / max(hot, 1), 3),
        "spills": sum(k["spills"] for k in kernels.values()),
        "under 132 groups": sum(k["groups"] < 132 for k in kernels.values()),
        "by kernel": kernels,
    }


def main() -> int:
    """Compile, count, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    parser.add_argument("--gpu", default="sm_90")
    parser.add_argument("--modules", type=Path, help="with NETWORK-DTYPE.so: nothing is compiled")
    parser.add_argument("--keep", type=Path, help="where the modules are left")
    parser.add_argument("--before", type=Path, help="what this wrote for an earlier state")
    parser.add_argument("--output", type=Path, help="instead of benchmarks/results/sass.json")
    options = parser.parse_args()
    try:
        for tool in ("nvcc", "nvdisasm"):
            find_tool(tool)
    except DeviceError as error:
        print(f"Skipped: {error}")
        return 0
    before = json.loads(options.before.read_text())["results"] if options.before else {}
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.modules or options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for network, dtype in product(options.networks, DTYPES):
            path = folder / f"{network}-{dtype}.so"
            if not options.modules:
                tvmflow.compile(models.make(network), target="cuda", dtype=dtype).save(path)
            results[f"{network}, {dtype}"] = measured(path, options.gpu)
    rows = []
    for name, found in results.items():
        old = before.get(name, found)
        cells = [
            str(found[c]) if old[c] == found[c] else f"{old[c]} → {found[c]}" for c in _COLUMNS
        ]
        rows.append([name, *cells])
    report(f"Machine code of {options.gpu}", ["network", *_COLUMNS], rows)
    content = {"gpu": options.gpu, "results": results, "before": before}
    if options.output:
        options.output.write_text(json.dumps(content))
        print(f"written: {options.output}")
    else:
        print(f"written: {write_json('sass', content)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
