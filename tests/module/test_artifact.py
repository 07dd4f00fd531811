"""The module file: content, writing, and damage."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_network import expected, metadata, values, weight, write

from tvmflow.errors import ArtifactError, CompileError, TvmflowError
from tvmflow.module import artifact, files
from tvmflow.module.artifact import read_artifact
from tvmflow.module.elf import read_library
from tvmflow.module.load import load
from tvmflow.module.weights import write_weights


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_what_is_written_is_read(original: Path):
    artifact = read_artifact(original)
    meta = artifact.metadata
    assert (meta["format"], meta["name"], meta["target"]) == (1, "tiny", "llvm")
    assert meta["tvm"] == "0.27.0.post1"
    assert [i.name for i in artifact.inputs] == ["x/in", "shift"]
    assert artifact.outputs[1].dtype == "bool"
    np.testing.assert_array_equal(artifact.weights["w"], weight())
    assert artifact.weights_path == original
    assert artifact.sidecar is None
    assert names(original.parent) == {"tiny.so"}
    artifact.check()


def test_the_same_program_gives_the_same_file(executable: Any, tmp_path: Path):
    paths = [tmp_path / name / "m.so" for name in "ab"]
    for path in paths:
        path.parent.mkdir()
        write(executable, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_large_weights_travel_beside(with_sidecar: Path):
    assert names(with_sidecar.parent) == {"beside.so", "beside.so.weights"}
    artifact = read_artifact(with_sidecar)
    assert artifact.sidecar == with_sidecar.with_name("beside.so.weights")
    assert ".tvmflow.weights" not in read_library(with_sidecar).sections
    np.testing.assert_array_equal(artifact.weights["w"], weight())
    artifact.check()


def test_a_smaller_module_replaces_one_with_a_weights_file(executable: Any, with_sidecar: Path):
    write(executable, with_sidecar)
    assert names(with_sidecar.parent) == {"beside.so"}
    read_artifact(with_sidecar).check()


def test_a_file_of_that_name_that_is_not_ours_stays(executable: Any, tmp_path: Path):
    other = tmp_path / "m.so.weights"
    other.write_text("my own file")
    write(executable, tmp_path / "m.so")
    assert other.read_text() == "my own file"


def test_renaming_only_the_module_keeps_its_weights(with_sidecar: Path):
    renamed = with_sidecar.rename(with_sidecar.with_name("other.so"))
    np.testing.assert_array_equal(read_artifact(renamed).weights["w"], weight())


def test_missing_weights_file_is_an_error(with_sidecar: Path):
    with_sidecar.with_name("beside.so.weights").unlink()
    with pytest.raises(
        ArtifactError, match=r"its weights, beside\.so\.weights, are not next to it"
    ):
        read_artifact(with_sidecar)


def test_weights_of_another_module_are_an_error(executable: Any, with_sidecar: Path):
    other = with_sidecar.with_name("other.so")
    # A weight of the same name, shape and size.
    write(executable, other, weights={"w": weight() + 1}, embed_limit_bytes=0)
    other.with_name("other.so.weights").replace(with_sidecar.with_name("beside.so.weights"))
    with pytest.raises(ArtifactError, match="weights of another module"):
        read_artifact(with_sidecar)


def test_cut_weights_file_is_an_error(with_sidecar: Path):
    sidecar = with_sidecar.with_name("beside.so.weights")
    content = sidecar.read_bytes()
    for length in (0, 5, 50, len(content) - 100, len(content) - 1):
        sidecar.write_bytes(content[:length])
        with pytest.raises(ArtifactError, match="cut short or damaged"):
            read_artifact(with_sidecar)


def test_a_changed_weight_is_found_by_the_full_check(with_sidecar: Path):
    sidecar = with_sidecar.with_name("beside.so.weights")
    content = bytearray(sidecar.read_bytes())
    content[-3] ^= 1
    sidecar.write_bytes(content)
    artifact = read_artifact(with_sidecar)
    with pytest.raises(ArtifactError, match="the weights are not what was written"):
        artifact.check()


def test_every_cut_is_noticed(module_file: Path):
    content = module_file.read_bytes()
    tail = len(content) - 4096
    for length in [*range(0, 128, 3), *range(128, tail, 509), *range(tail, len(content), 5)]:
        module_file.write_bytes(content[:length])
        with pytest.raises(ArtifactError) as caught:
            read_artifact(module_file)
        assert caught.value.remedy


def test_no_flipped_byte_passes_unnoticed(module_file: Path):
    """The full check finds any flipped byte, or it changes nothing that is read."""
    content = module_file.read_bytes()
    reference = read_artifact(module_file)
    sections = read_library(module_file).sections
    meta = sections[".tvmflow.meta"]
    weights_section = sections[".tvmflow.weights"]
    positions = {
        *range(64),  # the ELF header
        *range(64, reference.library_bytes, 997),
        *range(weights_section.offset, weights_section.offset + weights_section.bytes, 11),
        *range(meta.offset, meta.offset + meta.bytes, 7),
        *range(meta.offset + meta.bytes, len(content), 13),  # names and the section table
    }
    unnoticed = set()
    for position in sorted(positions):
        changed = bytearray(content)
        changed[position] ^= 0x41
        module_file.write_bytes(changed)
        try:
            artifact = read_artifact(module_file)
            artifact.check()
        except ArtifactError:
            continue
        unnoticed.add(position)
        assert artifact.metadata == reference.metadata
        np.testing.assert_array_equal(artifact.weights["w"], reference.weights["w"])
    # Only names and headers of unused sections may change.
    assert all(position > meta.offset + meta.bytes for position in unnoticed)


def test_changed_code_is_not_run(module_file: Path):
    content = bytearray(module_file.read_bytes())
    content[read_artifact(module_file).library_bytes // 2] ^= 0xFF
    module_file.write_bytes(content)
    with pytest.raises(ArtifactError, match="the code is not what was written"):
        load(module_file)(values())


@pytest.mark.parametrize("position", [0, 5, 100, -1])
@pytest.mark.parametrize("beside", [False, True])
def test_a_changed_weight_is_not_run(
    module_file: Path, with_sidecar: Path, beside: bool, position: int
):
    module = with_sidecar if beside else module_file
    artifact = read_artifact(module)
    holder = artifact.weights_path
    assert holder is not None
    data = artifact.weights["w"].tobytes()
    content = bytearray(holder.read_bytes())
    content[content.index(data) + position % len(data)] ^= 0x10
    holder.write_bytes(content)
    with pytest.raises(ArtifactError, match="the weights are not what was written") as caught:
        load(module)(values())
    assert holder.name in caught.value.message
    # With this option they are used as they are.
    got = load(module, check_weights=False)(values())["sum"]
    assert not np.array_equal(got, expected(values()))


def test_modules_without_a_checksum_are_loaded(executable: Any, tmp_path: Path):
    """Older modules have no checksum."""
    path = tmp_path / "m.so"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(artifact, "write_weights", _write_with_only_sha256)
        write(executable, path)
    assert read_artifact(path).metadata["weights_xxh64"] is None
    got = load(path)(values())["sum"]
    np.testing.assert_allclose(got, expected(values()), rtol=1e-4, atol=1e-4)


def _write_with_only_sha256(*arguments: Any) -> dict[str, str]:
    return {"weights_digest": write_weights(*arguments)["weights_digest"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a module compiled by tvmflow was expected, but it is not an ELF file"),
        (b"not a library", "not an ELF file"),
        (b"\x7fELF", "cut short or damaged"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path):
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=message):
        read_artifact(path)


def test_an_ordinary_library_is_refused():
    import tvm_ffi

    folder = Path(tvm_ffi.__file__).parent / "lib"
    library = next(folder.glob("*.so"))
    with pytest.raises(ArtifactError, match="without a description by tvmflow"):
        read_artifact(library)


def test_missing_file_and_folder(tmp_path: Path):
    with pytest.raises(ArtifactError, match="there is no such file"):
        read_artifact(tmp_path / "none.so")
    with pytest.raises(ArtifactError, match="it is a folder"):
        read_artifact(tmp_path)


def test_another_tvm_is_refused_when_loading(executable: Any, tmp_path: Path, monkeypatch):
    path = tmp_path / "m.so"
    required = {"apache-tvm": "0.26.0", "apache-tvm-ffi": "0.1.14.post1"}
    with monkeypatch.context() as patched:
        patched.setattr(artifact._versions, "REQUIRED_TVM", required)
        write(executable, path)
    assert read_artifact(path).metadata["tvm"] == "0.26.0"
    with pytest.raises(ArtifactError, match=r"compiled with apache-tvm 0\.26\.0, but 0\.27"):
        load(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"format": 1', b'"format": 7', r"format 7, written by tvmflow .*reads format 1"),
        (b'{\n "format"', b'[\n "format"', "its description is not readable"),
        (b'"tiny"', b'"TINY"', "its description is not what was written"),
    ],
    ids=["another format", "not readable", "wrong digest"],
)
def test_changed_metadata_is_an_error(module_file: Path, old: bytes, new: bytes, message: str):
    assert len(old) == len(new)
    content = module_file.read_bytes()
    assert old in content
    module_file.write_bytes(content.replace(old, new))
    with pytest.raises(ArtifactError, match=message):
        read_artifact(module_file)


def test_folders_that_cannot_be_written(executable: Any, tmp_path: Path):
    with pytest.raises(ArtifactError, match="does not exist") as caught:
        write(executable, tmp_path / "no" / "m.so")
    assert "mkdir -p" in str(caught.value)
    with pytest.raises(ArtifactError, match="it is a folder"):
        write(executable, tmp_path)
    if os.geteuid() != 0:  # root may write everywhere
        tmp_path.chmod(0o555)
        with pytest.raises(ArtifactError, match="Permission denied"):
            write(executable, tmp_path / "m.so")
        tmp_path.chmod(0o755)


def interrupt(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make writing a weight fail early."""

    def pieces(array: np.ndarray) -> Iterator[bytes]:
        yield bytes(array.nbytes // 2)
        raise error

    monkeypatch.setattr("tvmflow.module.weights.pieces", pieces)


@pytest.mark.parametrize("limit", [0, 1 << 20])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), ValueError("broken")])
def test_interrupted_writing_leaves_nothing(
    executable: Any,
    tmp_path: Path,
    limit: int,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
):
    path = tmp_path / "m.so"
    interrupt(monkeypatch, error)
    with pytest.raises(type(error)):
        write(executable, path, embed_limit_bytes=limit)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_interrupted_overwriting_keeps_the_old_module(
    executable: Any, with_sidecar: Path, limit: int, monkeypatch: pytest.MonkeyPatch
):
    interrupt(monkeypatch, KeyboardInterrupt())
    before = {p.name: p.read_bytes() for p in with_sidecar.parent.iterdir()}
    with pytest.raises(KeyboardInterrupt):
        write(executable, with_sidecar, embed_limit_bytes=limit)
    assert {p.name: p.read_bytes() for p in with_sidecar.parent.iterdir()} == before


