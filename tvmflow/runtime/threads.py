"""How many threads run the parallel loops of modules for ``llvm``."""

from __future__ import annotations

import os
from pathlib import Path

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def use_threads(count: int | None = None) -> None:
    """Have TVM start so many threads, unless they run already or the user says how many.

    They are as many as there are cores where nothing else is said.  TVM takes half of the
    processors, which might be hyper-threads: on virtual machines, whose processors are cores, half
    of the speed.
    """
    if not {"OMP_NUM_THREADS", "TVM_NUM_THREADS"} & os.environ.keys():
        os.environ["TVM_NUM_THREADS"] = str(count or physical_cores())


def physical_cores() -> int:
    """Count the cores of the processors that this process may run on."""
    cores = set()
    for processor in os.sched_getaffinity(0):
        try:
            cores.add(Path(_SIBLINGS.format(processor)).read_text())
        except OSError:
            cores.add(str(processor))
    return len(cores)
