"""A profile survives being JSON; what is none is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest
from profiles import synthetic_profile

from tvmflow.errors import ArtifactError
from tvmflow.profiling.record import BOUNDS, FINDING_KINDS, FORMAT, from_json, read_profile


def test_json_and_back_is_the_same_profile():
    profile = synthetic_profile(kernels=7)
    text = json.dumps(profile.to_json(), allow_nan=False)
    assert from_json(json.loads(text)) == profile
    assert {kernel.bound for kernel in profile.kernels} <= {*BOUNDS, None}
    assert {finding.kind for finding in profile.findings} <= set(FINDING_KINDS)


def test_a_profile_without_ceilings_and_counts_is_one_too():
    profile = dataclasses.replace(synthetic_profile(kernels=2), ceilings=None)
    assert from_json(json.loads(json.dumps(profile.to_json()))) == profile


def test_a_file_is_read(tmp_path):
    profile = synthetic_profile(kernels=3)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile.to_json()), encoding="utf-8")
    assert read_profile(path) == profile


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content.update(format=FORMAT + 1), "format 2"),
        (lambda content: content.pop("kernels"), "'kernels' is missing"),
        (lambda content: content["kernels"][0].update(colour="red"), "colour"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, change, reason):
    content = synthetic_profile(kernels=1).to_json()
    change(content)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ArtifactError, match=reason):
        read_profile(path)


def test_what_is_no_number_is_refused(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"format": 1, "runs": float("nan")}), encoding="utf-8")
    with pytest.raises(ArtifactError, match="NaN is no number of JSON"):
        read_profile(path)


@pytest.mark.parametrize("text", ["", "[1, 2]", "\x7fELF"])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "profile.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ArtifactError, match="a profile was expected"):
        read_profile(path)
    with pytest.raises(ArtifactError, match="No such file"):
        read_profile(tmp_path / "none.json")
