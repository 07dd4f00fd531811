"""Hand-written descriptions of modules with right digests."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvmflow.errors import ArtifactError, TvmflowError
from tvmflow.module.artifact import DIGEST, META, read_artifact
from tvmflow.module.elf import read_library
from tvmflow.module.load import load
from tvmflow.module.metadata import check_module
from tvmflow.module.samples import random_inputs
from tvmflow.module.schema import SchemaError, parse
from tvmflow.module.weights import WeightsError, map_weights


def rewrite(path: Path, text: bytes) -> Path:
    """Append another description to a module, with the digest that belongs to it."""
    library = read_library(path)
    content = bytearray(path.read_bytes())
    meta, digest = library.sections[META], library.sections[DIGEST]
    content[digest.offset : digest.offset + 32] = hashlib.sha256(text).digest()
    # The section table's entry has offset and size next to each other.
    old = struct.pack("<QQ", meta.offset, meta.bytes)
    assert content.count(old) == 1
    at = content.index(old)
    content[at : at + 16] = struct.pack("<QQ", len(content), len(text))
    path.write_bytes(bytes(content) + text)
    return path


def described(original: Path) -> dict[str, Any]:
    return copy.deepcopy(read_artifact(original).metadata)


def put(meta: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Set the value at a path; `...` removes it."""
    inner = meta
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return meta


def test_another_description_is_read(module_file: Path):
    meta = put(described(module_file), ("name",), "renamed")
    artifact = read_artifact(rewrite(module_file, json.dumps(meta).encode()))
    assert artifact.metadata["name"] == "renamed"
    load(module_file)


TENSOR = {
    "name": "t", "shape": [1], "dtype": "float32", "stored_as": "float32", "layout": "plain",
    "scope": None, "image": None, "bytes": 4, "first": 0, "last": 0, "producer": "f",
    "readers": [], "storage": "buffer", "block": None,
}  # fmt: skip
WRONG = [
    (("inputs",), ...),
    (("inputs",), {"x": 1}),
    (("inputs",), [1]),
    (("inputs", 0, "shape"), ...),
    (("inputs", 0, "shape"), "1,3,8,8"),
    (("inputs", 0, "shape"), [1, -3, 8, 8]),
    (("inputs", 0, "shape"), [1, 3.5, 8, 8]),
    (("inputs", 0, "shape"), [1, True, 8, 8]),
    (("inputs", 0, "shape"), [1] * 50),
    (("inputs", 0, "shape"), [2**40, 2**40]),
    (("inputs", 0, "shape"), [2**62, 2**62, 0]),
    (("inputs", 0, "shape"), [10**400]),
    (("inputs", 0, "dtype"), "float33"),
    (("inputs", 0, "dtype"), ["float32"]),
    (("inputs", 0, "name"), 7),
    (("inputs", 1, "name"), "x/in"),
    (("inputs", 0, "logical_shape"), [1, 3, 8]),
    (("inputs", 0, "logical_shape"), [1, 3, 8, 8]),
    (("inputs", 0, "image"), "../../x"),
    (("outputs", 1, "dtype"), None),
    (("name",), None),
    (("target",), 3),
    (("host",), []),
    (("tvm",), {}),
    (("kernels",), 5),
    (("kernels", 0), "conv2d"),
    (("kernels", 0, "function"), ...),
    (("options",), []),
    (("stage_ms",), [1, 2]),
    (("stage_ms", "build"), "long"),
    (("stage_ms", "build"), -1),
    (("stage_ms", "build"), 10**400),
    (("weights",), "w"),
    (("weights",), [{"name": "w"}]),
    (("weights", 0, "shape"), [4, 3, 3]),
    (("weights", 0, "bytes"), -432),
    (("weights", 0, "name"), "v"),
    (("weights_file",), "../other.so.weights"),
    (("weights_file",), ".."),
    (("weights_file",), "a\0b"),
    (("weights_digest",), 12),
    (("weights_xxh64",), "0" * 16),
    (("weight_scopes",), ["global.texture"]),
    (("extensions",), "cl_khr_fp16"),
    (("call_checks",), [{"node": "n"}]),
    (("call_checks",), [{"node": "n", "operator": "o", "attributes": {}, "operands": [7]}]),
    (("schedules",), {"f": {}}),
    (("nodes",), {"f": "n"}),
    (("fusion_left",), [{"tensor": "t"}]),
    (("placements",), [{"tensor": "t"}]),
    (("algorithms",), [None]),
    (("memory",), []),
    (("memory", "peak_bytes"), "1"),
    (("memory", "steps"), ...),
    (("memory", "tensors"), [TENSOR | {"block": 2**50}]),
    (("memory", "tensors"), [TENSOR | {"last": 1}]),
    (("cpu",), 1),
    (("half_sums",), [-1]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda part: repr(part)[:50])
def test_wrong_values_are_one_sentence(module_file: Path, path: tuple[Any, ...], value: Any):
    text = json.dumps(put(described(module_file), path, value)).encode()
    rewrite(module_file, text)
    with pytest.raises(ArtifactError) as caught:
        load(module_file).open()
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 600
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"null", "expected an object"),
        (b"[]", "expected an object"),
        (b'"format"', "expected an object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"format": NaN}', "the number NaN"),
        (b'{"format": -Infinity}', "the number -Infinity"),
        (b'{"format": 1, "name": "\xff"}', "not UTF-8"),
        (b'{"format": 1, "name": "\\ud800"}', "not UTF-8"),
        (b'{"format": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"format": {"a": 1}}', "it has format"),
        (b'{"format": true}', "it has format True"),
        (b'{"format": 1}', "it lacks name"),
        (b"\xef\xbb\xbf{}", "not JSON"),
    ],
)
def test_what_is_no_description(module_file: Path, text: bytes, message: str):
    with pytest.raises(ArtifactError, match=message) as caught:
        read_artifact(rewrite(module_file, text))
    assert len(caught.value.message) < 600


