"""How many threads run the parallel loops of modules for ``llvm``."""

from __future__ import annotations

import os
from pathlib import Path

import tvm_ffi

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def use_threads(count: int | None = None) -> None:
    """Have TVM start so many threads, unless they run already or the user says how many.

    They are as many as there are cores where nothing else is said.  TVM takes half of the
    processors, which might be hyper-threads: on virtual machines, whose processors are cores, half
    of the speed.
    """
    if not {"OMP_NUM_THREADS", "TVM_NUM_THREADS"} & os.environ.keys():
        os.environ["TVM_NUM_THREADS"] = str(count or physical_cores())


def share_threads(library: str | os.PathLike[str]) -> None:
    """Have a loaded library's loops share the plug-in's threads, in place of TVM's own.

    TVM gives each of its threads a part of a loop.  One that another process keeps from its core
    then holds up every loop, tens of times longer than the loop takes.
    """
    use_threads()
    tvm_ffi.get_global_func("tvmflow.share_threads")(os.fspath(library), thread_count())


def thread_count() -> int:
    """Return how many threads share the loops of modules for ``llvm``, once one was opened."""
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
