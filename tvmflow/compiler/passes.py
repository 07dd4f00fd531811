"""The pass pipeline: every pass that runs on a model, TVM's and ours, in order.

A stage is a list of passes on Relax, except for "import", "build" and "export", which are
functions.  TVM's instruments see all passes (`tvm.transform.PassContext(instruments=[...])` around
`compile`); ``--dump-ir`` is such an instrument.  ``python -m tvmflow.compiler.passes`` prints the
list, with the passes on TIR that code generation runs (`tvmflow.codegen.tir_pipeline`).
`tvmflow.compiler.relax_pipeline` registers the passes on Relax as a TVM pipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import tvm
from tvm import IRModule
from tvm.ir.transform import Pass
from tvm.relax import backend, transform

from ..codegen.tir_pipeline import stages as tir_stages
from ..devices.target import TargetSpec
from ..errors import CompileError, TvmflowError
from ..frontend.apply_options import apply_options
from ..frontend.load import load_model
from ..frontend.source import open_model
from ..graph.attention import fuse_attention
from ..graph.cuda_graph import CaptureGraph, StageBoundary
from ..graph.layout.interface import block_interface
from ..graph.layout.layout import LayoutPass
from ..graph.legalize import LEGALIZE, AnnotateCustomOperators, DecomposeCumsum, not_legalized
from ..graph.memory import HoistWorkspaces, plan_memory
from ..graph.normalization import FuseNormalization
from ..graph.prevent_broadcast_fusion import PreventBroadcastFusion
from ..graph.ranges import analyse
from ..graph.ranks import RankShortRows
from ..graph.simplify import FoldArrays, FoldCalls, KeepZeros
from ..graph.storage.float16 import UseFloat16
from ..graph.storage.placement import table
from ..graph.storage.storage import StoragePass
from ..graph.weights import initializers_of, lift_weights
from ..ir.half_sums import half_sums
from ..ir.names import ShortenFunctions, inner_names, nodes_of, nodes_of_functions, restore_names
from ..ir.passes import module_pass, original_errors
from ..ir.rewriter import identifier
from ..ir.scope import CHANNELS, is_half
from ..ir.signatures import parameter_scopes
from ..journal.journal import Journal
from ..module.standalone.pictures import arrangement, check_image_inputs
from .calibration import calibrate, log_calibration, warn_of_ranges
from .compilation import Compilation
from .generate import generate
from .lookup import measured_algorithms, use_measured_storage
from .options import CompileOptions
from .scheduling import log_journal_hits, schedule_module

logger = logging.getLogger(__name__)

# -- the stages ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """A named list of passes on the program, or a function on the compilation."""

    name: str
    passes: Callable[[Compilation], list[Pass]] | None = None
    other: Callable[[Compilation], None] | None = None
    #: Translates a TVM error raised by one of the passes; it gets the program before them.
    translate_error: Callable[[IRModule, TargetSpec, Exception], CompileError] | None = None

    def __call__(self, job: Compilation) -> None:
        """Run the stage on a compilation."""
        if self.other is not None:
            self.other(job)
        if self.passes is None:
            return
        before = job.mod
        try:
            with original_errors(), job.target.tvm_target:
                job.mod = tvm.transform.Sequential(self.passes(job))(before)
        except TvmflowError:
            raise
        except Exception as error:
            if self.translate_error is None:
                raise
            raise self.translate_error(before, job.target, error) from error


def import_model(job: Compilation) -> None:
    """Import the ONNX model to Relax, with static shapes and constant weights."""
    options = job.options
    source = job.parsed or apply_options(open_model(job.source), vars(options))
    job.model = load_model(
        source, options.static_shapes or None, bounds=options.bounds,
        has_machine=not (job.standalone or options.cuda_graph), check_indices=options.check_indices,
        can_check=not job.standalone,
    )  # fmt: skip
    job.mod = job.model.mod


def fuse(job: Compilation) -> list[Pass]:
    """Return the passes that lower operators to primary functions and fuse these."""
    return [
        # For CPUs, TVM's runtime sorts; GPUs and standalone libraries need kernels for that.
        *([DecomposeCumsum, RankShortRows] if job.target.is_gpu_kernel or job.standalone else []),
        backend.DispatchSampling(),
        backend.DispatchSortScan(),
        transform.LegalizeOps(LEGALIZE),
        transform.AnnotateTIROpPattern(),
        AnnotateCustomOperators,
        PreventBroadcastFusion,
        fuse_operators(job),
        transform.FuseTIR(),
        # A reshape is a view in the virtual machine, not a kernel.
        transform.RewriteDataflowReshape(),
        transform.DeadCodeElimination(["main"]),
        ShortenFunctions,
    ]


def lower(job: Compilation) -> list[Pass]:
    """Return the passes that plan memory and, unless standalone, lower to VM calls."""
    graph = job.options.cuda_graph
    calls = [
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        *([HoistWorkspaces] if (job.standalone and job.target.is_gpu_kernel) or graph else []),
        *([StageBoundary] if graph else []),
        plan(job),
        *([CaptureGraph] if graph else []),
    ]
    virtual_machine = [
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]
    return calls if job.standalone else calls + virtual_machine


#: The stages from a model to its code; the driver adds the export.
CODE_STAGES = (
    Stage("import", other=import_model),
    # Fold constants, fuse normalisations and attention, and drop unused values.
    Stage(
        "simplify",
        lambda job: [
            transform.DecomposeOpsForInference("main"),
            transform.CanonicalizeBindings(),
            FoldArrays,
            FoldCalls,
            KeepZeros,
            FuseNormalization,
            attend(job),
            transform.DeadCodeElimination(["main"]),
        ],
    ),
    # Convert convolutions and the operators between them to ``NCHW{c}c``.
    Stage("layout", lambda job: [change_layouts(job), transform.DeadCodeElimination(["main"])]),
    Stage("fuse", fuse, translate_error=not_legalized),
    # Choose texture or buffer for each tensor between primary functions.
    Stage(
        "storage",
        lambda job: [place(job), *([UseFloat16] if job.target.kind == "cuda" else [])],
    ),
    # Turn constants into parameters, after the model's large weights.
    Stage("weights", lambda job: [lift(job)]),
    Stage("schedule", lambda job: [schedule_functions(job)]),
    Stage("lower", lower),
    Stage("build", other=generate),
)


# -- passes that read or change the compilation -------------------------------------------------


def job_pass(
    name: str,
) -> Callable[[Callable[[Compilation, IRModule], IRModule]], Callable[[Compilation], Pass]]:
    """Turn a function of a compilation and a module into a factory of passes."""
    return lambda function: lambda job: module_pass(name)(partial(function, job))


@contextmanager
def journals_of(job: Compilation) -> Iterator[list[Journal]]:
    """Open the journals of a compilation for a stage's lookups."""
    with ExitStack() as stack:
        yield [stack.enter_context(Journal.open(path)) for path in job.attempt.journals]