def test_a_weight_that_cannot_be_stored_is_a_compile_error(executable: Any, tmp_path: Path):
    weights = {"w": np.zeros((4, 3, 3, 3), np.complex64)}
    with pytest.raises(CompileError, match="complex64 cannot be stored"):
        write(executable, tmp_path / "m.so", weights=weights)
    assert names(tmp_path) == set()


def test_two_files_appear_both_or_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """If the second rename fails, the first one is undone, including the old content."""
    (tmp_path / "old").mkdir()
    first, second = tmp_path / "old" / "a", tmp_path / "old" / "b"
    first.write_text("old a")
    second.write_text("old b")
    real = os.replace

    def failing(source: Any, destination: Any) -> None:
        if Path(destination) == second and Path(source).read_text() == "new b":
            raise OSError(5, "Input/output error")
        real(source, destination)

    monkeypatch.setattr(files.os, "replace", failing)

    def publish_both() -> None:
        with files.staging(first) as stage:
            (stage / "a").write_text("new a")
            (stage / "b").write_text("new b")
            files.publish({stage / "a": first, stage / "b": second})

    with pytest.raises(ArtifactError, match="Input/output error"):
        publish_both()
    assert (first.read_text(), second.read_text()) == ("old a", "old b")
    first.unlink()
    with pytest.raises(ArtifactError):
        publish_both()
    assert names(tmp_path / "old") == {"b"}


