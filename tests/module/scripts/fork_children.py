"""Run a module in a thread, fork children that use it, and print their results as JSON.

fork_children.py MODULE.so    alone_cpu.so runs on the CPU, alone_opencl.so on OpenCL
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tvmflow

X = np.random.default_rng(0).standard_normal((257, 1023)).astype("f4")
#: A child that hangs is ended by the signal after this time.
LIMIT_S = 60


def load(path: str) -> tvmflow.Module:
    backends = {"alone_cpu": "cpu", "alone_opencl": "opencl"}
    return tvmflow.load(path, backend=backends.get(Path(path).stem, "auto"))


def check(module: tvmflow.Module) -> None:
    assert all(np.allclose(module(X)[0], np.tanh(X), rtol=1e-5, atol=1e-6) for _ in range(3))


def run(path: str) -> None:
    check(MODULES[path])


def new(path: str) -> None:
    with load(path) as module:
        check(module)


def close(path: str) -> None:
    MODULES[path].close()


def collect(path: str) -> None:
    del MODULES[path]
    gc.collect()


def attempt(action: Callable[[str], None], path: str) -> str:
    try:
        action(path)
    except tvmflow.TvmflowError as error:
        return str(error)
    except BaseException as error:  # noqa: BLE001 (the parent prints it)
        return repr(error)
    return "done"


def child(path: str, *actions: Callable[[str], None]) -> dict[str, str]:
    """Return a child's result of each action with a module, or its exit status."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIMIT_S)
        said = {action.__name__: attempt(action, path) for action in actions}
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with os.fdopen(reading) as stream:
        said = stream.read()
    return {"status": str(status)} if status else json.loads(said)


def spin(module: tvmflow.Module, stop: threading.Event) -> None:
    while not stop.is_set():
        module(X)


PATH = sys.argv[1]
MODULES = {PATH: load(PATH)}
module = MODULES[PATH]
check(module)
results = {"idle": child(PATH, run, new, collect)}
stop = threading.Event()
thread = threading.Thread(target=spin, args=(module, stop))
thread.start()
results["busy"] = child(PATH, run, new, close)
stop.set()
thread.join()
check(module)
print(json.dumps(results))
