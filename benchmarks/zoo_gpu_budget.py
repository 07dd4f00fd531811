"""Budgets of the zoo's networks on phones' GPUs: filled lanes, waves, and spilled values.

Figures count kernels with at least 1 % of a network's multiply-adds (`launches.py`): the least
share of lanes with an item, means weighted by arithmetic, and the values that spill in machine
code, if Mesa's compilers for Adreno are installed (`tvmflow isa --setup`).  Kernels that fill less
than half of their lanes, and those that spill, are listed by name.

    python -m pip install '.[zoo]'
    python benchmarks/zoo_gpu_budget.py --exports FOLDER [--only resnet] [--dtypes fp32] [--again]
    python benchmarks/zoo_gpu_budget.py --exports FOLDER --check

FOLDER keeps the networks' files; only missing ones are exported.  tests/zoo_gpu_budget.json is
written after each network; networks that it has are measured again only with --again.  --check
measures all networks, writes nothing, and exits with status 1 if a figure is worse.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import zoo
from common import arguments, arrow, json_text, report
from gpu_budget import LAUNCH, MACHINE, Change, Figure, advice, changes, has_mesa, kernel_codes
from gpu_launches import scheduled, until_scheduling
from launches import launches
from zoo_speed import exported

from tvmflow.devices.gpus import find_gpu
from tvmflow.module.files import write_file

FILE = Path(__file__).resolve().parents[1] / "tests" / "zoo_gpu_budget.json"
REGENERATE = "python benchmarks/zoo_gpu_budget.py --exports FOLDER --again"
GPUS = ("adreno-660", "adreno-740", "mali-g610")
DTYPES = ("fp32", "fp16")
#: A kernel that fills a smaller share of its lanes is listed by name.
NARROW = 0.5

_OF = {figure.name: figure for figure in LAUNCH}
#: Figures of a network; those of machine code come last, as Mali's compiler takes too long.
FIGURES = (
    Figure("least lanes", True, "lanes of the kernel that fills the fewest"),
    *(_OF[name] for name in ("lanes", "working", "waves")),
    *(figure for figure in MACHINE if figure.name == "spills"),
)
#: Figures of kernels, by GPU.
Kernels = dict[str, dict[str, Any]]


def place_of(dtype: str, gpu: str) -> str:
    """Return the key of budgets for a type and a GPU."""
    return f"{dtype}, {gpu}"


def measure(path: Path, dtype: str, *, machine: bool) -> dict[str, Any]:
    """Schedule a network for each GPU; return its row, and its kernels' lanes and spills."""
    found = {}
    for preset in ("adreno", "mali"):
        job = until_scheduling(path, preset, dtype=dtype)
        functions = scheduled(job)
        kernels = launches(job.mod, functions, job.target)
        total = sum(each.share for each in kernels)
        for gpu in map(find_gpu, GPUS):
            if gpu.preset != preset:
                continue
            lanes = {each.kernel: each.lanes(gpu) for each in kernels}
            means = (
                sum(each.share * value for each, value in zip(kernels, values, strict=True)) / total
                for values in (
                    lanes.values(),
                    [each.working for each in kernels],
                    [each.held(gpu) for each in kernels],
                )
            )
            row, spills = [min(lanes.values()), *means], dict[str, int]()
            if machine and gpu.isa == "ir3":
                codes = kernel_codes(kernels, functions, job, gpu)
                spills = {code.kernel: code.spills for code in codes}
                row.append(sum(spills.values()))
            found[gpu.name] = {
                "row": [float(f"{value:.3g}") for value in row],
                "lanes": {kernel: round(value, 3) for kernel, value in lanes.items()},
                "spills": spills,
            }
    return found


def read() -> dict[str, Any]:
    """Return the content of the budgets' file, with nothing in it if there is none."""
    if not FILE.exists():
        return {"budgets": {}, "narrow": {}, "spilling": {}}
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def keep(content: dict[str, Any], network: str, dtype: str, found: Kernels) -> None:
    """Put a network's figures into the budgets, and the names of narrow and spilling kernels."""
    for gpu, figures in found.items():
        named = {
            "narrow": {k: share for k, share in figures["lanes"].items() if share < NARROW},
            "spilling": {k: count for k, count in figures["spills"].items() if count},
        }
        place = place_of(dtype, gpu)
        content["budgets"].setdefault(place, {})[network] = figures["row"]
        for list_, kernels in named.items():
            networks = content[list_].setdefault(place, {})
            networks.pop(network, None)
            if kernels:
                networks[network] = kernels


