"""Metadata of a standalone library: facts for tools that the plan's sections do not have."""

from __future__ import annotations

from ... import _versions
from ...devices.choices import STANDALONE
from ...devices.host import Host
from ...ir.tensors import TensorInfo
from ...module.standalone.plan import Plan
from ...module.storage_summary import counts, storage_summary
from ...runtime.json_types import JsonObject
from ..compilation import Compilation
from ..metadata import common_metadata


def plan_metadata(job: Compilation, plan: Plan, reference: str) -> JsonObject:
    """Return the metadata of a plan; with several shapes, facts refer to the first one.

    ``reference`` names the program that computed the self-test's results; "" without a self-test.
    """
    first = job.variants[0] if job.variants else job
    inputs, outputs = first.model.inputs, first.model.outputs
    about = {
        "target": first.target.kind,
        "memory": first.memory.report(),
        "placements": [placement.report() for placement in first.placements],
    }
    weights = {tensor.allocation for tensor in plan.weight_tensors.values()}
    metadata = {
        **common_metadata(job),
        "format": STANDALONE,
        "host": Host.parse(job.target.host).triple,
        "tvmflow": _versions.__version__,
        "tvm": _versions.REQUIRED_TVM["apache-tvm"],
        # Left out, so that the same network gives the same library: it is sent to a device once.
        "stage_ms": {},
        "logical_shapes": _logical_shapes((*inputs, *outputs)),
        "open_dims": {info.name: info.open_dims for info in inputs if info.open_dims},
        # `verify` rounds these tensors in the reference.
        **({"halves": first.halves} if job.half else {}),
        "bounded_axes": {
            info.name: info.bounded_axis for info in outputs if info.bounded_axis is not None
        },
        "storage_counts": counts(about),
        "storage_summary": storage_summary(about),
        # Intermediate tensors, inputs and outputs.
        "memory_bytes": sum(a.bytes for i, a in enumerate(plan.allocations) if i not in weights),
    }
    if reference:
        metadata["reference"] = reference
    if job.variants:
        metadata["batch"] = None if job.batch is None else job.batch.report()
        metadata["variants"] = [
            {"logical_shapes": _logical_shapes((*each.model.inputs, *each.model.outputs))}
            for each in job.variants
        ]
    return metadata


def _logical_shapes(infos: tuple[TensorInfo, ...]) -> JsonObject:
    return {info.name: info.logical_shape for info in infos if info.logical_shape is not None}
