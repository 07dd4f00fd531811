"""State of a compilation: a model, its options, and the results of the stages so far."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..devices.choices import STANDALONE
from ..devices.target import TargetSpec, accumulation
from ..graph.ranges import Precision
from ..runtime.stage_times import StageTimes
from .options import CompileOptions

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from tvm import IRModule, relax

    from ..codegen.kernels import Kernels
    from ..frontend.batch import BatchProof
    from ..frontend.load import ImportedModel
    from ..frontend.source import Source
    from ..graph.layout.algorithms import Choice
    from ..graph.layout.interface import BlockedInterface
    from ..graph.memory import AllocationSize, MemoryPlan
    from ..graph.storage.placement import Placement
    from ..runtime.json_types import JsonMapping
    from ..schedules import Scheduled


#: Default of fields that a stage sets, typed so that later stages need not check for ``None``.
LATER: Any = None


@dataclass(frozen=True)
class Attempt:
    """Sources of schedules; each attempt after a failed code generation has fewer."""

    #: Knobs of single primary functions, used instead of the heuristic's.
    knobs: Mapping[str, JsonMapping] = field(default_factory=dict)
    #: Journals in which the knobs of the other functions are looked up.
    journals: Sequence[Path] = ()
    #: Primary functions that only the fallback family may schedule.
    last_resort: Collection[str] = ()


@dataclass
class Compilation:
    """A model, its options, and the results of the passes so far."""

    source: str | os.PathLike[str] | onnx.ModelProto | Source | None
    options: CompileOptions
    output: Path = Path()
    #: The target and the storage of tensors: from the options, or the storage that was measured to
    #: be the fastest.
    target: TargetSpec = LATER
    storage: str = ""
    #: Description of the journal's record that chose the storage.
    storage_origin: str = ""
    model: ImportedModel = LATER
    #: The program in its current state.
    mod: IRModule = LATER
    #: Inputs and outputs in the blocked layout.
    interface: BlockedInterface = LATER
    #: The algorithm of each convolution.
    choices: list[Choice] = field(default_factory=list)
    #: Names of ONNX nodes, by the tensor that the call computing them writes.
    nodes: dict[str, list[str]] = field(default_factory=dict)
    #: Tensors that stay in 32 bits where others are stored in 16.
    precision: Precision = field(default_factory=Precision)
    #: Tensors that are stored in 16 bits.
    halves: list[str] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    #: Names of the model's initializers from which each weight was derived.
    initializers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: Memory scopes of weights that are not plain buffers.
    weight_scopes: dict[str, str] = field(default_factory=dict)
    #: Lengths of the sums that are accumulated in 16 bits.
    half_sums: list[int] = field(default_factory=list)
    #: The program before it was scheduled, for further attempts and for its graph.
    unscheduled: IRModule = LATER
    attempt: Attempt = field(default_factory=Attempt)
    #: The choice for each primary function, and the functions with it.
    schedules: dict[str, Scheduled] = field(default_factory=dict)
    scheduled: IRModule = LATER
    memory: MemoryPlan = LATER
    #: Generated code: for TVM's runtime, or without it.
    executable: relax.VMExecutable = LATER
    kernels: Kernels = LATER
    #: Times of the stages, as totals over all shapes.
    times: StageTimes = field(default_factory=StageTimes)
    #: The model, if a compilation of several shapes has read it before.
    parsed: Source | None = None
    #: Compilations of the model's shapes, if it has several shapes or loops; each goes through the
    #: stages up to "lower" separately: see `.shapes`.
    variants: list[Compilation] = field(default_factory=list)
    #: Compilations of the bodies of its loops, and the loop of which it is the body: see `.loops`.
    bodies: list[Compilation] = field(default_factory=list)
    loop: str = ""
    #: Whether it is one shape or body, and not the whole model.
    is_part: bool = False
    #: Name of this program's ``main`` in the merged program of all shapes.
    entry: str = "main"
    #: Names of the weights in the file, which several shapes may share.
    weight_names: dict[str, str] = field(default_factory=dict)
    #: Proof that a batch may be computed in parts, if the shapes are several batches.
    batch: BatchProof | None = None
    #: Sizes of allocations that several shapes share, and the total size of their blocks.
    allocation_sizes: Sequence[AllocationSize] | None = None
    shared_bytes: int = 0

    def __post_init__(self) -> None:
        options = self.options
        self.target = self.target or options.resolve()
        self.storage = self.storage or options.storage
        sums = accumulation(self.target, options.accumulate, options.dtype)
        self.options = replace(options, accumulate=sums)
        self.attempt = Attempt(options.knobs, [Path(path) for path in options.journals])

    @property
    def standalone(self) -> bool:
        """Return whether the result is a standalone library, which needs no TVM."""
        return self.options.format == STANDALONE

    @property
    def half(self) -> bool:
        """Return whether tensors are stored in 16 bits."""
        return self.options.dtype == "fp16"
