"""Weights files: streamed, mapped, and read by the safetensors library."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash

from tvmflow.module import weights as w


def write(path: Path, tensors: dict[str, np.ndarray]) -> dict[str, str]:
    with open(path, "wb") as file:
        return w.write_weights(file, tensors, w.plan_weights(tensors))


def samples() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    return {
        "odd": generator.standard_normal((3, 5)).astype(np.float32),
        "a/b.c": generator.integers(-5, 5, (4, 16)),
        "flags": np.array([True, False, True]),
        "half": generator.standard_normal((32, 2)).astype(np.float16),
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), np.float32),
    }


def test_safetensors_reads_what_was_written(tmp_path: Path):
    safetensors = pytest.importorskip("safetensors.numpy")
    write(tmp_path / "w", samples())
    loaded = safetensors.load_file(tmp_path / "w")
    assert loaded.keys() == samples().keys()
    for name, array in samples().items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype


def test_maps_what_safetensors_wrote(tmp_path: Path):
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "w"
    safetensors.save_file(samples(), path)
    mapped, digest = w.map_weights(path, 0, path.stat().st_size)
    assert digest is None
    for name, array in samples().items():
        np.testing.assert_array_equal(mapped[name], array)


def test_mapped_tensors_are_read_only_and_aligned(tmp_path: Path):
    path = tmp_path / "w"
    digest = write(path, samples())
    mapped, promised = w.map_weights(path, 0, path.stat().st_size)
    assert promised == digest["weights_digest"]
    for array in mapped.values():
        if array.size:
            assert not array.flags.writeable
        if array.nbytes and array.nbytes % 64 == 0:
            assert array.__array_interface__["data"][0] % 64 == 0


def test_digest_covers_the_tensors(tmp_path: Path):
    path = tmp_path / "w"
    digest = write(path, samples())
    content = path.read_bytes()
    data = content[8 + struct.unpack("<Q", content[:8])[0] :]
    assert hashlib.sha256(data).hexdigest() == digest["weights_digest"]
    assert xxhash.xxh64_hexdigest(data) == digest["weights_xxh64"]


def test_pieces_of_a_transposed_map_are_written_in_c_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(w, "PIECE_BYTES", 4096)
    source = tmp_path / "source"
    values = np.arange(200 * 300, dtype=np.float32).reshape(200, 300)
    values.tofile(source)
    mapped = np.memmap(source, np.float32, "r", shape=(200, 300))
    tensors = {
        "t": mapped.T,
        "deep": mapped.reshape(2, 100, 300)[:, ::-1],
    }
    write(tmp_path / "w", tensors)
    read, _ = w.map_weights(tmp_path / "w", 0, (tmp_path / "w").stat().st_size)
    np.testing.assert_array_equal(read["t"], values.T)
    np.testing.assert_array_equal(read["deep"], values.reshape(2, 100, 300)[:, ::-1])


def test_dtypes_that_the_format_lacks_are_refused():
    with pytest.raises(w.WeightsError, match="complex64"):
        w.plan_weights({"c": np.zeros(2, np.complex64)})
    with pytest.raises(w.WeightsError, match="__metadata__"):
        w.plan_weights({"__metadata__": np.zeros(2)})


def test_bfloat16(tmp_path: Path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.linspace(-3, 3, 32).astype(ml_dtypes.bfloat16)
    write(tmp_path / "w", {"b": values})
    read, _ = w.map_weights(tmp_path / "w", 0, (tmp_path / "w").stat().st_size)
    np.testing.assert_array_equal(read["b"], values)


def test_every_cut_is_noticed(tmp_path: Path):
    path = tmp_path / "w"
    write(path, samples())
    content = path.read_bytes()
    for length in [*range(80), *range(80, len(content), 7), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(w.WeightsError):
            w.map_weights(path, 0, length)


def entry(dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    "header",
    [
        [],
        "text",
        {"a": 3},
        entry(dtype="F99"),
        entry(shape=[2]),
        entry(shape=[-1]),
        entry(shape="ab"),
        entry(offsets=[0]),
        entry(offsets=[4, 8]),
        entry(offsets=[-4, 0]),
        {},
    ],
)
def test_headers_that_lie_are_refused(header: object, tmp_path: Path):
    text = json.dumps(header).encode()
    path = tmp_path / "w"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(w.WeightsError):
        w.map_weights(path, 0, path.stat().st_size)


def test_releasing_pages_keeps_the_values(tmp_path: Path):
    values = np.arange(1 << 16, dtype=np.int32)
    values.tofile(tmp_path / "raw")
    read_only = np.memmap(tmp_path / "raw", np.int32, "r")
    w.release_pages(read_only[5:60000])
    np.testing.assert_array_equal(read_only, values)
    changed = np.memmap(tmp_path / "raw", np.int32, "c")
    changed[:] = 9
    w.release_pages(changed)  # must do nothing, or the changes are lost
    assert (changed == 9).all()
