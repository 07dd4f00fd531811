"""Our own TIR pipeline: from scheduled primary functions to host code and kernels.

It differs from TVM's default in the passes for textures and for CUDA (:mod:`.cuda_passes`), and
leaves out what only other targets and instrumentation need.  It is registered with
TVM under :data:`TIR_PIPELINE`; ``relax.build`` must be given that name, because what
it takes otherwise treats an image as a pointer.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import s_tir, tirx
from tvm.ir.transform import Pass, Sequential
from tvm.tirx import compilation_pipeline

from .cuda_passes import BindLoads, RewriteStorage, SplitVectors
from .dot_products import ChainDots
from .half import LowerHalfBuffers, NarrowLocals, ReadHalfTexels, WidenBFloat16
from .index_divisions import HideDivisions, RestoreDivisions
from .llvm_passes import KeepOnStack, WriteHyperbolics
from .loop_peeling import PeelBorders
from .masks import MaskLanes, VerifyMasks
from .nan_propagation import PropagateNaN
from .opencl_source import NameGathers, NameShuffles, UndoIntegerPromotion, WriteLiterals
from .rounding import RoundByAddition
from .textures import NameTexels, TextureFlatten, VerifyTextures

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
        HideDivisions,
        tirx.transform.FlattenBuffer(),
        RestoreDivisions,
        WidenBFloat16,
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


def host_and_device() -> list[Pass]:
    """From scheduled primary functions to a function for the host and one for each kernel."""
    return [
        *_blocks_to_loops(),
        PeelBorders,
        NarrowLocals,
        SplitVectors,
        TextureFlatten,
        *_loops_to_statements(),
        NameTexels,
        NameShuffles,
        UndoIntegerPromotion,
        VerifyTextures,
        VerifyMasks,
        LowerHalfBuffers,
        *_split(),
        # Behind the barriers, which only reads as TIR has them ask for.
        NameGathers,
        PropagateNaN,
        WriteHyperbolics,
    ]


def store_narrow() -> list[Pass]:
    """Tensors of bfloat16 and of 8-bit floats, in functions as they are called."""
    return [tirx.transform.FP8StorageLegalize(), tirx.transform.BF16StorageLegalize()]


def finish_host() -> list[Pass]:
    """The rest of the way of the host's functions."""
    return [KeepOnStack, tirx.transform.LowerTVMBuiltin(), tirx.transform.LowerIntrin()]


def finish_device() -> list[Pass]:
    """The rest of the way of kernels, once they are functions of their own."""
    return [
        tirx.transform.LowerWarpMemory(),
        tirx.transform.StmtSimplify(),
        tirx.transform.LowerIntrin(),
        WriteLiterals,
        BindLoads,
    ]


def stages() -> dict[str, list[Pass]]:
    """All passes on TIR, in order."""
    packed = tirx.transform.MakePackedAPI()
    return {
        "functions": [*host_and_device(), packed, *store_narrow()],
        "host": finish_host(),
        "kernels": finish_device(),
    }


def _pipeline() -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    """Factory in the form that TVM asks for: the passes and both finalisers."""
    functions, host, kernels = map(Sequential, stages().values())
    return functions, lambda: host, lambda: kernels


compilation_pipeline.register_tir_pipeline(TIR_PIPELINE, _pipeline)
