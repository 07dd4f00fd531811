"""Driver of the stages: those of `passes`, then the export, with retries if code generation fails.

A standalone library needs further compilations of its model: the same network for the processor,
and a reference for its self-test.  They run here, and the export gets their results.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CompileError
from ..module.artifact import write_artifact
from ..module.functions import pack_functions
from ..module.load import load
from ..module.module import Module
from ..runtime.stage_times import StageTimes
from ..schedules import fallback
from . import shapes
from .compilation import Attempt, Compilation
from .generate import without_code
from .loops import bodies_of, with_bodies
from .metadata import module_metadata
from .options import CompileOptions
from .passes import CODE_STAGES, Stage
from .scheduling import described
from .standalone.export import write_library

if TYPE_CHECKING:
    import os

    import onnx
    from tvm import IRModule

    from ..devices.target import TargetSpec
    from .dump import Dump

logger = logging.getLogger(__name__)

#: Callback before each stage, with its name, its index and the number of stages.
Progress = Callable[[str, int, int], None]


def compile_model(
    source: str | os.PathLike[str] | onnx.ModelProto,
    options: CompileOptions,
    *,
    target: TargetSpec | None = None,
    file_name: str = "module.so",
    work_folder: str | os.PathLike[str] | None = None,
    times: StageTimes | None = None,
    progress: Progress | None = None,
    dump: Dump | None = None,
) -> Module:
    """Compile an ONNX model to a module in a temporary folder, which is removed with the module."""
    folder = Path(tempfile.mkdtemp(prefix="tvmflow-", dir=work_folder))
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    try:
        job = Compilation(
            source,
            options,
            folder / file_name,
            target or options.resolve(),
            times=times or StageTimes(),
        )
        _run_variants(job, progress, dump)
        module = load(job.output)
        if job.standalone:
            module.metadata["stage_ms"] = job.times.milliseconds()
        module.call_at_end(remove)
        return module
    except BaseException:
        # Also after Ctrl-C, nothing of an unfinished compilation may be left.
        remove()
        raise


def export(job: Compilation) -> None:
    """Write the module file, and a sidecar for its weights if they are large."""
    if not job.standalone:
        write_artifact(
            job.executable,
            job.output,
            metadata=module_metadata(job),
            weights=job.weights,
            functions=pack_functions(job.scheduled),
            host=job.target.host,
            embed_limit_bytes=job.options.embed_limit_bytes,
            times=job.times,
        )
        return
    processor = None
    if job.options.fallback is not None:
        processor = for_processor(job)
        _run_variants(processor, until="build")
    write_library(job, processor, compile_model, partial(build_again, job))


def build_again(job: Compilation, options: CompileOptions) -> Compilation:
    """Compile the same network with other options, up to its kernels."""
    other = Compilation(job.source, options, job.output)
    _run_variants(other, until="build")
    return other


def for_processor(job: Compilation) -> Compilation:
    """Return the compilation of the same network for the host's processors."""
    options = replace(
        job.options, target="llvm", device="auto", fallback=None, alternatives="none", choices=0,
        storage="auto", dtype="fp32", accumulate="auto", storage_overrides={}, algorithms={},
        knobs={}, journals=(),
        # Applications pass and get the same data with both, but there are no textures here.
        keep_layout=dict.fromkeys(job.options.keep_layout, "nchw4c"),
    )  # fmt: skip
    return Compilation(job.source, options, job.output)


#: All stages.  Those starting at "schedule" run again if code generation fails: see
#: `next_attempt`.
STAGES = (*CODE_STAGES, Stage("export", other=export))


def _run_variants(
    job: Compilation,
    progress: Progress | None = None,
    dump: Dump | None = None,
    *,
    until: str = "export",
) -> None:
    """Run the stages up to ``until``; up to "weights" separately for each shape and loop's body."""
    job.variants = shapes.expand_variants(job)
    is_one = not job.variants
    if is_one:
        run_stages(job, until="import", progress=progress, dump=dump)
        if not job.model.loops:
            run_stages(job, "simplify", until, progress=progress, dump=dump)
            return
        job.variants = [replace(job, variants=[], is_part=True)]
    weights, functions, number = shapes.WeightPool(), shapes.FunctionPool(), 0
    for each in job.variants:
        each.times = job.times
        if not is_one:
            run_stages(each, until="import", progress=progress, dump=dump, suffix=_suffix(number))
            shapes.check_results(job.variants[0], each)
        each.bodies = bodies_of(each)
        for part in with_bodies(each):
            run_stages(
                *(part, "simplify", "weights"),
                progress=progress, dump=dump, suffix=_suffix(number),
            )  # fmt: skip
            weights.add(part)
            functions.rename(part)
            if not job.standalone:
                # The constants have become weights, which the shapes share: do not keep both.
                part.model = replace(part.model, mod=part.mod)
            number += 1
    first = job.variants[0]
    job.model, job.target, job.storage_origin = first.model, first.target, first.storage_origin
    job.weights, job.weight_scopes = weights.weights, weights.scopes
    if job.batch is not None:
        job.batch = shapes.check_batch_outermost(job, job.batch)
    run_stages(job, "schedule", until, progress=progress, dump=dump)


