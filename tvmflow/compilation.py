"""What the stages of a compilation pass on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import TargetError
from .target import TargetSpec

if TYPE_CHECKING:
    import numpy as np
    from tvm import IRModule

    from .frontend import ImportedModel
    from .graph.memory import MemoryPlan
    from .schedules import Scheduled
    from .standalone.kernels import Kernels
    from .texture.algorithms import Choice
    from .texture.keep import Kept
    from .texture.placement import Placement

#: Forms of a module.
TVM, STANDALONE = "tvm", "standalone"
FORMATS = (TVM, STANDALONE)


@dataclass
class Compilation:
    """What the stages pass on: the model, the target, and the IR as it stands."""

    source: Any
    shapes: Mapping[str, tuple[int, ...]] | None
    target: TargetSpec
    output: Path
    embed_limit_bytes: int
    options: dict[str, Any]
    #: Where tensors between primary functions are kept: see :data:`.target.STORAGES`.
    storage: str = "buffer"
    #: Which record of which journal chose it, for people.
    settled_storage: str = ""
    overrides: Mapping[str, str] = field(default_factory=dict)
    #: Precision in which tensors are stored: ``fp32`` or ``fp16``.
    dtype: str = "fp32"
    #: Precision of products and sums: ``fp32`` or ``fp16``.
    accumulate: str = "fp32"
    #: Forms of the inputs and outputs that the application has in the blocked layout.
    keep_layout: Mapping[str, str] = field(default_factory=dict)
    kept: Kept | None = None
    #: What is written: a module for TVM's runtime, or one that needs none.
    format: str = TVM
    #: Whether all kernels are launched at once.
    cuda_graph: bool = False
    model: ImportedModel | None = None
    mod: IRModule | None = None
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    #: Memory scopes of the weights that are no plain buffers.
    weight_scopes: dict[str, str] = field(default_factory=dict)
    #: Algorithms of single convolutions, instead of the cheapest, and what each one got.
    algorithms: Mapping[str, str] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    #: Knobs of single primary functions, instead of the heuristic's.
    knobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Journals in which knobs are looked up for the others.
    journals: Sequence[Path] = ()
    #: Primary functions that only the fallback schedules, as there was no code for others.
    last_resort: Sequence[str] = ()
    #: The module before it was scheduled: to begin again without knobs, and for its graph.
    unscheduled: IRModule | None = None
    #: Names of ONNX nodes by the tensor that the call which computes them writes.
    nodes: dict[str, list[str]] = field(default_factory=dict)
    #: The primary functions as they are scheduled, for who wants to know what they compute.
    scheduled: IRModule | None = None
    #: What was chosen for each primary function.
    schedules: dict[str, Scheduled] = field(default_factory=dict)
    #: Lengths of the sums that are taken in 16 bits.
    half_sums: list[int] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)
    memory: MemoryPlan | None = None
    #: Generated code: for TVM's runtime, or without it.
    executable: Any = None
    kernels: Kernels | None = None
    stage_ms: dict[str, float] = field(default_factory=dict)


def check_format(spec: TargetSpec, format: str) -> None:
    """Check that a module can have a form.

    Raises
    ------
    TargetError
        If the form is unknown, or the target is not OpenCL.
    """
    if format not in FORMATS:
        raise TargetError(
            f"The format {format!r} is not known; expected one of {', '.join(FORMATS)}.",
            remedy="Leave --format out, or choose one of them.",
        )
    if format == STANDALONE and spec.kind != "opencl":
        raise TargetError(
            f"A standalone module was asked for the target {spec.kind}; its runtime is for opencl.",
            remedy="Use --target opencl, or --format tvm.",
        )
