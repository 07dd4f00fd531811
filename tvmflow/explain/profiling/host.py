"""The finding that a call spends most of its time on the host, outside its kernels."""

from __future__ import annotations

from ...ir.units import counted
from .record import Finding, Profile

#: Share of a call outside its kernels above which there is a finding.
MOST = 0.5


def host_finding(profile: Profile) -> Finding | None:
    """Return a finding if more than half of a call is outside its kernels, else ``None``.

    The finding is about the whole call (``kernel`` is empty).  Launches, gaps between kernels and
    copies of inputs and outputs are outside kernels.
    """
    call_ms, launches = profile.whole.median_ms, len(profile.kernels)
    outside_ms = call_ms - profile.kernels_ms
    if not launches or outside_ms <= MOST * call_ms:
        return None
    share, outside_us = outside_ms / call_ms, 1e3 * outside_ms
    sentence = (
        f"{counted(launches, 'launch', 'launches')} compute for {1e3 * profile.kernels_ms:,.1f} µs "
        f"of a call of {1e3 * call_ms:,.1f} µs. The other {share:.0%} go to launching, to waiting "
        f"between kernels and to copies of inputs and outputs: {outside_us / launches:,.1f} µs a "
        "launch."
    )
    # A CUDA graph launches all kernels at once; no other target has graphs.
    graph = "compile with `cuda_graph`; " if profile.module.target == "cuda" else ""
    return Finding(
        kernel="",
        kind="host",
        access="",
        line=0,
        cost={"µs": outside_us},
        share=share,
        sentence=sentence,
        remedy=(
            f"Launch less for each sample: {graph}make the batch larger (`tvmflow bench --scaling` "
            "shows what that brings); fuse what findings of the kind fusion name."
        ),
    )
