"""Conversion of measurements on an Adreno 640 to records for ``tvmflow journal import``.

They are AutoTVM's trials of the schedules of a fork of TVM, whose history holds the logs.  They are
read from tables in ``FOLDER``::

    trials.csv.gz     workload, config, us (empty if the trial failed), error
    workloads.csv.gz  workload, device, task, arguments, file (the log), really_measured
    best.csv          device, network, task, arguments, config, us

    python tuning_logs/armgpu.py FOLDER > adreno640.json

The fastest trial of each convolution becomes a record, unless its schedule differs from ours.  The
schedules split blocks of output channels, rows and columns, and a work-item has one block::

    tile_oc=A (tile_f, tile_cp)   tile_oh=BxT (tile_y, tile_hp)   tile_ow=CxU (tile_wp)

    tile_o = 1   tile_h = T   tile_w = U   group_o = A   group_h = B   group_w = C

In ``tile_x=CxU``, ``U`` counts the lanes of ``U / 4`` columns.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tvmflow.journal.records import Device, Target, Trial
from tvmflow.tuning.autotvm_knobs import BLOCK, meaning_of
from tvmflow.tuning.importers import AUTOTVM, json_of_trial

NOTE = "github.com/TVM-for-armgpu/tvm 4c439230, Apache-2.0"
DEVICE = Device("adreno640", "Adreno 640")
#: Names of the phone in the tables.  In logs of the second one, equal tasks have equal times.
NAMES = ("adreno640", "adreno640?")
#: Tasks, and Relay's tasks with the same meaning.
TASKS = {
    "conv2d_no_batching": "conv2d_nchwc.image2d",
    "conv2d_depthwise": "depthwise_conv2d_nchwc.image2d",
}
#: Names of the splits of channels, rows and columns in each template.
SPLITS = (
    ("tile_oc", "tile_oh", "tile_ow"),
    ("tile_f", "tile_y", "tile_x"),
    ("tile_cp", "tile_hp", "tile_wp"),
)


@dataclass(frozen=True)
class Row:
    """A trial that succeeded."""

    #: The table and the line, and the log or the archive that they are from.
    file: str
    line: int
    log: str
    task: str
    #: Batch, rows, columns, output and input channels, window; strides; padding.
    arguments: tuple
    config: str
    us: float


def write_records(folder: Path, out: TextIO, report: TextIO) -> None:
    """Write a record for each convolution, and a report of the rows left out, with reasons."""
    left: Counter[str] = Counter()
    fastest: dict[tuple, Row] = {}
    for row in rows(folder, left):
        key = row.task, row.arguments
        other = fastest.setdefault(key, row)
        if other is not row:
            left["slower than another row of the same convolution"] += 1
            fastest[key] = min(other, row, key=lambda r: r.us)
    written = 0
    for row in fastest.values():
        try:
            trial = trial_of(row)
        except ValueError as error:
            left[str(error)] += 1
            continue
        out.write(json.dumps(json_of_trial(trial)) + "\n")
        written += 1
    report.write(f"{written} of {written + sum(left.values())} rows are records\n")
    for reason, count in left.most_common():
        report.write(f"{count:6} {reason}\n")


def rows(folder: Path, left: Counter[str]) -> Iterator[Row]:
    """Yield the device's trials that succeeded; count the others in ``left``."""
    with gzip.open(folder / "workloads.csv.gz", "rt") as file:
        workloads = {row["workload"]: row for row in csv.DictReader(file)}
    with gzip.open(folder / "trials.csv.gz", "rt") as file:
        table = csv.DictReader(file)
        for row in table:
            workload = workloads[row["workload"]]
            if workload["device"] in NAMES and not row["us"]:
                left["failed"] += 1
            elif workload["device"] in NAMES:
                source = "trials.csv.gz", table.line_num, workload["file"], workload["task"]
                arguments = arguments_of(workload["arguments"], workload["really_measured"])
                yield Row(*source, arguments, row["config"], float(row["us"]))
    with (folder / "best.csv").open() as file:
        table = csv.DictReader(file)
        for row in table:
            if row["device"] in NAMES:
                source = "best.csv", table.line_num, "gpu_exp_data.tar", row["task"]
                arguments = arguments_of(row["arguments"], "")
                yield Row(*source, arguments, row["config"], float(row["us"]))


def arguments_of(text: str, really_measured: str) -> tuple:
    """Return the arguments of the convolution that was measured.

    Until 2021-03-19 the template ignored the window, strides and padding of its arguments.
    """
    *extents, strides, padding = json.loads(text)
    if really_measured:
        if really_measured != "1x1,s1,p0 on {1}x{2}".format(*extents):
            raise ValueError(f"{text} was measured as {really_measured}")
        extents[5:], strides, padding = [1, 1], [1, 1], [0, 0]
    # Two numbers are the padding of rows and columns, on both sides.
    return *extents, tuple(strides), tuple(padding * 2)[:4]


def trial_of(row: Row) -> Trial:
    """Return the trial of a row; `ValueError` if its schedule differs from ours."""
    if row.task not in TASKS:
        raise ValueError(f"{row.task}: one time for several kernels")
    parts = (part.split("=") for part in row.config.split(";"))
    sizes = {name: [int(size) for size in value.split("x")] for name, value in parts}
    # 1 is an image, which is also what it is without these knobs.
    if not sizes.get("idtype", [1]) == sizes.get("kdtype", [1]) == [1]:
        raise ValueError("the input or the weights are in a buffer")
    batch, height, width, outputs, inputs, *window, strides, padding = row.arguments
    names = next(names for names in SPLITS if names[1] in sizes)
    (group_o,), (group_h, tile_h), (group_w, tile_w) = (sizes[name] for name in names)
    lanes = BLOCK if "tile_x" in sizes else 1
    is_depthwise = row.task == "conv2d_depthwise"
    meaning = meaning_of(
        TASKS[row.task],
        [
            ("TENSOR", [batch, inputs, height, width], "float32"),
            ("TENSOR", [outputs, 1 if is_depthwise else inputs, *window], "float32"),
            *(strides, padding, (1, 1), "float32"),
        ],
        {
            "tile_fc": ("sp", [-1, 1, group_o]),
            "tile_y": ("sp", [-1, tile_h, group_h]),
            "tile_x": ("sp", [-1, tile_w // lanes, group_w]),
        },
    )
    assert meaning is not None
    workload, knobs = meaning
    splits = [
        (-(-outputs // BLOCK), group_o),
        (int(workload.shape["height"]), group_h * tile_h),
        (int(workload.shape["width"]) * lanes, group_w * tile_w),
        (tile_w, lanes),
    ]
    if not is_depthwise:
        (blocks, _) = sizes.get("tile_ic") or sizes["tile_rc"]
        splits.append((-(-inputs // BLOCK), blocks))
    if any(extent % split for extent, split in splits):
        raise ValueError("a split does not divide its axis, which adds tests to the kernel")
    if is_depthwise:
        # The rows of a tile are computed one after the other.
        knobs = {**knobs, "reuse_rows": False}
    return Trial(
        *(workload, Target("opencl", "adreno"), DEVICE, knobs),
        costs=(row.us / 1e6,),
        source=AUTOTVM,
        provenance={"file": row.file, "line": row.line, "log": row.log, "note": NOTE},
    )


if __name__ == "__main__":
    write_records(Path(sys.argv[1]), sys.stdout, sys.stderr)
