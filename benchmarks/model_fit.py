"""Fit of the constants of :mod:`tvmflow.tuning.device_model` to measurements of phones.

The loss of some constants sums, as means over tasks,

- the error of the predicted time of a best trial (of its logarithm, at most 1);
- twice the share of other choices of AutoTVM's space that are predicted to be faster (at most 1);
- for a space, all trials of a task: three times the errors around their weighted mean, with weights
  that fall with the measured time, and the mean itself.

It is minimised by the cross-entropy method: draw, keep the best quarter, draw around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace

import numpy as np
from phone_data import Array, Record

from tvmflow.devices.gpus import Gpu
from tvmflow.tuning.device_model import Constants, Kernel, least_seconds, seconds

#: Start of the fit: round numbers of the right size; a third more or less is likely.
START = Constants(
    memory_share=0.6, multiply_add_share=0.6, texel_share=0.9, mixed_slots=1.5, line_bytes=64,
    step_clocks=100, fetch_clocks=40, group_clocks=500, base_registers=3, texel_registers=1,
    half_registers=0.6, spill_registers=40, spill_clocks=100, occupancy=1.5, overlap=4,
)  # fmt: skip
SPREAD = np.log(1.35)
#: Difference between the logarithms of times that count as nearly equal.
SOFT = 0.05


@dataclass(frozen=True)
class Fitted:
    """Fitted numbers: the model's constants, launches, and the cost of the fork's guards."""

    constants: Constants
    #: Microseconds of a launch on Adreno 6xx and on later ones; the first also on Mali.
    launch_old_us: float = 10.0
    launch_new_us: float = 4.0
    #: Time of a kernel that tests every read, relative to one that does not.
    guard: float = 1.4

    def gpu(self, gpu: Gpu) -> Gpu:
        """Return a GPU with the fitted time of a launch."""
        is_old = gpu.isa != "ir3" or gpu.name < "adreno-7"
        return replace(gpu, launch_us=self.launch_old_us if is_old else self.launch_new_us)

    def times(self, record: Record) -> Array:
        """Predict the microseconds of a record's choices, as its schedules run them."""
        gpu = self.gpu(record.task.gpu)
        # A copy reads and writes its bytes.
        moved = (2 * each for each in record.task.copied)
        copies = sum(least_seconds(n, 0, gpu, constants=self.constants) for n in moved)
        times = np.asarray(seconds(record.kernels, gpu, self.constants))
        if record.guarded.size:
            times = np.where(record.guarded, self.guard * times, times)
        return 1e6 * (times + copies)


BEFORE = Fitted(START)


def _vector(fitted: Fitted) -> Array:
    launches = fitted.launch_old_us, fitted.launch_new_us, fitted.guard
    return np.log([*astuple(fitted.constants), *launches])


def _fitted(vector: Array) -> Fitted:
    values = [float(f"{value:.3g}") for value in np.exp(vector)]
    count = len(fields(Constants))
    return Fitted(Constants(*values[:count]), *values[count:])


