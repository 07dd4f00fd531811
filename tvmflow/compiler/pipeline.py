"""`compile`: who runs the stages of `passes`, again where no code can be generated.

Dumps of the program, timings and the progress display are instruments around the stages.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..devices.host import Host
from ..errors import CompileError
from ..module.link import check_linker
from ..module.module import Module
from ..runtime.stage_times import StageTimes
from .compilation import Compilation
from .options import CompileKeywords, CompileOptions, takes_options, with_keywords
from .torch_module import AnyModel, Examples, as_onnx

if TYPE_CHECKING:
    from tvm import IRModule
    from typing_extensions import Unpack

    from .dump import Dump
    from .passes import Stage

logger = logging.getLogger(__name__)

#: Called before each stage with its name, its index and the number of stages.
Progress = Callable[[str, int, int], None]


@takes_options
def compile(
    model: AnyModel,
    example_inputs: Examples | None = None,
    *,
    options: CompileOptions | None = None,
    file_name: str = "module.so",
    dump_ir: str | os.PathLike[str] | None = None,
    dump_ir_filter: str = "",
    work_folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **fields: Unpack[CompileKeywords],
) -> Module:
    """Compile an ONNX model, or a PyTorch module, to a module that can be run here and saved.

    Parameters
    ----------
    model
        Path of an ONNX file, a model in memory, or a ``torch.nn.Module`` (extra ``torch``).
    example_inputs
        For a PyTorch module: the tensors that it is traced with, in order or by the names of the
        parameters of ``forward``, which the inputs keep; all shapes are those of the examples.
    options
        Options of the compilation as one object; those given as keywords replace its fields.
    file_name
        The name that the module's file will have; a standalone library knows its own.
    dump_ir
        Folder that gets the program after each stage and each pass, as text.
    dump_ir_filter
        A regular expression that the names of the passes must contain which are dumped.
    work_folder
        Where the module is written until it is saved, default the system's folder for
        temporary files.  On the file system of the final file, saving is a link.
    progress
        Called before each stage with its name, its index and the number of stages.

    Raises
    ------
    ModelError, TargetError, CompileError
        With one sentence on what is wrong and one on the remedy.
    UnknownOptionError
        If a keyword is no option; it is a `CompileError` and a `TypeError`.

    Examples
    --------
    >>> module = tvmflow.compile("face.onnx", target="opencl", shapes={"image": (1, 1, 64, 64)})
    >>> boxes = module(image=picture)["boxes"]
    >>> module.save("face.so")
    >>> module = tvmflow.compile(torchvision.models.resnet18(), (torch.rand(1, 3, 224, 224),))
    """
    times = StageTimes()
    # What no stage counts for itself: the target, loading the compiler, PyTorch's export.
    with times.stage("prepare"):
        options = with_keywords(options, fields)
        target = options.resolve()
        check_linker(Host.parse(options.host) if options.host else Host.native())
        folder = Path(tempfile.mkdtemp(prefix="tvmflow-", dir=work_folder))
        try:
            dump = None
            if dump_ir is not None:
                from .dump import Dump

                dump = Dump(Path(dump_ir), dump_ir_filter)
            with as_onnx(model, example_inputs) as source:
                job = Compilation(source, options, folder / file_name, target, times=times)
                run_variants(job, progress, dump)
            remove = partial(shutil.rmtree, folder, ignore_errors=True)
            return Module.from_temporary(job.output, remove)
        except BaseException:
            # Ctrl-C included: nothing of an unfinished compilation stays behind.
            shutil.rmtree(folder, ignore_errors=True)
            raise


def run_variants(job: Compilation, progress: Progress | None, dump: Dump | None) -> None:
    """Run all stages; those up to "weights" for each of several shapes, and each body of a loop."""
    from .loops import bodies_of, with_bodies
    from .shapes import FunctionPool, WeightPool, check_results, expand_variants, kept_apart

    job.variants = expand_variants(job)
    is_one = not job.variants
    if is_one:
        run_stages(job, until="import", progress=progress, dump=dump)
        if not job.model.loops:
            run_stages(job, first="simplify", progress=progress, dump=dump)
            return
        job.variants = [replace(job, variants=[], is_part=True)]
    weights, functions, number = WeightPool(), FunctionPool(), 0
    for each in job.variants:
        each.times = job.times
        if not is_one:
            run_stages(each, until="import", progress=progress, dump=dump, suffix=_suffix(number))
            check_results(job.variants[0], each)
        each.bodies = bodies_of(each)
        for part in with_bodies(each):
            run_stages(
                *(part, "simplify", "weights"),
                progress=progress, dump=dump, suffix=_suffix(number),
            )  # fmt: skip
            weights.add(part)
            functions.rename(part)
            if not job.standalone:
                # Constants have become weights, which the shapes share.
                part.model = replace(part.model, mod=part.mod)
            number += 1
    first = job.variants[0]
    job.model, job.target, job.storage_origin = first.model, first.target, first.storage_origin
    job.weights, job.weight_scopes = weights.weights, weights.scopes
    if job.batch is not None:
        job.batch = kept_apart(job, job.batch)
    run_stages(job, first="schedule", progress=progress, dump=dump)


def run_with_bodies(job: Compilation, first: str, until: str) -> list[IRModule]:
    """Run some stages of a compilation, and of the bodies of the loops in its model."""
    from .loops import bodies_of, with_bodies

    programs = [run_stages(job, first, until)]
    bodies = (part for body in bodies_of(job) for part in with_bodies(body))
    return programs + [run_stages(body, "simplify", until) for body in bodies]


def _suffix(number: int) -> str:
    """What tells dumps of a further shape from those of the first."""
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

    Returns the program as it is then.  ``suffix`` is behind the names of what is dumped.  Of
    several shapes, "schedule" and "lower" run for each of them (`.shapes`).

    Where no code can be generated, the schedules are made again: see `generate.next_attempt`.
    """
    from .passes import STAGES
    from .shapes import begin_schedules

    names = [stage.name for stage in STAGES]
    index, end = names.index(first), names.index(until)
    while index <= end:
        stage = STAGES[index]
        if progress is not None:
            progress(stage.name, index, len(STAGES))
        if stage.name == "schedule":
            begin_schedules(job)
        started = time.perf_counter()
        try:
            with job.times.stage(stage.name):
                _run_stage(stage, job, dump, f"{index}_{stage.name}{suffix}")
        except CompileError as error:
            if stage.name != "build":
                raise
            from .generate import next_attempt

            begin_schedules(job, next_attempt(job, error))
            index = names.index("schedule")
            continue
        logger.info("%-9s %8.1f ms", stage.name, (time.perf_counter() - started) * 1e3)
        index += 1
    return job.mod


def _run_stage(stage: Stage, job: Compilation, dump: Dump | None, stem: str) -> None:
    """Run a stage for each shape, or for all at once; write what it makes if that is wanted."""
    from .shapes import merge_lowered, merge_schedules, parts, share_memory

    def run(each: Compilation, name: str) -> None:
        with dump.stage(each, name) if dump is not None else nullcontext():
            stage(each)

    if not job.variants or stage.name not in ("schedule", "lower"):
        run(job, stem)
        return
    if stage.name == "lower" and len(job.variants) > 1 and not job.standalone:
        for each in job.variants:
            each.rooms = None
            stage(each)
        share_memory(job)
    for number, each in enumerate(parts(job)):
        run(each, f"{stem}{_suffix(number)}")
    (merge_schedules if stage.name == "schedule" else merge_lowered)(job)
