"""The stages of the pipeline: each one takes a step with the model in a `Compilation`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .compilation import STANDALONE, Compilation
from .deploy.artifact import write_artifact
from .errors import CompileError
from .units import counted

if TYPE_CHECKING:
    from .tuning.journal import Journal

logger = logging.getLogger(__name__)


def import_model(job: Compilation) -> None:
    """ONNX to Relax, with static shapes and constant weights."""
    from .frontend import load_model

    job.model = load_model(job.source, dict(job.shapes) if job.shapes else None)
    job.mod = job.model.mod


def simplify(job: Compilation) -> None:
    """Fold constants and drop what nobody reads."""
    from .graph.simplify import simplify as run

    job.mod = run(job.mod)


def layout(job: Compilation) -> None:
    """Convolutions and what stands between them to ``NCHW{c}c``."""
    from .graph.rewriter import identifier
    from .texture.keep import keep_layouts
    from .texture.layout import apply_layouts
    from .tuning.settled import measured_algorithms, settle_storage

    assert job.model is not None
    model, half = job.model, job.dtype == "fp16"
    job.kept, inputs, outputs = keep_layouts(
        job.keep_layout, model.inputs, model.outputs, job.target.device, half
    )
    job.model = replace(model, inputs=inputs, outputs=outputs)
    with _journals(job) as journals:
        settle_storage(job, journals)
        job.mod, job.choices = apply_layouts(
            job.mod,
            job.target.device,
            job.accumulate,
            job.kept,
            algorithms=job.algorithms,
            aliases={name: identifier(b) for name, b in model.bindings.items()},
            half=half,
            measured=measured_algorithms(journals, job),
        )
    for choice in job.choices:
        logger.info("algorithm %s", choice)


@contextmanager
def _journals(job: Compilation) -> Iterator[list[Journal]]:
    """The journals in which a stage looks something up, open."""
    from .tuning.journal import Journal

    with ExitStack() as stack:
        yield [stack.enter_context(Journal.open(path)) for path in job.journals]


def fuse(job: Compilation) -> None:
    """Operators to primary functions."""
    from .graph.fuse import legalize_and_fuse
    from .graph.names import nodes_of
    from .graph.rewriter import identifier

    assert job.model is not None
    names = job.model.bindings.values()
    members: dict[str, list[str]] = {}
    job.mod = legalize_and_fuse(job.mod, job.target, set(map(identifier, names)), members)
    job.nodes = nodes_of(members, names)


def storage(job: Compilation) -> None:
    """Texture or buffer for each tensor between primary functions."""
    from .graph.names import inner_names
    from .graph.rewriter import identifier
    from .texture.placement import table
    from .texture.storage import place_tensors

    assert job.model is not None
    job.mod, job.placements = place_tensors(
        job.mod,
        job.target.device,
        job.storage,
        job.overrides,
        aliases={name: identifier(b) for name, b in job.model.bindings.items()},
        half=job.dtype == "fp16",
        half_weights=job.target.kind == "opencl" and job.model.half,
        inputs=[info.name for info in job.model.inputs],
        textures=job.kept.textures if job.kept is not None else ((), ()),
        inner=inner_names(job.model.mod),
    )
    for line in table(job.placements):
        logger.info("storage   %s", line)
    if job.target.kind == "cuda":
        from .texture.typed_half import type_halves

        job.mod = type_halves(job.mod)


def weights(job: Compilation) -> None:
    """Constants to parameters, behind the model's large weights."""
    from .graph.weights import lift_weights
    from .texture.scope import is_half
    from .texture.signatures import parameter_scopes

    assert job.model is not None
    job.mod, lifted = lift_weights(job.mod)
    job.weights = {**job.model.weights, **lifted}
    scopes = parameter_scopes(job.mod)
    job.weight_scopes = {name: scope for name, scope in scopes.items() if name in job.weights}
    for name, scope in job.weight_scopes.items():
        if is_half(scope):
            job.weights[name] = job.weights[name].astype("float16")


def schedule(job: Compilation) -> None:
    """A schedule for each primary function."""
    from .build import schedule_module
    from .graph.names import nodes_of_functions
    from .texture.narrow import half_sums

    if job.accumulate == "fp16":
        job.half_sums = half_sums(job.mod)
    job.unscheduled = job.mod
    nodes = nodes_of_functions(job.mod, job.nodes)
    with _journals(job) as journals:
        scheduled = schedule_module(
            job.mod, job.target, job.knobs, journals, nodes, job.last_resort
        )
    job.mod, job.schedules = scheduled.mod, scheduled.choices
    job.scheduled = scheduled.mod
    for name in [name for name in job.knobs if name not in job.schedules]:
        logger.warning("Knobs were given for %s, which is no primary function here.", name)
    if job.journals:
        _tell_matches(job)


