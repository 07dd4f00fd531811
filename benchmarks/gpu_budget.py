"""Budgets of the example networks' kernels on phones' GPUs, which tests compare with.

For each network and GPU: the ten kernels with most multiply-adds, and means over them. Figures are
those of schedules (`gpu_launches.py`) and, where Mesa's compilers are here (`tvmflow isa --setup`),
of machine code; where they are not, these budgets stay as they are. After a change that is meant:

    python benchmarks/gpu_budget.py            # writes tests/gpu_budget.json, prints what changed
    python benchmarks/gpu_budget.py --check    # only compares; exit status 1 if one is worse
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import arguments, json_text
from gpu_launches import GPUS, NETWORKS, before_scheduling, scheduled
from launches import Launch, launches
from tvm import IRModule, tirx

from tvmflow.codegen.kernels import generate_kernels
from tvmflow.compiler.compilation import Compilation
from tvmflow.devices.gpus import Gpu, find_gpu
from tvmflow.errors import DeviceError
from tvmflow.explain.isa.mesa import compile_kernels, find_tree
from tvmflow.explain.isa.record import KernelCode, KernelSource
from tvmflow.explain.isa.report import SUITE

FILE = Path(__file__).resolve().parents[1] / "tests" / "gpu_budget.json"
REGENERATE = "python benchmarks/gpu_budget.py"
#: Kernels of a network that have budgets of their own.
_KERNELS = 10
#: GPUs whose machine code has budgets; Mali's compiler runs in an emulator, and takes minutes.
MACHINE_GPUS = ("adreno-660", "adreno-740", "adreno-830")
#: A figure may be worse by this part of its budget.
MARGIN = 0.05
#: The row of means, and of sums of spills, next to those of kernels.
NETWORK = "network"


@dataclass(frozen=True)
class Figure:
    """Something that is counted, and how a loss of it shows."""

    name: str
    #: Whether more of it is better.
    more: bool
    #: Meaning of the figure, and usual causes of a loss.
    meaning: str


#: Figures of schedules.
LAUNCH = (
    Figure("reads", False, "reads a multiply-add: a smaller register tile, or single numbers"),
    Figure("writes", False, "writes a multiply-add: stores of single numbers instead of vectors"),
    Figure("lanes", True, "lanes of waves with an item: groups that are no multiple of the wave"),
    Figure("working", True, "lanes with something to compute: tiles that reach beyond the map"),
    Figure("items", True, "work-items, up to what the GPU holds: larger tiles, sums not shared"),
    Figure("waves", True, "waves that registers leave room for: larger tiles"),
    Figure("registers", False, "registers of an item, by estimate: larger tiles, or more copies"),
    Figure("spilled", False, "bytes of an item in memory: larger tiles, indices not constant"),
)
#: Figures of machine code.
MACHINE = (
    Figure("reads", False, "loads and fetches a multiply-add in the hot code"),
    Figure("multiply-adds", True, "part of the hot code's issue slots that multiply and add"),
    Figure("registers", False, "registers of an item"),
    Figure("waves", True, "waves that registers leave room for"),
    Figure("spills", False, "values that go through memory"),
)
_SUMMED = ("spilled", "spills")

#: Figures of kernels by name.
Rows = dict[str, list[float]]


def launch_rows(found: Sequence[Launch], gpu: Gpu) -> Rows:
    """Return figures of a network's kernels on a GPU, from their schedules."""
    full = (gpu.cores or 1) * (gpu.waves or 1) * gpu.wave
    rows = {
        launch.kernel: [
            *(launch.reads, launch.writes, launch.lanes(gpu), launch.working),
            *(min(launch.items, full), launch.held(gpu), launch.registers, launch.spilled_bytes),
        ]
        for launch in found[:_KERNELS]
    }
    return _with_means(rows, {launch.kernel: launch.share for launch in found}, LAUNCH)


def machine_rows(
    found: Sequence[Launch], functions: Mapping[str, tirx.PrimFunc], job: Compilation, gpu: Gpu
) -> Rows:
    """Return figures of a network's kernels on a GPU, from their machine code.

    Raises
    ------
    DeviceError
        If the GPU's compiler is not installed, or fails.
    """
    rows, largest = {}, found[:_KERNELS]
    for code in kernel_codes(largest, functions, job, gpu):
        hot = code.hot
        reads = (hot.fetches + hot.loads) / max(hot.multiply_adds, 1)
        values = (reads, hot.multiply_add_share, code.registers, code.waves, code.spills)
        rows[code.kernel] = [*values]
    return _with_means(rows, {launch.kernel: launch.share for launch in largest}, MACHINE)


def kernel_codes(
    found: Sequence[Launch], functions: Mapping[str, tirx.PrimFunc], job: Compilation, gpu: Gpu
) -> Iterator[KernelCode]:
    """Yield the machine code of launched kernels; `DeviceError` if their compiler fails."""
    with job.target.tvm_target:
        texts = generate_kernels(IRModule(functions), job.target).sources
    sources = [
        KernelSource(each.kernel, each.kernel, texts[each.kernel], each.group, each.groups)
        for each in found
    ]
    for code in compile_kernels(sources, gpu, find_tree(gpu, SUITE))[1]:
        if not isinstance(code, KernelCode):
            raise DeviceError(f"{code.kernel} was not compiled for {gpu.name}: {code.reason}")
        yield code


