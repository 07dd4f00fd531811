"""Measurements of phones' GPUs, read from their files: tasks, the knobs tried, and their times.

The files are not part of this repository.  Scripts read them from a folder:

============================= ====================================================================
file                          content
============================= ====================================================================
octoml/give/logs*/*.log       AutoTVM's best trials on three Adreno: folders of the same names of
                              github.com/octoml/qualcomm, d57b94c
tophub/give/adreno_v0.02.log  the same of another phone, for Winograd's costs:
                              github.com/tlc-pack/tophub, f05376e
armgpu/*.csv, *.csv.gz        all trials of a fork's schedules, slow ones included, as tables
                              (`tuning_logs/armgpu.py`): github.com/TVM-for-armgpu/tvm, 4c43923
archprobe/archprobe.json      reports of github.com/microsoft/ArchProbe by phone, and the figures
                              of its overview
adreno620/figures.json        launches and bandwidths of github.com/a8nova/adreno-llms, 053736a
============================= ====================================================================

All times are in microseconds.  Extents along channels count blocks of four.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvmflow.devices.gpus import GPUS, Gpu
from tvmflow.tuning.device_model import Kernel
from tvmflow.tuning.kernel_facts import Precision, lanes_along, lines_of

Array = NDArray[np.float64]

#: Folders of AutoTVM's logs, and the GPU that each was measured on.
LOGS = (
    ("octoml/give/logs", "adreno-660"),
    ("octoml/give/logs_gen1", "adreno-730"),
    ("octoml/give/logs_8gen2", "adreno-740"),
)
#: Log of trials on an unnamed phone, whose times equal those of the Adreno 730.
HUB = ("tophub/give/adreno_v0.02.log", "adreno-730")
BYTES = {"float32": 4, "float16": 2}
#: GPUs of the fork's trials, by the names in its files.
FORK_GPUS = {
    "adreno630": "adreno-630",
    "adreno640": "adreno-640",
    "adreno640?": "adreno-640",
    "malig76": "mali-g76",
    "mali-g76": "mali-g76",
}
#: Knobs of a choice: register tile and work-group along channels, rows and columns, and the blocks
#: of input channels that are fetched together.
CHOICE = ("tile_o", "tile_h", "tile_w", "group_o", "group_h", "group_w", "together")


@dataclass(frozen=True)
class Task:
    """A convolution that was tuned on a GPU."""

    gpu: Gpu
    #: Network and file that the task is from.
    network: str
    log: str
    #: ``conv2d``, ``depthwise`` or ``winograd``.
    kind: str
    #: Channels, rows and columns of the input.
    data: tuple[int, int, int]
    #: Output channels, input channels read by one of them, and the window's height and width.
    kernel: tuple[int, int, int, int]
    stride: int
    #: Rows and columns of the result.
    height: int
    width: int
    precision: Precision
    #: Whether AutoTVM's schedules for Adreno ran, rather than the fork's.
    is_relay: bool = True

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what two algorithms for one convolution have in common."""
        precision = self.precision.stored, self.precision.sums
        return (
            self.gpu.name,
            self.log,
            self.data,
            self.kernel,
            self.stride,
            self.height,
            self.width,
            *precision,
        )

    @property
    def blocks(self) -> int:
        """Return the number of blocks of four output channels."""
        return ceil(self.kernel[0] / 4)

    @property
    def extents(self) -> tuple[int, int]:
        """Return the rows and columns computed: AutoTVM pads them to multiples of four."""
        if not self.is_relay:
            return self.height, self.width
        return ceil(self.height / 4) * 4, ceil(self.width / 4) * 4

    @property
    def is_depthwise(self) -> bool:
        """Return whether each channel has its own window."""
        return self.kind == "depthwise"

    @property
    def multiply_adds(self) -> int:
        """Return the multiply-adds of the convolution."""
        return prod(self.kernel) * self.height * self.width

    @property
    def copied(self) -> tuple[int, ...]:
        """Return the bytes of each copy into a texture that the measured time includes."""
        if not self.is_relay:
            return ()
        inputs = ceil(self.data[0] / 4) * 4 * self.data[1] * self.data[2]
        return inputs * self.precision.stored, prod(self.kernel) * self.precision.stored

    def kernels(self, choices: Array) -> Kernel:
        """Return the kernel of each choice.

        A step is a tap of the window for the blocks of input channels fetched together.  With
        AutoTVM's schedules an item's columns are not neighbours; those of a wave's items are.
        """
        tile_o, tile_h, tile_w, group_o, group_h, group_w, together = choices.T
        height, width = self.extents
        channels, rows, columns = lanes_along(group_o, group_h, group_w, self.gpu.wave)
        texel, vectors = self.precision.texel, tile_o * tile_h * tile_w
        weights = 1 if self.is_depthwise else 4
        if self.is_relay:
            texels = lines_of(columns * self.stride, texel) * tile_w
        else:
            texels = lines_of(columns * tile_w * self.stride, texel)
        inputs = rows * tile_h * texels * (channels * tile_o if self.is_depthwise else 1)
        blocks = 1 if self.is_depthwise else ceil(self.kernel[1] / 4)
        stored = self.precision.stored
        numbers = prod(self.data) + prod(self.kernel) + self.kernel[0] * self.height * self.width
        fetches = (tile_o if self.is_depthwise else 1) * tile_h * tile_w + weights * tile_o
        return Kernel(
            groups=np.ceil(self.blocks / (tile_o * group_o))
            * np.ceil(height / (tile_h * group_h))
            * np.ceil(width / (tile_w * group_w)),
            items=group_o * group_h * group_w,
            steps=np.ceil(blocks / together) * self.kernel[2] * self.kernel[3],
            multiply_adds=4 * weights * vectors * together,
            fetches=fetches * together,
            texel_bytes=texel,
            lines=(inputs + channels * tile_o * lines_of(weights, texel)) * together,
            sums=vectors,
            sum_bytes=self.precision.sums,
            bytes=stored * numbers,
            live=fetches * together,
            is_mixed=stored < self.precision.sums,
        )


