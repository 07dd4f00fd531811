"""The finding of calls that are mostly the host's: faster kernels would hardly shorten them."""

from __future__ import annotations

from ...ir.units import counted
from .record import Finding, Profile

#: A call is mostly the host's where more than this part of it is outside kernels.
MOST = 0.5


def host_finding(profile: Profile) -> Finding | None:
    """Return the finding of a call of which more than half is outside its kernels, else ``None``.

    It is one of the whole call (``kernel`` is empty).  What is outside kernels is launching, the
    time between kernels, and copies of inputs and outputs.
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
    # A graph launches all kernels at once; no other target has one.
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
