"""The agent on mutated requests, under the sanitizers (`fuzz.c`)."""

from __future__ import annotations

import pytest
from support import raw_agent as raw
from support.commands import output
from support.mock_library import build_mock

#: Requests to the session, and to the main process, for one seed: 100,000 in all.
COUNT, SEEDS = 2500, 20
#: Kinds of requests that must succeed now and then: a corpus that is refused reaches little.
SESSION = (*range(raw.FACTS, raw.BINARIES + 1), *range(raw.BUILD, raw.FREE + 1))
MAIN = (*range(raw.HELLO, raw.RESET + 1), raw.FACTS, raw.LAUNCH)


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Return a function that sends requests and returns the successes and refusals by kind."""
    folder = tmp_path_factory.mktemp("fuzz")
    program, driver = raw.build_fuzzer(), raw.build_driver(*raw.SANITIZERS)
    library = build_mock(folder / "libmock.so")
    (folder / "none").mkdir()
    env = {
        "ASAN_OPTIONS": "allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "FAKE_OPENCL_BUFFER_BYTES": 1 << 20,
        "FAKE_OPENCL_RECORDABLE": 2,
        "FAKE_OPENCL_MEMORY_BYTES": 64 << 20,
        "TVMFLOW_OPENCL_LIBRARY": driver,
        "TVMFLOW_AGENT_SYS": folder / "none",
        "TVMFLOW_AGENT_PROC": folder / "none",
    }

    def fuzz(mode, count, seed):
        store = tmp_path_factory.mktemp(mode)
        extension = ("cl_khr_command_buffer", "cl_qcom_recordable_queues")[seed % 2]
        env["FAKE_OPENCL_EXTENSIONS"] = extension
        lines = output(program, mode, store, count, seed, library, **env).splitlines()
        found = {kind: (good, bad) for kind, good, bad, _ in (map(int, x.split()) for x in lines)}
        left = list((store / "work").iterdir())
        return found, left

    return fuzz


def check(found, kinds):
    """Check that requests of all kinds were both answered and refused."""
    missing = [kind for kind in kinds if not found.get(kind, (0, 0))[0]]
    assert not missing
    assert sum(bad for _, bad in found.values()) > 50


@pytest.mark.parametrize(("mode", "kinds"), [("session", SESSION), ("main", MAIN)])
def test_mutated_requests(run, mode, kinds):
    found, _ = run(mode, 1000, 1)
    check(found, kinds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 2 + SEEDS))
@pytest.mark.parametrize(("mode", "kinds"), [("session", SESSION), ("main", MAIN)])
def test_many_mutated_requests(run, mode, kinds, seed):
    found, left = run(mode, COUNT, seed)
    check(found, kinds)
    if mode == "main":
        assert left == []
