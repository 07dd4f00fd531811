"""All analyses of a primary function, as findings."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ..target import TargetSpec
from .coalescing import coalescing_findings
from .divergence import divergence_findings
from .finding import Finding
from .local_memory import bank_findings, local_memory_findings
from .lowered import Kernel, kernels_of
from .occupancy import occupancy_findings
from .products import product_findings
from .registers import register_findings
from .texture_locality import texture_findings
from .vector_width import vector_findings

_ANALYSES: tuple[Callable[[Kernel, TargetSpec], list[Finding]], ...] = (
    coalescing_findings,
    texture_findings,
    divergence_findings,
    bank_findings,
    local_memory_findings,
    vector_findings,
    register_findings,
    occupancy_findings,
    product_findings,
)


def findings(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Finding]:
    """What may cost time in the kernels of a scheduled primary function.

    Returns
    -------
    list of Finding
        Kernel by kernel, the largest share first.
    """
    return [
        finding
        for kernel in kernels_of(function, target)
        for finding in sorted(
            (found for analysis in _ANALYSES for found in analysis(kernel, target)),
            key=lambda found: -found.share,
        )
    ]
