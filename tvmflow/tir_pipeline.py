"""How scheduled primary functions become host code and kernels: our own TIR pipeline.

It differs from TVM's default in the passes for textures and for CUDA (:mod:`.cuda_passes`), and
leaves out what only other targets and instrumentation need.  It is registered with
TVM under :data:`TIR_PIPELINE`; ``relax.build`` must be given that name, because what
it takes otherwise treats an image as a pointer.
"""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.ir.transform import Pass, Sequential
from tvm.tirx import compilation_pipeline

from .borders import SplitBorders
from .brain_floats import WidenBrainFloats
from .carries import HideCarries, ShowCarries
from .cuda_passes import BindLoads, RewriteStorage, SplitVectors
from .dot_products import ChainDots
from .extremes import PropagateNaN
from .gathers import NameGathers
from .hyperbolic import WriteHyperbolics
from .literals import WriteLiterals
from .masks import MaskLanes, VerifyMasks
from .promotion import WrapNarrow
from .rounding import RoundByAddition
from .shuffles import NameShuffles
from .stack import KeepOnStack
from .texture.half import LowerHalfBuffers, ReadHalfTexels
from .texture.lowering import NameTexels, TextureFlatten
from .texture.narrow import NarrowLocals
from .texture.verify import VerifyTextures

TIR_PIPELINE = "tvmflow"


def _blocks_to_loops() -> list[Pass]:
    """From schedulable blocks to plain loops over allocated buffers."""
    transform = s_tir.transform
    return [
        transform.CanonicalizeLoop(),
        transform.LowerCrossThreadReduction(),
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
        transform.LiftThreadBinding(),
        transform.CompactBufferAllocation(),
        transform.UnifyThreadBinding(),
        transform.LowerMatchBuffer(),
        tirx.transform.StmtSimplify(),
        transform.AnnotateIrregularLoop(),
        transform.InjectSoftwarePipeline(),
        transform.LowerOpaqueBlock(),
    ]


def _loops_to_statements() -> list[Pass]:
    """Flat buffers, vectors, unrolled loops."""
    return [
        HideCarries,
        tirx.transform.FlattenBuffer(),
        ShowCarries,
        WidenBrainFloats,
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        RoundByAddition,
        MaskLanes,
        tirx.transform.VectorizeLoop(True),
        ChainDots,
        ReadHalfTexels,
        s_tir.transform.InjectVirtualThread(),
        s_tir.transform.InjectDoubleBuffer(),
        RewriteStorage,
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
        tirx.transform.CommonSubexprElim(),
    ]


def _split() -> list[Pass]:
    """One function for the host, and one for each kernel."""
    transform = s_tir.transform
    return [
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        transform.ThreadSync("shared"),
        transform.ThreadSync("shared.dyn"),
        transform.ThreadSync("warp"),
        transform.InferFragment(),
        transform.LowerThreadAllreduce(),
        transform.InjectPTXAsyncCopy(),
        transform.MergeSharedMemoryAllocations(),
        tirx.transform.SplitHostDevice(),
    ]


def _finish_host() -> Pass:
    return Sequential([KeepOnStack, tirx.transform.LowerTVMBuiltin(), tirx.transform.LowerIntrin()])


def store_narrow() -> Pass:
    """Tensors of bfloat16 and of 8-bit floats, in functions as they are called."""
    return Sequential([tirx.transform.FP8StorageLegalize(), tirx.transform.BF16StorageLegalize()])


def finish_device() -> Pass:
    """What remains to be done with kernels once they are functions of their own."""
    return Sequential(
        [
            tirx.transform.LowerWarpMemory(),
            tirx.transform.StmtSimplify(),
            tirx.transform.LowerIntrin(),
            WriteLiterals,
            BindLoads,
        ]
    )


def host_and_device() -> Pass:
    """From scheduled primary functions to a function for the host and one for each kernel."""
    return Sequential(
        [
            *_blocks_to_loops(),
            SplitBorders,
            NarrowLocals,
            SplitVectors,
            TextureFlatten,
            *_loops_to_statements(),
            NameTexels,
            NameShuffles,
            WrapNarrow,
            VerifyTextures,
            VerifyMasks,
            LowerHalfBuffers,
            *_split(),
            # Behind the barriers, which only reads as TIR has them ask for.
            NameGathers,
            PropagateNaN,
            WriteHyperbolics,
        ]
    )


def _pipeline():  # type: ignore[no-untyped-def]
    """Factory in the form that TVM asks for: the passes and both finalisers."""
    passes = Sequential([host_and_device(), tirx.transform.MakePackedAPI(), store_narrow()])

    @tvm.transform.module_pass(opt_level=0, name="tvmflow.TirPipeline")
    def run(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        return passes(mod)

    return run, _finish_host, finish_device


compilation_pipeline.PIPELINE_MAP[TIR_PIPELINE] = _pipeline
