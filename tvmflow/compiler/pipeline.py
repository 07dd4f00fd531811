"""`compile`: who runs the stages of `passes`, again where no code can be generated.

Dumps of the program, timings and the progress display are instruments around the stages.
"""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..devices.host import Host
from ..errors import CompileError
from ..module.link import check_linker
from ..module.module import Module
from .compilation import Compilation
from .options import CompileOptions
from .torch_module import AnyModel, Examples, as_onnx

if TYPE_CHECKING:
    from tvm import IRModule

    from .dump import Dump

logger = logging.getLogger(__name__)

#: Called before each stage with its name, its index and the number of stages.
Progress = Callable[[str, int, int], None]


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
    **fields: Any,
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
        How it is compiled; further keywords are fields of `CompileOptions` that are other ones.
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

    Examples
    --------
    >>> module = tvmflow.compile("face.onnx", target="opencl", shapes={"image": (1, 1, 64, 64)})
    >>> boxes = module(image=picture)["boxes"]
    >>> module.save("face.so")
    >>> module = tvmflow.compile(torchvision.models.resnet18(), (torch.rand(1, 3, 224, 224),))
    """
    options = replace(options or CompileOptions(), **fields)
    target = options.resolve()
    check_linker(Host.parse(options.host) if options.host else Host.native())
    folder = Path(tempfile.mkdtemp(prefix="tvmflow-", dir=work_folder))
    try:
        dump = None
        if dump_ir is not None:
            from .dump import Dump

            dump = Dump(Path(dump_ir), dump_ir_filter)
        with as_onnx(model, example_inputs) as source:
            job = Compilation(source, options, folder / file_name, target)
            run_stages(job, progress=progress, dump=dump)
        return Module.from_temporary(job.output, lambda: shutil.rmtree(folder, ignore_errors=True))
    except BaseException:
        # Ctrl-C included: nothing of an unfinished compilation stays behind.
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _with_fields() -> inspect.Signature:
    """The signature of `compile` with the fields of its options, for people and their editors."""
    own = inspect.signature(compile)
    keywords = [
        inspect.Parameter(
            item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=item.type
        )
        for item in fields(CompileOptions)
    ]
    model, examples, *others, _ = own.parameters.values()
    return own.replace(parameters=[model, examples, *keywords, *others])


compile.__signature__ = _with_fields()  # type: ignore[attr-defined]


def run_stages(
    job: Compilation,
    *,
    first: str = "import",
    until: str = "export",
    progress: Progress | None = None,
    dump: Dump | None = None,
) -> IRModule:
    """Run the stages of a compilation from ``first`` to ``until``, both included.

    Returns the program as it is then.

    Where no code can be generated, the schedules are made again: see `generate.next_attempt`.
    """
    from .passes import STAGES

    names = [stage.name for stage in STAGES]
    index, end = names.index(first), names.index(until)
    while index <= end:
        stage = STAGES[index]
        if progress is not None:
            progress(stage.name, index, len(STAGES))
        if stage.name == "schedule":
            job.unscheduled = job.mod
        started = time.perf_counter()
        try:
            with dump.stage(job, f"{index}_{stage.name}") if dump is not None else nullcontext():
                stage(job)
        except CompileError as error:
            if stage.name != "build":
                raise
            from .generate import next_attempt

            job.attempt, job.mod = next_attempt(job, error), job.unscheduled
            index = names.index("schedule")
            continue
        ms = (time.perf_counter() - started) * 1e3
        job.stage_ms[stage.name] = ms
        logger.info("%-9s %8.1f ms", stage.name, ms)
        index += 1
    return job.mod