def _with_means(rows: Rows, shares: Mapping[str, float], figures: Sequence[Figure]) -> Rows:
    """Return the rows rounded, after one of means weighted by arithmetic, and of sums."""
    total = sum(shares[name] for name in rows)
    whole: list[float] = []
    for number, figure in enumerate(figures):
        weight = (lambda _: 1.0) if figure.name in _SUMMED else (lambda name: shares[name] / total)
        whole.append(sum(weight(name) * row[number] for name, row in rows.items()))
    return {n: [float(f"{v:.4g}") for v in row] for n, row in ((NETWORK, whole), *rows.items())}


@dataclass(frozen=True)
class Change:
    """A figure that is not as its budget has it."""

    place: str
    kernel: str
    figure: Figure
    budget: float
    now: float

    @property
    def limit(self) -> float:
        """Return the worst number within the margin."""
        return self.budget * (1 - MARGIN if self.figure.more else 1 + MARGIN)

    @property
    def is_worse(self) -> bool:
        """Return whether the figure is worse by more than the margin."""
        return self.now < self.limit if self.figure.more else self.now > self.limit

    @property
    def is_better(self) -> bool:
        """Return whether the figure is better by more than the margin."""
        return Change(self.place, self.kernel, self.figure, self.now, self.budget).is_worse

    def __str__(self) -> str:
        bound = "at least" if self.figure.more else "at most"
        return (
            f"{self.place}, {self.kernel}: {self.figure.name} {self.now:g} where {bound} "
            f"{self.limit:.4g} was expected ({self.figure.meaning})."
        )


def changes(place: str, budget: Rows, now: Rows, figures: Sequence[Figure]) -> Iterator[Change]:
    """Yield figures that are better or worse than their budgets.

    A kernel without a budget is a change of all its figures, from the best that there could be.
    """
    for kernel, row in now.items():
        best = [float("inf") if figure.more else 0.0 for figure in figures]
        for figure, old, new in zip(figures, budget.get(kernel, best), row, strict=True):
            change = Change(place, kernel, figure, old, new)
            if change.is_worse or change.is_better:
                yield change


def read() -> dict[str, Any]:
    """Return the content of the budgets' file."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def advice(worse: Sequence[Change], file: Path = FILE, command: str = REGENERATE) -> str:
    """Return the message about figures that are worse."""
    lines = [f"{len(worse)} figures of GPU kernels are worse than their budgets in {file.name}:"]
    lines += [f"  {change}" for change in worse[:12]]
    lines.append(
        "Remedy: undo what made them worse; if they are meant, or a kernel is new, write the "
        f"budgets anew: {command}"
    )
    return "\n".join(lines)


def measured(network: str, gpus: Sequence[Gpu], *, machine: bool) -> Iterator[tuple[str, Rows]]:
    """Yield figures of a network on GPUs of one preset, ``launches`` and ``machine`` of each."""
    job = before_scheduling(network, gpus[0].preset)
    functions = scheduled(job)
    found = launches(job.mod, functions, job.target)
    for gpu in gpus:
        yield f"launches, {network}, {gpu.name}", launch_rows(found, gpu)
        if machine and gpu.name in MACHINE_GPUS:
            yield f"machine, {network}, {gpu.name}", machine_rows(found, functions, job, gpu)


def figures_of(place: str) -> tuple[Figure, ...]:
    """Return the figures that the rows of a place have."""
    return LAUNCH if place.startswith("launches") else MACHINE


def has_mesa() -> bool:
    """Return whether Mesa's compilers are here; print the reason if they are not."""
    try:
        find_tree(find_gpu(MACHINE_GPUS[0]), SUITE)
    except DeviceError as error:
        print(f"Budgets of machine code stay as they are: {error}")
        return False
    return True


def main() -> int:
    """Count, compare, write."""
    parser = arguments(__doc__, networks=tuple(NETWORKS))
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--no-machine", action="store_true", help="leave machine code out")
    options = parser.parse_args()
    machine = not options.no_machine and has_mesa()
    before: dict[str, Rows] = read()["budgets"] if FILE.exists() else {}
    now = dict(before)
    seen: list[Change] = []
    for network in options.networks:
        for preset in ("adreno", "mali"):
            gpus = [gpu for gpu in map(find_gpu, GPUS) if gpu.preset == preset]
            for place, rows in measured(network, gpus, machine=machine):
                seen += changes(place, before.get(place, {}), rows, figures_of(place))
                now[place] = rows
    known = [change for change in seen if change.kernel in before.get(change.place, {})]
    worse = [change for change in seen if change.is_worse]
    for c in known:
        word = "worse" if c.is_worse else "better"
        print(f"{word}: {c.place}, {c.kernel}: {c.figure.name} {c.budget:g} → {c.now:g}")
    print(f"{len(seen) - len(known)} figures are of kernels without budgets.")
    if options.check:
        if worse:
            print(advice(worse))
        return int(bool(worse))
    order = [f"{kind}, {n}, {gpu}" for kind in ("launches", "machine") for n in NETWORKS
             for gpu in GPUS]  # fmt: skip
    content = {
        "regenerate": REGENERATE,
        "launches": [figure.name for figure in LAUNCH],
        "machine": [figure.name for figure in MACHINE],
        "budgets": {place: now[place] for place in order if place in now},
    }
    FILE.write_text(json_text(content) + "\n", encoding="utf-8")
    print(FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
