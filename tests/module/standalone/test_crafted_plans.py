"""Plans with wrong records but a right digest, read by Python: refused in one sentence."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.small_plans import Plan, add_plan, image_plan, sealed

from tvmflow.errors import ArtifactError
from tvmflow.module.standalone.format import HEADER, RECORDS, Section, encode_plan
from tvmflow.module.standalone.read import describe, find_plan, find_weights


def changed(plan: Plan, section: Section, field: str, value: Any) -> bytes:
    """Return a plan with another value in all records of a section."""
    content = bytearray(plan.encode())
    header = np.frombuffer(bytes(content[: HEADER.itemsize]), HEADER)[0]
    offset, count = header["section"][section].tolist()
    records = np.frombuffer(content, RECORDS[section], count, offset).copy()
    records[field] = value
    content[offset : offset + records.nbytes] = records.tobytes()
    return sealed(bytes(content))


def look(content: bytes, folder: Path, weights: bytes = b"") -> dict[str, Any]:
    """Return the description of a library that `tvmflow inspect` shows."""
    path = folder / "lib.so"
    path.write_bytes(b"\0" * 128 + content + b"\0" * 64 + weights)
    plan = find_plan(path)
    assert plan is not None
    found = describe(path, [plan], find_weights(path, plan))
    plan.source  # noqa: B018
    return found


@pytest.mark.parametrize("plan", [add_plan()[0], image_plan()], ids=["buffers", "images"])
def test_plans_that_are_right(plan, tmp_path):
    found = look(plan.encode(), tmp_path, plan.weights())
    assert found["name"] == "small"
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        (Section.INPUTS, "name", 2**31),
        (Section.INPUTS, "dtype", 99),
        (Section.INPUTS, "dimensions", 9),
        (Section.INPUTS, "shape", -1),
        (Section.INPUTS, "shape", 2**62),
        (Section.INPUTS, "allocation", 77),
        (Section.OUTPUTS, "layout", 2**32 - 1),
        (Section.OUTPUTS, "allocation", 2**32 - 1),
        (Section.OUTPUTS, "regions", 5),
        (Section.OUTPUTS, "first_region", 2**32 - 1),
        (Section.WEIGHTS, "name", 2**20),
        (Section.WEIGHTS, "allocation", 12),
        (Section.LAUNCHES, "kernel", 2**30),
        (Section.LAUNCHES, "function", 2**30),
        (Section.LAUNCHES, "dimensions", 0),
        (Section.LAUNCHES, "dimensions", 4),
        (Section.LAUNCHES, "arguments", 100),
        (Section.PROGRAMS, "options", 2**30),
    ],
)
def test_records_that_point_nowhere(section, field, value, tmp_path):
    plan, _ = add_plan()
    with pytest.raises(ArtifactError, match="its plan is damaged") as caught:
        look(changed(plan, section, field, value), tmp_path, plan.weights())
    assert "\n" not in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    "metadata", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"name": 3}', b'{"name": NaN}']
)
def test_descriptions(metadata, tmp_path, monkeypatch):
    plan, _ = add_plan()
    monkeypatch.setattr(
        "support.small_plans.encode_plan",
        lambda sections, *rest: encode_plan(
            {**sections, Section.METADATA: metadata + b"\0"}, *rest
        ),
    )
    with pytest.raises(ArtifactError, match="its plan is damaged"):
        look(plan.encode(), tmp_path, plan.weights())


def test_source_that_becomes_more_than_is_said(tmp_path, monkeypatch):
    """A few bytes can decompress to gigabytes."""
    plan, _ = add_plan()
    content = bytearray(plan.encode())
    for size in (0, 1, 10**6, 2**60):
        header = np.frombuffer(bytes(content[: HEADER.itemsize]), HEADER).copy()
        header[0]["source_bytes"] = size
        with pytest.raises(ArtifactError):
            look(header.tobytes() + bytes(content[HEADER.itemsize :]), tmp_path, plan.weights())


def test_sections_that_lie_elsewhere(tmp_path):
    plan, _ = add_plan()
    content = plan.encode()
    for section in Section:
        for offset, count in ((0, 1), (2**32 - 8, 1), (HEADER.itemsize, 2**32 - 1)):
            header = np.frombuffer(content[: HEADER.itemsize], HEADER).copy()
            header[0]["section"][section] = (offset, count)
            with pytest.raises(ArtifactError, match="damaged"):
                look(header.tobytes() + content[HEADER.itemsize :], tmp_path, plan.weights())


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_damage(tmp_path, data):
    plan = data.draw(st.sampled_from([add_plan()[0], image_plan()]))
    content = bytearray(plan.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        # Change any byte after the magic word and the version, which identify plans.
        content[data.draw(st.integers(16, len(content) - 1))] = data.draw(st.integers(0, 255))
    size = np.frombuffer(bytes(content[: HEADER.itemsize]), HEADER)[0]["bytes"]
    with suppress(ArtifactError):
        whole = sealed(bytes(content)) if size == len(content) else bytes(content)
        json.dumps(look(whole, tmp_path, plan.weights()), allow_nan=False)
