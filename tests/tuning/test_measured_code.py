"""Kernels that are generated from measured records have the tiles and groups that were measured."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support.journals import write
from support.onnx_models import model_of

import tvmflow
from tvmflow.devices.gpus import find_gpu
from tvmflow.explain.isa.kernels import kernels_in
from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Trial
from tvmflow.tuning_logs import find_journal, shipped


def logs() -> dict[tuple[str, str], list[Trial]]:
    """Return the trials of phones in the shipped journals, by journal and log."""
    found = defaultdict(list)
    for name in shipped():
        with Journal.open(find_journal(Path(name))) as journal:
            for trial in journal.trials():
                if trial.source == "autotvm":
                    log = str(trial.provenance["file"]).removesuffix(".autotvm.log")
                    found[name, log].append(trial)
    return found


LOGS = logs()
#: The one that `make test` compiles.
QUICK = ("adreno740", "mace_mobilenetv1_nchw.texture.float16_acc32")


def repeats_tasks(journal: str, log: str) -> bool:
    """Return whether a log in half precision has a twin in fp32, with the same tasks."""
    twin = re.sub("float16.*", "float32", log)
    return twin != log and (journal, twin) in LOGS


_HEAD = re.compile(
    r"reqd_work_group_size\((\d+), (\d+), (\d+)\)\)\)\s*__kernel void (\w+)\([^;{]*\{"
)


#: Stores of a vector; the compiler puts small results in buffers.
_STORE = re.compile(r"\b(?:write_image[fh]|tvmflow_put_\w+)\(")


def network_of(trials: list[Trial]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a network of a log's convolutions in parallel, and the algorithm of each."""
    nodes, inputs, weights, algorithms = [], {}, {}, {}
    rng = np.random.default_rng(0)
    for number, trial in enumerate(trials):
        data, kernel, strides, padding, dilation = (
            [int(extent) for extent in part.split("x")]
            for part in re.split(" [*] | [a-z]+ ", trial.workload.signature)
        )
        depthwise = trial.workload.family == "depthwise"
        is_winograd = "points" in trial.workload.shape
        x, w, y = f"x{number}", f"w{number}", f"y{number}"
        scale = 1 / np.sqrt(np.prod(kernel[1:]))
        weights[w] = (rng.standard_normal(kernel) * scale).astype(np.float32)
        inputs[x] = data
        attributes = {"strides": strides, "pads": padding, "dilations": dilation}
        attributes["group"] = data[1] if depthwise else 1
        nodes += [
            helper.make_node("Relu", [x], [f"r{number}"]),
            helper.make_node("Conv", [f"r{number}", w], [f"c{number}"], **attributes),
            helper.make_node("Relu", [f"c{number}"], [y]),
        ]
        if kernel[2] > 1 and not depthwise:
            side = round(trial.workload.shape.get("points", 16) ** 0.5) - 2
            algorithms[f"c{number}"] = f"winograd{side}" if is_winograd else "direct"
    outputs = [f"y{number}" for number in range(len(trials))]
    return model_of(nodes, inputs, outputs, weights, opset=18), algorithms


def measured(trial: Trial) -> tuple[int, tuple[int, ...]]:
    """Return the vectors of the register tile and the local size that a trial ran with."""
    shape, knobs = trial.workload.shape, trial.knobs
    # Without `reuse_rows`, the rows of a depthwise tile are computed one after the other.
    rows = shape.get("height", 1) if knobs.get("reuse_rows", True) else 1
    if trial.original is None:
        tile = knobs["tile_o"] * min(rows, knobs["tile_h"]) * knobs["tile_w"]
        return tile, (knobs["group_w"], knobs["group_h"], knobs["group_o"])
    entity = {name: value for name, _, value in trial.original.document["config"]["entity"]}
    if "points" in shape:
        (_, blocks, group_o), (_, tile, along) = entity["tile_y"], entity["tile_x"]
        # Tiles of the picture stand in rows here: what passes the end of one is the next one's.
        columns = min(along, -(-shape["columns"] // tile))
        return blocks * tile, (columns, round(along / columns), group_o)
    (_, a, group_o), (_, b, group_h), (_, c, group_w) = (
        entity[name] for name in ("tile_fc", "tile_y", "tile_x")
    )
    # No more rows or columns than the map has.
    tile = a * min(b, rows) * min(c, shape["width"])
    return tile, (group_w, group_h, group_o)


def generated(source: str) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return vectors and local size of each kernel in a source: one store for each vector."""
    found = {}
    for head in _HEAD.finditer(source):
        body = source[head.end() : source.index("\n}", head.end())]
        *size, name = head.groups()
        found[name] = len(re.findall(_STORE, body)), tuple(map(int, size))
    return found


@pytest.mark.parametrize(
    ("journal", "log"),
    [
        pytest.param(*log, marks=[pytest.mark.slow] * (log != QUICK))
        for log in LOGS
        if log == QUICK or not repeats_tasks(*log)
    ],
)
def test_code_has_the_tiles_and_groups_that_were_measured(tmp_path: Path, journal: str, log: str):
    # Workloads that differ in strides only have the same shape: the fastest trial counts for all.
    fastest: dict[bytes, Trial] = {}
    for trial in sorted(LOGS[journal, log], key=lambda trial: trial.cost):
        fastest.setdefault(trial.workload.compatibility_key, trial)
    trials = list(fastest.values())
    model, algorithms = network_of(trials)
    wanted: dict[str, set[object]] = defaultdict(set)
    for trial in trials:
        wanted[trial.workload.family].add(measured(trial))
    first = trials[0].workload
    # The compiler may refuse Winograd's convolution in 16 bits as too coarse.
    precise = any("winograd" in algorithm for algorithm in algorithms.values())
    # No device has to be there: what is generated is not run.
    module = tvmflow.compile(
        model,
        target="opencl",
        device="adreno",
        storage="texture",
        dtype="fp32" if precise else first.dtype,
        accumulate="fp32" if precise else first.accumulate,
        algorithms=algorithms,
        journals=[write(tmp_path / "log.journal", trials)],
    )
    module.save(tmp_path / "log.so")
    _, sources = kernels_in(tmp_path / "log.so", find_gpu("adreno-660"))
    kernels = dict(pair for kernel in sources for pair in generated(kernel.text).items())
    found: dict[str, set[object]] = defaultdict(set)
    for name, choice in module.metadata["schedules"].items():
        if choice["family"] in wanted:
            assert choice["source"] == "journal", (name, choice)
            found[choice["family"]].add(kernels[f"{name}_kernel"])
    assert found == wanted
