"""Write docs/zoo.md, what became of each network of the zoo, from what its benchmarks wrote."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import zoo_kernels
from common import RESULTS
from zoo_speed import OTHERS, OURS, means, ratio

PAGE = Path(__file__).with_name("zoo.md")
FORMS = ("llvm", "opencl", "textures", "fp16")
VERDICTS = ("right", "refused", "undecided", "wrong")
#: Engines whose times are reported, in the order of the columns.
ENGINES = (*OURS, *OTHERS)
#: Files of an architecture, as the results name them, and as the page does.
FILES = {"dynamo, float": "dynamo", "script, float": "TorchScript", "dynamo, int8": "int8"}
#: Largest numbers of nodes of the networks whose compile times are reported.
NODES = (200, 1000)
HEAD = """# The zoo

Which vision networks compile, whether their results are right, and how fast they run. The networks
are those of torchvision, timm and Ultralytics with random weights, exported by PyTorch's two
exporters (`dynamo` and TorchScript), and quantized by ONNX Runtime (int8).

`python benchmarks/zoo.py` compiles each file for `llvm`, and for `opencl` with buffers, with
textures, and in 16 bits. `tvmflow verify` compares the results, which must depend on the pictures
by at least a hundredth. `python docs/write_zoo.py` writes this page.

- *Undecided*: ONNX Runtime's own results differ as much when numbers move by a unit in their last
  place, mostly in 16 bits, where detectors choose other boxes of nearly the same score.
- *Failed*: the file's results do not depend on its pictures, or ONNX Runtime does not run it.
- *Compile*: CPU time of `tvmflow.compile` for `llvm`.
- *Times* of a call, untuned, divided by ONNX Runtime's on the same two cores: for the `dynamo`
  file, and for int8 by ONNX Runtime's int8. `python benchmarks/zoo_speed.py` runs each engine in a
  process of its own, in turn with ONNX Runtime. {machines}
"""
#: Before the tables of kernels.
LOST = """*Lost* is a kernel's time beyond the [roofline](profile.md#ceilings). The tables have
{networks} networks in fp32 on `llvm`: the mean share of their time by schedule family, and the
kernels that lose most, one for each network (`python benchmarks/zoo_kernels.py`).
"""


def page(results: dict[str, Any], speeds: dict[str, Any], profiles: dict[str, Any]) -> str:
    """Return the page of what `zoo.py`, `zoo_speed.py` and `zoo_kernels.py` wrote."""
    names = list(dict.fromkeys(file.split(", ")[0] for file in results))
    files = {name: {kind: results.get(f"{name}, {kind}", {}) for kind in FILES} for name in names}
    columns = ["network", "nodes", "compile, s", *FILES.values(), *ENGINES, "int8, llvm"]
    lines = [
        HEAD.format(machines=machines(speeds)),
        *table(["file", "engine", "networks", "geometric mean", "slowest"], means(speeds)),
        "",
        *lost(profiles),
        "",
        *summary(results),
        "",
        *table(columns, [row(name, its, speeds) for name, its in files.items()]),
    ]
    return "\n".join(lines) + "\n"


def lost(profiles: dict[str, Any]) -> list[str]:
    """Return the tables of families and kernels, and a sentence on threads."""
    done = {name: result for name, result in profiles.items() if "families" in result}
    return [
        LOST.format(networks=len(done)),
        *table(zoo_kernels.FAMILY_COLUMNS, zoo_kernels.family_rows(done)),
        "",
        *table(zoo_kernels.KERNEL_COLUMNS, zoo_kernels.kernel_rows(done)),
        "",
        zoo_kernels.threads(done),
    ]


def summary(results: dict[str, Any]) -> list[str]:
    """Return a table of the counts, and a sentence on compile times."""
    rows = []
    for kind, title in FILES.items():
        for form in FORMS:
            cells = [r[form] for name, r in results.items() if name.endswith(kind) and form in r]
            if cells:
                counts = Counter(cell["verdict"] for cell in cells)
                told = [str(counts[verdict]) for verdict in VERDICTS]
                rows.append([f"{title}, {form}", *told])
    lines = [*table(["", *VERDICTS], rows), ""]
    for most in NODES:
        seconds = [r[f]["cpu_s"] for r in results.values() for f in ("llvm", "opencl")
                   if r.get("nodes", most + 1) <= most and "cpu_s" in r.get(f, {})]  # fmt: skip
        if seconds:
            lines.append(
                f"Files of up to {most:,} nodes compile in at most {max(seconds):.0f} CPU s"
                f" ({len(seconds)} compilations for `llvm` and `opencl`)."
            )
    return lines


def machines(speeds: dict[str, Any]) -> str:
    """Return a sentence on what the times were measured on."""
    (cpu, _), *others = Counter(result["cpu"] for result in speeds.values()).most_common()
    told = [f"{count} of {len(speeds)} files on {other}" for other, count in others]
    return f"Measured on {', '.join([cpu, *told])}."


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a table's lines."""
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


def verdict(result: dict[str, Any]) -> str:
    """Return what became of a file: right in all its forms, or what is not."""
    if "not exported" in result:
        return "not exported"
    if "failed" in result:
        return "failed"
    wanting = [f"{form} {result[form]['verdict']}" for form in FORMS
               if result.get(form, {"verdict": "right"})["verdict"] != "right"]  # fmt: skip
    return "; ".join(wanting) or ("right" if any(form in result for form in FORMS) else "")


def row(name: str, files: dict[str, dict[str, Any]], speeds: dict[str, Any]) -> list[str]:
    """Return an architecture's line."""
    main = files["dynamo, float"]
    plain, int8 = (speeds.get(f"{name}, {kind}", {}) for kind in ("float", "int8"))
    times = [*(ratio(plain, engine) for engine in ENGINES), ratio(int8, "llvm")]
    return [
        name,
        str(main.get("nodes", "")),
        str(main.get("llvm", {}).get("cpu_s", "")),
        *map(verdict, files.values()),
        *("" if time is None else f"{time:.2f}" for time in times),
    ]


def zoo() -> str:
    """Return the page of the results that are there."""
    found = (json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["results"]
             for name in ("zoo", "zoo_speed", "zoo_kernels"))  # fmt: skip
    return page(*found)


if __name__ == "__main__":
    PAGE.write_text(zoo(), encoding="utf-8")