@dataclass
class Record:
    """A task, choices with measured times, and others that are known to be slower."""

    task: Task
    choices: Array
    #: Microseconds of the first choices; those of the others are unknown.
    times: Array
    #: Choices whose tiles reach beyond the map in the fork's kernels, which then test every read.
    guarded: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    #: Choices whose tiles and groups divide the map.
    divided: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    @property
    def is_space(self) -> bool:
        """Return whether several choices were measured, slow ones included."""
        return len(self.times) > 1

    @property
    def best(self) -> float:
        """Return the least time that was measured."""
        return float(np.min(self.times))

    @cached_property
    def kernels(self) -> Kernel:
        """Return the kernel of each choice."""
        return self.task.kernels(self.choices)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the option for the folder of the files."""
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("build/measured"),
        metavar="FOLDER",
        help="the folder with the files that phone_data.py lists, default: %(default)s",
    )


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file, which may be compressed."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        yield from csv.DictReader(file)


# -- AutoTVM's logs ------------------------------------------------------------------------------


def autotvm(data: Path, *, hub: bool = False) -> Iterator[tuple[Task, float, dict[str, Any]]]:
    """Yield tasks of AutoTVM's schedules for textures, their best time, and its configuration."""
    if hub:
        files = [(data / HUB[0], HUB[1])]
    else:
        files = [(path, gpu) for folder, gpu in LOGS for path in sorted((data / folder).iterdir())]
    for path, gpu in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.startswith("{"):
                continue
            document = json.loads(line)
            (_, name, arguments, _), (times, error, *_) = document["input"], document["result"]
            if error or not name.endswith(".image2d"):
                continue
            entity = {knob: value for knob, _, value in document["config"]["entity"]}
            yield _task(path, GPUS[gpu], name, arguments), 1e6 * float(np.median(times)), entity


def _task(path: Path, gpu: Gpu, name: str, arguments: list[Any]) -> Task:
    (_, data, dtype), (_, kernel, _), strides, padding, dilation, sums = arguments
    # One log spells a task "winAgrad".
    kind = "winograd" if "win" in name else "depthwise" if "depthwise" in name else "conv2d"
    if "nhwc" in name:
        data = [data[0], data[3], data[1], data[2]]
        order = (2, 3, 0, 1) if kind == "depthwise" else (3, 2, 0, 1)
        kernel = [kernel[axis] for axis in order]
    height, width = (
        (data[2 + i] + padding[i] + padding[2 + i] - dilation[i] * (kernel[2 + i] - 1) - 1)
        // strides[i] + 1
        for i in range(2)
    )  # fmt: skip
    network = _network(path.name)
    return Task(
        *(gpu, network, path.name, kind, tuple(data[1:]), tuple(kernel), strides[0]),
        *(height, width, Precision(BYTES[dtype], BYTES[sums])),
    )


