"""Checks of a family's functions in networks, against ONNX Runtime and with any of its knobs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime

import tvmflow
from support.first_stages import chosen_schedules
from support.knob_choices import sample_knobs
from tvmflow import Module
from tvmflow.devices.target import PRESETS
from tvmflow.verify.tolerance import NETWORK, STORED_AS_HALF, assert_close

Schedules = Mapping[str, Mapping[str, Any]]


def of_family(family: ModuleType, schedules: Schedules) -> Schedules:
    """Return the schedules of a family's functions, by function."""
    return {name: found for name, found in schedules.items() if found["family"] == family.NAME}


def check_outputs(
    model: onnx.ModelProto, module: Module, feeds: Mapping[str, np.ndarray], dtype: str = "fp32"
) -> None:
    """Compare a module's outputs with ONNX Runtime's."""
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, dict(feeds))
    outputs = module(**feeds)
    for info, reference in zip(module.outputs, expected, strict=True):
        table = STORED_AS_HALF if dtype == "fp16" else NETWORK
        assert_close(outputs[info.name], reference, table, info.name)


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
