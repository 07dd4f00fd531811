"""Checks of a family's functions in networks, against ONNX Runtime and with any of its knobs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx

import tvmflow
from support.first_stages import chosen_schedules
from support.knob_choices import sample_knobs
from support.operators import references
from tvmflow import Module
from tvmflow.devices.target import PRESETS
from tvmflow.verify.tolerance import NETWORK, STORED_AS_HALF, assert_close

Schedules = Mapping[str, Mapping[str, Any]]


def of_family(family: ModuleType, schedules: Schedules) -> Schedules:
    """Return the schedules of a family's functions, by function."""
    return {name: found for name, found in schedules.items() if found["family"] == family.NAME}


def options_of(mode: Sequence[str]) -> dict[str, str]:
    """Return the options of a mode (:data:`row_reductions.MODES`), with sums in fp32."""
    names = ("target", "device", "storage", "dtype")
    return {**dict(zip(names, mode, strict=True)), "accumulate": "fp32"}


def dumped_source(folder: Path, kernel: str | None = None) -> str:
    """Return the OpenCL C that ``dump_ir`` wrote, or one kernel whose name matches a pattern."""
    (path,) = folder.glob("*export.0.opencl")
    text = path.read_text()
    if kernel is None:
        return text
    text = text[re.search(rf"__kernel void {kernel}\([^)]*\) {{", text).start() :]
    return text[: text.index("\n}")]


def check_outputs(
    model: onnx.ModelProto,
    module: Module,
    feeds: Mapping[str, np.ndarray],
    dtype: str = "fp32",
    *,
    run: Callable[[Module, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]] | None = None,
    table: Any = NETWORK,
) -> None:
    """Compare a module's outputs with ONNX Runtime's; ``run`` runs the module elsewhere."""
    outputs = run(module, feeds) if run else module(**feeds)
    for info, reference in zip(module.outputs, references(model, feeds), strict=True):
        limits = STORED_AS_HALF if dtype == "fp16" else table
        assert_close(outputs[info.name], reference, limits, info.name)


def check_any_knobs(
    model: onnx.ModelProto,
    family: ModuleType,
    device: str,
    steps: Sequence[int],
    feeds: Mapping[str, np.ndarray],
) -> None:
    """Check outputs with random knobs for each function, once for each seed in ``steps``."""
    found = of_family(family, chosen_schedules(model, device=device))
    for step in steps:
        rng, preset = random.Random(step), PRESETS[device]
        knobs = {
            name: vars(next(sample_knobs(family, family.Shape(**choice["shape"]), preset, rng)))
            for name, choice in found.items()
        }
        with tvmflow.compile(model, device=device, knobs=knobs) as module:
            taken = of_family(family, module.metadata["schedules"])
            assert {choice["source"] for choice in taken.values()} == {"given"}
            check_outputs(model, module, feeds)