def _network(name: str) -> str:
    """Return the family of a network, by its file: ``mobilenet`` for ``mace_mobilenetv1_nchw``."""
    found = re.match(r"(?:mace_|mxnet_|onnx_)?([a-z]+?)(?=v?\d|[._]|$)", name)
    return found.group(1) if found else name


def best_trials(data: Path, drawn: int, seed: int = 0) -> list[Record]:
    """Return AutoTVM's best trials, each with some other choices of the same space."""
    found = []
    for number, (task, time, entity) in enumerate(autotvm(data)):
        if task.kind == "winograd":
            continue
        splits = [entity[knob][1:] for knob in ("tile_fc", "tile_y", "tile_x")]
        measured = [s[0] for s in splits] + [s[1] for s in splits] + [1]
        generator = np.random.default_rng([seed, number])
        others = autotvm_choices(task, drawn, generator)
        found.append(Record(task, np.vstack([measured, others]), np.array([time])))
    return found


def autotvm_choices(task: Task, count: int, generator: np.random.Generator) -> Array:
    """Draw tiles and groups that AutoTVM's schedules for Adreno try."""

    def splits(extent: int, allowed: Callable[[int, int], bool]) -> list[tuple[int, int]]:
        pairs = ((t, g) for t in range(1, extent + 1) for g in range(1, extent // t + 1))
        return [(t, g) for t, g in pairs if extent % (t * g) == 0 and allowed(t, g)]

    least = 2 if task.blocks % 2 == 0 else 1
    if task.is_depthwise:
        axes = [splits(extent, lambda t, g: True) for extent in (task.blocks, *task.extents)]
    else:
        axes = [splits(task.blocks, lambda t, g: t <= 8 and least <= g < 256)]
        axes += [splits(extent, lambda t, g: t <= 8 and g <= 16) for extent in task.extents]
    most = 256 if task.gpu.name == "adreno-660" else 1024
    drawn = set()
    for _ in range(30 * count):
        tiles, groups = zip(*(axis[generator.integers(len(axis))] for axis in axes), strict=True)
        items = prod(groups)
        if prod(tiles) <= 24 and items <= most and (items >= 32 or task.is_depthwise):
            drawn.add((*tiles, *groups, 1))
        if len(drawn) == count:
            break
    return np.array(sorted(drawn), float).reshape(-1, len(CHOICE))


def algorithms(data: Path) -> list[dict[str, tuple[Task, float]]]:
    """Return the convolutions that AutoTVM tuned directly and with Winograd's algorithm."""
    found: dict[tuple[Any, ...], dict[str, tuple[Task, float]]] = {}
    for hub in (False, True):
        for task, time, _ in autotvm(data, hub=hub):
            found.setdefault(task.key, {})[task.kind] = (task, time)
    return [both for both in found.values() if {"conv2d", "winograd"} <= set(both)]


# -- the fork's trials ---------------------------------------------------------------------------


def spaces(data: Path, least: int = 20) -> list[Record]:
    """Return the fork's pointwise convolutions with all their trials, slow ones included.

    Of equal choices the fastest counts, because on some days the phone was throttled.
    Choices whose channels are not divided are left out.
    """
    folder = data / "armgpu"
    tasks = {}
    for row in rows_of(folder / "workloads.csv.gz"):
        gpu = FORK_GPUS.get(row["device"], "")
        if row["task"] != "conv2d_no_batching" or not gpu:
            continue
        _, height, width, outputs, inputs, *window, strides, _ = json.loads(row["arguments"])
        if measured := re.match(r"1x1,s1,p0 on (\d+)x(\d+)", row["really_measured"]):
            height, width, window, strides = *map(int, measured.groups()), [1, 1], [1, 1]
        if window == [1, 1] and strides == [1, 1]:
            shape = (inputs, height, width), (outputs, inputs, 1, 1), 1, height, width
            log = f"{row['file']} {row['workload']}"
            network = f"{height}x{width}x{inputs}-{outputs}"
            tasks[row["workload"]] = Task(
                GPUS[gpu], network, log, "conv2d", *shape, Precision(4, 4), is_relay=False
            )
    times: dict[str, dict[tuple[int, ...], float]] = {name: {} for name in tasks}
    for row in rows_of(folder / "trials.csv.gz"):
        if row["workload"] not in tasks or not row["us"]:
            continue
        choice = _fork_choice(row["config"], tasks[row["workload"]])
        if choice is not None:
            known = times[row["workload"]]
            known[choice] = min(float(row["us"]), known.get(choice, float("inf")))
    found = []
    for name, task in tasks.items():
        trials = {
            choice: time
            for choice, time in times[name].items()
            if task.blocks % choice[3] == 0 and task.kernel[1] // 4 % choice[6] == 0
        }
        if len(trials) < least:
            continue
        choices = np.array(list(trials), float)
        _, tile_h, tile_w, _, group_h, group_w, _ = choices.T
        guarded = (tile_h > 1) & (task.height % (tile_h * group_h) > 0)
        guarded |= (tile_w > 1) & (task.width % (tile_w * group_w) > 0)
        divided = task.height % (tile_h * group_h) == 0
        divided &= task.width % (tile_w * group_w) == 0
        found.append(Record(task, choices, np.array(list(trials.values())), guarded, divided))
    return found


def fork_bests(data: Path) -> list[Record]:
    """Return the fork's best trials of whole networks."""
    found = []
    for row in rows_of(data / "armgpu" / "best.csv"):
        choice = _fork_choice(row["config"])
        if row["task"] == "winograd_2" or choice is None:
            continue
        _, height, width, outputs, inputs, *window, strides, padding = json.loads(row["arguments"])
        is_depthwise = row["task"] == "conv2d_depthwise"
        tops = padding if len(padding) == 4 else [*padding, *padding]
        size = [
            (extent + tops[i] + tops[2 + i] - window[i]) // strides[i] + 1
            for i, extent in enumerate((height, width))
        ]
        task = Task(
            *(GPUS[FORK_GPUS[row["device"]]], _network(row["network"]), f"best {row['device']}"),
            *("depthwise" if is_depthwise else "conv2d", (inputs, height, width)),
            *((outputs, 1 if is_depthwise else inputs, *window), strides[0], *size),
            *(Precision(4, 4), False),
        )
        found.append(Record(task, np.array([choice], float), np.array([float(row["us"])])))
    return found


def _fork_choice(config: str, task: Task | None = None) -> tuple[int, ...] | None:
    """Return the choice of a configuration of the fork; ``None`` if it is of other schedules.

    On Mali a group takes neighbours of the tiles along columns first, then rows, then channels.
    Trials that read the input from a buffer are left out.
    """
    knobs = {name: value for name, _, value in (part.partition("=") for part in config.split(";"))}

    def sizes(name: str) -> list[int]:
        return [int(size) for size in knobs[name].split("x")]

    if "tile_cp" in knobs:
        (group_h, tile_h), (group_w, tile_w) = sizes("tile_hp"), sizes("tile_wp")
        return 1, tile_h, tile_w, int(knobs["tile_cp"]), group_h, group_w, 1
    if "tile_bindthread" in knobs:
        if task is None or knobs["idtype"] == "0":
            return None
        (tile_h,), (tile_w,), items = sizes("tile_oh"), sizes("tile_ow"), sizes("tile_bindthread")
        left = prod(items[2:])
        group_w = min(left, ceil(task.width / tile_w))
        group_h = min(max(1, left // group_w), ceil(task.height / tile_h))
        group_o = max(1, left // (group_w * group_h))
        return 1, tile_h, tile_w, group_o, group_h, group_w, sizes("tile_ic")[0]
    names = ("tile_rc", "tile_f", "tile_y", "tile_x")
    scale = 4
    if "tile_oc" in knobs:
        names, scale = ("tile_ic", "tile_oc", "tile_oh", "tile_ow"), 1
    if not set(names) <= set(knobs) or any(
        knobs[name].count("x") != n for name, n in zip(names, (1, 0, 1, 1), strict=True)
    ):
        return None  # fmt: skip
    (together, lanes), (group_o,) = sizes(names[0]), sizes(names[1])
    (group_h, tile_h), (group_w, tile_w) = sizes(names[2]), sizes(names[3])
    if lanes != 4 or tile_w % scale:
        return None
    return 1, tile_h, tile_w // scale, group_o, group_h, group_w, together