def _tell_matches(job: Compilation) -> None:
    """Say how many functions have their knobs from journals; none is hardly what was meant."""
    matched = sum(choice.source == "journal" for choice in job.schedules.values())
    functions = counted(len(job.schedules), "function")
    names = ", ".join(path.name for path in job.journals)
    if matched:
        logger.info("%s had knobs for %d of %s.", names, matched, functions)
    else:
        logger.warning(
            "%s had knobs for 0 of %s: what was tuned has other shapes, options or another kind "
            "of device.",
            names,
            functions,
        )


def lower(job: Compilation) -> None:
    """The memory plan, and calls of the virtual machine where there is one."""
    from .build import lower_graph, plan_calls
    from .graph.workspaces import hoist_workspaces

    if job.format == STANDALONE:
        job.mod, job.memory = plan_calls(job.mod, hoist_workspaces)
    else:
        job.mod, job.memory = lower_graph(job.mod, cuda_graph=job.cuda_graph)


def build(job: Compilation) -> None:
    """Machine code and kernel source."""
    try:
        _generate(job)
    except CompileError as error:
        if job.knobs or job.journals:
            # Knobs may meet all constraints and still lead to code that TVM cannot generate.
            logger.warning(
                "No code could be generated with the knobs given or looked up. The heuristics are "
                "used for all functions. (%s)",
                error.message,
            )
            job.knobs, job.journals = {}, ()
            try:
                _schedule_again(job)
                return
            except CompileError as again:
                error = again
        _build_by_fallback(job, error)


def _schedule_again(job: Compilation) -> None:
    job.mod = job.unscheduled
    schedule(job)
    lower(job)
    _generate(job)


def _build_by_fallback(job: Compilation, error: CompileError) -> None:
    """Have the fallback schedule the functions without code; name them where that fails, too."""
    from .build import described, without_code
    from .graph.names import nodes_of_functions
    from .schedules import fallback

    assert job.unscheduled is not None
    nodes = nodes_of_functions(job.unscheduled, job.nodes)
    failed = without_code(job.scheduled, job.target)
    if not failed:
        raise error
    families = {name: job.schedules[name].family for name in failed if name in job.schedules}
    if any(family != fallback.NAME for family in families.values()):
        for name, reason in failed.items():
            logger.warning(
                "%s has no code by its schedule family %s: the fallback is used. (%s)",
                described(name, nodes),
                families.get(name, "(none)"),
                reason,
            )
        job.last_resort = sorted(failed)
        try:
            _schedule_again(job)
            return
        except CompileError:
            failed = without_code(job.scheduled, job.target) or failed
    name, reason = next(iter(failed.items()))
    raise CompileError(
        f"{described(name, nodes)} could not be compiled for {job.target.kind}: {reason}",
        remedy=error.remedy
        or "Compile with --storage buffer or --target llvm, and report the model.",
        details=error.details,
    ) from error


def _generate(job: Compilation) -> None:
    from .build import build_executable, build_kernels

    if job.format == STANDALONE:
        job.kernels = build_kernels(job.mod, job.target)
    else:
        job.executable = build_executable(job.mod, job.target)


def export(job: Compilation) -> None:
    """The module file, and the weights beside it when they are large."""
    if job.format == STANDALONE:
        from .standalone.export import write_library

        write_library(job)
        return
    from .profiling.stored import pack_functions

    write_artifact(
        job.executable,
        job.output,
        metadata=_metadata(job),
        weights=job.weights,
        functions=pack_functions(job.scheduled),
        host=job.target.host,
        embed_limit_bytes=job.embed_limit_bytes,
    )


def _metadata(job: Compilation) -> dict[str, Any]:
    """What a module for TVM's runtime says of itself."""
    from .build import device_sources, extensions, kernel_names
    from .profiling.stored import fusion_left

    assert job.model is not None
    assert job.memory is not None
    assert job.unscheduled is not None
    sources = device_sources(job.executable)
    return {
        "name": job.model.name,
        "target": job.target.kind,
        "device": job.target.device.name,
        "inputs": job.model.inputs,
        "outputs": job.model.outputs,
        "call_checks": [check.report() for check in job.model.call_checks],
        "kernels": kernel_names(sources, job.schedules),
        "schedules": {name: choice.report() for name, choice in job.schedules.items()},
        "nodes": job.nodes,
        "fusion_left": fusion_left(job.unscheduled),
        "extensions": extensions(sources),
        "half_sums": job.half_sums,
        "algorithms": [choice.report() for choice in job.choices],
        "settled_storage": job.settled_storage,
        "weight_scopes": job.weight_scopes,
        "placements": [placement.report() for placement in job.placements],
        "memory": job.memory.report(),
        "cpu": job.target.cpu,
        "options": job.options,
        "stage_ms": {name: round(ms, 1) for name, ms in job.stage_ms.items()},
    }


Stage = Callable[[Compilation], None]

#: The pipeline.  What each stage does is in its docstring.
STAGES: tuple[tuple[str, Stage], ...] = (
    ("import", import_model),
    ("simplify", simplify),
    ("layout", layout),
    ("fuse", fuse),
    ("storage", storage),
    ("weights", weights),
    ("schedule", schedule),
    ("lower", lower),
    ("build", build),
    ("export", export),
)
