"""From a compiled network to a library: the last stage of ``--format standalone``."""

from __future__ import annotations

import logging
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ... import _versions
from ...devices.choices import STANDALONE, WINOGRAD
from ...devices.host import Host
from ...errors import TvmflowError, UnsupportedModelError
from ...ir import blocked
from ...ir.results import outputs_of_indices, parse_boxes
from ...ir.rewriter import op_name
from ...ir.signatures import bindings_of
from ...ir.units import bytes_text
from ...module.standalone.format import WrittenWeights, write_weights
from ...module.standalone.link import Functions, link_library
from ...module.standalone.pictures import CPU_PICTURE, make_picture
from ...module.standalone.plan import Boxes, Made, Plan, encode
from ...module.standalone.small_weights import SmallWeight, smaller
from ...module.storage_summary import counts, storage_summary
from ...module.weights import content_digest
from ...runtime.json_types import JsonObject
from ...schedules.winograd import TAPS, matrix_of_weights, transformed_weight
from ...verify.tolerance import table_for
from ..compilation import Compilation
from ..metadata import common_metadata, extensions
from .check import check_plan
from .extract import PlanExtractor
from .self_test import (
    Compiler,
    expected_outputs,
    reference_outputs,
    seeded_inputs,
    values_of,
)
from .shapes import merge_plans

logger = logging.getLogger(__name__)

#: Weights of more than this are streamed to the library; a reference would have them in memory.
REFERENCE_LIMIT_BYTES = 2 << 30


def make_plan(job: Compilation, compiler: Compiler) -> Plan:
    """Return the plan of a network whose kernels are generated, with its self-test."""
    if job.variants:
        return _plan_of_shapes(job, compiler)
    plan = _plan_of_shape(job)
    _add_self_test(job, plan, compiler)
    return plan


