"""The steps of every kernel lab beside NumPy, and what the last ones reach.

The product in fp32 is compared with NumPy's BLAS and with the product in 8 bits round by round, in
turn; a ratio is the median over the rounds.  OpenBLAS chooses old kernels for a CPU that it does
not know: where the CPU has AVX-512, its kernels for that are measured, too.

    python benchmarks/lab.py [--targets llvm,opencl] [--rounds 7] [--seconds 2]
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import in_process, report, write_json

from tvmflow.explain.lab import LabResult, numpy_name, prepare, run_lab
from tvmflow.runtime.timing import in_turn
from tvmflow.schedules.lab import LABS

SIZE = 1024
#: Least ratios that are asked for on ``llvm``.
GOALS = {"parallel": 0.7, "int8_of_fp32": 2.0}
_REACHED = """
import json, sys
sys.path.insert(0, sys.argv[1])
import lab
print(json.dumps(lab.reached(sys.argv[2], int(sys.argv[3]))))
"""


def walk(name: str, target: str, seconds: float, *, fresh_ceilings: bool) -> LabResult:
    """All steps of a lab at its default size, with their table."""
    result = run_lab(name, target=target, seconds=seconds, fresh_ceilings=fresh_ceilings)
    rows = [
        (s.step, f"{s.times.median_ms:.3f}", f"{s.speedup:.1f}", f"{s.gflops:.1f}",
         f"{s.gbps:.1f}", f"{100 * s.of_numpy:.0f} %",
         "" if s.of_peak is None else f"{100 * s.of_peak:.0f} %")
        for s in result.steps
    ]  # fmt: skip
    rows.append(("NumPy", f"{result.numpy_times.median_ms:.3f}", *([""] * 5)))
    title = f"{name}, size {result.size}, {target}"
    report(title, ("step", "median ms", "speed-up", "GFLOP/s", "GB/s", "of NumPy", "of peak"), rows)
    return result


def reached(target: str, rounds: int) -> dict[str, Any]:
    """What the parallel and the packed product reach of NumPy's, and the 8-bit one of the fp32."""
    real = prepare("matmul", size=SIZE, target=target, steps=["parallel", "packed"])
    (of_bytes,) = prepare("matmul_int8", size=SIZE, target=target, steps=["packed"]).calls
    parallel, packed = real.calls
    # NumPy's threads stay awake: it is the last one.
    calls = {"parallel": parallel, "packed": packed, "8 bits": of_bytes, "NumPy": real.numpy}
    ratios: dict[str, list[float]] = {"parallel": [], "packed": [], "int8_of_fp32": []}
    for _ in range(rounds):
        took = {name: times.median_ms for name, times in in_turn(calls, seconds=0.5).items()}
        ratios["parallel"].append(took["NumPy"] / took["parallel"])
        ratios["packed"].append(took["NumPy"] / took["packed"])
        ratios["int8_of_fp32"].append(took["packed"] / took["8 bits"])
    return {
        "numpy": numpy_name(),
        **{name: round(statistics.median(values), 3) for name, values in ratios.items()},
        "all": {name: [round(value, 3) for value in values] for name, values in ratios.items()},
    }


def with_each_blas(target: str, rounds: int) -> list[dict[str, Any]]:
    """The ratios, in a process for each choice of OpenBLAS' kernels."""
    choices: list[dict[str, str]] = [{}]
    if "avx512f" in Path("/proc/cpuinfo").read_text():
        choices.append({"OPENBLAS_CORETYPE": "SkylakeX"})
    here = str(Path(__file__).parent)
    return [
        {"target": target, **in_process(_REACHED, here, target, str(rounds), env=choice)}
        for choice in choices
    ]


def main() -> None:
    """Measure every lab on every target, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", default="llvm,opencl", help="by commas")
    parser.add_argument("--rounds", type=int, default=7, help="of the ratios")
    parser.add_argument("--seconds", type=float, default=2.0, help="for the calls of each step")
    options = parser.parse_args()
    targets = options.targets.split(",")
    labs: dict[str, dict[str, Any]] = {}
    for target in targets:
        labs[target] = {}
        for name in LABS:
            # Those that are known may be of a busy machine.
            first = not labs[target]
            result = walk(name, target, options.seconds, fresh_ceilings=first)
            labs[target][name] = asdict(result)
    ratios = [ratio for target in targets for ratio in with_each_blas(target, options.rounds)]
    report(
        f"Products of {SIZE} rows and columns",
        ("target", "beside", "parallel of NumPy", "packed of NumPy", "8 bits of fp32"),
        [
            (r["target"], r["numpy"], r["parallel"], r["packed"], r["int8_of_fp32"])
            for r in ratios
        ],
    )  # fmt: skip
    for ratio in ratios:
        for name, goal in GOALS.items():
            if ratio["target"] == "llvm" and ratio[name] < goal:
                print(f"missed: {name} is {ratio[name]}, beside {ratio['numpy']}; goal {goal}")
    print(f"written: {write_json('lab', {'labs': labs, 'goals': GOALS, 'ratios': ratios})}")


if __name__ == "__main__":
    main()
