"""Storage on the command line: decisions, overrides, the memory plan and its picture."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import helper
from support.operators import build

OPENCL = ("--target", "opencl", "--device", "adreno")


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="session")
def network(tmp_path_factory) -> Path:
    """Three convolutions with ReLUs between them, ``a``, ``b/relu`` and the output ``y``."""
    generator = np.random.default_rng(8)
    constants, nodes, name = {}, [], "x"
    for index, (channels, inputs) in enumerate([(8, 3), (12, 8), (5, 12)]):
        weight = generator.standard_normal((channels, inputs, 3, 3)).astype(np.float32)
        constants[f"w{index}"] = weight
        result = ("a", "b/relu", "y")[index]
        nodes.append(helper.make_node("Conv", [name, f"w{index}"], [f"c{index}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [result]))
        name = result
    path = tmp_path_factory.mktemp("network") / "chain.onnx"
    onnx.save(build(nodes, {"x": (1, 3, 16, 16)}, ["y"], constants), path)
    return path


def test_compile_sums_up_what_became_of_the_tensors(cli, network):
    result = cli("compile", network, *OPENCL, "--storage", "texture").succeeded()
    assert "Tensors between kernels: 4 textures, 0 buffers;" in result.stderr
    assert "kB of intermediate memory" in result.stderr
    assert "chain.so" in result.stderr


@pytest.mark.parametrize(
    ("device", "why"), [("nvidia", "by the cost model"), ("cpu", "in blocks of 16 channels")]
)
def test_compile_says_why_there_are_no_textures(cli, network, device, why):
    result = cli("compile", network, "--device", device)
    assert "0 textures" in result.stderr
    assert why in result.stderr


def test_a_target_without_images_has_nothing_to_explain(cli, network):
    result = cli("compile", network, "--target", "llvm", "-v")
    assert "Tensors between kernels: 3 buffers; " in result.stderr
    assert "over the limits" not in result.stderr
    assert "on a target or device without images" in result.stderr


def test_verbose_compilation_prints_a_line_for_each_tensor(cli, network):
    result = cli("compile", network, *OPENCL, "--storage", "texture", "-v")
    lines = [line for line in result.stderr.splitlines() if line.startswith("storage   ")]
    assert lines[0].split()[1:] == ["tensor", "shape", "dtype", "storage", "image", "why"]
    (line,) = [line for line in lines if line.split()[1] == "b_relu"]
    assert line.split()[1:6] == ["b_relu", "1×3×16×16×4", "float32", "texture", "16x48"]
    assert line.endswith("asked for")
    assert line.index("asked for") == lines[0].index("why")


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("adreno", ("Evidence for the preset adreno", "texture.tall", "2048", "adreno-llms")),
        ("adreno-740", ("Evidence for the preset adreno", "vectors=8", "3.06 geometric mean")),
        ("mali", ("Evidence for the preset mali", "assumption, not measured")),
        ("cpu", ("The heuristics for cpu were measured where tvmflow is developed",)),
    ],
)
def test_inspect_says_what_numbers_rest_on(cli, network, tmp_path, device, words):
    module = tmp_path / "net.so"
    cli("compile", network, "--target", "opencl", "--device", device, "-o", module).succeeded()
    result = cli("inspect", module, "--why").succeeded()
    text = " ".join((result.stdout + result.stderr).split())
    assert [word for word in words if word not in text] == []


def test_decisions_are_in_the_json_and_in_the_module(cli, network):
    described = cli("compile", network, *OPENCL, "--storage", "texture", "--json").json
    assert (described["textures"], described["buffers"]) == (4, 0)
    assert described["peak_bytes"] >= described["lower_bound_bytes"] > 0
    found = {p["tensor"]: p for p in described["placements"]}
    assert found["a"]["storage"] == "texture"
    assert found["x"]["reason"] == "an input of the model"
    inspected = cli("inspect", "chain.so", "--json").json
    assert inspected["placements"] == described["placements"]
    assert inspected["memory"]["peak_bytes"] == described["peak_bytes"]


def test_inspect_shows_the_plan(cli, network):
    assert cli("compile", network, *OPENCL, "--storage", "texture").status == 0
    result = cli("inspect", "chain.so", "--memory", "--placements").succeeded()
    for word in ("4 textures, 0 buffers", "lower bound", "ratio", "NCHW4c", "16×48", "b_relu"):
        assert word in result.stdout
    row = next(r for r in result.stdout.splitlines() if r.startswith("b_relu") and "NCHW4c" in r)
    assert "fused_conv2d" in row
    assert "2–3" in row
    assert "an output of the model" in result.stdout
    plan = cli("inspect", "chain.so", "--json").json["memory"]
    blocks = result.stdout[result.stdout.index("Blocks") :].splitlines()
    for number in range(len(plan["blocks"])):
        row = next(r.split() for r in blocks if r.split()[:1] == [str(number)])
        assert int(row[-1]) == [tensor["block"] for tensor in plan["tensors"]].count(number) > 0
    assert "Tensors" not in cli("inspect", "chain.so").stdout


def test_inspect_draws_the_plan(cli, network, tmp_path):
    assert cli("compile", network, *OPENCL, "--storage", "texture").status == 0
    result = cli("inspect", "chain.so", "--memory-svg", "plan.svg").succeeded()
    assert "Wrote plan.svg" in result.stderr
    assert result.stdout == ""
    root = ElementTree.fromstring(Path("plan.svg").read_text())
    texts = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert "b_relu" in texts
    cli("inspect", "chain.so", "--memory-svg", "no/plan.svg").refused("no does not exist")
    assert files(tmp_path) == {"chain.so", "plan.svg"}


def test_inspect_of_a_module_for_the_cpu_has_a_plan_too(cli, compiled):
    assert "intermediate memory" in cli("inspect", compiled, "--memory").stdout


@pytest.mark.parametrize("name", ["o.json", "o.toml"])
def test_overrides_by_the_names_of_the_onnx_model(cli, network, name):
    import sys

    if name.endswith("toml") and sys.version_info < (3, 11):
        pytest.skip("Python has tomllib since 3.11")
    text = '"b/relu" = "buffer"' if name.endswith("toml") else '{"b/relu": "buffer"}'
    Path(name).write_text(text)
    arguments = ("--storage", "texture", "--storage-overrides", name)
    described = cli("compile", network, *OPENCL, *arguments, "--json").json
    found = {p["tensor"]: p["storage"] for p in described["placements"]}
    assert (found["a"], found["b_relu"]) == ("texture", "buffer")
    assert (described["textures"], described["buffers"]) == (3, 1)
    assert "storage_overrides for 1 tensors" in cli("inspect", "chain.so").stdout


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"b/rel": "buffer"}, ["'b/rel'", "names no tensor", "b_relu", "Compile with -v"]),
        ({"c1": "buffer"}, ["'c1'", "inside a primary function"]),
        ({"a": "images"}, ["'a'", "'images'", "texture, buffer"]),
        ({"x": "texture"}, ["x [1, 3, 16, 16]", "an input of the model"]),
        (["a"], ["o.json", "list"]),
    ],
)
def test_overrides_that_are_refused(cli, network, tmp_path, overrides, words):
    Path("o.json").write_text(json.dumps(overrides))
    result = cli("compile", network, *OPENCL, "--storage-overrides", "o.json")
    result.refused(*words, "Remedy")
    assert files(tmp_path) == {"o.json"}


def test_a_file_of_overrides_that_is_not_there(cli, network, tmp_path):
    result = cli("compile", network, *OPENCL, "--storage-overrides", "none.json")
    result.refused("none.json", "No such file", "Remedy")
    assert files(tmp_path) == set()


def test_textures_on_a_target_without_them(cli, network, tmp_path):
    Path("o.json").write_text('{"a": "texture"}')
    result = cli("compile", network, "--target", "llvm", "--storage-overrides", "o.json")
    result.refused("llvm has no texture storage", "Remedy")
    assert files(tmp_path) == {"o.json"}


def test_compile_prints_a_refusal_without_a_traceback(cli, network, tmp_path, monkeypatch):
    from tvm import s_tir

    from tvmflow.schedules import Scheduled

    def broken(function, *_):
        """Return a wrong schedule, in which each work-item stores one channel of a texel."""
        sch = s_tir.Schedule(function)
        *_, last = sch.get_child_blocks(sch.get_sblock("root"))
        sch.bind(sch.fuse(*sch.get_loops(last)), "blockIdx.x")
        return Scheduled(sch, "broken", {}, {}, "heuristic")

    monkeypatch.setattr("tvmflow.compiler.scheduling.schedule_function", broken)
    result = cli("compile", network, *OPENCL, "--storage", "texture")
    result.refused("The primary function", "stores single channels", "Remedy: Compile with")
    # After warnings that the fallback was tried come one sentence and its remedy.
    *warnings, message, remedy = result.stderr.strip().splitlines()
    assert warnings[0].startswith("Warning: The primary function")
    assert "could not be compiled for opencl" in message
    assert remedy.startswith("Remedy: ")
    assert "Traceback" not in result.stderr
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "adreno"), ["stored in fp32", "Add --dtype fp16"]),
        (("--device", "nvidia", "--dtype", "fp16"), ["nvidia", "lacks cl_khr_fp16"]),
    ],
)
def test_sums_in_half_where_there_are_none(cli, network, tmp_path, arguments, words):
    cli("compile", network, *arguments, "--accumulate", "fp16").refused(*words)
    assert files(tmp_path) == set()


def test_sums_in_half_are_an_option_of_the_module(cli, network):
    cli("compile", network, *OPENCL, "--dtype", "fp16", "--accumulate", "fp16").succeeded()
    described = cli("inspect", "chain.so", "--json").json
    assert described["options"]["accumulate"] == "fp16"
    assert described["half_sums"] == [27, 72, 108]
    assert described["extensions"] == ["cl_khr_fp16"]
    lines = cli("inspect", "chain.so").stdout.splitlines()
    assert any(line.split() == ["needs", "cl_khr_fp16"] for line in lines)


def test_kept_layouts_through_all_commands(cli, network, tmp_path):
    options = ("--keep-layout", "x=texture", "--keep-layout", "y=nchw4c")
    assert cli("compile", network, *OPENCL, "--storage", "texture", *options).status == 0
    text = cli("inspect", "chain.so").stdout
    for word in ("1×1×16×16×4", "1×3×16×16", "NCHW4c", "16×16", "global.texture:p1"):
        assert word in text
    inspected = cli("inspect", "chain.so", "--json").json
    assert inspected["inputs"][0]["logical_shape"] == [1, 3, 16, 16]
    assert inspected["outputs"][0] == {
        "name": "y", "dtype": "float32", "shape": [1, 2, 16, 16, 4], "layout": "NCHW4c",
        "logical_shape": [1, 5, 16, 16], "scope": None, "image": None,
    }  # fmt: skip
    assert not [k for k in inspected["kernels"] if "pack" in k["function"]]
    assert cli("verify", network, "chain.so").status == 0
    assert cli("bench", "chain.so", "--runs", "2").status == 0
    # Files have the ONNX model's layout; an input may also be blocked.
    assert cli("run", "chain.so", "--random-seed", "3", "--outputs", "out.npz").status == 0
    expected = np.load(tmp_path / "out.npz")["y"]
    assert expected.shape == (1, 5, 16, 16)
    plain = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)
    blocked = np.zeros((1, 1, 16, 16, 4), np.float32)
    blocked[0, 0, :, :, :3] = plain[0].transpose(1, 2, 0)
    blocked[..., 3] = np.nan
    results = []
    for name, x in (("plain", plain), ("blocked", blocked)):
        np.savez(tmp_path / f"{name}.npz", x=x)
        given = ("--inputs", f"{name}.npz")
        assert cli("run", "chain.so", *given, "--outputs", f"{name}_y.npz").status == 0
        results.append(np.load(tmp_path / f"{name}_y.npz")["y"])
        assert cli("verify", network, "chain.so", *given).status == 0
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ("xx=texture", "the nearest are x"),
        ("x=NHWC", "expected one of nchw4c, texture"),
        ("x", "is not of the form NAME=nchw4c"),
    ],
)
def test_layouts_that_cannot_be_kept_write_nothing(cli, network, tmp_path, kept, message):
    result = cli("compile", network, *OPENCL, "--keep-layout", kept)
    assert result.status != 0
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert files(tmp_path) == set()