def _plan_of_shapes(job: Compilation, compiler: Compiler) -> Plan:
    """Return one plan for all shapes of a compilation."""
    plans = []
    for each in job.variants:
        each.kernels = job.kernels
        plans.append(_plan_of_shape(each))
        _add_self_test(each, plans[-1], compiler)
    merged = merge_plans(plans)
    if any(plan.pictures != plans[0].pictures for plan in plans):
        raise UnsupportedModelError(
            "The inputs that take pictures are textures in some of the shapes, and buffers in "
            "others, where they are larger than an image of the device.",
            remedy="Use `storage=buffer`, or leave out the largest shapes.",
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
                "is open, or use `format=tvm`.",
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


def _add_self_test(job: Compilation, plan: Plan, compiler: Compiler) -> None:
    """Add the network's results for its seeded inputs, if they can be computed."""
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
        references, source = reference_outputs(job, arrays, compiler)
        references |= {
            name: np.full(references[name].shape, np.nan) for name in open_ & references.keys()
        }
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
        # They tell `verify` which tensors to round in the reference.
        **({"halves": job.halves} if job.half else {}),
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


def write_library(job: Compilation, processor: Compilation | None, compiler: Compiler) -> None:
    """Write the library, and its weights to a file of their own if they are large.

    ``processor`` is the compilation of the fallback on processors; see `for_processor`.
    ``compiler`` compiles a reference for the self-test.
    """
    plan = make_plan(job, compiler)
    fallback = None if processor is None else make_plan(processor, compiler)
    with tempfile.TemporaryDirectory(prefix="weights-", dir=job.output.parent) as folder:
        file = Path(folder) / "weights"
        small = _small(plan.weights, job.options.weights)
        arrays, names = _shared(plan, fallback, small)
        small |= _small(
            {n: a for n, a in arrays.items() if n not in plan.weights}, job.options.weights
        )
        # There is a file only where there are weights.
        written = _write_weights(file, arrays, small)
        _make_of_small(plan, {}, small, written)
        if fallback is not None:
            _make_of_small(fallback, names, small, written)
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


def _small(weights: Mapping[str, np.ndarray], kind: str | None) -> dict[str, SmallWeight]:
    """Those weights that can be stored as ``kind``."""
    return {n: found for n, array in weights.items() if (found := smaller(array, kind))}


def _write_weights(
    file: Path, arrays: Mapping[str, np.ndarray], small: Mapping[str, SmallWeight]
) -> WrittenWeights:
    """Write weights, in fewer bits where they are ``small``, with their steps behind them."""
    content: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        content[name] = small[name].stored if name in small else array
        if name in small and (steps := small[name].steps) is not None:
            content[_steps_of(name)] = steps
    return write_weights(file, content)


def _make_of_small(
    plan: Plan, names: Mapping[str, str], small: Mapping[str, SmallWeight], written: WrittenWeights
) -> None:
    """Tell a plan how its weights are made of ``small`` ones; ``names`` are those in the file."""
    for name in plan.weights:
        stored = names.get(name, name)
        if (found := small.get(stored)) is None:
            continue
        # Of equal content, whatever its shape, blocks are the file's.
        known = plan.made.get(name)
        plan.made[name] = Made(
            found.stored, found.stored.shape[-1] if known is None else known.lanes,
            form=found.form, axes=found.axes, steps=written.offsets.get(_steps_of(stored), 0),
        )  # fmt: skip


def _steps_of(name: str) -> str:
    return f"{name}:steps"


def for_processor(job: Compilation) -> Compilation:
    """Return the compilation of the same network for the host's processors."""
    options = replace(
        job.options, target="llvm", device="auto", fallback=None, storage="auto", dtype="fp32",
        accumulate="auto", storage_overrides={}, algorithms={}, knobs={}, journals=(),
        # What an application gives and gets is the same by both; here are no textures.
        keep_layout=dict.fromkeys(job.options.keep_layout, "nchw4c"),
    )  # fmt: skip
    return Compilation(job.source, options, job.output)


def _shared(
    plan: Plan, fallback: Plan | None, small: Mapping[str, SmallWeight]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The weights of both plans, and the names there of the fallback's.

    Those of equal content are there once, and so are those that only have other blocks, or that
    only the fallback has in the form of Winograd's algorithm.  Of those that are ``small`` in the
    file, others are made in other blocks only: what would be transformed is stored by itself.
    """
    arrays = dict(plan.weights)
    if fallback is None:
        return arrays, {}
    stored = {(array.dtype, content_digest(array)): name for name, array in arrays.items()}
    alike, windows = defaultdict(list), defaultdict(list)
    for name, array in arrays.items():
        # Steps belong to a small one's own blocks and lanes.
        for view in [array] if name in small else _views(array):
            alike[_but_blocks(view)].append((name, view))
        if name not in small and array.ndim == 5 and array.shape[2:4] == (TAPS, TAPS):
            windows[array.dtype, array.shape[1]].append(name)
    names = {}
    for name, array in fallback.weights.items():
        # Of another dtype, equal bytes may become others in fewer bits.
        digest = array.dtype, content_digest(array)
        found = stored.get(digest)
        if found is None:
            pairs = ((n, v, view) for view in _views(array) for n, v in alike[_but_blocks(view)])
            same = next(((n, v) for n, v, view in pairs if _same(v, view)), None)
            if same is not None:
                found, fallback.made[name] = same[0], Made(same[1], array.shape[-1])
        if found is None and array.ndim == 4 and (outputs := _TILES.get(array.shape[0])):
            of_windows = windows[array.dtype, array.shape[2]]
            found = next((n for n in of_windows if _is_transform(arrays[n], array, outputs)), None)
            if found is not None:
                matrix = matrix_of_weights(outputs)
                fallback.made[name] = Made(arrays[found], array.shape[-1], matrix)
        if found is None:
            found = stored[digest] = f"cpu:{name}"
            arrays[found] = array
        names[name] = found
    return arrays, names


#: Outputs of a tile of Winograd's algorithm, by the planes of its weights.
_TILES = {(outputs + TAPS - 1) ** 2: outputs for outputs in WINOGRAD.values()}


def _views(array: np.ndarray) -> Iterator[np.ndarray]:
    """A tensor as ``[N', ..., c]``: Winograd's ``[a * a, O', I, c]`` has its planes there, too."""
    yield array
    if array.ndim == 4:
        yield array.reshape(-1, *array.shape[2:])


def _is_transform(windows: np.ndarray, wanted: np.ndarray, outputs: int) -> bool:
    """True if ``wanted[a * a, O', I, c]`` is what Winograd's algorithm has of ``OIHWo``."""
    lanes = wanted.shape[-1]
    plain = np.moveaxis(windows, -1, 1).reshape(-1, *windows.shape[1:-1])
    rows = min(len(plain), wanted.shape[1] * lanes)
    close = partial(np.allclose, rtol=1e-6, atol=1e-7 * np.abs(wanted).max())
    # One row tells most of those apart that are others.
    first = transformed_weight(plain[:1], outputs).reshape(len(wanted), -1)
    if not close(first, wanted[:, 0, :, 0]):
        return False
    made = blocked.winograd_weight(transformed_weight(plain[:rows], outputs), lanes)
    blocks = made.shape[1]
    return close(made, wanted[:, :blocks]) and not (plain[rows:].any() or wanted[:, blocks:].any())


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
