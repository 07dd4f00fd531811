"""Export of a profile as a trace for Perfetto and chrome://tracing.

The format is Chrome's "Trace Event Format": complete events (``X``) with their start and duration
in microseconds, and counters (``C``).
"""

from __future__ import annotations

from ...runtime.json_types import JsonObject
from .record import Profile

_FIRST_CALL, _RUN = 1, 2
#: Fields of a kernel that its event contains.
_KNOWN = (
    *("family", "p90_us", "flops", "bytes_read", "bytes_written", "gflops", "gbps"),
    *("roofline_share", "bound"),
)


def trace(profile: Profile) -> JsonObject:
    """Return a trace with the first call on one track, a run's kernels and memory on another."""
    tracks = {
        _FIRST_CALL: f"{profile.module.name}: first call",
        _RUN: f"{profile.module.name}: a run on {profile.device.name}",
    }
    events: list[JsonObject] = [
        {"ph": "M", "name": "process_name", "pid": track, "tid": 1, "args": {"name": name}}
        for track, name in tracks.items()
    ]
    begin, first = 0.0, profile.first_call
    for name, ms in (
        ("load", first.load_ms),
        ("upload weights", first.upload_ms),
        ("build kernels", first.build_ms),
        ("run", first.run_ms),
    ):
        if ms is not None:
            events.append(_complete(name, _FIRST_CALL, begin, 1e3 * ms, {}))
            begin += 1e3 * ms
    for kernel in profile.kernels:
        known = {"kernel": kernel.name} | {name: getattr(kernel, name) for name in _KNOWN}
        known |= {"work_items": list(kernel.global_size), "group": list(kernel.local_size)}
        shown = {name: value for name, value in known.items() if value not in (None, [], "")}
        name = ", ".join(kernel.nodes) or kernel.function
        events.append(_complete(name, _RUN, kernel.start_us, kernel.median_us, shown))
    # Live memory is a counter with a value for each step.
    counter = {"ph": "C", "name": "intermediate tensors", "pid": _RUN}
    for start, step in zip(profile.step_starts() or (), profile.memory, strict=False):
        events.append({**counter, "ts": start, "args": {"bytes": step.live_bytes}})
    # No displayTimeUnit: Perfetto of 2021 takes it for the unit of the times themselves.
    return {"traceEvents": events}


def _complete(
    name: str, process: int, begin_us: float, length_us: float, arguments: JsonObject
) -> JsonObject:
    times = {"ts": begin_us, "dur": length_us}
    return {"ph": "X", "name": name, "pid": process, "tid": 1, **times, "args": arguments}
