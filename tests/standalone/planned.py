"""Plans of networks, as the export stage makes them, without a library around."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.compilation import STANDALONE, Compilation
from tvmflow.deploy.artifact import EMBED_LIMIT_BYTES
from tvmflow.stages import STAGES
from tvmflow.standalone.export import make_plan
from tvmflow.standalone.plan import Plan
from tvmflow.standalone.self_test import values_of
from tvmflow.target import resolve, with_dtype, with_storage
from tvmflow.tensors import TensorInfo


def plan_of(
    model: Any,
    device: str = "cpu",
    storage: str = "auto",
    dtype: str = "fp32",
    keep_layout: dict[str, str] | None = None,
) -> Plan:
    """The plan of a network."""
    kept = keep_layout or {}
    job = Compilation(
        source=model,
        shapes=None,
        target=with_dtype(with_storage(resolve("opencl", device), storage, {}, kept), dtype),
        output=Path("unused.so"),
        embed_limit_bytes=EMBED_LIMIT_BYTES,
        options={"storage": storage, "dtype": dtype},
        storage=storage,
        dtype=dtype,
        keep_layout=kept,
        format=STANDALONE,
    )
    for name, stage in STAGES:
        if name != "export":
            stage(job)
    return make_plan(job)


def seeded_arrays(plan: Plan) -> dict[str, np.ndarray]:
    """The inputs of a plan's self-test."""
    pairs = zip(plan.inputs, plan.test_inputs, strict=True)
    return {i.info.name: values_of(test, i.info) for i, test in pairs}


def infos(plan: Plan) -> tuple[list[TensorInfo], list[TensorInfo]]:
    """Inputs and outputs of a plan."""
    return [i.info for i in plan.inputs], [o.info for o in plan.outputs]
