"""From a compiled network to a library: the last stage of ``--format standalone``."""

from __future__ import annotations

import logging
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ... import _versions
from ...devices.choices import STANDALONE
from ...devices.host import Host
from ...errors import TvmflowError, UnsupportedModelError
from ...ir.results import outputs_of_indices, parse_boxes
from ...ir.rewriter import op_name
from ...ir.signatures import bindings_of
from ...ir.units import bytes_text
from ...module.standalone.format import WrittenWeights, write_weights
from ...module.standalone.link import Functions, link_library
from ...module.standalone.pictures import CPU_PICTURE, make_picture
from ...module.standalone.plan import Boxes, Made, Plan, encode
from ...module.standalone.small_weights import smaller
from ...module.storage_summary import counts, storage_summary
from ...module.weights import content_digest
from ...runtime.json_types import JsonObject
from ...verify.tolerance import table_for
from ..compilation import Compilation
from ..generate import common_metadata, extensions
from .check import check_plan
from .extract import PlanExtractor
from .self_test import expected_outputs, reference_outputs, seeded_inputs, values_of
from .variants import merge_plans

logger = logging.getLogger(__name__)

#: Weights of more than this are streamed to the library; a reference would have them in memory.
REFERENCE_LIMIT_BYTES = 2 << 30


def make_plan(job: Compilation) -> Plan:
    """The plan of a network whose kernels are generated, with its self-test."""
    if job.variants:
        return _plan_of_shapes(job)
    plan = _plan_of_shape(job)
    _add_self_test(job, plan)
    return plan


def _plan_of_shapes(job: Compilation) -> Plan:
    """One plan for all shapes of a compilation."""
    plans = []
    for each in job.variants:
        each.kernels = job.kernels
        plans.append(_plan_of_shape(each))
        _add_self_test(each, plans[-1])
    merged = merge_plans(plans)
    if any(plan.pictures != plans[0].pictures for plan in plans):
        raise UnsupportedModelError(
            "The inputs that take pictures are textures in some of the shapes, and buffers in "
            "others, where they are larger than an image of the device.",
            remedy="Use --storage buffer, or leave out the largest shapes.",
        )
    merged.pictures, merged.boxes = plans[0].pictures, plans[0].boxes
    merged.extensions = plans[0].extensions if merged.code else extensions(merged.sources.values())
    first = plans[0].metadata
    merged.metadata = {
        **first,
        **common_metadata(job),
        "memory_bytes": _memory_bytes(merged),
        "batch": None if job.batch is None else job.batch.report(),
        "variants": [{"logical_shapes": plan.metadata["logical_shapes"]} for plan in plans],
    }
    return merged


def _plan_of_shape(job: Compilation) -> Plan:
    model = job.model
    for kind, infos in (("input", model.inputs), ("output", model.outputs)):
        empty = next((info for info in infos if not info.elements), None)
        if empty is not None:
            raise UnsupportedModelError(
                f"The {kind} {empty.name!r} has the shape {list(empty.shape)}, without elements, "
                "which standalone libraries have no memory for.",
                remedy=f"Remove the {kind} from the model, set the extent with `shapes` where it "
                "is open, or use --format tvm.",
            )
    extractor = PlanExtractor(job.mod, job.kernels, model.inputs, model.outputs, job.weights)
    plan = extractor.run()
    check_plan(plan)
    _add_pictures(job, plan)
    plan.extensions = extensions(plan.sources.values()) or job.target.needs
    plan.metadata = _metadata(job, plan)
    return plan


