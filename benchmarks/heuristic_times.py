"""Times of the knobs that schedules' heuristics choose, relative to the best knobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from model_fit import Fitted
from numpy.typing import NDArray
from phone_data import CHOICE, Record, Task

from tvmflow.devices.presets import device_of
from tvmflow.devices.target import Device
from tvmflow.schedules import conv2d, conv2d_1x1, depthwise
from tvmflow.tuning.device_model import seconds
from tvmflow.tuning.kernel_facts import kernel_of

#: Fewest and most work-items of a group of the choices that heuristics are compared with.
ITEMS = 32, 1024


@dataclass(frozen=True)
class Judged:
    """A heuristic's time for a task, relative to that of the best choice."""

    #: GPU, family and precision.
    key: tuple[str, str, str]
    ratio: float


def family_and_shape(task: Task) -> tuple[Any, Any]:
    """Return our family for a task, and its shape."""
    loops = (1, task.blocks, task.height, task.width, 4)
    kernel_h, kernel_w = task.kernel[2:]
    if task.is_depthwise:
        shape = depthwise.Shape(
            *(*loops, kernel_h, kernel_w),
            stride_h=task.stride,
            stride_w=task.stride,
            span_h=kernel_h,
            span_w=kernel_w,
            padded=True,
            texture=True,
        )
        return depthwise, shape
    padded = kernel_h * kernel_w > 1
    stored: dict[str, Any] = {"texture": True, "weights": "texture", "input_block": 4}
    window = task.kernel[1], kernel_h, kernel_w
    shape = conv2d.Shape(*loops, *window, padded=padded, **stored)
    return (conv2d if padded else conv2d_1x1), shape


@cache
def every_choice(family: Any, shape: Any, device: Device) -> dict[str, NDArray[np.int64]]:
    """Return all tiles and groups of a family's space, by knob."""
    values = family.space(shape, device)
    tiles = _product({n: values[n] for n in ("tile_o", "tile_h", "tile_w")})
    kept = np.prod(list(tiles.values()), axis=0) <= conv2d.most_accumulators(device)
    tiles = {name: column[kept] for name, column in tiles.items()}
    groups = _product({n: values[n] for n in ("group_o", "group_h", "group_w")})
    items = np.prod(list(groups.values()), axis=0)
    # Groups of small maps have fewer items than a wave.
    kept = (items <= ITEMS[1]) & (items >= min(ITEMS[0], items.max()))
    groups = {name: column[kept] for name, column in groups.items()}
    count, each = len(tiles["tile_o"]), len(groups["group_o"])
    found = {name: np.repeat(column, each) for name, column in tiles.items()}
    found |= {name: np.tile(column, count) for name, column in groups.items()}
    if family is depthwise:
        inputs = shape.inputs(found["tile_h"], found["tile_w"])
        found["reuse_rows"] = (found["tile_h"] > 1) & (inputs <= 3 * device.accumulators)
    return found


def _product(values: dict[str, tuple[Any, ...]]) -> dict[str, NDArray[np.int64]]:
    columns = np.meshgrid(*(np.array(v) for v in values.values()), indexing="ij")
    return {name: column.ravel() for name, column in zip(values, columns, strict=True)}


def by_model(task: Task, fitted: Fitted) -> Judged:
    """Judge the heuristic's knobs for a task by the model."""
    family, shape = family_and_shape(task)
    device, gpu = device_of(task.gpu), fitted.gpu(task.gpu)
    knobs = family.heuristic(shape, device)

    def times(some: Any) -> NDArray[np.float64]:
        kernel = kernel_of(family.NAME, shape, some, task.precision, gpu, task.stride)
        return np.asarray(seconds(kernel, gpu, fitted.constants))

    least = float(times(every_choice(family, shape, device)).min())
    own = float(times(vars(knobs)))
    precision = f"{8 * task.precision.stored}+{8 * task.precision.sums}"
    return Judged((task.gpu.name, family.NAME, precision), max(1.0, own / least))


def by_trials(record: Record) -> Iterator[dict[str, Any]]:
    """Judge the heuristic's knobs by the measured trials of a space, if any has their tile.

    Its time is the median of trials with the same tile, and with similar groups: items and channels
    within a factor of two.  Trials of the fork that test every read are left out.
    """
    task = record.task
    family, shape = family_and_shape(task)
    knobs = family.heuristic(shape, device_of(task.gpu))
    wanted = np.array([getattr(knobs, name, 1) for name in CHOICE], float)
    far = np.abs(np.log2(record.choices / wanted))
    group = slice(CHOICE.index("group_o"), CHOICE.index("group_w") + 1)
    tile = slice(CHOICE.index("tile_o"), CHOICE.index("tile_w") + 1)
    items = np.abs(np.log2(record.choices[:, group].prod(1) / wanted[group].prod()))
    alike = (far[:, tile].sum(1) == 0) & (record.choices[:, CHOICE.index("together")] == 1)
    alike &= (items <= 1) & (far[:, CHOICE.index("group_o")] <= 1) & ~record.guarded
    if alike.any():
        yield {
            "gpu": task.gpu.name,
            "space": task.network,
            "tile": "x".join(str(int(v)) for v in wanted[tile]),
            "group": "x".join(str(int(v)) for v in wanted[group]),
            "trials": int(alike.sum()),
            "ratio": round(float(np.median(record.times[alike]) / record.best), 3),
        }
