"""Compare the device model with AutoTVM's measurements on phones: its fit and its predictions.

The journals that ship with tvmflow hold AutoTVM's logs line by line: the best trial of each task
and its time.  The time of a trial covers three launches: the input and the weights are copied into
textures, then the convolution runs on rows and columns that are padded to multiples of four.  The
constants of :mod:`tvmflow.tuning.device_model` are fitted to these times, and to the fact that the
best trial beat the other tiles and groups of AutoTVM's space.  Each log is judged with constants
that were fitted without it:

*time*: predicted / measured time of the best trial.
*place*: rank of the best trial among all candidates, by predicted time: 0.1 means that a tenth of
them is predicted to be faster; equal times count half.  The candidates are the tiles and groups of
AutoTVM's space, and of our own (knobs of `KNOBS`, drawn at random).

    python benchmarks/device_model.py [--seed 0] [--judge]
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS as RESULTS
from common import arguments, report, write_json
from numpy.typing import NDArray

from tvmflow.devices.gpus import GPUS, Gpu
from tvmflow.devices.target import PRESETS
from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Trial
from tvmflow.schedules.family import refusal
from tvmflow.tuning.device_model import Constants, Kernel, copying, seconds
from tvmflow.tuning.kernel_facts import FAMILIES, KNOBS, Precision, kernel_of, lanes_along, lines_of
from tvmflow.tuning.tasks import BY_NAME
from tvmflow.tuning_logs import find_journal

JOURNALS = {"adreno660": GPUS["adreno-660"], "adreno740": GPUS["adreno-740"]}
BYTES = {"float32": 4, "float16": 2, "fp32": 4, "fp16": 2}
#: Numbers of alternatives drawn for a task: of AutoTVM's space, and of our own.
DRAWN = 200, 1000
#: Start of the fit: round numbers of the right size; half or twice as much is likely.
START = Constants(
    launch_6xx_us=10, launch_7xx_us=5, memory_share=0.6, multiply_add_share=0.5, mixed_slots=1.5,
    fetch_slots=1, texel_bytes=128, line_bytes=64, step_clocks=200, fetch_clocks=10,
    group_clocks=500, base_registers=4, texel_registers=1, half_registers=0.5, overlap=8,
)  # fmt: skip
SPREAD = np.log(1.35)
#: Difference between the logarithms of times that count as nearly equal.
SOFT = 0.05
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Record:
    """A line of a log, and the alternatives to its choice."""

    trial: Trial
    gpu: Gpu
    #: Register tiles and work-groups along channels, rows and columns; the first was measured.
    choices: Array

    @property
    def log(self) -> str:
        """Return the name of the log."""
        return str(self.trial.provenance["file"])

    @cached_property
    def arguments(self) -> Arguments:
        """Return the arguments of the task."""
        return Arguments.read(self.trial)

    @cached_property
    def kernel(self) -> Kernel:
        """Return the convolution's kernel for each choice."""
        return self.arguments.convolved(self.choices)

    def times(self, constants: Constants) -> Array:
        """Predict the seconds of the choices, as AutoTVM runs them."""
        one = self.arguments
        moved = [count * one.precision.stored for count in (one.inputs, one.weights)]
        copies = sum(copying(bytes_, self.gpu, constants) for bytes_ in moved)
        return np.asarray(seconds(self.kernel, self.gpu, constants)) + copies