def aliases_of(job: Compilation) -> dict[str, str]:
    """Return the names in kernels' source of the ONNX model's tensors."""
    return {name: identifier(b) for name, b in job.model.bindings.items()}


@job_pass("FuseAttention")
def attend(job: Compilation, mod: IRModule) -> IRModule:
    """Fuse the products and the softmax of attention into one primary function."""
    return fuse_attention(mod, job.target.device, half=job.half)


def picture_layouts(job: Compilation) -> dict[str, str]:
    """Return the layouts in which kernels for picture inputs write what the network reads."""
    check_image_inputs(job.options.image_inputs, job.model.inputs)
    device = job.target.device
    if job.target.kind != "opencl" or device.channel_block != CHANNELS:
        return {}
    infos = {i.name: i for i in job.model.inputs if i.name in job.options.image_inputs}
    wants_texture = job.options.storage == "texture" or (
        job.options.storage == "auto" and device.texture.cached > 1
    )
    return {
        name: "texture" if wants_texture and max(info.shape) <= device.image_extent else "nchw4c"
        for name, info in infos.items()
        if info.dtype == "float32" and arrangement(info) in (("NCHW", 1), ("NCHW", 3))
    }


@job_pass("ChangeLayouts")
def change_layouts(job: Compilation, mod: IRModule) -> IRModule:
    """Convert ``main`` to the blocked layout, and log the algorithm of each convolution."""
    options, model = job.options, job.model
    if job.half:
        job.precision = analyse(mod)
    job.interface, inputs, outputs = block_interface(
        {**picture_layouts(job), **options.keep_layout},
        model.inputs,
        model.outputs,
        job.target.device,
        job.half,
    )
    job.model = replace(model, inputs=inputs, outputs=outputs)
    with journals_of(job) as journals:
        use_measured_storage(job, journals)
        layouts = LayoutPass(
            *(mod, job.target.device, options.accumulate, job.interface),
            algorithms=options.algorithms,
            aliases=aliases_of(job),
            half=job.half,
            measured=measured_algorithms(journals, job),
            direct=options.weights is not None,
        )
        mod = layouts.run()
    job.choices = layouts.choices
    for choice in job.choices:
        logger.info("algorithm %s", choice)
    return mod