def write(content: Mapping[str, Any]) -> None:
    """Write the budgets in the order of GPUs, and of the zoo."""
    places = [place_of(*pair) for pair in product(DTYPES, GPUS)]
    names = [each.name for each in zoo.ARCHITECTURES]
    ordered = {
        part: {
            place: {name: rows[name] for name in names if name in rows}
            for place in places
            if (rows := content[part].get(place))
        }
        for part in ("budgets", "narrow", "spilling")
    }
    head = {"regenerate": REGENERATE, "columns": [figure.name for figure in FIGURES]}
    write_file(FILE, json_text(head | ordered) + "\n")


def lane_rows(
    content: Mapping[str, Any], network: str, dtype: str, found: Kernels
) -> Iterator[list[str]]:
    """Yield a table's row for each kernel that is narrow, or was."""
    for gpu, figures in found.items():
        place = place_of(dtype, gpu)
        before = content["narrow"].get(place, {}).get(network, {})
        for kernel, share in figures["lanes"].items():
            if kernel in before or share < NARROW:
                cell = arrow(f"{before.get(kernel, share):.0%}", f"{share:.0%}")
                yield [network, place, kernel, cell]


def changes_of(
    content: Mapping[str, Any], network: str, dtype: str, found: Kernels
) -> Iterator[Change]:
    """Yield the figures of a network that are better or worse than their budgets."""
    for gpu, figures in found.items():
        place = place_of(dtype, gpu)
        budget = content["budgets"].get(place, {}).get(network)
        if budget is not None:
            count = min(len(budget), len(figures["row"]))
            pair = ({network: row[:count]} for row in (budget, figures["row"]))
            yield from changes(place, *pair, FIGURES[:count])


def main() -> int:
    """Measure the networks that have no budget yet, one by one; or compare all."""
    parser = arguments(__doc__, only=[""], dtypes=DTYPES)
    parser.add_argument("--exports", type=Path, help="a folder that keeps the networks' files")
    parser.add_argument(
        "--again", action="store_true", help="also measure networks that have a budget"
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--no-machine", action="store_true", help="leave machine code out")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        path, dtype = options.work
        print(json.dumps(measure(Path(path), dtype, machine=not options.no_machine)))
        return 0
    options.no_machine = options.no_machine or not has_mesa()
    content, seen, rows = read(), list[Change](), list[list[str]]()
    failed = 0
    for architecture, dtype in product(zoo.chosen(options.only), options.dtypes):
        name = architecture.name
        has_budget = all(name in content["budgets"].get(place_of(dtype, gpu), {}) for gpu in GPUS)
        if has_budget and not (options.again or options.check):
            continue
        found = measured(architecture, dtype, options)
        if "failed" in found:
            print(f"{name}, {dtype}: {found['failed']}", flush=True)
            failed += 1
            continue
        rows += lane_rows(content, name, dtype, found)
        seen += changes_of(content, name, dtype, found)
        print(f"{name}, {dtype}: {found[GPUS[0]]['row']}", flush=True)
        if not options.check:
            keep(content, name, dtype, found)
            write(content)
    report("Kernels that fill few lanes", ["network", "type, GPU", "kernel", "lanes"], rows)
    for change in seen:
        word = "worse" if change.is_worse else "better"
        figure = f"{change.figure.name} {change.budget:g} → {change.now:g}"
        print(f"{word}: {change.place}, {change.kernel}: {figure}")
    worse = [change for change in seen if change.is_worse]
    if options.check and worse:
        print(advice(worse, FILE, REGENERATE))
    return int(bool(failed or (options.check and worse)))


def measured(
    architecture: zoo.Architecture, dtype: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Export a network if its file is missing, and measure it in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = exported(architecture, "float", options.exports or Path(folder))
        except Exception as error:  # noqa: BLE001 (PyTorch's, of many kinds)
            return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"}
        command = [sys.executable, __file__, "--work", str(path), dtype]
        return zoo.in_process(command + ["--no-machine"] * options.no_machine)


if __name__ == "__main__":
    sys.exit(main())