def test_a_description_that_is_too_long(module_file: Path, monkeypatch: pytest.MonkeyPatch):
    text = json.dumps(described(module_file)).encode()
    rewrite(module_file, text)
    monkeypatch.setattr("tvmflow.module.artifact.MOST_BYTES", len(text) - 1)
    with pytest.raises(ArtifactError, match="its description is said to have"):
        read_artifact(module_file)


def test_random_inputs_that_this_machine_cannot_hold(
    module_file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tvmflow.ir.limits.memory_bytes", lambda: 100)
    with pytest.raises(TvmflowError, match="but this machine has 100 B of memory"):
        random_inputs(load(module_file), 0)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to everything within a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in items:
        found.append((*path, key))
        if isinstance(inner, dict | list):
            found += places(inner, (*path, key))
    return found


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_change_is_refused_or_harmless(original: Path, tmp_path: Path, data: st.DataObject):
    meta = described(original)
    path = data.draw(st.sampled_from(places(meta)))
    value = data.draw(st.just(...) | VALUES)
    text = json.dumps(put(meta, path, value)).encode()
    module_file = tmp_path / "m.so"
    module_file.write_bytes(original.read_bytes())
    rewrite(module_file, text)
    with suppress(TvmflowError):
        module = load(module_file)
        repr(module)
        module.target  # noqa: B018
        json.dumps(module.metadata, allow_nan=False)
        with suppress(TvmflowError):
            module.open().close()


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_no_value_is_a_description(value: Any):
    with pytest.raises(SchemaError):
        check_module(value)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_bytes_are_json_or_refused(content: bytes):
    try:
        expected = json.loads(content.decode(), parse_constant=pytest.fail)
    except (ValueError, RecursionError, pytest.fail.Exception):
        with pytest.raises(SchemaError):
            parse(content)
    else:
        assert parse(content) == expected


# The header of the weights -------------------------------------------------------------------


def weights_file(folder: Path, header: Any, data: bytes = bytes(64)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "w"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin: Any, end: Any, shape: Any = (8,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[" * 100_000,
        [],
        {"a": []},
        {"a": entry(0, 32), "b": entry(0, 32)},
        {"a": entry(0, 32), "b": entry(16, 48), "c": entry(48, 64, (4,))},
        {"a": entry(32, 64)},
        {"a": entry(-32, 0), "b": entry(0, 32), "c": entry(32, 64)},
        {"a": entry(0.0, 64.0, (16,))},
        {"a": entry("0", "64", (16,))},
        {"a": entry(0, 64, ["16"])},
        {"a": entry(0, 64, [16.0])},
        {"a": entry(0, 64, [True, 16])},
        {"a": entry(0, 64, [-4, -4])},
        {"a": entry(0, 64, [1] * 40 + [16])},
        {"a": entry(0, 64, (16,), "F33")},
        {"a": entry(0, 64, (16,), ["F32"])},
        {"a": entry(0, 64, (16,)), "b": entry(64, 64, [2**62, 2**62, 0])},
        {"a": {"dtype": "F32", "shape": [16], "data_offsets": [0]}},
        {"a": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64, 64]}},
        {"a": {"dtype": "F32", "shape": [16]}},
        {"a": entry(0, 64, (16,)), "__metadata__": []},
        {"a": entry(0, 64, (16,)), "__metadata__": {"tvmflow.sha256": 3}},
        {"a": entry(0, 2**70, [2**68])},
    ],
    ids=lambda header: repr(header)[:40],
)
def test_headers_of_weights_are_not_believed(tmp_path: Path, header: Any):
    path = weights_file(tmp_path, header)
    with pytest.raises(WeightsError):
        map_weights(path, 0, path.stat().st_size)


def test_a_header_of_weights_that_is_right(tmp_path: Path):
    header = {"a": entry(0, 32), "b": entry(32, 64), "empty": entry(64, 64, [0, 3])}
    path = weights_file(tmp_path, header)
    found, digest = map_weights(path, 0, path.stat().st_size)
    assert (list(found), digest) == (["a", "b", "empty"], None)
