"""Worker processes: they live on, and are replaced when they do not."""

from __future__ import annotations

import math
import os
import signal
import time
from concurrent.futures import Future

import pytest

from tvmflow.runtime.process import Pool, Worker, WorkerLostError, killed_text
from tvmflow.tuning.building import first_success


@pytest.fixture
def worker():
    made = Worker({"TVMFLOW_TEST": "yes"})
    yield made
    made.close()


def test_a_process_lives_on_and_is_replaced(worker):
    worker.start()
    first = worker.pid
    assert first != os.getpid()
    worker.start()
    assert worker.call(os.getpid, timeout_s=400) == first == worker.pid
    assert worker.call(os.getenv, "TVMFLOW_TEST", timeout_s=400) == "yes"
    # Its own session: Ctrl-C does not reach it.
    assert worker.call(os.getsid, 0, timeout_s=400) == first
    with pytest.raises(WorkerLostError, match="SIGABRT") as lost:
        worker.call(os.abort, timeout_s=400)
    assert not lost.value.timed_out
    with pytest.raises(WorkerLostError, match=r"more than 0\.2 s") as lost:
        worker.call(time.sleep, 100, timeout_s=0.2)
    assert lost.value.timed_out
    assert worker.call(os.getpid, timeout_s=400) not in (first, os.getpid())


def test_a_killed_process_is_explained(worker):
    with pytest.raises(WorkerLostError) as lost:
        worker.call(signal.raise_signal, signal.SIGKILL, timeout_s=400)
    assert (lost.value.timed_out, lost.value.interrupted) == (False, False)
    for words in ("was killed (SIGKILL)", "memory ran out", "give the machine or the container"):
        assert words in str(lost.value)


def test_a_process_killed_for_memory_is_told_from_one_that_may_have_been():
    assert "the system killed one for memory meanwhile" in killed_text(2, 3)
    for before, after in ((2, 2), (None, None), (None, 3)):
        assert "most likely by the system" in killed_text(before, after)


def test_an_error_is_told_and_the_process_lives_on(worker):
    first = worker.call(os.getpid, timeout_s=400)
    with pytest.raises(RuntimeError, match="ValueError"):
        worker.call(math.sqrt, -1.0, timeout_s=400)
    assert worker.call(os.getpid, timeout_s=400) == first


def test_an_interrupted_worker_starts_no_other_process(worker):
    worker.call(os.getpid, timeout_s=400)
    worker.interrupt()
    # Its end was asked for: nothing is said of memory.
    with pytest.raises(WorkerLostError, match=r"^it was interrupted$") as lost:
        worker.call(os.getpid, timeout_s=400)
    assert lost.value.interrupted
    with pytest.raises(WorkerLostError, match="interrupted"):
        worker.call(os.getpid, timeout_s=400)
    assert worker.pid is None


def test_a_pool_that_is_closed_before_its_processes_start_ends():
    for _ in range(20):
        pool = Pool(1)
        waiting = pool.submit(time.sleep, 800, timeout_s=800)
        pool.close()
        assert waiting.cancelled() or isinstance(waiting.exception(), WorkerLostError)


def test_a_pool_drops_what_is_queued():
    pool = Pool(1)
    running = pool.submit(time.sleep, 800, timeout_s=800)
    queued = pool.submit(time.sleep, 800, timeout_s=800)
    # A process starts first.
    while not running.running():
        time.sleep(0.05)
    pool.close()
    assert queued.cancelled()
    assert isinstance(running.exception(), WorkerLostError)


def test_an_interrupted_call_is_not_tried_again():
    tried = []

    def fail(error):
        tried.append(error)
        lost = Future()
        lost.set_exception(WorkerLostError("it", timed_out=False, interrupted=len(tried) == 2))
        return lost

    assert first_success(fail, fail, fail).cancelled()
    assert [str(error) for error in tried] == ["None", "it"]
