"""Times of single kernels: from the device's own clock, or from around each call."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tvm_ffi

from ..errors import DeviceError
from .kernel_time import KernelTime, kernel_times

if TYPE_CHECKING:
    from .session import Session


def profile_kernels(session: Session, values: Sequence[Any], runs: int) -> list[KernelTime]:
    """Measure every kernel launch of a network's run.

    Parameters
    ----------
    session
        The loaded module.
    values
        The inputs, in order.
    runs
        Measured runs, at least 1; one more goes before them.

    Returns
    -------
    list of KernelTime
        In launch order.

    Raises
    ------
    DeviceError
        If the device did not report its launches, or they are one CUDA graph.
    """
    if session.artifact.metadata.get("options", {}).get("cuda_graph"):
        raise DeviceError(
            f"Measuring kernels of {session.artifact.path} failed: they are launched as one CUDA "
            "graph.",
            remedy="Compile without `cuda_graph`; the kernels are the same.",
        )
    runs = max(1, runs)
    session.run(values, on_device=False)
    if session.target == "opencl":
        return _profile_events(session, values, runs)
    return _profile_calls(session, values, runs)


def _profile_events(session: Session, values: Sequence[Any], runs: int) -> list[KernelTime]:
    begin = tvm_ffi.get_global_func("tvmflow.opencl.profile_begin")
    end = tvm_ffi.get_global_func("tvmflow.opencl.profile_end")
    index = session.device.index
    with session.errors("Measuring kernels"):
        begin(index)
        try:
            for _ in range(runs):
                session.run(values, on_device=False)
        finally:
            launches = json.loads(end(index))
    # Of unequal runs there are launches left over, or they stand at other places.
    bounds = [len(launches) * number // runs for number in range(runs + 1)]
    by_run = [launches[begin:end] for begin, end in itertools.pairwise(bounds)]
    return kernel_times(by_run, "device")


def _profile_calls(session: Session, values: Sequence[Any], runs: int) -> list[KernelTime]:
    """Time the calls of a second virtual machine, so that the first one stays as it is."""
    machine = session.new_machine()
    wait = (lambda: None) if session.on_host else session.device.sync
    measured: list[dict[str, Any]] = []
    started = 0.0

    def instrument(_function: Any, name: str, before: bool, *_: Any) -> int:
        nonlocal started
        if name.startswith("vm.builtin."):
            return 0
        wait()
        if before:
            started = time.perf_counter()
        else:
            us = (time.perf_counter() - started) * 1e6
            measured.append({"kernel": name, "start_us": started * 1e6, "us": us})
        return 0

    machine.set_instrument(tvm_ffi.convert(instrument))
    arguments = session.bring(values, reuse=True)
    entry = machine["main"]
    by_run = []
    with session.errors("Measuring kernels"):
        for _ in range(runs + 1):
            measured.clear()
            entry(*arguments, *session.weights)
            by_run.append(list(measured))
    # The first run of a new machine reserves its memory.
    return kernel_times(by_run[1:], "host")
