"""Users' files that a module or another output would replace."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.operators import single
from typer.testing import CliRunner

import tvmflow
from tvmflow.cli.app import app
from tvmflow.errors import ArtifactError
from tvmflow.module.files import GZIP, ONNX, TEXT, ZIP
from tvmflow.module.load import load

FOREIGN = {
    "model": b"\x08\x08\x12\x07pytorch",
    "text": b"notes",
    "weights": b"\x80\x02ctorch",
    "library": b"\x7fELF\x02\x01\x01" + bytes(64),
}


def model() -> bytes:
    return single("Relu", [(2,)]).SerializeToString()


@pytest.fixture(params=["tvm", "standalone"])
def module(request, module_file, mock):
    return load(module_file if request.param == "tvm" else mock)


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_is_no_module_is_kept_unless_it_may_be_replaced(module, content, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(
        ArtifactError, match=r"net\.onnx failed: .* not a module of tvmflow"
    ) as caught:
        module.save(path)
    assert "`overwrite=True`" in caught.value.remedy
    assert path.read_bytes() == content
    assert sorted(tmp_path.glob(".*")) == []
    module.save(path, overwrite=True)
    assert path.read_bytes() == module.path.read_bytes()
    # A module may replace a module, whatever its name.
    module.save(path)


def test_what_does_not_lose_anything_is_replaced(module, tmp_path):
    empty, link = tmp_path / "empty.so", tmp_path / "link.so"
    empty.touch()
    module.save(empty)
    link.symlink_to(tmp_path / "missing.so")
    module.save(link)
    assert empty.read_bytes() == link.read_bytes() == module.path.read_bytes()


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_what_is_no_file_is_kept(module, kind, tmp_path):
    path = tmp_path / "net.so"
    (path.mkdir if kind == "folder" else lambda: os.mkfifo(path))()
    with pytest.raises(ArtifactError):
        module.save(path)
    assert path.is_dir() or path.is_fifo()


def test_weights_of_the_users_next_to_the_module_are_kept(with_sidecar, tmp_path):
    module, path = load(with_sidecar), tmp_path / "net.so"
    sidecar = tmp_path / "net.so.weights"
    sidecar.write_bytes(b"mine")
    with pytest.raises(ArtifactError, match=r"net\.so\.weights failed: .* the weights of a module"):
        module.save(path)
    assert not path.exists()
    module.save(path, overwrite=True)
    assert sidecar.read_bytes() == module.weights_path.read_bytes()
    module.save(path)


def test_the_model_that_a_module_was_compiled_from_is_kept(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(model())
    with tvmflow.compile(path, target="llvm") as module:
        with pytest.raises(ArtifactError, match="is not a module of tvmflow"):
            module.save(path)
        assert path.read_bytes() == model()
        np.testing.assert_array_equal(module(np.array([-1, 2], np.float32))[0], [0, 2])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "net.onnx").write_bytes(model())
    with tvmflow.compile(folder / "net.onnx", target="llvm") as module:
        return module.save(folder / "net.so")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(model())
    (tmp_path / "other.onnx").write_bytes(model())

    def call(*words):
        result = CliRunner().invoke(app, list(map(str, words)))
        return result.exit_code, result.output

    return call


def test_compile_keeps_other_models_and_says_so_before_the_work(run, monkeypatch):
    monkeypatch.setattr(tvmflow, "compile", lambda *_, **__: pytest.fail("it was compiled"))
    status, text = run("compile", "net.onnx", "--target", "llvm", "-o", "other.onnx")
    assert status == 2
    assert "--overwrite" in text
    assert Path("other.onnx").read_bytes() == model()


def test_compile_replaces_what_it_may(run):
    words = ("compile", "net.onnx", "--target", "llvm", "-o", "other.onnx")
    assert run(*words, "--overwrite")[0] == 0
    assert Path("other.onnx").read_bytes().startswith(b"\x7fELF")
    assert run(*words)[0] == 0
    status, text = run("compile", "net.onnx", "-o", "net.onnx", "--overwrite")
    assert status == 2
    assert "is the model itself" in text


@pytest.mark.parametrize(
    "words",
    [
        ("run", "net.so", "--random-seed", "0", "--outputs", "other.onnx"),
        ("inspect", "net.so", "--memory-svg", "other.onnx"),
        ("inspect", "net.so", "--memory-svg", "net.so"),
        ("profile", "net.so", "--html", "other.onnx"),
        ("profile", "net.so", "--trace", "net.so"),
        ("lab", "matmul", "--html", "other.onnx"),
        ("package", "libmock.so", "--tar", "other.onnx"),
        ("models", "build", "mobilenet_v1", "-o", "net.so"),
        ("tune", "net.onnx", "--journal", "j.tvj", "--report", "other.onnx"),
    ],
    ids=" ".join,
)
def test_outputs_of_commands_replace_none_of_another_kind(run, words, compiled, mock):
    shutil.copy(compiled, "net.so")
    shutil.copy(mock, "libmock.so")
    kept = Path("net.so").read_bytes()
    status, text = run(*words)
    assert status == 2, text
    assert "it would replace a file that is not" in " ".join(text.split()), text
    assert Path("other.onnx").read_bytes() == model()
    assert Path("net.so").read_bytes() == kept


def test_kinds_of_outputs_are_known_by_their_beginning(tmp_path):
    np.savez(tmp_path / "ZIP.npz", a=np.zeros(3))
    (tmp_path / "ZIP.npz").rename(tmp_path / "ZIP")
    (tmp_path / "GZIP").write_bytes(b"\x1f\x8b\x08")
    (tmp_path / "ONNX").write_bytes(model())
    (tmp_path / "TEXT").write_text(json.dumps({"größe": "\t1\n"}), encoding="utf-8")
    kinds = {"ZIP": ZIP, "GZIP": GZIP, "ONNX": ONNX, "TEXT": TEXT}
    for name, kind in kinds.items():
        assert [other for other in kinds if kind.is_of(tmp_path / other)] == [name]
