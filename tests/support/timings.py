"""Invented times of calls."""

from __future__ import annotations

from tvmflow.module.bench import Timing


def timing(
    median_ms: float, p10_ms: float, p90_ms: float, others_share: float | None = None
) -> Timing:
    """Return a timing of ten calls by its median and its 10th and 90th percentiles."""
    return Timing(
        median_ms=median_ms, p10_ms=p10_ms, p90_ms=p90_ms, runs=10, load_ms=1.0, first_ms=1.0,
        min_ms=p10_ms, max_ms=p90_ms, mean_ms=median_ms, p99_ms=p90_ms, runs_per_s=1e3 / median_ms,
        warmup=1, others_share=others_share,
    )  # fmt: skip