class Stacked:
    """The choices of many records of one GPU as arrays, which are predicted at once."""

    def __init__(self, records: Sequence[Record]):
        self.records = records
        self.gpu = records[0].task.gpu
        sizes = [len(record.choices) for record in records]
        self.starts = np.cumsum([0, *sizes[:-1]])
        self.owner = np.repeat(np.arange(len(records)), sizes)
        parts = [[np.broadcast_to(v, n) for v in astuple(r.kernels)]
                 for r, n in zip(records, sizes, strict=True)]  # fmt: skip
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        self.kernel = Kernel(*columns[:-1], is_mixed=columns[-1].astype(bool))
        self.guarded = np.concatenate(
            [r.guarded if r.guarded.size else np.zeros(n, bool)
             for r, n in zip(records, sizes, strict=True)]
        )  # fmt: skip
        moved = np.array([[sum(r.task.copied), len(r.task.copied)] for r in records], float)
        self.moved, self.copies = moved.T
        self.measured = np.concatenate(
            [np.r_[r.times, np.full(n - len(r.times), np.nan)]
             for r, n in zip(records, sizes, strict=True)]
        )  # fmt: skip
        best = np.array([record.best for record in records])
        self.is_space = np.array([record.is_space for record in records])
        inside = self.is_space[self.owner]
        self.spaces = np.flatnonzero(inside)
        self.others = np.flatnonzero(~inside & np.isnan(self.measured))
        self.weights = best[self.owner[self.spaces]] / self.measured[self.spaces]

    def loss(self, fitted: Fitted) -> tuple[float, float]:
        """Return the sums of the losses of best trials and of spaces."""
        gpu = fitted.gpu(self.gpu)
        times = np.asarray(seconds(self.kernel, gpu, fitted.constants))
        times = np.where(self.guarded, fitted.guard * times, times)
        launch, c = 1e-6 * (gpu.launch_us or 0), fitted.constants
        bandwidth = c.memory_share * (gpu.bandwidth_gbps or 1) * 1e9
        copies = self.copies * launch + 2 * self.moved / bandwidth
        times = 1e6 * (times + copies[self.owner])
        first = times[self.starts]
        single = ~self.is_space
        error = np.abs(np.log(first / self.measured[self.starts]))[single]
        count = np.bincount(self.owner[self.others], minlength=len(self.records))
        beyond = np.log(first[self.owner[self.others]] / times[self.others]) / SOFT
        faster = np.bincount(
            self.owner[self.others],
            1 / (1 + np.exp(-np.clip(beyond, -30, 30))),
            minlength=len(self.records),
        ) / np.maximum(count, 1)
        best = np.minimum(error, 1).sum() + 2 * np.minimum(faster, 0.5)[single].sum()
        owner = self.owner[self.spaces]
        off = np.log(times[self.spaces] / self.measured[self.spaces])
        total = np.maximum(np.bincount(owner, self.weights, minlength=len(self.records)), 1e-9)
        mean = np.bincount(owner, self.weights * off, minlength=len(self.records)) / total
        around = self.weights * np.minimum(np.abs(off - mean[owner]), 2)
        spread = np.bincount(owner, around, minlength=len(self.records)) / total
        space = (3 * spread + np.minimum(np.abs(mean), 1))[self.is_space].sum()
        return float(best), float(space)


def fit(
    records: Sequence[Record], seed: int = 0, rounds: int = 120, drawn: int = 32,
    start: Fitted = BEFORE, fixed: Sequence[str] = (),
) -> Fitted:  # fmt: skip
    """Fit constants to records; constants in ``fixed`` keep the values of ``start``."""
    stacks = [
        Stacked([r for r in records if r.task.gpu.name == name])
        for name in dict.fromkeys(record.task.gpu.name for record in records)
    ]
    spaces = sum(int(stack.is_space.sum()) for stack in stacks)
    bests = len(records) - spaces
    origin = _vector(start)
    names = [field.name for field in fields(Constants)]
    free = np.array([name not in fixed for name in (*names, "old", "new", "guard")])

    def loss(vector: Array) -> float:
        fitted = _fitted(vector)
        pairs = [stack.loss(fitted) for stack in stacks]
        best, space = (sum(column) for column in zip(*pairs, strict=True))
        odd = np.sum(((vector - origin) / SPREAD) ** 2)
        return float(best / max(bests, 1) + space / max(spaces, 1) + 0.001 * odd)

    generator = np.random.default_rng(seed)
    mean, spread = origin.copy(), np.diag(np.where(free, SPREAD**2, 0.0))
    found = (np.inf, mean)
    for _ in range(rounds):
        vectors = generator.multivariate_normal(mean, spread, size=drawn, method="eigh")
        losses = [loss(vector) for vector in vectors]
        order = np.argsort(losses)[: drawn // 4]
        if losses[order[0]] < found[0]:
            found = losses[order[0]], vectors[order[0]]
        step = vectors[order] - mean
        mean = vectors[order].mean(axis=0)
        noise = np.diag(np.where(free, 1e-6, 0.0))
        spread = 0.8 * spread + 0.24 * (step.T @ step) / len(order) + noise
    return _fitted(found[1])
