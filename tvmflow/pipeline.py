"""The way of a model: a list of named stages, from an ONNX file to a module file.

Dumps of the IR, timings and the progress display are instruments around the
list, not entries in it.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compilation import Compilation
from .deploy.artifact import EMBED_LIMIT_BYTES, write_artifact
from .deploy.module import Module
from .dump import dump, dumping
from .errors import CompileError
from .precision import check_accumulate, check_dtype
from .target import check_cuda_graph, resolve, with_dtype, with_storage
from .texture.overrides import check_keep_layout, check_overrides
from .tuning_logs import find_journal

if TYPE_CHECKING:
    import onnx

    from .tuning.journal import Journal

logger = logging.getLogger(__name__)

#: Called before each stage with its name, its index and the number of stages.
Progress = Callable[[str, int, int], None]


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
    from .graph.rewriter import identifier

    assert job.model is not None
    job.mod = legalize_and_fuse(
        job.mod, job.target, {identifier(name) for name in job.model.bindings.values()}
    )


def storage(job: Compilation) -> None:
    """Texture or buffer for each tensor between primary functions."""
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
        inputs=[info.name for info in job.model.inputs],
        textures=job.kept.textures if job.kept is not None else ((), ()),
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
    from .texture.narrow import half_sums

    if job.accumulate == "fp16":
        job.half_sums = half_sums(job.mod)
    job.unscheduled = job.mod
    with _journals(job) as journals:
        scheduled = schedule_module(job.mod, job.target, job.knobs, journals)
    job.mod, job.schedules = scheduled.mod, scheduled.choices
    for name in [name for name in job.knobs if name not in job.schedules]:
        logger.warning("Knobs were given for %s, which is no primary function here.", name)


def lower(job: Compilation) -> None:
    """The memory plan, and calls of the virtual machine."""
    from .build import lower_graph

    job.mod, job.memory = lower_graph(job.mod, cuda_graph=job.cuda_graph)


def build(job: Compilation) -> None:
    """Machine code and kernel source."""
    from .build import build_executable

    try:
        job.executable = build_executable(job.mod, job.target)
    except CompileError as error:
        if not job.knobs and not job.journals:
            raise
        # Knobs may meet all constraints and still lead to code that TVM cannot generate.
        logger.warning(
            "No code could be generated with the knobs given or looked up. The heuristics are "
            "used for all functions. (%s)",
            error.message,
        )
        job.knobs, job.journals, job.mod = {}, (), job.unscheduled
        schedule(job)
        lower(job)
        job.executable = build_executable(job.mod, job.target)


def export(job: Compilation) -> None:
    """The module file, and the weights beside it when they are large."""
    from .build import extensions, kernel_names

    assert job.model is not None
    assert job.memory is not None
    write_artifact(
        job.executable,
        job.output,
        metadata={
            "name": job.model.name,
            "target": job.target.kind,
            "device": job.target.device.name,
            "inputs": job.model.inputs,
            "outputs": job.model.outputs,
            "kernels": kernel_names(job.executable, job.schedules),
            "schedules": {name: choice.report() for name, choice in job.schedules.items()},
            "extensions": extensions(job.executable),
            "half_sums": job.half_sums,
            "algorithms": [choice.report() for choice in job.choices],
            "settled_storage": job.settled_storage,
            "weight_scopes": job.weight_scopes,
            "placements": [placement.report() for placement in job.placements],
            "memory": job.memory.report(),
            "cpu": job.target.cpu,
            "options": job.options,
            "stage_ms": {name: round(ms, 1) for name, ms in job.stage_ms.items()},
        },
        weights=job.weights,
        host=job.target.host,
        embed_limit_bytes=job.embed_limit_bytes,
    )


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
    spec = with_dtype(spec, dtype)
    folder = Path(tempfile.mkdtemp(prefix="tvmflow-", dir=work_folder))
    try:
        job = Compilation(
            source=model,
            shapes=shapes,
            target=spec,
            output=folder / "module.so",
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
