"""TIR pipeline: from scheduled primary functions to host code and kernels.

It adds our own passes to TVM's default, and leaves out passes that only other targets and
instrumentation need.  Pass its name, :data:`TIR_PIPELINE`, to ``relax.build``, whose default treats
an image as a pointer.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import s_tir, tirx
from tvm.ir.transform import Pass, Sequential
from tvm.tirx import compilation_pipeline

from . import opencl_modules  # noqa: F401 (generates the code of kernels)
from .aligned_vectors import AlignVectors
from .argument_checks import DropChecks
from .barriers import HideSharedReads, ShowSharedReads
from .chunked_sums import SumInChunks
from .clamp_reads import ReadBorders
from .cuda_passes import BindLoads, DivideVectors, JoinBarriers, RewriteStorage, SplitVectors
from .dot_products import ChainDots
from .error_function import WidenErrorFunctions
from .half import LowerHalfBuffers, NarrowLocals, ReadHalfTexels, WidenBFloat16
from .index_divisions import HideDivisions, RestoreDivisions
from .llvm_passes import (
    KeepOnStack,
    NameSubexpressions,
    SerializeSmallLoops,
    StoreArguments,
    WriteExponentials,
    WriteHyperbolics,
)
from .loop_peeling import PeelBorders
from .masks import BranchLanes, FoldChoices, MaskLanes, VerifyMasks
from .nan_propagation import PropagateNaN
from .opencl_source import (
    NameGathers,
    NameGroup,
    NameIndexTerms,
    NameIndices,
    NamePowers,
    NameShuffles,
    UndoIntegerPromotion,
    WriteLiterals,
)
from .prevent_unrolling import PreventLoopUnrolling
from .rounding import RoundByAddition
from .textures import NameTexels, TextureFlatten, VerifyTextures
from .unread_elements import DropUnreadElements

TIR_PIPELINE = "tvmflow"


_transform = s_tir.transform
#: Passes from scheduled primary functions to a function for the host and one for each kernel.
HOST_AND_DEVICE: list[Pass] = [
    # From schedulable blocks to plain loops over allocated buffers.
    _transform.CanonicalizeLoop(),
    _transform.LowerCrossThreadReduction(),
    _transform.LowerInitBlock(),
    _transform.PlanAndUpdateBufferAllocationLocation(),
    _transform.ConvertBlocksToOpaque(),
    _transform.LiftThreadBinding(),
    _transform.CompactBufferAllocation(),
    _transform.UnifyThreadBinding(),
    _transform.LowerMatchBuffer(),
    tirx.transform.StmtSimplify(),
    _transform.AnnotateIrregularLoop(),
    _transform.InjectSoftwarePipeline(),
    _transform.LowerOpaqueBlock(),
    PeelBorders,
    SumInChunks,
    NarrowLocals,
    SplitVectors,
    TextureFlatten,
    # Flat buffers, vectors, unrolled loops.
    HideDivisions,
    tirx.transform.FlattenBuffer(),
    RestoreDivisions,
    WidenBFloat16,
    tirx.transform.BF16ComputeLegalize(),
    tirx.transform.NarrowDataType(32),
    _transform.LoopPartition(),
    DivideVectors,
    RoundByAddition,
    WidenErrorFunctions,
    MaskLanes,
    BranchLanes,
    tirx.transform.VectorizeLoop(True),
    ChainDots,
    ReadHalfTexels,
    _transform.InjectVirtualThread(),
    _transform.InjectDoubleBuffer(),
    RewriteStorage,
    _transform.HoistIfThenElse(),
    tirx.transform.UnrollLoop(),
    _transform.RenormalizeSplitPattern(),
    tirx.transform.StmtSimplify(),
    FoldChoices,
    DropUnreadElements,
    tirx.transform.RemoveNoOp(),
    _transform.RewriteUnsafeSelect(),
    SerializeSmallLoops,
    NameSubexpressions,
    NameTexels,
    NameShuffles,
    NamePowers,
    UndoIntegerPromotion,
    VerifyTextures,
    VerifyMasks,
    LowerHalfBuffers,
    # One function for the host, and one for each kernel.
    tirx.transform.FP8ComputeLegalize(),
    tirx.transform.VerifyMemory(),
    tirx.transform.AnnotateEntryFunc(),
    HideSharedReads,
    _transform.ThreadSync("shared"),
    _transform.ThreadSync("shared.dyn"),
    ShowSharedReads,
    _transform.ThreadSync("warp"),
    _transform.InferFragment(),
    _transform.LowerThreadAllreduce(),
    _transform.InjectPTXAsyncCopy(),
    JoinBarriers,
    _transform.MergeSharedMemoryAllocations(),
    tirx.transform.SplitHostDevice(),
    # After the barriers, which TVM only inserts for reads in TIR.
    NameGathers,
    PropagateNaN,
    StoreArguments,
    WriteHyperbolics,
    WriteExponentials,
]


#: Passes that store tensors of bfloat16 and of 8-bit floats, on functions with their signatures.
STORE_NARROW = [tirx.transform.FP8StorageLegalize(), tirx.transform.BF16StorageLegalize()]
#: Remaining passes of the host's functions.
_HOST = [DropChecks, KeepOnStack, tirx.transform.LowerTVMBuiltin(), tirx.transform.LowerIntrin()]
#: Remaining passes of kernels, after they have become separate functions.
DEVICE = [
    tirx.transform.LowerWarpMemory(),
    tirx.transform.StmtSimplify(),
    FoldChoices,
    tirx.transform.LowerIntrin(),
    WriteLiterals,
    BindLoads,
    AlignVectors,
    ReadBorders,
    PreventLoopUnrolling,
    NameIndices,
    NameIndexTerms,
    NameGroup,
]


def stages() -> dict[str, list[Pass]]:
    """Return all passes on TIR, in order."""
    functions = [*HOST_AND_DEVICE, tirx.transform.MakePackedAPI(), *STORE_NARROW]
    return {"functions": functions, "host": _HOST, "kernels": DEVICE}


def _pipeline() -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    """Return the passes and both finalisers, in the form that TVM requires."""
    functions, host, kernels = map(Sequential, stages().values())
    return functions, lambda: host, lambda: kernels


compilation_pipeline.register_tir_pipeline(TIR_PIPELINE, _pipeline)