def _add_pictures(job: Compilation, plan: Plan) -> None:
    """Add the kernels that put pictures into inputs, and the boxes in pixels of a picture."""
    device = job.target.device
    for number, interface in enumerate(plan.inputs):
        text = job.options.image_inputs.get(interface.info.name)
        if text is None:
            continue
        scope = interface.tensor.scope
        images = job.target.kind == "opencl" and device.image_extent > 0
        picture, sources = make_picture(number, interface.info, scope, text, images=images)
        if plan.code:
            picture = replace(picture, kernel=CPU_PICTURE, image_kernel="")
        else:
            plan.sources |= sources
        plan.pictures.append(picture)
    for number, interface in enumerate(plan.outputs):
        info = interface.info
        boxes = parse_boxes(job.options.results.get(info.name, ""))
        if boxes is None:
            continue
        if info.dtype != "float32" or info.shape[-1:] != (4,) or info.logical_shape:
            raise UnsupportedModelError(
                f"The output {info} cannot be boxes: expected float32 with four numbers along the "
                "last axis.",
                remedy="Leave it out of `results`, and bring the boxes back by the places that "
                "tvmflow_image_place gives.",
            )
        plan.boxes.append(Boxes(number, 0, *boxes))


def _add_self_test(job: Compilation, plan: Plan) -> None:
    """Compute what the network gives for its seeded inputs; a plan can do without."""
    model = job.model
    tests = seeded_inputs(model.inputs)
    try:
        size = sum(weight.nbytes for weight in plan.weights.values())
        if size > REFERENCE_LIMIT_BYTES:
            raise TvmflowError(
                "running the model for its results would take more than its "
                f"{bytes_text(size)} of weights."
            )
        rounding = (op_name(b.value) == "relax.round" for b in bindings_of(model.mod["main"]))
        if job.half and any(rounding):
            raise TvmflowError(
                "with `dtype=fp16` a quantized network rounds some numbers to other steps than "
                "its reference does. Compile it with `dtype=fp32`."
            )
        # In 16 bits the largest may be others than in the reference.
        open_ = outputs_of_indices(job.options.results) if job.half else set()
        bounded = any(info.bounded_axis is not None for info in model.outputs)
        if job.half and (bounded or all(info.name in open_ for info in model.outputs)):
            raise TvmflowError(
                "with `dtype=fp16` a network may select other elements than its reference does. "
                "Compile it with `dtype=fp32`."
            )
        pairs = zip(model.inputs, tests, strict=True)
        arrays = {info.name: values_of(test, info) for info, test in pairs}
        references, source = reference_outputs(job, arrays)
        references |= {name: np.full(references[name].shape, np.nan) for name in open_}
    except TvmflowError as error:
        logger.warning("The library has no self-test: %s", error.message)
        return
    plan.test_inputs = tests
    plan.test_outputs = expected_outputs(model.outputs, references, table_for(plan.metadata))
    plan.metadata["reference"] = source


def _metadata(job: Compilation, plan: Plan) -> JsonObject:
    """Describe the network, besides what the plan's sections say."""
    about = {
        "target": job.target.kind,
        "memory": job.memory.report(),
        "placements": [placement.report() for placement in job.placements],
    }
    infos = *job.model.inputs, *job.model.outputs
    return {
        **common_metadata(job),
        "format": STANDALONE,
        "host": _host(job).triple,
        "tvmflow": _versions.__version__,
        "tvm": _versions.REQUIRED_TVM["apache-tvm"],
        "logical_shapes": {
            info.name: info.logical_shape for info in infos if info.logical_shape is not None
        },
        "open_dims": {info.name: info.open_dims for info in job.model.inputs if info.open_dims},
        "bounded_axes": {
            info.name: info.bounded_axis
            for info in job.model.outputs
            if info.bounded_axis is not None
        },
        "storage_counts": counts(about),
        "storage_summary": storage_summary(about),
        "memory_bytes": _memory_bytes(plan),
    }


def _memory_bytes(plan: Plan) -> int:
    """Bytes besides the weights: of intermediate tensors, inputs and outputs."""
    weights = {tensor.allocation for tensor in plan.weight_tensors.values()}
    return sum(a.bytes for i, a in enumerate(plan.allocations) if i not in weights)


def _host(job: Compilation) -> Host:
    return Host.parse(job.target.host) if job.target.host else Host.native()


