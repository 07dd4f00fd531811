"""Commands that do what was asked: their results, for people and as JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from support.tiny_model import tiny_model

import tvmflow
from tvmflow.verify.tolerance import assert_close

SHAPE = ("--shape", "x/in=1,3,8,8")


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ((), "tvmflow verify mobilenet_v2.onnx mobilenet_v2.so"),
        (("compile",), "tvmflow compile net.onnx --device adreno --host linux-arm64"),
        (("run",), "tvmflow run net.so --inputs in.npz --outputs out.npz"),
        (("bench",), "tvmflow bench net.so --seconds 30 --kernels"),
        (("verify",), "tvmflow verify net.onnx net.so --inputs in.npz --json"),
        (("inspect",), "tvmflow inspect net.so --check"),
        (("schedules",), "tvmflow inspect net.so --schedules"),
        (("predict",), "tvmflow predict mobilenet_v2.onnx --gpu adreno-740"),
        (("precompile",), "tvmflow precompile libmobilenet.so --tracker 192.168.1.10:9190"),
        (("devices",), "TVMFLOW_OPENCL_DEVICE=1:0 tvmflow bench net.so"),
        (("models", "build"), "tvmflow models build mobilenet_v1 --param width=0.25"),
        (("models", "list"), "tvmflow models list"),
    ],
)
def test_help_of_every_command_shows_examples(cli, command, example):
    for option in ("--help", "-h"):
        result = cli(*command, option).succeeded()
        assert "Usage: " in result.stdout
        assert example in result.stdout


def test_version(cli):
    result = cli("--version")
    assert "apache-tvm 0.27.0.post1" in result.stdout
    assert "apache-tvm-ffi 0.1.14.post1" in result.stdout


def test_the_command_line_imports_nothing_heavy():
    import subprocess
    import sys

    code = (
        "import sys, tvmflow.cli.app;"
        "print([m for m in ('tvm', 'tvm_ffi', 'onnx', 'numpy', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_compile_writes_a_module_and_says_so(cli, model, tmp_path):
    result = cli("compile", model, "--target", "llvm", *SHAPE).succeeded()
    assert "Wrote tiny.so" in result.stderr
    assert "for llvm (cpu) on" in result.stderr
    assert result.stdout == ""
    assert files(tmp_path) == {"tiny.so"}
    assert cli("inspect", "tiny.so", "--check").status == 0
    result = cli("compile", model, "--target", "llvm", *SHAPE, "-o", "tiny[red].so")
    assert "Wrote tiny[red].so" in result.stderr


def test_compile_quietly_and_verbosely(cli, model, tmp_path):
    result = cli("compile", model, "--target", "llvm", *SHAPE, "--quiet")
    assert (result.stdout, result.stderr) == ("", "")
    result = cli("-v", "compile", model, "--target", "llvm", *SHAPE)
    assert "import" in result.stderr
    assert "build" in result.stderr


def test_compile_as_json(cli, model, tmp_path):
    out = tmp_path / "m.so"
    result = cli("compile", model, "--target", "llvm", *SHAPE, "-o", out, "--json")
    described = result.json
    assert described["output"] == str(out)
    assert described["bytes"] == out.stat().st_size
    assert described["weights_file"] is None
    assert (described["target"], described["device"]) == ("llvm", "cpu")
    assert described["stage_ms"]["import"] > 0


def test_compile_dumps_the_ir(cli, model, tmp_path):
    cli("compile", model, "--target", "llvm", *SHAPE, "--dump-ir", "ir")
    dumped = files(tmp_path / "ir")
    assert any("import" in name for name in dumped)
    assert len(dumped) >= 3


def test_inspect(cli, compiled):
    result = cli("inspect", compiled, "--kernels", "--weights", "--check").succeeded()
    for word in ("llvm (cpu)", "x/in", "float32", "1×3×8×8", "positive", "bool", "0.27.0.post1"):
        assert word in result.stdout
    assert "Every byte matches its digest" in result.stderr
    described = cli("inspect", compiled, "--json").json
    assert described["inputs"][0] == {
        "name": "x/in",
        "shape": [1, 3, 8, 8],
        "dtype": "float32",
        "open_dims": [0],
    }
    assert described["sizes"]["file"] == compiled.stat().st_size
    assert described["kernels"]
    assert described["checked"] is False


@pytest.mark.onnxruntime
def test_run_writes_what_onnxruntime_computes(cli, model, compiled, inputs):
    from tvmflow.verify.reference import run_reference

    np.savez("in.npz", **inputs)
    result = cli("run", compiled, "--inputs", "in.npz", "--outputs", "out.npz").succeeded()
    assert "Wrote out.npz" in result.stderr
    reference, _ = run_reference(model, inputs, ["y", "positive"])
    with np.load("out.npz") as outputs:
        assert set(outputs) == {"y", "positive"}
        assert_close(outputs["y"], reference["y"])
        np.testing.assert_array_equal(outputs["positive"], reference["positive"])


def test_random_inputs_depend_on_the_seed_only(cli, compiled):
    for seed, name in (("1", "a.npz"), ("1", "b.npz"), ("2", "c.npz")):
        assert cli("run", compiled, "--random-seed", seed, "--outputs", name).status == 0
    a, b, c = (np.load(name)["y"] for name in ("a.npz", "b.npz", "c.npz"))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def test_random_values_fill_what_a_file_lacks(cli, compiled, inputs):
    np.savez("in.npz", z=inputs["z"])
    assert cli("run", compiled, "--inputs", "in.npz").status == 2
    assert cli("run", compiled, "--inputs", "in.npz", "--random-seed", "0").status == 0


def test_run_prints_a_summary(cli, compiled):
    result = cli("run", compiled, "--random-seed", "3")
    assert "1×4×8×8" in result.stdout
    outputs = cli("run", compiled, "--random-seed", "3", "--json").json["outputs"]
    assert [o["name"] for o in outputs] == ["y", "positive"]
    assert outputs[0]["min"] == 0.0  # after a ReLU
    assert outputs[0]["max"] > 0
    assert outputs[1]["dtype"] == "bool"


@pytest.mark.onnxruntime
def test_verify_passes(cli, model, compiled, inputs):
    result = cli("verify", model, compiled).succeeded()
    assert result.stdout.count("passed") == 2
    np.savez("in.npz", **inputs)
    report = cli("verify", model, compiled, "--inputs", "in.npz", "--json").json
    assert report["passed"] is True
    assert "ONNX Runtime" in report["reference"]
    y, positive = report["outputs"]
    assert 0 <= y["max_rel_error"] <= y["tolerance"]["relative"]
    assert positive["max_abs_error"] == 0


@pytest.mark.onnxruntime
def test_verify_pads_smaller_inputs(cli, tmp_path):
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        mean (float[1, W] x) => (float[1, 1] y) { y = ReduceMean<axes=[1]>(x) }
        """
    onnx.save(onnx.parser.parse_model(text), tmp_path / "mean.onnx")
    cli("compile", "mean.onnx", "--target", "llvm", "--shape", "x=1,9", "-o", "mean.so").succeeded()
    np.savez("in.npz", x=np.ones((1, 8), np.float32))
    padded = ("verify", "mean.onnx", "mean.so", "--inputs", "in.npz", "--pad")
    cli(*padded[:-1]).refused("[1, 8]", "[1, 9]")
    assert "0.111" in cli(*padded, "0").stdout
    cli(*padded, "edge").succeeded()
    cli(*padded, "mirror").refused("'mirror', expected a number or 'edge'")


