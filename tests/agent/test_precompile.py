"""Binaries that the driver of a device behind an agent builds."""

from __future__ import annotations

import shutil

import pytest

import tvmflow
from tvmflow.agent.precompile import start_on
from tvmflow.errors import AgentError
from tvmflow.module.standalone import programs
from tvmflow.module.standalone.precompile import Source, precompile, start_here

pytestmark = pytest.mark.opencl


@pytest.fixture
def copied(library, tmp_path):
    return shutil.copy(library, tmp_path / "libcopied.so")


def test_binaries_are_those_of_this_machines_driver(local, copied, image, monkeypatch):
    monkeypatch.setenv("TVMFLOW_CACHE", "0")
    source = Source.open(copied)
    there = precompile(source, start_on(local, 0))
    here = precompile(source, start_here(0))
    assert [p.key for p in there.programs] == [p.key for p in here.programs]
    assert (there.device, there.driver) == (here.device, here.driver)
    assert min(there.without_ms, there.with_ms) > 0
    # The library has used them in the second start, and does so here.
    programs.update(programs.sidecar_path(copied), there.programs)
    with tvmflow.load(copied, backend="opencl") as module:
        module(x=image)
        about = module.describe()
    assert (about["programs_built"], about["programs_shipped"]) == (0, len(there.programs))


def test_a_device_that_is_not_there_is_refused(local, copied):
    source = Source.open(copied)
    with pytest.raises(AgentError, match="no OpenCL device 99") as found:
        precompile(source, start_on(local, 99))
    assert ".tmp" not in str(found.value)
    assert not programs.sidecar_path(copied).exists()
