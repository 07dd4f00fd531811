"""Mistakes: one sentence with a remedy, the right exit status, no files left."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.forks import run_command

import tvmflow
import tvmflow.verify.reference
from tvmflow._versions import install_command
from tvmflow.errors import EnvironmentMismatchError
from tvmflow.module import artifact as artifact_module

SHAPE = ("--shape", "x/in=1,3,8,8")
LLVM = ("--target", "llvm", *SHAPE)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_no_arguments_shows_the_help(cli):
    result = cli()
    assert "Usage" in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compil", "x.onnx"), ["No such command", "compile"]),
        (("compile",), ["Missing argument", "MODEL.onnx"]),
        (("compile", "x.onnx", "--shape", "input"), ["NAME=1,3,224,224"]),
        (("compile", "x.onnx", "--shape", "input=1,0"), ["positive whole numbers"]),
        (("compile", "x.onnx", "--shape", "=1"), ["NAME=1,3,224,224"]),
        (("compile", "x.onnx", "--shape", "a=1", "--shape", "a=2"), ["given twice"]),
        (("compile", "x.onnx", "--embed-limit", "-1"), ["--embed-limit"]),
        (("run", "x.so"), ["--inputs", "--random-seed"]),
        (("run", "x.so", "--random-seed", "many"), ["--random-seed"]),
        (("bench", "x.so", "--runs", "0"), ["--runs"]),
        (("models", "build", "mobilenet_v1", "--param", "size"), ["NAME=VALUE"]),
    ],
)
def test_usage_errors(cli, arguments, words, tmp_path):
    cli(*arguments).refused(*words)
    assert files(tmp_path) == set()


def test_compile_without_a_model(cli, tmp_path):
    cli("compile", "none.onnx", "--target", "llvm").refused("none.onnx", "Remedy")
    cli("compile", tmp_path, "--target", "llvm").refused("Remedy")
    assert files(tmp_path) == set()


def test_compile_a_damaged_model(cli, tmp_path, model):
    Path("bad.onnx").write_bytes(model.read_bytes()[:100])
    cli("compile", "bad.onnx", *LLVM).refused("bad.onnx", "Remedy")
    assert files(tmp_path) == {"bad.onnx"}


def test_compile_with_an_open_dimension(cli, model, tmp_path):
    cli("compile", model, "--target", "llvm").refused("x/in", "--shape")
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--target", "vulkan", ["vulkan", "opencl, cuda, llvm"]),
        ("--device", "abacus", ["abacus", "adreno"]),
        ("--device", "mali", ["llvm", "mali"]),
        ("--host", "my-laptop", ["my-laptop"]),
        ("-o", "no/such/folder/m.so", ["no/such/folder does not exist", "mkdir -p"]),
        ("-o", ".", ["it is a folder"]),
    ],
)
def test_compile_with_a_wrong_option(cli, model, tmp_path, option, value, words):
    cli("compile", model, *LLVM, option, value).refused(*words, "Remedy")
    assert files(tmp_path) == set()


def test_a_cuda_graph_for_another_target(cli, model, tmp_path):
    cli("compile", model, *LLVM, "--cuda-graph").refused("CUDA graph", "llvm", "--target cuda")
    assert files(tmp_path) == set()


def test_compile_never_overwrites_the_model(cli, model, tmp_path):
    content = model.read_bytes()
    cli("compile", model, *LLVM, "-o", model).refused("is the model itself")
    assert model.read_bytes() == content


def test_a_failed_compilation_keeps_the_old_module(cli, model, compiled, tmp_path):
    Path("tiny.so").write_bytes(compiled.read_bytes())
    cli("compile", model, "--target", "llvm", "-o", "tiny.so").refused("x/in")
    assert Path("tiny.so").read_bytes() == compiled.read_bytes()
    assert files(tmp_path) == {"tiny.so"}


@pytest.mark.parametrize("command", ["run", "bench", "inspect"])
def test_what_is_no_module(cli, command, compiled, tmp_path):
    seed = () if command == "inspect" else ("--random-seed", "0")
    cli(command, "none.so", *seed).refused("none.so", "there is no such file", "Remedy")
    cli(command, tmp_path, *seed).refused("it is a folder", "Remedy")
    Path("text.so").write_text("hello")
    cli(command, "text.so", *seed).refused("not an ELF file", "Remedy")
    content = compiled.read_bytes()
    Path("cut.so").write_bytes(content[: len(content) // 2])
    cli(command, "cut.so", *seed).refused("cut short or damaged", "Remedy")
    Path("new.so").write_bytes(content.replace(b'"format": 1', b'"format": 9'))
    cli(command, "new.so", *seed).refused("format 9", "Compile the model again")


def test_inspect_check_finds_damage(cli, compiled):
    content = bytearray(compiled.read_bytes())
    content[200] ^= 1
    Path("bad.so").write_bytes(content)
    assert cli("inspect", "bad.so").status == 0
    cli("inspect", "bad.so", "--check").refused("the code is not what was written", "Remedy")


def test_run_with_wrong_inputs(cli, compiled, inputs, tmp_path):
    def refused(*words: str, **arrays: np.ndarray) -> None:
        np.savez("in.npz", **{**inputs, **arrays})
        arguments = ("--inputs", "in.npz", "--outputs", "out.npz")
        cli("run", compiled, *arguments).refused(*words, "Remedy")
        assert files(tmp_path) == {"in.npz"}

    refused("There is no input 'x/inn'", "Did you mean 'x/in'?", **{"x/inn": inputs["x/in"]})
    refused("'z' has shape [4, 1], but the network takes [4, 1, 1]", z=np.zeros((4, 1), "f4"))
    refused("'z' has dtype float64, but the network takes float32", z=np.zeros((4, 1, 1)))


def test_run_with_files_that_are_no_inputs(cli, compiled, inputs, tmp_path):
    cli("run", compiled, "--inputs", "none.npz").refused("none.npz", "no such file", "Remedy")
    Path("text.npz").write_text("hello")
    cli("run", compiled, "--inputs", "text.npz").refused("it is no .npz or .npy file", "Remedy")
    np.savez("objects.npz", z=np.array([{}], dtype=object))
    cli("run", compiled, "--inputs", "objects.npz").refused("Remedy")
    np.save("one.npy", inputs["z"])
    cli("run", compiled, "--inputs", "one.npy").refused("holds one array", "2 inputs", "Remedy")
    np.savez("good.npz", **inputs)
    Path("cut.npz").write_bytes(Path("good.npz").read_bytes()[:300])
    cli("run", compiled, "--inputs", "cut.npz").refused("Remedy")
    with zipfile.ZipFile("zip.npz", "w") as archive:
        archive.writestr("z.npy", b"not an array")
    cli("run", compiled, "--inputs", "zip.npz").refused("Remedy")


def test_run_where_the_outputs_cannot_be_written(cli, compiled, tmp_path, monkeypatch):
    """That is learnt before the network runs, which may take long."""
    monkeypatch.setattr(tvmflow, "load", lambda *_, **__: pytest.fail("the module was loaded"))
    arguments = ("run", compiled, "--random-seed", "0", "--outputs")
    cli(*arguments, "no/out.npz").refused("does not exist", "Remedy")
    cli(*arguments, tmp_path).refused("it is a folder", "Remedy")
    assert files(tmp_path) == set()


@pytest.mark.onnxruntime
def test_verify_with_another_model(cli, compiled, tmp_path, model):
    other = onnx.load(model)
    for node in other.graph.node:
        node.input[:] = ["image" if name == "x/in" else name for name in node.input]
    other.graph.input[0].name = "image"
    onnx.save(other, "other.onnx")
    cli("verify", "other.onnx", compiled).refused("has no input 'x/in'", "Remedy")
    cli("verify", "none.onnx", compiled).refused("none.onnx", "Remedy")
    Path("bad.onnx").write_bytes(b"\x08\x01broken")
    cli("verify", "bad.onnx", compiled).refused("bad.onnx", "Remedy")
    other.ir_version = 99
    onnx.save(other, "new.onnx")
    done = cli("verify", "new.onnx", compiled)
    done.refused("failed: Unsupported model IR version: 99", "Remedy")
    assert "onnxruntime_src" not in done.stderr


def test_verify_without_onnxruntime(cli, model, compiled, monkeypatch):
    monkeypatch.setattr(tvmflow.verify.reference, "find_spec", lambda name: None)
    result = cli("verify", model, compiled)
    result.refused("needs ONNX Runtime", install_command("verify"))
    assert EnvironmentMismatchError.exit_status == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("resnet",), ["There is no model 'resnet'", "mobilenet_v1"]),
        (("mobilenet_v1", "--param", "depth=3"), ["no parameter 'depth'", "width"]),
        (("mobilenet_v1", "--param", "size=big"), ["size must be"]),
        (("facebox_net", "--param", "size=100"), ["multiple of 16"]),
        (("mobilenet_v1", "--param", "size=32", "-o", "no/m.onnx"), ["no/m.onnx"]),
    ],
)
def test_models_that_cannot_be_built(cli, arguments, words, tmp_path):
    cli("models", "build", *arguments).refused(*words, "Remedy")
    assert files(tmp_path) == set()


def test_errors_inside_are_short_unless_debug(cli, compiled, monkeypatch):
    def broken(path: Path) -> None:
        raise RuntimeError("the sky is falling\nsecond line")

    with monkeypatch.context() as patched:
        patched.setattr(artifact_module, "read_artifact", broken)
        result = cli("inspect", compiled)
        result.refused("Internal error: RuntimeError: the sky is falling", "--debug", status=1)
        assert "second line" not in result.stderr
        result = cli("inspect", compiled, "--debug")
    assert result.status == 1
    assert "Traceback" in result.stderr
    result = cli("--debug", "inspect", "none.so")
    assert result.status == 2
    assert "Traceback" in result.stderr
    assert "Remedy" in result.stderr
    assert "Traceback" not in cli("inspect", "none.so").stderr


def test_no_opencl_device(tmp_path, model):
    """Without a driver: compiling for ``auto`` and running are refused, and say what to do."""
    env = {**os.environ, "TVMFLOW_OPENCL_LIBRARY": "/nonexistent/libOpenCL.so"}
    module = tmp_path / "cl.so"

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return run_command([*map(str, arguments)], env, timeout=600)

    done = run("compile", model, *SHAPE, "-o", module)
    assert done.returncode == 2
    assert "Remedy" in done.stderr
    assert "Traceback" not in done.stderr
    done = run("compile", model, *SHAPE, "--device", "cpu", "-o", module)
    assert done.returncode == 0, done.stderr
    done = run("run", module, "--random-seed", "0")
    assert done.returncode == 2
    assert "No OpenCL device" in done.stderr
    assert "Remedy" in done.stderr
    assert "/nonexistent/libOpenCL.so" in done.stderr
    assert "Traceback" not in done.stderr
    done = run("devices")
    assert done.returncode == 0
    assert "llvm:0" in done.stdout
    assert "No OpenCL device" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("compile", "none.onnx"), "ModelError", "none.onnx"),
        (("compile", "none.onnx", "--dtype", "fp64"), "TargetError", "fp64"),
        (("bench", "x.so", "--runs", "0"), "UsageError", "--runs"),
        (("bench", "x.so", "--seconds", "inf"), "UsageError", "--seconds must be finite"),
        (("bench", "x.so", "--no-such"), "UsageError", "--no-such"),
        (("no-such",), "UsageError", "no-such"),
        (("compile",), "UsageError", "MODEL.onnx"),
    ],
)
def test_with_json_errors_are_json(cli, arguments, kind, words):
    result = cli(*arguments, "--json")
    assert result.status == 2
    error = result.json["error"]
    assert (error["type"], result.json["status"]) == (kind, 2)
    assert words in error["message"] + str(error["remedy"])
    assert set(error) == {"type", "message", "remedy", "details"}
    # For people, as without.
    assert words in result.stderr
    assert cli(*arguments).stdout == ""


def test_with_json_an_error_of_tvmflow_is_json(cli, monkeypatch):
    def fail(*_arguments, **_options):
        raise RuntimeError("a surprise")

    monkeypatch.setattr("tvmflow.runtime.devices.list_devices", fail)
    result = cli("devices", "--json")
    assert result.status == 1
    assert result.json["error"]["type"] == "InternalError"
    assert "a surprise" in result.json["error"]["message"]
