"""``tvmflow compile --standalone``, and the library as input of the other commands."""

from __future__ import annotations

import shutil

import onnxruntime
import pytest

import tvmflow
from tvmflow.explain.profiling.reading import from_json
from tvmflow.module.standalone.loaded import StandaloneModule
from tvmflow.verify.tolerance import assert_close

pytestmark = [pytest.mark.opencl, pytest.mark.onnxruntime]
OPTIONS = ("--device", "cpu", "--shape", "x/in=1,3,8,8", "--standalone")


@pytest.fixture(scope="module")
def library(model, folder):
    """Return the tiny network as a library."""
    shapes = {"x/in": (1, 3, 8, 8)}
    with tvmflow.compile(
        model, device="cpu", shapes=shapes, format="standalone", file_name="libtiny.so"
    ) as made:
        return made.save(folder / "libtiny.so")


def test_compile_writes_a_library_that_runs(cli, model, tmp_path, inputs):
    output = tmp_path / "libnet.so"
    about = cli("compile", model, *OPTIONS, "-o", output, "--json").json
    assert about["target"] == "opencl"
    assert about["bytes"] == output.stat().st_size
    assert about["weights_file"] is None
    with tvmflow.load(output) as module:
        assert isinstance(module, StandaloneModule)
        got = module(inputs)
        assert module.self_test().compared == 2 * 4 * 8 * 8
    expected = onnxruntime.InferenceSession(model).run(None, inputs)
    for info, reference in zip(module.outputs, expected, strict=True):
        assert_close(got[info.name], reference, name=info.name)


def test_a_library_for_the_cpu_alone_or_beside_opencl(cli, model, tmp_path, inputs, monkeypatch):
    both, cpu = tmp_path / "libboth.so", tmp_path / "libcpu.so"
    shape = ("--shape", "x/in=1,3,8,8", "--standalone")
    assert cli("compile", model, *OPTIONS, "--fallback", "cpu", "-o", both).status == 0
    assert cli("compile", model, "--target", "llvm", *shape, "-o", cpu).status == 0
    told = cli("inspect", both).stdout
    assert "calls of functions for the CPU, which needs" in told
    assert "fallback" not in cli("inspect", cpu).stdout
    assert cli("inspect", both, "--json").json["fallback"]["target"] == "llvm"
    monkeypatch.setenv("TVMFLOW_OPENCL_LIBRARY", "/nowhere/libOpenCL.so")
    for library in (both, cpu):
        assert cli("verify", model, library).status == 0
    monkeypatch.undo()
    for library, backend, used in (
        (both, "auto", "opencl"),
        (both, "cpu", "cpu"),
        (cpu, "cpu", "cpu"),
    ):
        options = ("--backend", backend, "--random-seed", "0")
        assert cli("bench", library, *options, "--runs", "2", "--json").json["backend"] == used
        assert cli("verify", model, library, *options, "--json").json["passed"]
        assert cli("run", library, *options).status == 0
    assert "backend" in cli("bench", both, "--backend", "opencl", "--runs", "2").stdout


def test_backends_that_a_file_has_not(cli, library, model, tmp_path):
    cli("run", library, "--random-seed", "0", "--backend", "cpu").refused(
        "has kernels for opencl only", "--fallback cpu"
    )
    cli("verify", model, library, "--backend", "cpu").refused("kernels for opencl only")
    cli("run", tmp_path / "none.so", "--random-seed", "0", "--backend", "cpu").refused(
        "there is no such file"
    )
    cli("bench", library, "--backend", "gpu").refused("expected one of auto, opencl, cpu")
    cli("bench", library, "--scaling", "--backend", "cpu").refused("do not go with --scaling")
    other = tmp_path / "net.so"
    shape = ("--shape", "x/in=1,3,8,8")
    assert cli("compile", model, "--target", "llvm", *shape, "-o", other).status == 0
    cli("bench", other, "--backend", "cpu").refused("no standalone library", "--standalone")


def test_weights_go_beside_the_library(cli, model, tmp_path, inputs):
    output = tmp_path / "libnet.so"
    about = cli("compile", model, *OPTIONS, "--embed-limit", "0", "-o", output, "--json").json
    weights = tmp_path / "libnet.so.weights"
    assert about["weights_file"] == str(weights)
    assert cli("inspect", output, "--check", "--json").json["weights_file"] == weights.name
    with tvmflow.load(output) as module:
        module(inputs)
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    cli("inspect", output).refused("libnet.so.weights was cut short")
    for wrong in (b"", b"TVMFWGTS", content[:20] + bytes(len(content) - 20)):
        weights.write_bytes(wrong)
        cli("inspect", output).refused("libnet.so.weights, which is damaged or another library's")
    weights.unlink()
    cli("inspect", output).refused("its weights are neither inside nor in libnet.so.weights.")