@dataclass(frozen=True)
class Arguments:
    """A task of AutoTVM."""

    is_depthwise: bool
    #: Channels, rows and columns of the input.
    data: tuple[int, int, int]
    #: Output channels, input channels read by one of them, and the window's height and width.
    kernel: tuple[int, int, int, int]
    stride: int
    #: Rows and columns of the result.
    height: int
    width: int
    precision: Precision

    @classmethod
    def read(cls, trial: Trial) -> Arguments:
        """Return the arguments of a line's task."""
        assert trial.original is not None
        _, task, arguments, _ = trial.original.document["input"]
        (_, data, dtype), (_, kernel, _), strides, padding, dilation, sums = arguments
        is_depthwise = "depthwise" in task
        if "nhwc" in task:
            data = [data[0], data[3], data[1], data[2]]
            kernel = [kernel[axis] for axis in ((2, 3, 0, 1) if is_depthwise else (3, 2, 0, 1))]
        size = [
            (data[2 + i] + padding[i] + padding[2 + i] - dilation[i] * (kernel[2 + i] - 1) - 1)
            // strides[i] + 1
            for i in range(2)
        ]  # fmt: skip
        precision = Precision(BYTES[dtype], BYTES[sums])
        return cls(is_depthwise, tuple(data[1:]), tuple(kernel), strides[0], *size, precision)

    @property
    def blocks(self) -> int:
        """Return the number of blocks of four output channels."""
        return -(-self.kernel[0] // 4)

    @property
    def filled(self) -> tuple[int, int]:
        """Return the rows and columns, padded to multiples of four."""
        return -(-self.height // 4) * 4, -(-self.width // 4) * 4

    @property
    def inputs(self) -> int:
        """Return the number of elements of the input, in whole blocks."""
        return -(-self.data[0] // 4) * 4 * self.data[1] * self.data[2]

    @property
    def weights(self) -> int:
        """Return the number of weights."""
        return prod(self.kernel)

    def convolved(self, choices: Array) -> Kernel:
        """Return the convolution's kernel for each choice.

        A step is a tap of the window for a block of input channels.  An item's columns are not
        neighbours; those of a wave's items are.
        """
        tile_o, tile_h, tile_w, group_o, group_h, group_w = choices.T
        height, width = self.filled
        channels, rows, columns = lanes_along(group_o, group_h, group_w)
        texel, vectors = self.precision.texel, tile_o * tile_h * tile_w
        weights = 1 if self.is_depthwise else 4
        row = rows * lines_of(columns * self.stride, texel) * tile_h * tile_w
        inputs = channels * tile_o * row if self.is_depthwise else row
        blocks = 1 if self.is_depthwise else -(-self.kernel[1] // 4)
        return Kernel(
            groups=np.ceil(self.blocks / (tile_o * group_o))
            * np.ceil(height / (tile_h * group_h))
            * np.ceil(width / (tile_w * group_w)),
            items=group_o * group_h * group_w,
            steps=blocks * self.kernel[2] * self.kernel[3],
            multiply_adds=4 * weights * vectors,
            fetches=(tile_o if self.is_depthwise else 1) * tile_h * tile_w + weights * tile_o,
            texel_bytes=texel,
            lines=inputs + channels * tile_o * lines_of(weights, texel) * weights / 4,
            sums=vectors,
            sum_bytes=self.precision.sums,
            bytes=self.precision.stored
            * (self.inputs + self.weights + self.kernel[0] * self.height * self.width),
            is_mixed=self.precision.stored < self.precision.sums,
        )


# -- what could have been chosen -----------------------------------------------------------------


def records(seed: int) -> list[Record]:
    """Return the lines of the logs whose task one of our families computes."""
    found = []
    for name, gpu in JOURNALS.items():
        with Journal.open(find_journal(Path(name))) as journal:
            trials = [t for t in journal.trials() if t.workload.family in FAMILIES]
        for number, trial in enumerate(trials):
            entity = {knob: value for knob, _, value in trial.original.document["config"]["entity"]}
            splits = [entity[knob][1:] for knob in ("tile_fc", "tile_y", "tile_x")]
            measured = [s[0] for s in splits] + [s[1] for s in splits]
            others = autotvm_space(Arguments.read(trial), gpu)
            generator = np.random.default_rng([seed, number])
            if len(others) > DRAWN[0]:
                others = generator.choice(others, DRAWN[0], replace=False)
            found.append(Record(trial, gpu, np.vstack([measured, others])))
    return found


def autotvm_space(one: Arguments, gpu: Gpu) -> Array:
    """Return the tiles and groups that AutoTVM's schedules for Adreno try."""

    def splits(extent: int, allowed: Callable[[int, int], bool]) -> list[tuple[int, int]]:
        pairs = ((t, g) for t in range(1, extent + 1) for g in range(1, extent // t + 1))
        return [(t, g) for t, g in pairs if extent % (t * g) == 0 and allowed(t, g)]

    least = 2 if one.blocks % 2 == 0 else 1
    if one.is_depthwise:
        axes = [splits(extent, lambda t, g: True) for extent in (one.blocks, *one.filled)]
    else:
        axes = [splits(one.blocks, lambda t, g: t <= 8 and least <= g < 256)]
        axes += [splits(extent, lambda t, g: t <= 8 and g <= 16) for extent in one.filled]
    every = np.array(
        [(o[0], h[0], w[0], o[1], h[1], w[1]) for o in axes[0] for h in axes[1] for w in axes[2]],
        dtype=float,
    )
    tiles, groups = every[:, :3].prod(axis=1), every[:, 3:].prod(axis=1)
    most = 256 if gpu.name == "adreno-660" else 1024
    return every[(groups <= most) & (tiles <= 24) & ((groups >= 32) | one.is_depthwise)]


def own_space(record: Record, seed: int, drawn: int = DRAWN[1]) -> list[dict[str, Any]]:
    """Return random knobs of our family for the same task, after the measured ones.

    Knobs that the model does not distinguish keep the measured values.
    """
    trial, device = record.trial, PRESETS["adreno"]
    family = BY_NAME[trial.workload.family]
    shape = family.Shape(**trial.workload.shape)
    measured = dict(trial.knobs)
    values = {n: v for n, v in family.space(shape, device).items() if n in KNOBS}
    generator = random.Random(f"{seed} {trial.workload.key.hex()}")
    found = [measured]
    while len(found) <= drawn:
        some = {n: generator.choice(v) for n, v in values.items() if n in measured}
        knobs = {**measured, **some}
        if refusal(family, family.Knobs(**knobs), shape, device) is None:
            found.append(knobs)
    return found


def own_times(record: Record, choices: Sequence[dict[str, Any]], constants: Constants) -> Array:
    """Predict the seconds of our kernels."""
    workload, one = record.trial.workload, record.arguments
    shape = BY_NAME[workload.family].Shape(**workload.shape)
    kernels = [
        astuple(kernel_of(workload.family, shape, knobs, one.precision, one.stride))
        for knobs in choices
    ]
    return np.asarray(seconds(Kernel(*np.array(kernels, float).T), record.gpu, constants))


# -- judging and fitting -------------------------------------------------------------------------


def place(times: Array) -> float:
    """Return the rank of the first among the others, from 0 (the fastest) to 1."""
    first, rest = times[0], times[1:]
    close = np.abs(rest / first - 1) < 1e-9
    return float(np.mean(np.where(close, 0.5, rest < first)))


def loss(vector: Array, training: Sequence[Record]) -> float:
    """Return the number that the fit minimises.

    It sums the errors of the measured times (of their logarithms), the share of alternatives that
    are predicted to be faster, and the distance of the constants from the start of the fit.
    """
    total, constants = 0.0, Constants(*np.exp(vector))
    for record in training:
        predicted = record.times(constants)
        error = abs(np.log(predicted[0] / record.trial.cost))
        beyond = np.log(predicted[0] / predicted[1:]) / SOFT
        faster = np.mean(1 / (1 + np.exp(-np.clip(beyond, -30, 30))))
        total += min(error, 1.0) + 2 * min(faster, 0.5)
    odd = np.sum(((vector - np.log(astuple(START))) / SPREAD) ** 2)
    return float(total / len(training) + 0.001 * odd)


def fit(training: Sequence[Record], seed: int, rounds: int = 120, drawn: int = 20) -> Constants:
    """Fit constants by the cross-entropy method: draw, keep the best quarter, draw around it."""
    generator = np.random.default_rng(seed)
    mean = np.log(astuple(START))
    spread = np.eye(len(mean)) * SPREAD**2
    best = (np.inf, mean)
    for _ in range(rounds):
        vectors = generator.multivariate_normal(mean, spread, size=drawn)
        losses = [loss(vector, training) for vector in vectors]
        order = np.argsort(losses)[: drawn // 4]
        best = min(best, (losses[order[0]], vectors[order[0]]), key=lambda pair: pair[0])
        step = vectors[order] - mean
        mean = vectors[order].mean(axis=0)
        spread = 0.8 * spread + 0.24 * (step.T @ step) / len(order) + 1e-6 * np.eye(len(mean))
    return Constants(*(float(f"{value:.3g}") for value in np.exp(best[1])))


def judged(some: Sequence[Record], constants: Constants, seed: int) -> list[dict[str, Any]]:
    """Return time and place of each record."""
    rows = []
    for record in some:
        times = record.times(constants)
        ours = own_times(record, own_space(record, seed), constants)
        rows.append({
            "log": record.log, "gpu": record.gpu.name, "task": record.trial.workload.signature,
            "measured_us": round(record.trial.cost * 1e6, 1),
            "predicted_us": round(float(times[0]) * 1e6, 1),
            "place_autotvm": round(place(times), 4), "place_ours": round(place(ours), 4),
        })  # fmt: skip
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over records, and the share predicted within 1.5."""
    ratios = [row["predicted_us"] / row["measured_us"] for row in rows]
    return {
        "records": len(rows),
        "median_ratio": round(statistics.median(ratios), 3),
        "within_1.5": round(sum(1 / 1.5 <= ratio <= 1.5 for ratio in ratios) / len(ratios), 3),
        **{
            f"median_{name}": round(statistics.median(row[name] for row in rows), 4)
            for name in ("place_autotvm", "place_ours")
        },
    }


def main() -> None:
    """Fit, judge, print, and write the JSON file."""
    parser = arguments(__doc__, seed=0)
    parser.add_argument("--judge", action="store_true", help="the last run's constants, not fitted")
    given = parser.parse_args()
    every = records(given.seed)
    last = json.loads((RESULTS / "device_model.json").read_text()) if given.judge else None

    def constants_without(log: str) -> Constants:
        if last is not None:
            about = last["logs"][log] if log else last
            return Constants(**about["constants"])
        found = fit([record for record in every if record.log != log], given.seed)
        print(f"without {log or 'none'}: {found}", flush=True)
        return found

    left_out, rows = {}, []
    for log in dict.fromkeys(record.log for record in every):
        constants = constants_without(log)
        own = judged([r for r in every if r.log == log], constants, given.seed)
        left_out[log] = {**summary(own), "constants": asdict(constants)}
        rows += own
    constants = constants_without("")
    columns = ["log", "records", "ratio", "within 1.5", "place, AutoTVM's", "place, ours"]
    names = ("records", "median_ratio", "within_1.5", "median_place_autotvm", "median_place_ours")
    lines = [(log, *(about[name] for name in names)) for log, about in left_out.items()]
    lines.append(("all", *(summary(rows)[name] for name in names)))
    report("Each log predicted without it", columns, lines)
    content = {
        "constants": asdict(constants),
        "fitted_to_all": summary(judged(every, constants, given.seed)),
        "left_out": summary(rows),
        "logs": left_out,
        "records": rows,
    }
    write_json("device_model", content)


if __name__ == "__main__":
    main()
