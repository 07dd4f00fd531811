"""The whole way of a model: every pass that runs on it, TVM's and ours, in order.

A stage is a list of TVM's passes on Relax; only the first and the last two are none.  TVM's
instruments see all of them (`tvm.transform.PassContext(instruments=[...])` around `compile`), and
``--dump-ir`` is one.  ``python -m tvmflow.compiler.passes`` prints the list, with the passes on TIR
that code generation runs (`tvmflow.codegen.tir_pipeline`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import tvm
from tvm import IRModule
from tvm.ir.transform import Pass
from tvm.relax import backend, transform

from ..codegen.narrow import half_sums
from ..codegen.tir_pipeline import stages as tir_stages
from ..devices.target import TargetSpec
from ..errors import CompileError, TvmflowError
from ..frontend import load_model
from ..graph.cuda_graph import CaptureGraph, StageBoundary
from ..graph.fuse import AnnotateCustomOperators, not_legalized
from ..graph.layout.keep import keep_layouts
from ..graph.layout.layout import LayoutPass
from ..graph.legalize import LEGALIZE
from ..graph.plan_memory import plan_memory
from ..graph.scans import ReplaceScans
from ..graph.simplify import FoldArrays, FoldCalls
from ..graph.storage.placement import table
from ..graph.storage.storage import place_tensors
from ..graph.storage.typed_half import TypeHalves
from ..graph.weights import lift_weights
from ..graph.workspaces import HoistWorkspaces
from ..ir.names import ShortenFunctions, inner_names, nodes_of, nodes_of_functions, restore_names
from ..ir.passes import module_pass, original_errors
from ..ir.rewriter import identifier
from ..ir.scope import is_half
from ..ir.signatures import parameter_scopes
from ..journal.journal import Journal
from .compilation import Compilation
from .generate import export, generate
from .options import CompileOptions
from .scheduling import schedule_module, tell_matches
from .settled import measured_algorithms, settle_storage

logger = logging.getLogger(__name__)


# -- the stages ------------------------------------------------------------------------------


def import_model(job: Compilation) -> None:
    """ONNX to Relax, with static shapes and constant weights."""
    job.model = load_model(job.source, dict(job.options.shapes) or None)
    job.mod = job.model.mod


def simplify(_: Compilation) -> list[Pass]:
    """Fold constants and drop what nobody reads."""
    return [
        transform.DecomposeOpsForInference("main"),
        transform.CanonicalizeBindings(),
        FoldArrays,
        FoldCalls,
        transform.DeadCodeElimination(["main"]),
    ]


def layout(job: Compilation) -> list[Pass]:
    """Convolutions and what stands between them to ``NCHW{c}c``."""
    return [change_layouts(job), transform.DeadCodeElimination(["main"])]


def fuse(job: Compilation) -> list[Pass]:
    """Operators to primary functions, and these to larger ones."""
    return [
        *([ReplaceScans] if job.target.is_gpu_kernel else []),
        backend.DispatchSampling(),
        backend.DispatchSortScan(),
        transform.LegalizeOps(LEGALIZE),
        transform.AnnotateTIROpPattern(),
        AnnotateCustomOperators,
        fuse_operators(job),
        transform.FuseTIR(),
        # A reshape is a view in the virtual machine, not a kernel.
        transform.RewriteDataflowReshape(),
        transform.DeadCodeElimination(["main"]),
        ShortenFunctions,
    ]


def storage(job: Compilation) -> list[Pass]:
    """Texture or buffer for each tensor between primary functions."""
    return [place(job), *([TypeHalves] if job.target.kind == "cuda" else [])]


def weights(job: Compilation) -> list[Pass]:
    """Constants to parameters, behind the model's large weights."""
    return [lift(job)]


def schedule(job: Compilation) -> list[Pass]:
    """A schedule for each primary function."""
    return [schedule_functions(job)]


def lower(job: Compilation) -> list[Pass]:
    """The memory plan, and calls of the virtual machine where there is one."""
    graph = job.options.cuda_graph
    calls = [
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        *([HoistWorkspaces] if job.standalone or graph else []),
        *([StageBoundary] if graph else []),
        plan(job),
        *([CaptureGraph] if graph else []),
    ]
    if job.standalone:
        return calls
    return [
        *calls,
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]


@dataclass(frozen=True)
class Stage:
    """A step of the way: passes on the program, or what is done without them."""

    name: str
    passes: Callable[[Compilation], list[Pass]] | None = None
    other: Callable[[Compilation], None] | None = None
    #: What an error of TVM's in its passes becomes, from the program before them.
    told: Callable[[IRModule, TargetSpec, Exception], CompileError] | None = None

    def __call__(self, job: Compilation) -> None:
        """Take the step."""
        if self.other is not None:
            self.other(job)
        if self.passes is None:
            return
        before = job.mod
        assert before is not None
        try:
            with original_errors(), job.target.tvm_target:
                job.mod = tvm.transform.Sequential(self.passes(job))(before)
        except TvmflowError:
            raise
        except Exception as error:
            if self.told is None:
                raise
            raise self.told(before, job.target, error) from error


