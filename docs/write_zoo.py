"""Write docs/zoo.md, what became of each network of the zoo, from benchmarks/results/zoo.json."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import geometric_mean
from typing import Any

PAGE = Path(__file__).with_name("zoo.md")
RESULTS = PAGE.parent.parent / "benchmarks" / "results" / "zoo.json"
FORMS = ("llvm", "opencl", "textures", "fp16")
VERDICTS = ("right", "refused", "undecided", "wrong")
#: Forms of the file by `dynamo` whose times are told.
TIMED = ("llvm", "opencl", "fp16")
#: Files of an architecture, as the results name them, and as the page does.
FILES = {"dynamo, float": "dynamo", "script, float": "TorchScript", "dynamo, int8": "int8"}
#: Networks of up to so many nodes, of which the time to compile is told.
NODES = (200, 1000)
HEAD = """# The zoo

Vision networks as torchvision, timm and Ultralytics define them, with random weights, exported by
PyTorch's two exporters (`dynamo` and TorchScript), and quantized by ONNX Runtime (int8). Weights
are such that results depend on the pictures: by at least a hundredth, else the file fails. Each
file is compiled for `llvm`, for `opencl` from buffers, with textures, and stored in 16 bits, and
its results are compared by `tvmflow verify`. *Undecided* is what ONNX Runtime's own results leave
open: they differ as much when numbers move by a unit in their last place, in the main of 16 bits
(detectors then choose other boxes of much the same score). *Failed* is a file whose results do not
depend on its pictures, or that ONNX Runtime does not run.
`python benchmarks/zoo.py` measures, and `python docs/write_zoo.py` writes this page.

*Compile* is CPU time of `tvmflow.compile` for `llvm`. *Times* are those of a call, divided by ONNX
Runtime's on the same two cores, each engine alone, untuned: of the file by `dynamo`, and of int8
for `llvm` by ONNX Runtime's int8. {machines}
They are older than the code, but for RT-DETR's in 8 bits: `llvm` had one thread, kernels of OpenCL
were launched one by one, GELU was computed number by number, and convolutions with three axes had
no schedule.
"""


def page(results: dict[str, Any]) -> str:
    """Return the page of what `benchmarks/zoo.py` wrote."""
    names = list(dict.fromkeys(file.split(", ")[0] for file in results))
    files = {name: {kind: results.get(f"{name}, {kind}", {}) for kind in FILES} for name in names}
    columns = ["network", "nodes", "compile, s", *FILES.values(), *TIMED, "int8, llvm"]
    lines = [
        HEAD.format(machines=machines(results)),
        *summary(results),
        "",
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
        *(row(name, its) for name, its in files.items()),
    ]
    return "\n".join(lines) + "\n"


def summary(results: dict[str, Any]) -> list[str]:
    """Return a table of the counts, and a sentence on compile times."""
    columns = ["", *VERDICTS, "mean of times"]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for kind, title in FILES.items():
        for form in FORMS:
            cells = [r[form] for name, r in results.items() if name.endswith(kind) and form in r]
            if cells:
                counts = Counter(cell["verdict"] for cell in cells)
                told = [str(counts[verdict]) for verdict in VERDICTS]
                mean = ratios(results, kind, form) if title != "TorchScript" else []
                # Of some files it would be a mean of others than beside it.
                told.append(f"{geometric_mean(mean):.2f}" if len(mean) == len(cells) else "")
                lines.append(f"| {title}, {form} | {' | '.join(told)} |")
    lines.append("")
    for most in NODES:
        seconds = [r[f]["cpu_s"] for r in results.values() for f in ("llvm", "opencl")
                   if r.get("nodes", most + 1) <= most and "cpu_s" in r.get(f, {})]  # fmt: skip
        if seconds:
            lines.append(
                f"Files of up to {most:,} nodes compile in at most {max(seconds):.0f} CPU s"
                f" ({len(seconds)} compilations for `llvm` and `opencl`)."
            )
    return lines


def machines(results: dict[str, Any]) -> str:
    """Return a sentence on what the files were measured on."""
    (cpu, _), *others = Counter(result["cpu"] for result in results.values()).most_common()
    told = [f"{count} of {len(results)} files on {other}" for other, count in others]
    return f"Measured on {', '.join([cpu, *told])}."


def ratios(results: dict[str, Any], kind: str, form: str) -> list[float]:
    """Return the times of a form, divided by ONNX Runtime's."""
    files = [result for name, result in results.items() if name.endswith(kind)]
    return [time for result in files if (time := ratio(result, form)) is not None]


def ratio(result: dict[str, Any], form: str) -> float | None:
    """Return the time of a form, divided by ONNX Runtime's, if it was measured."""
    own, reference = (result.get(engine, {}).get("median_ms") for engine in (form, "ONNX Runtime"))
    return own / reference if own and reference else None


def verdict(result: dict[str, Any]) -> str:
    """Return what became of a file: right in all its forms, or what is not."""
    if "not exported" in result:
        return "not exported"
    if "failed" in result:
        return "failed"
    wanting = [f"{form} {result[form]['verdict']}" for form in FORMS
               if result.get(form, {"verdict": "right"})["verdict"] != "right"]  # fmt: skip
    return "; ".join(wanting) or ("right" if any(form in result for form in FORMS) else "")


def row(name: str, files: dict[str, dict[str, Any]]) -> str:
    """Return an architecture's line."""
    main, int8 = files["dynamo, float"], files["dynamo, int8"]
    times = [*(ratio(main, form) for form in TIMED), ratio(int8, "llvm")]
    cells = [
        name,
        str(main.get("nodes", "")),
        str(main.get("llvm", {}).get("cpu_s", "")),
        *map(verdict, files.values()),
        *("" if time is None else f"{time:.2f}" for time in times),
    ]
    return f"| {' | '.join(cells)} |"


def zoo() -> str:
    """Return the page of the results that are there."""
    return page(json.loads(RESULTS.read_text(encoding="utf-8"))["results"])


if __name__ == "__main__":
    PAGE.write_text(zoo(), encoding="utf-8")
