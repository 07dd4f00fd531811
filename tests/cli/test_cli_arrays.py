"""Files of arrays that are damaged, or made to do damage: one sentence, and no memory for them."""

from __future__ import annotations

import io
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvmflow.cli.arrays import read_inputs
from tvmflow.errors import InputError
from tvmflow.ir.tensors import TensorInfo

X = TensorInfo("x", (2, 3, 4), "float32")
ARRAY = np.arange(24, dtype=np.float32).reshape(X.shape)


def array_bytes(array: np.ndarray = ARRAY) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive_bytes(save=np.savez_compressed, **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, **(arrays or {"x": ARRAY}))
    return file.getvalue()


def with_header(header: str, data: bytes = b"1234", version: bytes = b"\1\0") -> bytes:
    text = header.encode("latin-1")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


def read(content: bytes, folder: Path) -> dict[str, np.ndarray]:
    path = folder / "inputs"
    path.write_bytes(content)
    return read_inputs(path, (X,))


@pytest.mark.parametrize("content", [array_bytes(), archive_bytes(), archive_bytes(np.savez)])
def test_whole_files(content, tmp_path):
    found = read(content, tmp_path)
    np.testing.assert_array_equal(found["x"], ARRAY)
    assert found["x"].flags.writeable


@pytest.mark.parametrize(
    "array",
    [np.asfortranarray(ARRAY), ARRAY.astype(">f4"), np.array(2.5), np.zeros((0, 3)), ARRAY > 3],
)
def test_arrays_of_all_kinds(array, tmp_path):
    for content in (array_bytes(array), archive_bytes(x=array)):
        found = read(content, tmp_path)["x"]
        np.testing.assert_array_equal(found, array)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)


HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': %s}"
WRONG = {
    "a shape of 2^40": with_header(HEADER % ("<f4", (2**40,))),
    "a shape of 2^63": with_header(HEADER % ("<f4", (2**63, 2**63))),
    "a negative shape": with_header(HEADER % ("<f4", (-4,))),
    "two negative extents": with_header(HEADER % ("<f4", (-1, -1))),
    "a shape of text": with_header(HEADER % ("<f4", "('a',)")),
    "no shape": with_header("{'descr': '<f4', 'fortran_order': False}"),
    "objects": with_header(HEADER % ("|O", (1,))),
    "records": with_header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}"),
    "text": with_header(HEADER % ("<U1", (1,))),
    "an unknown dtype": with_header(HEADER % ("<q9", (1,))),
    "an open parenthesis": with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,"),
    "an open string": with_header("{'descr': '<f4"),
    "a call": with_header("__import__('os').system('true')"),
    "deep nesting": with_header("(" * 9000),
    "no header": b"\x93NUMPY\1\0",
    "a header beyond the end": b"\x93NUMPY\1\0\xff\xff{",
    "another version": with_header(HEADER % ("<f4", (1,)), version=b"\7\0"),
    "more elements than an input": array_bytes(np.zeros(1000, "f4")),
    "many dimensions": with_header(HEADER % ("<f4", (1,) * 60)),
    "an empty file": b"",
    "only the begin of an archive": b"PK\3\4",
    "text instead": b"hello",
}


@pytest.mark.parametrize("name", WRONG)
def test_damage_is_one_sentence(name, tmp_path):
    content = WRONG[name]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", content)
    for given_content in (content, file.getvalue()):
        with pytest.raises(InputError, match="Reading the inputs") as caught:
            read(given_content, tmp_path)
        assert caught.value.remedy
        assert "\n" not in caught.value.message


def test_what_is_wrong_is_said(tmp_path):
    with pytest.raises(InputError, match=r"needs 4398046511104 bytes for float32\[1099511627776\]"):
        read(WRONG["a shape of 2^40"], tmp_path)
    with pytest.raises(InputError, match=r"more than any of the network's inputs takes"):
        read(archive_bytes(x=np.zeros(10**7, "f4")), tmp_path)


def test_an_archive_that_says_less_than_it_holds(tmp_path):
    """A member's sizes in the archive are not believed either."""
    content = bytearray(archive_bytes())
    central = content.index(b"PK\1\2")
    for size in (0, 10):
        struct.pack_into("<I", content, central + 24, size)
        with pytest.raises(InputError):
            read(bytes(content), tmp_path)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_damage(tmp_path, data):
    """A file is refused or read; nothing else happens to it."""
    sources = [array_bytes(), archive_bytes(), archive_bytes(np.savez)]
    content = bytearray(data.draw(st.sampled_from(sources)))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(content)))
    for damaged in (content, content[:end]):
        with suppress(InputError):
            found = read(bytes(damaged), tmp_path)
            assert all(isinstance(array, np.ndarray) for array in found.values())
