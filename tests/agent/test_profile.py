"""Profiles of networks on a device behind an agent."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import tvmflow
from tvmflow.cli.app import app
from tvmflow.compiler.remote import options_for
from tvmflow.devices.device_file import Fact, Origin
from tvmflow.errors import InputError

pytestmark = pytest.mark.opencl

RATES = {"buffer_gbps": 1e-3, "fp32_gflops": 1e6, "launch_us": 1e-3, "image_gbps": 4.0}


@pytest.fixture
def device_file(local):
    """Return the facts of the local device, with rates of memory that is far too slow."""
    rates = {name: Fact(rate, Origin.MEASURED) for name, rate in RATES.items()}
    return replace(local.device_file(0), rates=rates)


@pytest.mark.parametrize("target", ["opencl", "llvm"])
def test_kernels_have_the_counts_of_the_module_for_tvm(local, network, target, device_file):
    options = options_for(local, target=target, fallback=None)
    with (
        tvmflow.compile(network, options=options, device=local) as there,
        tvmflow.compile(network, options=replace(options, format="tvm")) as here,
    ):
        found = tvmflow.profile(there, runs=3, functions_of=here, device_file=device_file)
        expected = tvmflow.profile(here, runs=3, busy=True)

    def described(profile):
        return [(k.name, k.nodes, k.family, k.flops, k.bytes_read) for k in profile.kernels]

    assert described(found) == described(expected)
    # A product of 3 channels and 3×3 weights for each of 7×17×19 results.
    most = max(found.kernels, key=lambda kernel: kernel.flops or 0)
    assert most.flops >= 2 * 27 * 7 * 17 * 19
    assert most.bound == "bandwidth"
    assert (found.ceilings.copy_gbps, found.ceilings.texture_gbps) == (1e-3, 4.0)
    assert found.ceilings.fp16_gflops is None
    assert all(kernel.median_us > 0 for kernel in found.kernels)
    # Programs that run here say nothing about the device.
    assert found.others_share is None


def test_kernels_of_another_network_are_refused(local, network, library):
    other = tvmflow.models.make("squeezenet", size=32, classes=3)
    with (
        tvmflow.compile(other, target="opencl") as here,
        local.load(library) as there,
        pytest.raises(InputError, match="has no kernel"),
    ):
        tvmflow.profile(there, runs=1, functions_of=here)


def test_missing_rates_are_named(local, library, device_file):
    del device_file.rates["launch_us"]
    for file in None, device_file:
        found = tvmflow.profile(library, runs=1, device=local, device_file=file)
        assert found.ceilings is None
        assert "tvmflow probe" in " ".join(found.notes)
        assert [kernel.flops for kernel in found.kernels] == [None] * len(found.kernels)


def test_the_command_profiles_a_model_there(local, network, device_file, tmp_path):
    model, file, page = (tmp_path / name for name in ("small.onnx", "this.json", "page.html"))
    onnx.save(network, model)
    file.write_text(json.dumps(device_file.to_json()))
    # One host at a time uses a device.
    local.close()
    arguments = ["profile", str(model), "--on", "local", "--device", str(file), "--runs", "2"]
    done = CliRunner().invoke(app, [*arguments, "--html", str(page), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["module"]["path"], found["runs"]) == (str(model), 2)
    assert found["ceilings"]["copy_gbps"] == pytest.approx(1e-3)
    assert any("Conv" in node or "c" in node for k in found["kernels"] for node in k["nodes"])
    assert np.sum([kernel["median_us"] for kernel in found["kernels"]]) > 0
    assert "Roofline" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{model}", "--target", "llvm"], "go with --on"),
        (["{library}", "--on", "local", "--dtype", "fp16"], "for ONNX models"),
        (["{library}", "--on", "local", "--device", "adreno"], "for ONNX models"),
        (["{library}", "--on", "local", "--fresh-ceilings"], "--fresh-ceilings"),
        (["{library}", "--on", "local", "--device", "none.json"], "none.json"),
    ],
)
def test_options_that_do_not_fit_are_refused(local, network, library, tmp_path, arguments, said):
    onnx.save(network, tmp_path / "small.onnx")
    paths = {"model": tmp_path / "small.onnx", "library": library}
    done = CliRunner().invoke(app, ["profile", *(text.format(**paths) for text in arguments)])
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())
