"""Machine code of attention for GPUs, which need not be here: fused, and as products and a softmax.

Instructions are counted as often as they run: loops of the code are matched with those of the
source, in their order, so that multiply-adds come nearest to what the kernel computes.  What is
compared are sums over all kernels: issue slots of all waves, reads and writes of memory among
them, and bytes of all tensors that kernels read and write, once each.  GPUs differ in what a slot
costs, so that only sums of one GPU can be compared (`tvmflow isa --setup` fetches the compilers).

    python benchmarks/attention_code.py [--gpus adreno-660 ...] [--dtype fp16] [CASE ...]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

from attention import CASES, model, unfused
from common import report, write_json

import tvmflow
from tvmflow.devices.gpus import Gpu, find_gpu
from tvmflow.errors import DeviceError
from tvmflow.explain.isa.kernels import kernels_in
from tvmflow.explain.isa.record import KernelCode, Loop
from tvmflow.explain.isa.report import find_compiler, machine_code
from tvmflow.graph import attention as fusion

GPUS = ("adreno-660", "adreno-740", "mali-g610", "intel-tgl")
#: Beside the cases whose times are measured.
MORE = {"deep heads": (1, 8, 128, 128, None)}
LEFT_OUT = ("ViT, 3 heads", "ViT, 6 heads", "Swin, 4 windows", "one query", "4,096 keys")
_SUMS = ("million slots", "million of memory", "million bytes")
_LOOP = re.compile(r"for \(int (\w+) = 0; \1 < (?:tvmflow_times\()?(.*?)\)?; \+\+\1\) \{")
#: A length that is the first number, or the second one where a loop is before its last round.
_CHOICE = re.compile(r"select\((\d+), (\d+), \(convert_int\(\(\w+ < (\d+)\)?")


@contextmanager
def fused() -> Iterator[None]:
    """Compile with attention as one kernel, faster or not."""
    decide, fusion.is_faster = fusion.is_faster, lambda attention, device, **_: True
    try:
        yield
    finally:
        fusion.is_faster = decide


def loops_in(source: str) -> list[tuple[float, int | None]]:
    """How often the loops of a kernel in OpenCL C run, and which of them each is in."""
    found: list[tuple[float, int | None]] = []
    around: list[tuple[int, int]] = []
    depth = 0
    for line in source.splitlines():
        if loop := _LOOP.search(line):
            if choice := _CHOICE.match(loop[2]):
                last, whole, rounds = map(int, choice.groups())
                times = (rounds * whole + last) / (rounds + 1)
            else:
                times = float(loop[2])
            found.append((times, around[-1][0] if around else None))
            around.append((len(found) - 1, depth))
        depth += line.count("{") - line.count("}")
        while around and depth <= around[-1][1]:
            around.pop()
    return found


def _runs(nest: Sequence[Loop], source: str) -> Iterator[list[float]]:
    """How often each part of a nest may run: the compiler may have unrolled some loops."""
    loops = loops_in(source)

    def encloses(inner: int | None, outer: int) -> bool:
        while inner is not None and inner != outer:
            inner = loops[inner][1]
        return inner == outer

    for chosen in combinations(range(len(loops)), len(nest) - 1):
        runs = [1.0]
        for place, part in zip(chosen, nest[1:], strict=True):
            if part.outer and not encloses(place, chosen[part.outer - 1]):
                break
            runs.append(loops[place][0] * runs[part.outer or 0])
        else:
            yield runs


def executed(code: KernelCode, source: str) -> dict[str, float]:
    """Slots of a work-item, and what they do, as often as they run."""
    wanted = (code.flops or 0) / 2 / (code.group_size * code.groups)

    def off(runs: Sequence[float]) -> float:
        counted = sum(n * part.own.multiply_adds for n, part in zip(runs, code.nest, strict=True))
        # A product may be several instructions, and none is less than one.
        return abs(counted - wanted) if counted >= 0.9 * wanted else wanted + abs(counted - wanted)

    runs = min(_runs(code.nest, source), key=off)
    parts = [(n, part.own) for n, part in zip(runs, code.nest, strict=True)]
    return {
        "slots": sum(n * own.issue for n, own in parts),
        "multiply-adds": sum(n * own.multiply_adds for n, own in parts),
        "memory": sum(n * (own.loads + own.stores + own.fetches) for n, own in parts),
    }


def moved_bytes(module: tvmflow.Module) -> int:
    """Bytes of what kernels write, and read of each other and of the inputs, once each."""
    tensors = module.metadata["memory"]["tensors"]
    return sum(info.size_bytes for info in module.inputs) + sum(
        tensor["bytes"] * (1 + len(tensor["readers"])) for tensor in tensors
    )


def counted(module: tvmflow.Module, gpu: Gpu) -> dict[str, Any]:
    """Sums over the kernels of a module, and figures of each."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "attention.so")
        module.save(path)
        found = machine_code(path, gpu)
        sources = {kernel.name: kernel.text for kernel in kernels_in(path, gpu)[1]}
    kernels, sums = {}, {"slots": 0.0, "memory": 0.0}
    for code in found.kernels:
        counts = executed(code, sources[code.kernel])
        for name in sums:
            sums[name] += counts[name] * code.launched_waves / 1e6
        kernels[code.kernel] = {
            "group": code.group_size, "groups": code.groups, "registers": code.registers,
            "waves": code.waves, "spills": code.spills,
            **{name: round(count) for name, count in counts.items()},
        }  # fmt: skip
    return {
        "compiler": found.compiler,
        "failures": [failure.kernel for failure in found.failures],
        "million slots": round(sums["slots"], 3),
        "million of memory": round(sums["memory"], 4),
        "million bytes": round(moved_bytes(module) / 1e6, 3),
        "knobs": module.metadata["schedules"].get("attention", {}).get("knobs"),
        "by kernel": kernels,
    }


def main() -> int:
    """Compile, count, compare."""
    cases = {**CASES, **MORE}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="beginnings of names")
    parser.add_argument("--gpus", nargs="+", default=GPUS)
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "fp16"))
    options = parser.parse_args()
    results: dict[str, Any] = {}
    rows = []
    for gpu in map(find_gpu, options.gpus):
        try:
            find_compiler(gpu)
        except DeviceError as error:
            print(f"{gpu.name} is left out: {error}")
            continue
        for name, case in cases.items():
            if not name.startswith(tuple(options.cases)) if options.cases else name in LEFT_OUT:
                continue
            found: dict[str, dict[str, Any]] = {}
            for form, around in {"apart": unfused(), "fused": fused()}.items():
                with around:
                    compiled = tvmflow.compile(
                        model(*case), target="opencl", device=gpu.preset, dtype=options.dtype
                    )
                found[form] = counted(compiled, gpu)
            results[f"{name}, {gpu.name}"] = found
            before, after = found["apart"], found["fused"]
            kernel = after["by kernel"]["attention_kernel"]
            rows.append([
                name, gpu.name, *(f"{before[n]:g} → {after[n]:g}" for n in _SUMS),
                *(kernel[n] for n in ("registers", "waves", "spills")),
            ])  # fmt: skip
            print(rows[-1], flush=True)
    columns = ["case", "GPU", *_SUMS, "registers", "waves", "spills"]
    report(f"Machine code, {options.dtype}", columns, rows)
    if not options.cases and options.dtype == "fp32":
        print(write_json("attention_code", {"results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
