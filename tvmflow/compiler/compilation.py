"""A compilation: a model, its options, and what the stages have made of it so far."""

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
    from ..frontend import ImportedModel
    from ..frontend.batch import BatchProof
    from ..frontend.source import Source
    from ..graph.layout.algorithms import Choice
    from ..graph.layout.interface import BlockedInterface
    from ..graph.memory import AllocationSize, MemoryPlan
    from ..graph.storage.placement import Placement
    from ..runtime.json_types import JsonMapping
    from ..schedules import Scheduled


#: ``None`` in a field until the stage that makes it has run; later stages need not ask.
LATER: Any = None


@dataclass(frozen=True)
class Attempt:
    """Sources of schedules: less and less, where code generation fails."""

    #: Of single primary functions, instead of the heuristic's.
    knobs: Mapping[str, JsonMapping] = field(default_factory=dict)
    #: In which knobs are looked up for the others.
    journals: Sequence[Path] = ()
    #: Primary functions that only the fallback schedules.
    last_resort: Collection[str] = ()


@dataclass
class Compilation:
    """A model, its options, and what the passes have made of it so far."""

    source: str | os.PathLike[str] | onnx.ModelProto | None
    options: CompileOptions
    output: Path = Path()
    #: The target, and where tensors are kept: as the options have it, or with what was measured
    #: to be faster.
    target: TargetSpec = LATER
    storage: str = ""
    #: The record of a journal that chose the storage, for people.
    storage_origin: str = ""
    model: ImportedModel = LATER
    #: The program as it stands.
    mod: IRModule = LATER
    #: Inputs and outputs that are blocked.
    interface: BlockedInterface = LATER
    #: The algorithm of each convolution.
    choices: list[Choice] = field(default_factory=list)
    #: Names of ONNX nodes by the tensor that the call which computes them writes.
    nodes: dict[str, list[str]] = field(default_factory=dict)
    #: Tensors that stay in 32 bits where others are stored in 16.
    precision: Precision = field(default_factory=Precision)
    #: Tensors that are stored in 16 bits.
    halves: list[str] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    #: The model's initializers that each weight was made of.
    initializers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: Memory scopes of the weights that are no plain buffers.
    weight_scopes: dict[str, str] = field(default_factory=dict)
    #: Lengths of the sums that are taken in 16 bits.
    half_sums: list[int] = field(default_factory=list)
    #: The program before it was scheduled: to begin again from, and for its graph.
    unscheduled: IRModule = LATER
    attempt: Attempt = field(default_factory=Attempt)
    #: The choice for each primary function, and the functions with it.
    schedules: dict[str, Scheduled] = field(default_factory=dict)
    scheduled: IRModule = LATER
    memory: MemoryPlan = LATER
    #: Generated code: for TVM's runtime, or without it.
    executable: relax.VMExecutable = LATER
    kernels: Kernels = LATER
    #: Of all shapes together.
    times: StageTimes = field(default_factory=StageTimes)
    #: The model, if it was read before: by a compilation of several shapes.
    parsed: Source | None = None
    #: Compilations of several shapes, or of one with loops, which go through the stages up to
    #: "lower" on their own: see `.shapes`.
    variants: list[Compilation] = field(default_factory=list)
    #: Those of the bodies of loops in it, and which loop it is the body of: see `.loops`.
    bodies: list[Compilation] = field(default_factory=list)
    loop: str = ""
    #: True if it is one of these, and not the whole.
    is_part: bool = False
    #: What ``main`` of this program is called beside other shapes' ones.
    entry: str = "main"
    #: Names of the weights in the file, where other shapes have the same ones.
    weight_names: dict[str, str] = field(default_factory=dict)
    #: Of several batches: whether they may be computed in parts.
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
        """True if a library is made that needs no TVM."""
        return self.options.format == STANDALONE

    @property
    def half(self) -> bool:
        """True if tensors are stored in 16 bits."""
        return self.options.dtype == "fp16"
