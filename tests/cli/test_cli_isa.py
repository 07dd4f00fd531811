"""``tvmflow isa``: kernels of module files, what is shown of them, and real compilers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny_model import tiny_model

import tvmflow
from tvmflow.devices.gpus import find_gpu
from tvmflow.explain.isa import mesa
from tvmflow.explain.isa.kernels import kernels_in
from tvmflow.explain.isa.listing import Instruction, classes, kernel_code
from tvmflow.explain.isa.record import Failure
from tvmflow.explain.isa.report import machine_code
from tvmflow.explain.yardstick import measured
from tvmflow.explain.yardstick.measured import GPUS, Operator

ADRENO = find_gpu("adreno-740")
SHAPES = {"x/in": (1, 3, 8, 8)}


@pytest.fixture(scope="module")
def modules(tmp_path_factory) -> dict[str, Path]:
    """Return files of the tiny network for an Adreno: a module and a standalone library."""
    folder = tmp_path_factory.mktemp("isa")
    (folder / "tiny.onnx").write_bytes(tiny_model().SerializeToString())
    paths = {}
    for form in ("tvm", "standalone"):
        options = {"target": "opencl", "device": "adreno", "format": form}
        paths[form] = folder / f"{form}.so"
        tvmflow.compile(folder / "tiny.onnx", shapes=SHAPES, **options).save(paths[form])
    return paths


@pytest.fixture
def compiler(monkeypatch):
    """Install a fake compiler that refuses kernels; return the list of their names."""
    refused: list[str] = []
    kinds = classes(multiply_adds="mad")

    def compile_kernels(kernels, gpu, tree):
        found = []
        for kernel in kernels:
            if any(name in kernel.name for name in refused):
                found.append(
                    Failure(kernel.name, "the compiler's process ended with signal SIGSEGV")
                )
                continue
            code = [Instruction("mad")] * kernel.text.count("*")
            numbers = {"registers": 16, "waves": 16, "wave": 64}
            listing = f"code of {kernel.name}"
            found.append(kernel_code(kernel, code, kinds, **numbers, listing=listing))
        return "Mesa 26.2, ir3", found

    monkeypatch.setattr(mesa, "compile_kernels", compile_kernels)
    monkeypatch.setattr(mesa, "find_tree", lambda gpu, suite: None)
    return refused


def test_both_forms_have_the_same_kernels(modules):
    (_, of_tvm), (_, standalone) = (kernels_in(modules[form], ADRENO) for form in modules)
    assert {k.name for k in of_tvm} == {k.name for k in standalone}
    by_name = {kernel.name: kernel for kernel in standalone}
    for kernel in of_tvm:
        assert kernel.text.count("__kernel void") == 1
        assert by_name[kernel.name].text.count("__kernel void") == 1
        assert f"void {kernel.name}(" in kernel.text
        assert kernel.function == by_name[kernel.name].function
        assert kernel.groups == by_name[kernel.name].groups > 0
        # Only modules for TVM carry the functions that operations are counted in.
        assert kernel.flops is not None
        assert by_name[kernel.name].flops is None
        # Dimensions of one item more or less.
        ours, theirs = (tuple(n for n in k.group if n != 1) for k in (kernel, by_name[kernel.name]))
        assert ours == theirs


@pytest.mark.parametrize("form", ["tvm", "standalone"])
def test_a_table_for_people(cli, modules, compiler, form):
    result = cli("isa", modules[form]).succeeded()
    for word in ("adreno-740", "Mesa 26.2, ir3", "registers", "waves", "A launch is 1 waves"):
        assert word in result.stdout
    assert "code of" not in result.stdout
    if form == "tvm":
        # Findings on kernels that only move data are left out.
        assert "fused_conv2d_add_kernel (98%): A launch is 1 waves" in result.stdout
        assert "  pack_kernel (" not in result.stdout
        assert "findings that cost less" in result.stderr
    shown = cli("isa", modules[form], "--kernel", "conv2d", "--listing").stdout
    assert "code of fused_conv2d" in shown
    assert "code of pack" not in shown


def test_another_engine_s_times_are_shown_if_asked_for(cli, modules, compiler, monkeypatch):
    times = dict.fromkeys(GPUS.values(), 123.0)
    known = {Operator("conv2d", 4, 4, 8, 8, window=3): times}
    monkeypatch.setattr(measured, "measured_operators", lambda: known)
    text = " ".join(cli("isa", modules["tvm"], "--yardstick").succeeded().stdout.split())
    assert "fused_conv2d_add_kernel conv2d 3×3, 3 → 4, 8×8 the same 123 µs 123 µs 123 µs" in text
    assert "Times of another engine" in text
    report = cli("isa", modules["tvm"], "--yardstick", "--json").json
    (found,) = (each["yardstick"] for each in report["kernels"] if each["yardstick"])
    assert found["engine"] == "TFLite's GPU delegate in 16 bits"
    assert found["us"] == times
    assert not any(
        each["yardstick"] for each in cli("isa", modules["tvm"], "--json").json["kernels"]
    )
    # Standalone libraries do not record their operators.
    text = cli("isa", modules["standalone"], "--yardstick").stdout
    assert "was measured with no operator near those of this network." in text


def test_a_kernel_that_crashes_the_compiler_costs_only_itself(cli, modules, compiler):
    compiler.append("conv2d")
    result = cli("isa", modules["tvm"])
    assert result.status == 1
    assert "fused_conv2d_add_kernel: the compiler" in result.stdout + result.stderr
    assert "pack_kernel" in result.stdout
    report = cli("isa", modules["tvm"], "--json").json
    assert len(report["failures"]) == 1
    assert report["kernels"]


def test_kernels_with_little_of_the_arithmetic_can_be_left_out(modules, compiler):
    kernels = machine_code(modules["tvm"], ADRENO, least_share=0.5).kernels
    assert [each.kernel for each in kernels] == ["fused_conv2d_add_kernel"]
    # Standalone libraries do not tell.
    assert len(machine_code(modules["standalone"], ADRENO, least_share=0.5).kernels) > 1


def test_json_is_compared(cli, modules, compiler, tmp_path):
    first = cli("isa", modules["tvm"], "--json").json
    assert {"kernels", "spills", "issue"} <= set(first["totals"])
    assert "listing" not in first["kernels"][0]
    first["kernels"][0]["registers"] = 40
    (tmp_path / "before.json").write_text(json.dumps(first))
    changes = cli("isa", modules["tvm"], "--compare", "before.json").stdout
    assert "40 → 16" in changes
    assert cli("isa", modules["tvm"], "--compare", modules["standalone"]).status == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("a module (or --setup) was expected",)),
        (("{tvm}", "--gpu", "adreno-999"), ("'adreno-999' is not known", "Choose one of")),
        (("{tvm}", "--gpu", "sm_90"), ("kernels for cuda were expected", "--target cuda")),
        (("{tvm}", "--kernel", "conv3d"), ("has no kernel named conv3d", "--kernels lists them")),
        (("{llvm}",), ("No GPU is known for modules of the target llvm", "--device adreno")),
        (("{llvm}", "--gpu", "adreno-740"), ("the module is for llvm",)),
        (("{llvm}", "--gpu", "intel-dg2"), ("kernels for opencl were expected", "for llvm")),
        (("--setup", "--gpu", "adreno-999"), ("'adreno-999' is not known", "Choose one of")),
        (("--setup", "--gpu", "sm_90"), ("no compiler for sm_90", "pip install nvidia")),
        (("nothing.so",), ("there is no such file",)),
        (("{tvm}", "--compare", "other.json"), ("Reading other.json failed",)),
    ],
)
def test_bad_input(cli, modules, compiled, compiler, tmp_path, arguments, words):
    (tmp_path / "other.json").write_text('{"format": 99}')
    paths = {**modules, "llvm": compiled}
    cli("isa", *(str(each).format_map(paths) for each in arguments)).refused(*words)


@pytest.mark.mesa
def test_both_forms_have_the_same_machine_code(cli, modules):
    tvm, standalone = (
        cli("isa", path, "--gpu", "adreno-740", "--json").json["kernels"]
        for path in modules.values()
    )
    counted = [
        {k["kernel"]: (k["registers"], k["whole"]) for k in each} for each in (tvm, standalone)
    ]
    assert counted[0] == counted[1]


def compiled_convolution(cli, modules, gpu, compiler):
    """Return the report on the convolution's kernel, after what holds for all compilers."""
    report = cli("isa", modules["tvm"], "--gpu", gpu, "--json").json
    assert report["compiler"].startswith(compiler)
    assert not report["failures"]
    (conv2d,) = (k for k in report["kernels"] if "conv2d" in k["kernel"])
    assert conv2d["whole"]["issue"] > conv2d["whole"]["multiply_adds"] > 27
    return conv2d