#: Operators of one primary function, at most.  OpenCL promises kernels 1,024 bytes of arguments,
#: 128 tensors; an operator reads one or two that are not computed in its function.
MOST_FUSED = 64


@job_pass("FuseOps")
def fuse_operators(job: Compilation, mod: IRModule) -> IRModule:
    """Run TVM's fusion, and restore the model's names of tensors."""
    names = job.model.bindings.values()
    members: dict[str, list[str]] = {}
    instruments = tvm.transform.PassContext.current().instruments
    config = {"relax.FuseOps.max_depth": MOST_FUSED}
    with tvm.transform.PassContext(config=config, instruments=list(instruments or ())):
        fused = transform.FuseOps()(mod)
    mod = restore_names(mod, fused, set(map(identifier, names)), members)
    job.nodes = nodes_of(members, names)
    return mod


@job_pass("PlaceTensors")
def place(job: Compilation, mod: IRModule) -> IRModule:
    """Choose each tensor's storage, and set it in the functions' signatures."""
    wide = job.precision.wide | inner_names(job.model.mod)
    storage = storage_pass(job, mod, wide)
    placed, job.placements = storage.run()
    if job.half and job.options.calibrate is not None and not job.loop:
        found, before = calibrate(job, storage.halves), job.placements
        storage = storage_pass(job, mod, wide | found.wide)
        placed, job.placements = storage.run()
        log_calibration(found, before, job.placements)
    elif job.half:
        warn_of_ranges(job.precision.risky, storage.halves, aliases_of(job).values())
    job.halves = storage.halves
    for line in table(job.placements):
        logger.info("storage   %s", line)
    return placed


def storage_pass(job: Compilation, mod: IRModule, wide: Mapping[str, str]) -> StoragePass:
    """Return the pass that decides on storage; ``wide`` tensors stay in 32 bits."""
    model = job.model
    return StoragePass(
        *(mod, job.target.device, job.storage, job.options.storage_overrides),
        aliases=aliases_of(job),
        half=job.half,
        half_weights=job.target.kind == "opencl" and model.half,
        inputs=[info.name for info in model.inputs],
        textures=job.interface.textures if job.interface is not None else ((), ()),
        wide=wide,
    )


@job_pass("LiftWeights")
def lift(job: Compilation, mod: IRModule) -> IRModule:
    """Turn constants into parameters of ``main``."""
    mod, lifted = lift_weights(mod)
    job.weights = {**job.model.weights, **lifted}
    job.initializers = initializers_of(mod, job.weights, job.nodes, job.model.initializers)
    scopes = parameter_scopes(mod)
    job.weight_scopes = {name: scope for name, scope in scopes.items() if name in job.weights}
    for name, scope in job.weight_scopes.items():
        if is_half(scope):
            job.weights[name] = job.weights[name].astype("float16")
    return mod


@job_pass("ScheduleFunctions")
def schedule_functions(job: Compilation, mod: IRModule) -> IRModule:
    """Schedule each primary function with the first schedule family that matches."""
    if job.options.accumulate != "fp32":
        job.half_sums = half_sums(mod)
    nodes = nodes_of_functions(mod, job.nodes)
    with journals_of(job) as journals:
        mod, job.schedules = schedule_module(mod, job.target, job.attempt, journals, nodes)
    job.scheduled = mod
    if not job.is_part:
        log_journal_hits(job.attempt, job.schedules)
    return mod


@job_pass("PlanMemory")
def plan(job: Compilation, mod: IRModule) -> IRModule:
    """Plan which tensors share memory."""
    mod, job.memory = plan_memory(mod, job.allocation_sizes)
    return mod


# -- the printed list ----------------------------------------------------------------------------


def listing(job: Compilation) -> Iterator[tuple[str, str]]:
    """Yield stage and name of every pass that a compilation runs; ours begin with ``tvmflow.``."""
    for stage in CODE_STAGES:
        for each in stage.passes(job) if stage.passes is not None else ():
            yield stage.name, str(each.info.name)
        if stage.name == "build":
            for part, passes in tir_stages().items():
                yield from ((f"build, {part}", str(each.info.name)) for each in passes)


if __name__ == "__main__":
    for stage, name in listing(Compilation(None, CompileOptions(device="adreno"))):
        print(f"{stage:16} {name}")  # noqa: T201
