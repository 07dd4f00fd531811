"""Threads that run the parallel loops of modules for ``llvm``."""

from __future__ import annotations

import os
from pathlib import Path

import tvm_ffi

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def use_threads(count: int | None = None) -> None:
    """Set TVM's number of threads, unless they run already or the environment sets it.

    The default is the number of cores.  TVM's own default is half of the processors, in case they
    are hyper-threads, which halves the speed of virtual machines whose processors are cores.
    """
    if not {"OMP_NUM_THREADS", "TVM_NUM_THREADS"} & os.environ.keys():
        os.environ["TVM_NUM_THREADS"] = str(count or physical_cores())


def share_threads(library: str | os.PathLike[str]) -> None:
    """Let a loaded library's loops use the plug-in's threads instead of TVM's.

    TVM assigns each thread a fixed part of a loop: if another process takes a thread's core, every
    loop waits for it, tens of times longer than the loop takes.
    """
    use_threads()
    tvm_ffi.get_global_func("tvmflow.share_threads")(os.fspath(library), thread_count())


def thread_count() -> int:
    """Return the number of threads of modules for ``llvm``; valid once one was opened."""
    given = os.environ.get("TVM_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    return max(int(given) if given.isdecimal() else 1, 1)


def physical_cores() -> int:
    """Count the cores of the processors that this process may run on."""
    cores = set()
    for processor in os.sched_getaffinity(0):
        try:
            cores.add(Path(_SIBLINGS.format(processor)).read_text())
        except OSError:
            cores.add(str(processor))
    return len(cores)
