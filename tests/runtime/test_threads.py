"""Modules for the host share a pool of threads, as many as there are cores."""

from __future__ import annotations

import os

import pytest
from support.operators import single

import tvmflow
from tvmflow.runtime import threads

#: Runs two modules in two threads at a time; prints how many threads the pool has started, whether
#: all results were right, and the exit status of a child process that runs one of them.
USE = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np, tvmflow
x = np.random.default_rng(0).standard_normal((257, 1023)).astype("f4")
before = len(os.listdir("/proc/self/task"))
with tvmflow.load(sys.argv[1]) as module, tvmflow.load(sys.argv[2]) as other:
    started = len(os.listdir("/proc/self/task")) - before
    def right(each):
        return all(np.allclose(each(x)[0], np.tanh(x), rtol=1e-5, atol=1e-6) for _ in range(20))
    with ThreadPoolExecutor(2) as pool:
        print(started, all(pool.map(right, [module, other])))
child = os.fork()
if not child:
    with tvmflow.load(sys.argv[1]) as module:
        os._exit(0 if right(module) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(scope="module")
def module_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threads")
    paths = [folder / "one.so", folder / "other.so"]
    with tvmflow.compile(single("Tanh", [(257, 1023)]), target="llvm") as module:
        for path in paths:
            module.save(path)
    return paths


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, threads.physical_cores()),
        ({"TVM_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"TVM_NUM_THREADS": "all"}, 1),
    ],
    ids=str,
)
def test_modules_share_a_thread_for_each_core(module_files, run_python, given, wanted):
    """One thread is the one that calls; in a child process, too, which has no others."""
    environment = {"TVM_NUM_THREADS": None, "OMP_NUM_THREADS": None, **given}
    told = run_python(USE, *module_files, env=environment)
    assert told.stdout.split() == [str(wanted - 1), "True", "0"], told.stderr


def test_hyper_threads_are_one_core(tmp_path, monkeypatch):
    for processor, siblings in enumerate(["0,2", "1", "0,2"]):
        (tmp_path / f"cpu{processor}").write_text(siblings)
    monkeypatch.setattr(threads, "_SIBLINGS", str(tmp_path / "cpu{}"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert threads.physical_cores() == 3  # nothing is known of the last one