#: What is done once, whatever becomes of code generation.
FRONT = (
    Stage("import", other=import_model),
    Stage("simplify", simplify),
    Stage("layout", layout),
    Stage("fuse", fuse, told=not_legalized),
    Stage("storage", storage),
    Stage("weights", weights),
)
#: What is done again with other schedules where no code can be generated: see `pipeline.RETRIES`.
BACK = (
    Stage("schedule", schedule),
    Stage("lower", lower),
    Stage("build", other=generate),
)
STAGES = (*FRONT, *BACK, Stage("export", other=export))


# -- passes that know the model, or say what they decided ---------------------------------------


@contextmanager
def journals_of(job: Compilation) -> Iterator[list[Journal]]:
    """The journals in which a stage looks something up, open."""
    with ExitStack() as stack:
        yield [stack.enter_context(Journal.open(path)) for path in job.attempt.journals]


def aliases_of(job: Compilation) -> dict[str, str]:
    """What the tensors of the ONNX model are called in kernels' source."""
    assert job.model is not None
    return {name: identifier(b) for name, b in job.model.bindings.items()}


def change_layouts(job: Compilation) -> Pass:
    """Rewrite ``main``; says which algorithm each convolution got."""

    @module_pass("ChangeLayouts")
    def run(mod: IRModule) -> IRModule:
        assert job.model is not None
        options, model = job.options, job.model
        job.kept, inputs, outputs = keep_layouts(
            options.keep_layout, model.inputs, model.outputs, job.target.device, job.half
        )
        job.model = replace(model, inputs=inputs, outputs=outputs)
        with journals_of(job) as journals:
            settle_storage(job, journals)
            layouts = LayoutPass(
                mod,
                job.target.device,
                options.accumulate,
                job.kept,
                algorithms=options.algorithms,
                aliases=aliases_of(job),
                half=job.half,
                measured=measured_algorithms(journals, job),
            )
            mod = layouts.run()
        job.choices = layouts.choices
        for choice in job.choices:
            logger.info("algorithm %s", choice)
        return mod

    return run


def fuse_operators(job: Compilation) -> Pass:
    """TVM's fusion, with the names that the model has for tensors."""

    @module_pass("FuseOps")
    def run(mod: IRModule) -> IRModule:
        assert job.model is not None
        names = job.model.bindings.values()
        members: dict[str, list[str]] = {}
        fused = transform.FuseOps()(mod)
        mod = restore_names(mod, fused, set(map(identifier, names)), members)
        job.nodes = nodes_of(members, names)
        return mod

    return run


def place(job: Compilation) -> Pass:
    """Give tensors their memory, and the functions' signatures that say so."""

    @module_pass("PlaceTensors")
    def run(mod: IRModule) -> IRModule:
        assert job.model is not None
        mod, job.placements = place_tensors(
            mod,
            job.target.device,
            job.storage,
            job.options.storage_overrides,
            aliases=aliases_of(job),
            half=job.half,
            half_weights=job.target.kind == "opencl" and job.model.half,
            inputs=[info.name for info in job.model.inputs],
            textures=job.kept.textures if job.kept is not None else ((), ()),
            inner=inner_names(job.model.mod),
        )
        for line in table(job.placements):
            logger.info("storage   %s", line)
        return mod

    return run


def lift(job: Compilation) -> Pass:
    """Make constants parameters of ``main``."""

    @module_pass("LiftWeights")
    def run(mod: IRModule) -> IRModule:
        assert job.model is not None
        mod, lifted = lift_weights(mod)
        job.weights = {**job.model.weights, **lifted}
        scopes = parameter_scopes(mod)
        job.weight_scopes = {name: scope for name, scope in scopes.items() if name in job.weights}
        for name, scope in job.weight_scopes.items():
            if is_half(scope):
                job.weights[name] = job.weights[name].astype("float16")
        return mod

    return run


def schedule_functions(job: Compilation) -> Pass:
    """Ask the schedule families for each primary function."""

    @module_pass("ScheduleFunctions")
    def run(mod: IRModule) -> IRModule:
        if job.options.accumulate == "fp16":
            job.half_sums = half_sums(mod)
        nodes = nodes_of_functions(mod, job.nodes)
        with journals_of(job) as journals:
            mod, job.schedules = schedule_module(
                mod, job.target, job.attempt.knobs, journals, nodes, job.attempt.last_resort
            )
        job.scheduled = mod
        tell_matches(job.attempt, job.schedules)
        return mod

    return run


def plan(job: Compilation) -> Pass:
    """Let tensors share memory."""

    @module_pass("PlanMemory")
    def run(mod: IRModule) -> IRModule:
        mod, job.memory = plan_memory(mod)
        return mod

    return run


def listing(job: Compilation) -> Iterator[tuple[str, str]]:
    """Every pass that a compilation runs, with its stage; those of ours begin with ``tvmflow.``."""
    for stage in STAGES:
        for each in stage.passes(job) if stage.passes is not None else ():
            yield stage.name, str(each.info.name)
        if stage.name == "build":
            for part, passes in tir_stages().items():
                yield from ((f"build, {part}", str(each.info.name)) for each in passes)


if __name__ == "__main__":
    for stage, name in listing(Compilation(None, CompileOptions(device="adreno"))):
        print(f"{stage:16} {name}")  # noqa: T201