def test_disk_full_is_one_sentence(tmp_path: Path):
    with (
        pytest.raises(ArtifactError, match="No space left") as caught,
        files.staging(tmp_path / "m.so"),
    ):
        raise OSError(28, "No space left on device")
    assert isinstance(caught.value, TvmflowError)
    assert names(tmp_path) == set()


def test_llvm_is_not_asked_to_write_where_there_is_no_room(
    executable: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """LLVM would kill the process, and leave files."""

    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "posix_fallocate", full)
    monkeypatch.setattr(artifact, "export_library", lambda *_: pytest.fail("it was asked"))
    final = tmp_path / "m.so"
    with (
        pytest.raises(ArtifactError, match="No space left") as caught,
        files.staging(final) as stage,
    ):
        write(executable, stage / "m.so")
    # The file is written in a hidden folder; the message has its final name.
    assert caught.value.message == f"Writing {final} failed: No space left on device."
    assert names(tmp_path) == set()


def test_options_of_any_type_become_json(executable: Any, tmp_path: Path):
    options = {"path": Path("a/b"), "n": np.int64(3), "pair": (1, 2)}
    artifact = write(executable, tmp_path / "m.so", metadata=metadata(options=options), weights={})
    assert artifact.metadata["options"] == {"path": "a/b", "n": 3, "pair": [1, 2]}
    assert json.loads(json.dumps(artifact.metadata)) == artifact.metadata
