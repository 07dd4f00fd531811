"""Fusion that is left in a graph (`tvmflow.graph.missed_fusion`), as findings."""

from __future__ import annotations

from tvm import IRModule

from ...graph.missed_fusion import Fusion, fusion
from ..profiling.record import Finding


def fusion_finding(pair: Fusion) -> Finding:
    """A pair as a finding of the function that reads the tensor."""
    return Finding(
        pair.consumer,
        "fusion",
        pair.tensor,
        0,
        {"bytes": float(pair.saved_bytes)},
        pair.share,
        f"{pair.producer} writes {pair.tensor} only for {pair.consumer}: "
        f"{pair.saved_bytes:,} bytes are moved that need not be.",
        "Let one function compute both: give the primary function an op_pattern that fusion "
        "takes, or write both as one operator.",
    )


def fusion_findings(mod: IRModule) -> list[Finding]:
    """Pairs of functions that nothing known keeps apart."""
    return [fusion_finding(pair) for pair in fusion(mod) if not pair.prevented_by]
