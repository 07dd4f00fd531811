"""The way of a model, from an ONNX file to a module file: `compile`, and who runs the stages.

Dumps of the IR, timings and the progress display are instruments around the
list, not entries in it.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compilation import TVM, Compilation, check_format
from .deploy.artifact import EMBED_LIMIT_BYTES
from .deploy.link import Host, check_linker
from .deploy.module import Module
from .dump import dump, dumping
from .precision import check_accumulate, check_dtype
from .stages import STAGES
from .target import check_cuda_graph, resolve, with_dtype, with_storage
from .texture.overrides import check_keep_layout, check_overrides
from .tuning_logs import find_journal

if TYPE_CHECKING:
    import onnx

logger = logging.getLogger(__name__)

#: Called before each stage with its name, its index and the number of stages.
Progress = Callable[[str, int, int], None]


def compile(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    target: str = "opencl",
    device: str = "auto",
    host: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    storage: str = "auto",
    storage_overrides: Mapping[str, str] | None = None,
    dtype: str = "fp32",
    accumulate: str = "fp32",
    algorithms: Mapping[str, str] | None = None,
    knobs: Mapping[str, Mapping[str, Any]] | None = None,
    journals: Sequence[str | os.PathLike[str]] = (),
    keep_layout: Mapping[str, str] | None = None,
    cuda_graph: bool = False,
    format: str = TVM,
    file_name: str = "module.so",
    dump_ir: str | os.PathLike[str] | None = None,
    embed_limit_bytes: int = EMBED_LIMIT_BYTES,
    work_folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Module:
    """Compile an ONNX model to a module that can be run here and saved.

    Parameters
    ----------
    model
        Path of an ONNX file, or a model in memory.
    target
        ``opencl``, ``cuda`` or ``llvm``.
    device
        Preset of the device that the kernels are for: ``auto`` (the one of this
        machine), ``cpu``, ``adreno``, ``mali`` or ``nvidia``.
    host
        LLVM triple of the machine that will load the module, default this one.
    shapes
        Shapes of inputs whose dimensions the model leaves open, by input name.
    storage
        Where tensors between primary functions are kept: ``texture`` or ``buffer``, or
        ``auto``, which decides for each tensor by what the device gains.
    storage_overrides
        ``texture`` or ``buffer`` for single tensors, before everything else, by the names
        that ``tvmflow compile -v`` prints, or those of the ONNX model.
    dtype
        Precision in which tensors between primary functions and weights are stored:
        ``fp32``, or ``fp16``, which halves their memory.
    accumulate
        Precision of products and sums in convolutions, dense layers and average pooling:
        ``fp32``, or ``fp16`` for tensors that are stored so, on devices with ``cl_khr_fp16``.
    algorithms
        ``direct``, ``gemm`` (for ``cuda``), ``winograd2`` or ``winograd4`` for single
        convolutions, by the names of their nodes or of the tensors that these write, instead of
        what seems cheapest.
    knobs
        Knobs of schedules by the name of the primary function, as ``tvmflow inspect
        --schedules`` prints them.  Those that do not fit are warned of and not used.
    journals
        Tuning journals, or names of those that ship with tvmflow: what was measured for a
        primary function is used instead of the heuristic, and for a convolution's algorithm
        or the network's storage (``auto``) instead of the cost models.  Where two have
        something for it, the first one counts.
    keep_layout
        ``nchw4c`` or ``texture`` for inputs and outputs, by the ONNX model's names, that the
        application has in the blocked layout ``[N, C', H, W, 4]``: in a buffer or an image.
    cuda_graph
        Launch all kernels at once, as a CUDA graph that the first run captures; for ``cuda``.
    format
        ``tvm``, a module for TVM's runtime, or ``standalone``, a library with a C interface
        (`tvmflow.h`) that needs no other and opens the device's OpenCL; for ``opencl``.
    file_name
        The name that the module's file will have; a standalone library knows its own.
    dump_ir
        Folder that gets the IR after each stage, as text.
    embed_limit_bytes
        Weights of more than this total travel in a file beside the module.
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
    """
    overrides = dict(storage_overrides or {})
    check_overrides(overrides)
    kept = dict(keep_layout or {})
    check_keep_layout(kept)
    chosen = dict(algorithms or {})
    if chosen:
        from .texture.asked_algorithms import check_algorithms

        check_algorithms(chosen)
    spec = with_storage(resolve(target, device, host), storage, overrides, kept)
    check_dtype(spec, dtype)
    check_accumulate(spec, accumulate, dtype, device)
    if cuda_graph:
        check_cuda_graph(spec)
    check_format(spec, format)
    spec = with_dtype(spec, dtype)
    check_linker(Host.parse(host) if host else Host.native())
    folder = Path(tempfile.mkdtemp(prefix="tvmflow-", dir=work_folder))
    try:
        job = Compilation(
            source=model,
            shapes=shapes,
            target=spec,
            output=folder / file_name,
            embed_limit_bytes=embed_limit_bytes,
            options={
                "storage": storage,
                "dtype": dtype,
                "accumulate": accumulate,
                **({"storage_overrides": overrides} if overrides else {}),
                **({"keep_layout": kept} if kept else {}),
                **({"algorithms": chosen} if chosen else {}),
                **({"cuda_graph": True} if cuda_graph else {}),
            },
            storage=storage,
            overrides=overrides,
            dtype=dtype,
            accumulate=accumulate,
            algorithms=chosen,
            knobs=dict(knobs or {}),
            journals=[find_journal(Path(path)) for path in journals],
            keep_layout=kept,
            cuda_graph=cuda_graph,
            format=format,
        )
        run_stages(job, progress=progress, dump_ir=Path(dump_ir) if dump_ir else None)
        return Module.from_temporary(job.output, lambda: shutil.rmtree(folder, ignore_errors=True))
    except BaseException:
        # Ctrl-C included: nothing of an unfinished compilation stays behind.
        shutil.rmtree(folder, ignore_errors=True)
        raise


def run_stages(
    job: Compilation, *, progress: Progress | None = None, dump_ir: Path | None = None
) -> None:
    """Run the pipeline on ``job``, with its instruments."""
    if dump_ir is not None:
        with dumping(dump_ir):
            dump_ir.mkdir(parents=True, exist_ok=True)
    for index, (name, stage) in enumerate(STAGES):
        if progress is not None:
            progress(name, index, len(STAGES))
        started = time.perf_counter()
        stage(job)
        job.stage_ms[name] = (time.perf_counter() - started) * 1e3
        logger.info("%-9s %8.1f ms", name, job.stage_ms[name])
        if dump_ir is not None:
            with dumping(dump_ir):
                dump(job, dump_ir / f"{index}_{name}")