@pytest.mark.onnxruntime
def test_verify_fails_for_a_model_with_other_weights(cli, compiled, tmp_path):
    onnx.save(tiny_model(scale=1.001), tmp_path / "other.onnx")
    result = cli("verify", "other.onnx", compiled)
    result.refused("1 of 2 outputs differ from ONNX Runtime", "'y'", "Remedy", status=1)
    assert "FAILED" in result.stdout
    result = cli("verify", "other.onnx", compiled, "--json")
    assert result.status == 1
    assert result.json["passed"] is False
    assert result.json["outputs"][0]["used"] > 1


def test_bench(cli, compiled):
    result = cli("bench", compiled, "--runs", "4", "--kernels").succeeded()
    words = "first call", "median", "min", "p10", "p90", "p99", "max", "throughput", "runs/s"
    for word in ("4 runs", *words, "launches a run"):
        assert word in result.stdout
    described = cli("bench", compiled, "--runs", "3", "--warmup", "0", "--json").json
    assert (described["runs"], described["warmup"]) == (3, 0)
    assert 0 < described["min_ms"] <= described["p10_ms"] <= described["median_ms"]
    assert described["median_ms"] <= described["p90_ms"] <= described["p99_ms"]
    assert described["p99_ms"] <= described["max_ms"]
    assert described["runs_per_s"] == pytest.approx(1e3 / described["mean_ms"])
    assert described["first_ms"] > 0
    assert "kernels" not in described
    described = cli("bench", compiled, "--seconds", "0.05", "--kernels", "--json").json
    assert described["runs"] >= 1
    assert all(kernel["median_us"] > 0 for kernel in described["kernels"])


