"""Launches on a CPU that are noted and run as one kernel (``native/opencl/chain.h``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.drivers import DRIVERS

#: Those for CPUs: all have shared virtual memory of the fine-grained kind.
PROCESSORS = [driver for driver in DRIVERS if "pocl" in driver.name or driver.name == "intel"]


@pytest.fixture
def own_cache(tmp_path):
    """Return the environment with empty caches, and a check that a chain was built there."""
    pocl = tmp_path / "pocl"
    pocl.mkdir()
    env = {"TVMFLOW_CACHE_DIR": str(tmp_path / "cache"), "POCL_CACHE_DIR": str(pocl)}

    def has_chain() -> bool:
        programs = Path(env["TVMFLOW_CACHE_DIR"]).glob("*.program")
        return any(b"tvmflow_chain" in program.read_bytes() for program in programs)

    return env, has_chain


@pytest.mark.parametrize("driver", PROCESSORS, ids=lambda driver: driver.name, indirect=True)
@pytest.mark.parametrize("chains", ["1", "0"])
def test_each_step_sees_all_of_the_last_one(driver, chains, script, own_cache):
    env, has_chain = own_cache
    assert script("chains.py", env={**driver.env, **env, "TVMFLOW_CHAINS": chains}) == []
    assert has_chain() == (chains == "1")


def test_devices_without_shared_memory_launch_each_kernel(script, own_cache):
    rusticl = next(driver for driver in DRIVERS if driver.name == "rusticl")
    if not rusticl.path:
        pytest.skip("Mesa's Rusticl is not installed")
    env, has_chain = own_cache
    assert script("chains.py", env={**rusticl.variables(rusticl.path), **env}) == []
    assert not has_chain()