def write_library(job: Compilation) -> None:
    """Write the library, and the weights beside it when they are large."""
    plan = make_plan(job)
    fallback = None if job.options.fallback is None else make_plan(_on_cpu(job))
    with tempfile.TemporaryDirectory(prefix="weights-", dir=job.output.parent) as folder:
        file = Path(folder) / "weights"
        arrays, names = _shared(plan, fallback)
        # There is a file only where there are weights.
        written = _write_weights(file, arrays, names, [plan, fallback], job.options.weights)
        content = encode(plan, written)
        kernels = None
        if fallback is not None:
            offsets = {name: written.offsets[stored] for name, stored in names.items()}
            kernels = Functions(encode(fallback, replace(written, offsets=offsets)), fallback)
        elif plan.code:
            content, kernels = b"", Functions(content, plan)
        weights = file if file.exists() else None
        embed = weights is None or weights.stat().st_size <= job.options.embed_limit_bytes
        link_library(content, weights, _host(job), job.output, embed=embed, functions=kernels)


def _write_weights(
    file: Path,
    arrays: dict[str, np.ndarray],
    names: dict[str, str],
    plans: Sequence[Plan | None],
    kind: str | None,
) -> WrittenWeights:
    """Write weights as ``kind`` where they can be, and tell the plans how theirs are made."""
    small = {n: found for n, array in arrays.items() if (found := smaller(array, kind))}
    content: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        content[name] = small[name].stored if name in small else array
        if name in small and (steps := small[name].steps) is not None:
            content[f"{name}:steps"] = steps
    written = write_weights(file, content)
    for plan in filter(None, plans):
        for name, array in plan.weights.items():
            stored = names.get(name, name) if plan is plans[-1] else name
            if stored in small:
                found, at = small[stored], written.offsets.get(f"{stored}:steps", 0)
                plan.made[name] = Made(found.stored, found.form, found.axes, at)
            elif arrays[stored].shape != array.shape:
                plan.made[name] = Made(arrays[stored])
    return written


def _on_cpu(job: Compilation) -> Compilation:
    """The same network for the host's processors, with its code."""
    from ..pipeline import run_stages

    options = replace(
        job.options, target="llvm", device="auto", fallback=None, storage="auto", dtype="fp32",
        accumulate="auto", storage_overrides={}, algorithms={}, knobs={}, journals=(),
    )  # fmt: skip
    other = Compilation(job.source, options, job.output)
    run_stages(other, until="build")
    return other


def _shared(plan: Plan, fallback: Plan | None) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The weights of both plans, and the names there of the fallback's.

    Those of equal content are there once, and so are those that only have other blocks.
    """
    arrays = dict(plan.weights)
    if fallback is None:
        return arrays, {}
    stored = {content_digest(array): name for name, array in arrays.items()}
    alike = defaultdict(list)
    for name, array in arrays.items():
        alike[_but_blocks(array)].append(name)
    names = {}
    for name, array in fallback.weights.items():
        digest = content_digest(array)
        found = stored.get(digest)
        if found is None:
            found = next((n for n in alike[_but_blocks(array)] if _same(arrays[n], array)), None)
        if found is None:
            found = stored[digest] = f"cpu:{name}"
            arrays[found] = array
        names[name] = found
    return arrays, names


def _but_blocks(array: np.ndarray) -> tuple[object, ...]:
    """What two tensors ``[N', ..., c]`` have in common that differ in their blocks only."""
    return array.dtype.str, array.ndim, *array.shape[1:-1]


def _same(source: np.ndarray, wanted: np.ndarray) -> bool:
    """True if two such tensors have the same numbers, and zeros beyond the last."""
    if min(source.ndim, wanted.ndim) < 2:
        return False
    rows = [np.moveaxis(a, -1, 1).reshape(-1, *a.shape[1:-1]) for a in (source, wanted)]
    common = min(map(len, rows))
    return (
        np.array_equal(rows[0][0], rows[1][0])
        and np.array_equal(rows[0][:common], rows[1][:common])
        and not any(each[common:].any() for each in rows)
    )
