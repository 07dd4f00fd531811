"""Modules of several shapes on the command line: ranges, open extents, and which one is meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from support import open_networks

from tvmflow.cli.options import parse_at, parse_open_shapes


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    onnx.save(open_networks.classifier(), path)
    return path


@pytest.fixture
def module(cli, model, tmp_path) -> Path:
    found = tmp_path / "net.so"
    shapes = ("--shape", "x=1..2,3,?,?", "--at", "12x12,9x31")
    cli("compile", model, "--target", "llvm", *shapes, "-o", found).succeeded()
    return found


@pytest.mark.onnxruntime
def test_commands_choose_a_shape(cli, model, module):
    about = cli("inspect", module, "--json").json
    assert [v["inputs"][0]["shape"] for v in about["variants"]] == [
        [1, 3, 12, 12], [2, 3, 12, 12], [1, 3, 9, 31], [2, 3, 9, 31],
    ]  # fmt: skip
    assert (
        "Other batches run in parts"
        in cli("inspect", module).stdout + cli("inspect", module).stderr
    )
    one = cli("inspect", module, "--at", "9x31", "--json").json
    assert one["inputs"][0]["shape"] == [1, 3, 9, 31]
    assert "variants" not in one
    chosen = ("--shape", "x=2,3,9,31")
    assert cli("run", module, "--random-seed", "0", *chosen, "--json").json["outputs"][0][
        "shape"
    ] == [2, 5]
    assert cli("verify", model, module, *chosen, "--json").json["passed"]
    assert cli("bench", module, "--at", "x=9x31", "--runs", "1", "--warmup", "0").status == 0


@pytest.mark.onnxruntime
def test_other_batches(cli, module):
    np.savez("five.npz", x=open_networks.values((5, 3, 9, 31)))
    cli("run", module, "--inputs", "five.npz", "--outputs", "out.npz").succeeded()
    cli("run", module, "--inputs", "five.npz", "--pad-batch", "--outputs", "padded.npz").succeeded()
    (first, second) = (np.load(name) for name in ("out.npz", "padded.npz"))
    for name in first:
        assert first[name].shape == (5, 5)
        np.testing.assert_allclose(first[name], second[name], rtol=1e-5, atol=1e-6)
    np.savez("other.npz", x=open_networks.values((1, 3, 9, 30)))
    cli("run", module, "--inputs", "other.npz").refused("the nearest is x [1, 3, 9, 31]")


def test_invalid_shapes_are_refused(cli, model, module):
    cli("run", module, "--random-seed", "0", "--at", "9x30").refused("no shape with x [9, 30]")
    cli("run", module, "--random-seed", "0", "--at", "9").refused("one extent for each of the 2")
    compile_it = ("compile", model, "--target", "llvm")
    cli(*compile_it, "--shape", "x=2..1,3,8,8").refused("2..1", "is empty")
    cli(*compile_it, "--shape", "x=1,3,?,?").refused("--at x=224x224")
    cli(*compile_it, "--shape", "x=1,3,?,?", "--at", "8").refused("has 2 open ones")
    assert cli("tune", model, "--target", "llvm", "--shape", "x=1..2,3,8,8").status == 2


def test_shape_options_are_parsed():
    assert parse_open_shapes(["a=b=1..8,3,?", "s="]) == {"a=b": ("1..8", 3, "?"), "s": ()}
    assert parse_at(["224x224,320x240", "a=b=7"]) == {"": [(224, 224), (320, 240)], "a=b": [(7,)]}
    for text in ("x=1...2", "x=0,3", "x=1..", "x=*", "x=1,,2"):
        with pytest.raises(typer.BadParameter, match="or ranges"):
            parse_open_shapes([text])
    for texts in (["0x3"], ["3x"], [""], ["x=3*3"], ["3", "4"]):
        with pytest.raises(typer.BadParameter):
            parse_at(texts)