def run_with_bodies(job: Compilation, first: str) -> list[IRModule]:
    """Run a compilation, and the bodies of its loops, up to "weights"; return their programs."""
    programs = [run_stages(job, first, "weights")]
    bodies = (part for body in bodies_of(job) for part in with_bodies(body))
    return programs + [run_stages(body, "simplify", "weights") for body in bodies]


def _suffix(number: int) -> str:
    """Return the suffix of a shape in the names of dumps."""
    return f"_{number}" if number else ""


def run_stages(
    job: Compilation,
    first: str = "import",
    until: str = "export",
    *,
    progress: Progress | None = None,
    dump: Dump | None = None,
    suffix: str = "",
) -> IRModule:
    """Run the stages of a compilation from ``first`` to ``until``, both included.

    Returns the resulting program.  ``suffix`` is appended to the names of dumps.  If there are
    several shapes, "schedule" and "lower" run for each of them (`.shapes`).

    If code generation fails, the functions are scheduled again: see `next_attempt`.
    """
    names = [stage.name for stage in STAGES]
    index, end = names.index(first), names.index(until)
    while index <= end:
        stage = STAGES[index]
        if progress is not None:
            progress(stage.name, index, len(STAGES))
        if stage.name == "schedule":
            shapes.begin_schedules(job)
        started = time.perf_counter()
        try:
            with job.times.stage(stage.name):
                _run_stage(stage, job, dump, f"{index}_{stage.name}{suffix}")
        except CompileError as error:
            if stage.name != "build":
                raise
            shapes.begin_schedules(job, next_attempt(job, error))
            index = names.index("schedule")
            continue
        logger.info("%-9s %8.1f ms", stage.name, (time.perf_counter() - started) * 1e3)
        index += 1
    return job.mod


def _run_stage(stage: Stage, job: Compilation, dump: Dump | None, stem: str) -> None:
    """Run a stage for each shape or for all at once, and dump its result if that is wanted."""

    def run(each: Compilation, name: str) -> None:
        with dump.stage(each, name) if dump is not None else nullcontext():
            stage(each)

    if not job.variants or stage.name not in ("schedule", "lower"):
        run(job, stem)
        return
    if stage.name == "lower" and len(job.variants) > 1 and not job.standalone:
        for each in job.variants:
            each.allocation_sizes = None
            stage(each)
        shapes.share_memory(job)
    for number, each in enumerate(shapes.parts(job)):
        run(each, f"{stem}{_suffix(number)}")
    (shapes.merge_schedules if stage.name == "schedule" else shapes.merge_lowered)(job)


def next_attempt(job: Compilation, error: CompileError) -> Attempt:
    """Return the next attempt to schedule functions after code generation has failed.

    Knobs may meet all constraints and still lead to code that TVM cannot generate: the first retry
    uses the heuristics.  The second uses the fallback family for the functions that have no code.

    Raises `CompileError`, with the primary function and its nodes, if there is nothing left to try.
    """
    if job.attempt.knobs or job.attempt.journals:
        logger.warning(
            "No code could be generated with the knobs given or looked up. The heuristics are "
            "used for all functions. (%s)",
            error.message,
        )
        return Attempt()
    nodes = shapes.nodes_by_function(job)
    failed = without_code(job.scheduled, job.target)
    if not failed:
        raise error
    families = {name: job.schedules[name].family for name in failed if name in job.schedules}
    others = any(family != fallback.NAME for family in families.values())
    if others and not job.attempt.last_resort:
        for name, reason in failed.items():
            logger.warning(
                "%s has no code by its schedule family %s: the fallback is used. (%s)",
                described(name, nodes),
                families.get(name, "(none)"),
                reason,
            )
        return Attempt(last_resort=sorted(failed))
    name, reason = next(iter(failed.items()))
    raise CompileError(
        f"{described(name, nodes)} could not be compiled for {job.target.kind}: {reason}",
        remedy=error.remedy
        or "Compile with `storage=buffer` or `target=llvm`, and report the model.",
        details=error.details,
    ) from error
