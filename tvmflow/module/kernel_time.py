"""Times of single kernels: from the device's own clock, or from around each call."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ..errors import DeviceError
from ..runtime.json_types import JsonMapping

if TYPE_CHECKING:
    from .session import Session

#: A launch as a runtime reports it: ``kernel``, ``start_us`` and ``us``, and where it has sizes
#: ``global`` and ``local``.
Launch = JsonMapping


@dataclass(frozen=True)
class KernelTime:
    """Times of one launch of a run."""

    kernel: str
    median_us: float  #: Over the measured runs, in microseconds, as are the next ones.
    p10_us: float
    p90_us: float
    #: ``"device"``: the device's profiling events.  ``"host"``: measured around the call (including
    #: the launch and the waiting for a device).
    clock: str
    #: From the end of the launch before it to its begin, the median; 0 of the first one.
    gap_us: float
    #: Work-items of the launch and of a work-group; empty when not launched so.
    global_size: tuple[int, ...] = ()
    local_size: tuple[int, ...] = ()


def kernel_times(runs: Sequence[Sequence[Launch]], clock: str) -> list[KernelTime]:
    """Every launch of a run, from its times in several runs (at least one) of the same launches.

    A `DeviceError` says that they are not of the same ones.
    """
    names = [[launch["kernel"] for launch in run] for run in runs]
    if any(run != names[0] for run in names):
        raise DeviceError(
            f"Measuring kernels failed: {len(runs)} runs were expected to launch the same kernels, "
            f"but they launched {sum(map(len, names))} in different orders.",
            remedy="Measure while no other thread uses the device.",
        )
    times = []
    for position, launch in enumerate(runs[0]):
        us = sorted(float(run[position]["us"]) for run in runs)
        times.append(
            KernelTime(
                launch["kernel"],
                median_us=median(us),
                p10_us=us[len(us) // 10],
                # The smallest that nine tenths of them do not exceed.
                p90_us=us[-(-len(us) * 9 // 10) - 1],
                clock=clock,
                gap_us=median(_gap_us(run, position) for run in runs),
                global_size=tuple(launch.get("global", ())),
                local_size=tuple(launch.get("local", ())),
            )
        )
    return times


def _gap_us(run: Sequence[Launch], position: int) -> float:
    if position == 0:
        return 0.0
    before, launch = run[position - 1], run[position]
    return max(0.0, float(launch["start_us"] - before["start_us"] - before["us"]))


def profile_kernels(session: Session, values: Sequence[object], runs: int) -> list[KernelTime]:
    """Measure every kernel launch, in order; another run goes before the measured ones.

    A `DeviceError` says that the device did not report them, or that they are one CUDA graph.
    """
    if session.artifact.metadata.get("options", {}).get("cuda_graph"):
        raise DeviceError(
            f"Measuring kernels of {session.artifact.path} failed: they are launched as one CUDA "
            "graph.",
            remedy="Compile without `cuda_graph`; the kernels are the same.",
        )
    session.run(values, on_device=False)
    measure = _profile_events if session.target == "opencl" else _profile_calls
    return measure(session, values, max(1, runs))


def _profile_events(session: Session, values: Sequence[object], runs: int) -> list[KernelTime]:
    import tvm_ffi

    begin = tvm_ffi.get_global_func("tvmflow.opencl.profile_begin")
    end = tvm_ffi.get_global_func("tvmflow.opencl.profile_end")
    with session.errors("Measuring kernels"):
        begin(session.device.index)
        try:
            for _ in range(runs):
                session.run(values, on_device=False)
        finally:
            launches = json.loads(end(session.device.index))
    # Of unequal runs there are launches left over, or they stand at other places.
    bounds = [len(launches) * number // runs for number in range(runs + 1)]
    return kernel_times([launches[a:b] for a, b in itertools.pairwise(bounds)], "device")


def _profile_calls(session: Session, values: Sequence[object], runs: int) -> list[KernelTime]:
    """Time the calls of a second virtual machine, so that the first one stays as it is."""
    import tvm_ffi

    machine = session.new_machine()
    wait = (lambda: None) if session.on_host else session.device.sync
    measured: list[Launch] = []
    started = 0.0

    def instrument(function: object, name: str, before: bool, *_: object) -> int:
        nonlocal started
        # Functions of the virtual machine, which call kernels, are closures.
        if name.startswith("vm.builtin.") or not isinstance(function, tvm_ffi.Function):
            return 0
        wait()
        if before:
            started = time.perf_counter()
        else:
            us = (time.perf_counter() - started) * 1e6
            measured.append({"kernel": name, "start_us": started * 1e6, "us": us})
        return 0

    machine.set_instrument(tvm_ffi.convert(instrument))
    arguments, entry = session.bring(values, reuse=True), machine[session.entry_name]
    by_run = []
    with session.errors("Measuring kernels"):
        for _ in range(runs + 1):
            measured.clear()
            entry(*arguments, *session.weights)
            by_run.append(measured.copy())
    # The first run of a new machine reserves its memory.
    return kernel_times(by_run[1:], "host")