def test_run_bench_and_verify(cli, model, library):
    assert "y" in cli("run", library, "--random-seed", "1", "--json").stdout
    assert cli("bench", library, "--runs", "2", "--json").json["runs"] == 2
    assert "ONNX Runtime" in cli("verify", model, library, "--json").stdout


def test_inspect_as_text(cli, library):
    text = cli("inspect", library, "--kernels", "--weights", "--memory").stdout
    for words in ("standalone library", "in the file", "512 values", "Memory objects", "1 program"):
        assert words in " ".join(text.split())


def test_inspect_as_json(cli, library):
    about = cli("inspect", library, "--json").json
    assert about["name"] == "tiny"
    assert [entry["name"] for entry in about["inputs"]] == ["x/in", "z"]
    assert [entry["dtype"] for entry in about["outputs"]] == ["float32", "bool"]
    roles = [allocation["role"] for allocation in about["allocations"]]
    assert (roles.count("input"), roles.count("output")) == (2, 2)
    assert roles.count("weight") == len(about["weights"])
    for launch in about["launches"]:
        pairs = zip(launch["global"], launch["local"], strict=True)
        assert all(size % group == 0 for size, group in pairs)


def test_check_finds_a_changed_weight(cli, library, tmp_path):
    copy = tmp_path / "copy.so"
    shutil.copy(library, copy)
    cli("inspect", copy, "--check")
    content = bytearray(copy.read_bytes())
    # The word also occurs in the runtime, as text; the weights come last.
    begin = content.rindex(b"TVMFWGTS") + 128
    content[begin + 4] ^= 1
    copy.write_bytes(content)
    cli("inspect", copy, "--check").refused("the weights are not what was written")


def test_a_library_that_was_cut_short_is_told_so(cli, library, tmp_path):
    copy = tmp_path / "copy.so"
    content = library.read_bytes()
    # The plan is still complete, and so is a part of the weights.
    copy.write_bytes(content[: content.rindex(b"TVMFWGTS") + 200])
    cli("inspect", copy).refused("copy.so was cut short")


def test_a_damaged_plan_is_told(cli, library, tmp_path):
    copy = tmp_path / "copy.so"
    content = bytearray(library.read_bytes())
    begin = content.index(b'"name":"tiny"')
    content[begin + 9] ^= 1
    copy.write_bytes(content)
    cli("inspect", copy).refused("cut short or damaged")


def test_what_a_standalone_module_does_not_carry(cli, library):
    cli("inspect", library, "--schedules").refused("carries no placements, schedules")
    cli("inspect", library, "--memory-svg", "m.svg").refused("pictures of its memory; compile -v")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--target", "cuda", "--standalone"), "its runtime is for opencl and llvm"),
        (("--fallback", "cpu"), "--target opencl with --standalone"),
        (("--fallback", "gpu", "--standalone"), "expected one of cpu"),
        (("--format", "onnx"), "expected one of tvm, standalone"),
        (("--format", "tvm", "--standalone"), "contradict each other"),
        (("--standalone", "--host", "android-arm64"), "--device adreno"),
    ],
)
def test_forms_that_are_impossible(cli, model, options, words):
    cli("compile", model, "--shape", "x/in=1,3,8,8", *options).refused(words)


@pytest.mark.usefixtures("known_ceilings")
def test_kernels_of_a_library_are_profiled(cli, library):
    """Times are those of the library's own events; facts that it does not carry are reported."""
    result = cli("profile", library, "--runs", "3", "--trace", "trace.json", "--json").succeeded()
    profile = from_json(result.json)
    assert profile.device.name == tvmflow.load(library).describe()["device"]["name"]
    assert profile.ceilings is not None
    assert len(profile.kernels) > 1
    for kernel in profile.kernels:
        assert (kernel.clock, kernel.flops) == ("device", None)
        assert kernel.median_us > 0
        assert kernel.global_size
    starts = [kernel.start_us for kernel in profile.kernels]
    assert starts == sorted(starts)
    (sentence,) = profile.notes
    assert "a standalone library does not carry them" in sentence
    table = cli("profile", library, "--runs", "1")
    assert "without --standalone" in " ".join(table.stderr.split())