@pytest.mark.mesa
@pytest.mark.parametrize("gpu", ["adreno-660", "adreno-740", "adreno-830", "amd-navi21"])
def test_mesa_compiles_for_gpus_that_are_not_here(cli, modules, gpu):
    conv2d = compiled_convolution(cli, modules, gpu, "Mesa 2")
    assert conv2d["registers"] > 4
    assert conv2d["waves"] > 0


@pytest.mark.ocloc
@pytest.mark.parametrize("gpu", ["intel-tgl", "intel-dg2", "intel-bmg"])
def test_ocloc_compiles_for_gpus_that_are_not_here(cli, modules, gpu):
    conv2d = compiled_convolution(cli, modules, gpu, "ocloc ")
    assert conv2d["wave"] in (8, 16, 32)
    # From textures, and to one.
    assert conv2d["whole"]["fetches"] > 4
    assert conv2d["whole"]["stores"] > 0


@pytest.mark.nvcc
@pytest.mark.nvdisasm
def test_nvcc_compiles_for_gpus_that_are_not_here(cli, tmp_path):
    (tmp_path / "tiny.onnx").write_bytes(tiny_model().SerializeToString())
    cli("compile", "tiny.onnx", "--target", "cuda", "--shape", "x/in=1,3,8,8", "-o", "cuda.so")
    report = cli("isa", "cuda.so", "--gpu", "sm_80", "--json").json
    assert report["compiler"].startswith("ptxas")
    assert not report["failures"]
    assert sum(kernel["whole"]["multiply_adds"] for kernel in report["kernels"]) > 27
    assert all(kernel["registers"] for kernel in report["kernels"])
    one = cli("isa", "cuda.so", "--gpu", "sm_80", "--kernel", "conv2d", "--json").json
    assert all("conv2d" in kernel["kernel"] for kernel in one["kernels"])