FORMS = [
    ("llvm", "tvm", "cpu"),
    ("llvm", "standalone", "cpu"),
    pytest.param("opencl", "tvm", "opencl", marks=pytest.mark.opencl),
]


@pytest.mark.parametrize(("target", "form", "backend"), FORMS)
def test_bench_names_what_it_measured_on(cli, model, monkeypatch, target, form, backend):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = ("--target", target, "--device", "cpu", "--format", form, "-o", "net.so")
    assert cli("compile", model, *SHAPE, *options).status == 0
    found = cli("bench", "net.so", "--runs", "1", "--json").json
    assert (found["target"], found["format"], found["backend"]) == (target, form, backend)
    assert found["versions"]["tvmflow"] == tvmflow.__version__
    assert found["device"]
    assert (found["threads"] is None) == (backend == "opencl")
    assert bool(found["driver"]) == (backend == "opencl")
    assert found["others_share"] is None
    shown = cli("bench", "net.so", "--runs", "1").stdout
    for words in (
        found["device"],
        f"{target} ({form})",
        backend,
        f"TVM {found['versions']['TVM']}",
    ):
        assert words in shown
    with tvmflow.load("net.so") as module:
        said = repr(tvmflow.bench(module, runs=1))
        assert found["device"] in said
        assert ("thread" in said.rpartition("(")[2]) == (backend == "cpu")


def test_bench_says_that_other_programs_disturbed_it(cli, compiled, busy_machine):
    result = cli("bench", compiled, "--runs", "1")
    assert "Other programs took 50% of the processors meanwhile (more than 10%)" in result.stderr
    assert cli("bench", compiled, "--runs", "1", "--json").json["others_share"] == 0.5


def test_models(cli, tmp_path):
    listed = cli("models", "list", "--json").json
    assert {"mobilenet_v1", "mobilenet_v2", "facebox_net"} <= {m["name"] for m in listed}
    assert "mobilenet_v2" in cli("models", "list").stdout
    arguments = ("--param", "width=0.25", "--param", "size=32")
    result = cli("models", "build", "mobilenet_v1", "-o", "m.onnx", *arguments).succeeded()
    assert "Wrote m.onnx" in result.stderr
    assert files(tmp_path) == {"m.onnx"}
    built = onnx.load("m.onnx")
    assert [d.dim_value for d in built.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 32, 32]
    written = cli("models", "build", "mobilenet_v1", "-o", "m.onnx", *arguments, "--json").json
    assert written["files"] == [{"name": "m.onnx", "bytes": Path("m.onnx").stat().st_size}]


def test_devices_lists_the_host(cli):
    host = cli("devices", "--json").json[-1]
    assert (host["kind"], host["index"]) == ("llvm", 0)
    assert host["compute_units"] > 0
    assert "llvm:0" in cli("devices").stdout


@pytest.mark.opencl
def test_devices_shows_what_texture_storage_needs(cli):
    device = cli("devices", "--json").json[0]
    assert device["kind"] == "opencl"
    text = cli("devices", "-v").stdout
    words = ["opencl:0", device["name"], device["library"], device["driver"], "fp16"]
    if device["images"]:
        words.append(f"{device['image2d_max_width']}×{device['image2d_max_height']} texels")
    for word in words:
        assert word in text


@pytest.mark.opencl
def test_compiled_run_and_measured_on_opencl(cli, model):
    result = cli("compile", model, *SHAPE, "-o", "cl.so").succeeded()
    assert cli("run", "cl.so", "--random-seed", "0", "--outputs", "out.npz").status == 0
    measured = cli("bench", "cl.so", "--runs", "5", "--kernels", "--json").json
    assert {kernel["clock"] for kernel in measured["kernels"]} == {"device"}
    result = cli("bench", "cl.so", "--runs", "5", "--kernels")
    assert "by the device's clock" in result.stdout
    assert "work-items" in result.stdout


@pytest.mark.opencl
@pytest.mark.onnxruntime
def test_verified_on_opencl(cli, model):
    assert cli("compile", model, *SHAPE, "-o", "cl.so").status == 0
    cli("verify", model, "cl.so").succeeded()
