"""Functions of Python that take a device behind an agent."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import tvmflow
from tvmflow.agent.module import AgentModule
from tvmflow.cli.app import app
from tvmflow.errors import AgentError, TargetError, UnknownOptionError

pytestmark = pytest.mark.opencl


def test_a_model_is_compiled_for_the_device_and_runs_there(local, network, image):
    with tvmflow.compile(network, device=local) as module:
        assert isinstance(module, AgentModule)
        assert module.remote is local
        assert module.metadata["options"]["fallback"] == "cpu"
        found = module(x=image)["y"]
        timing = tvmflow.bench(module, {"x": image}, runs=5)
        folder = module.path.parent
    assert timing.setting.device.startswith(local.name)
    assert not folder.exists()
    with tvmflow.compile(network, target="opencl") as here:
        np.testing.assert_allclose(found, here(x=image)["y"], rtol=1e-5, atol=1e-5)


def test_given_options_win_over_the_devices(local, network):
    with tvmflow.compile(network, device=local, target="llvm") as module:
        asked = module.metadata["options"]
    assert (module.target, asked.get("fallback")) == ("llvm", None)
    options = tvmflow.CompileOptions(target="opencl", storage="buffer")
    with tvmflow.compile(network, options=options, device=local) as module:
        asked = module.metadata["options"]
    assert (asked["storage"], asked.get("fallback")) == ("buffer", None)
    with pytest.raises(TargetError, match="target cuda is not possible"):
        tvmflow.compile(network, device=local, target="cuda")
    with pytest.raises(UnknownOptionError, match="stroage"):
        tvmflow.compile(network, device=local, stroage="buffer")


def test_files_are_loaded_measured_and_verified_there(local, network, library, image, tmp_path):
    with tvmflow.load(library, device=local, backend="cpu") as module:
        assert module.describe()["backend"] == "cpu"
        np.testing.assert_array_equal(
            module(x=image)["y"], tvmflow.load(library, backend="cpu")(x=image)["y"]
        )
    assert tvmflow.bench(library, runs=3, device=local).setting.device.startswith(local.name)
    onnx.save(network, tmp_path / "small.onnx")
    report = tvmflow.verify(tmp_path / "small.onnx", library, device=local)
    assert report.passed
    with tvmflow.compile(network, target="llvm") as here, pytest.raises(AgentError, match="TVM"):
        tvmflow.load(here.path, device=local)


def test_a_network_is_tuned_there_and_the_connection_stays_open(local, network, tmp_path):
    journal = tmp_path / "there.journal"
    tuned = tvmflow.tune(network, journal, device=local, trials=2, compare=False)
    assert sum(each.trials for each in tuned.progress) >= 2
    assert {each.device.split()[0] for each in tuned.devices} == {local.name.split()[0]}
    assert local.sensors()["time_ns"] > 0


def test_a_command_compiles_for_the_device(local, network, tmp_path):
    name = local.name
    local.close()
    onnx.save(network, tmp_path / "small.onnx")
    command = ["bench", str(tmp_path / "small.onnx"), "--on", "local", "--runs", "3", "--json"]
    for more, backend in (([], "opencl"), (["--target", "llvm"], "cpu")):
        done = CliRunner().invoke(app, [*command, *more])
        assert done.exit_code == 0, done.output
        about = json.loads(done.stdout)
        assert (about["format"], about["backend"], about["runs"]) == ("standalone", backend, 3)
        assert about["device"].startswith(name)
