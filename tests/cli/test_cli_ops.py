"""Custom operators from the command line: files that define them, knobs, journals, libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support.operators import build, random

import tvmflow
from tvmflow.ir import operators
from tvmflow.ir.operator import DOMAIN
from tvmflow.verify.compare import verify

pytestmark = pytest.mark.slow

#: Source of a file for ``--ops`` that registers BoxDecode under another name.
FILE = """
from dataclasses import replace
from tvmflow.ops import OPERATORS, register
register(replace(OPERATORS["BoxDecode"], name="Mine", gradient=None))
"""
FUNCTION = "fused_tir_tanh_BoxDecode_relu"


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A detector's head: Tanh, BoxDecode and Relu."""
    corners = np.abs(random((9, 2)))
    boxes = np.concatenate([corners, corners + 0.5], -1)
    nodes = [
        helper.make_node("Tanh", ["x"], ["offsets"]),
        helper.make_node("BoxDecode", ["offsets", "anchors"], ["boxes"], domain=DOMAIN),
        helper.make_node("Relu", ["boxes"], ["y"]),
    ]
    path = tmp_path / "head.onnx"
    onnx.save(build(nodes, {"x": (2, 9, 4)}, ["y"], {"anchors": boxes}), path)
    return path


@pytest.mark.opencl
def test_knobs_are_given_measured_and_looked_up(cli, head, tmp_path):
    journal = tmp_path / "a.journal"
    (task,) = cli("tasks", head, "--device", "cpu", "--json").json
    assert task["functions"] == [FUNCTION]
    assert task["candidates"] > 1
    options = ("--device", "cpu", "--trials", "2", "--workers", "1", "--no-compare")
    tuned = cli("tune", head, "--journal", journal, *options, "--json").json
    assert tuned["tasks"][0]["trials"] == 2
    assert tuned["tasks"][0]["failures"] == 0
    with closing(tvmflow.compile(head, device="cpu", journals=[journal])) as module:
        schedule = module.metadata["schedules"][FUNCTION]
        assert schedule["source"] == "journal"
        assert schedule["knobs"] == tuned["tasks"][0]["knobs"]
    knobs = {**schedule["knobs"], "vector": 8, "boxes": 3}
    with closing(tvmflow.compile(head, device="cpu", knobs={FUNCTION: knobs})) as module:
        assert module.metadata["schedules"][FUNCTION]["source"] == "given"
        assert module.metadata["schedules"][FUNCTION]["knobs"] == knobs
        assert verify(head, module).passed


@pytest.mark.opencl
def test_a_library_that_needs_no_runtime(cli, head, tmp_path):
    library = tmp_path / "libhead.so"
    cli("compile", head, "--device", "cpu", "--standalone", "-o", library)
    report = cli("verify", head, library, "--json").json
    assert report["passed"]
    assert "reference evaluator" in report["reference"]
    assert "reference evaluator" in cli("inspect", library).stdout, "what the self-test is from"


def test_a_difference_from_the_reference_is_found(cli, head, tmp_path):
    cli("compile", head, "--target", "llvm", "-o", "head.so")
    assert "passed" in cli("verify", head, "head.so").stdout
    changed = onnx.load(head)
    changed.graph.node[1].attribute.append(helper.make_attribute("limit", 0.1))
    onnx.save(changed, head)
    cli("verify", head, "head.so").refused("'y'", "reference evaluator", status=1)


@pytest.fixture
def mine(head: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model with an operator that only a file defines."""
    monkeypatch.setattr(operators, "REGISTERED", {})
    model = onnx.load(head)
    model.graph.node[1].op_type = "Mine"
    path = head.with_name("mine.onnx")
    onnx.save(model, path)
    path.with_suffix(".py").write_text(FILE)
    return path


def test_a_file_of_operators(cli, mine, monkeypatch):
    """Every command that reads a model accepts ``--ops``; without it, the operator is unknown."""
    for command in (("compile", mine, "--target", "llvm", "-o", "mine.so"), ("tasks", mine)):
        cli(*command).refused("ai.tvmflow.Mine", "no such operator is registered (--ops FILE)")
        assert cli(*command, "--ops", "mine.py").status == 0
        monkeypatch.setattr(operators, "REGISTERED", {})
    cli("verify", mine, "mine.so").refused("Mine")
    assert cli("verify", mine, "mine.so", "--ops", "mine.py", "--json").json["passed"]


def test_an_operator_of_another_domain(cli, head):
    model = onnx.load(head)
    model.graph.node[1].domain = "com.acme"
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    onnx.save(model, "acme.onnx")
    cli("tasks", "acme.onnx").refused("com.acme.", "in a file for --ops", "ai.tvmflow")


def test_files_of_operators_that_cannot_be_used(cli, mine):
    compile_it = ("compile", mine, "--target", "llvm", "-o", "mine.so")
    cli(*compile_it, "--ops", "none.py").refused("none.py failed: there is no such file")
    Path("empty.py").write_text("")
    cli(*compile_it, "--ops", "empty.py").refused("empty.py failed: it registers no operator")
    Path("wrong.py").write_text("import none_of_this_name")
    cli(*compile_it, "--ops", "wrong.py").refused("wrong.py failed: ModuleNotFoundError")
    Path("taken.py").write_text(FILE.replace("Mine", "Conv"))
    cli(*compile_it, "--ops", "taken.py").refused("Conv failed: ONNX has an operator")
    assert not Path("mine.so").exists()
