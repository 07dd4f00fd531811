"""``tvmflow package``."""

from __future__ import annotations

import tarfile

import pytest
from support.mock_library import build_mock

from tvmflow._versions import __version__
from tvmflow.devices.host import Host


@pytest.fixture
def library(tmp_path):
    return build_mock(tmp_path / "libmock.so")


def test_an_archive_for_linux(cli, library, tmp_path):
    output = tmp_path / "mock.tar.gz"
    done = cli("package", library, "--tar", output, "--package-version", "3.0").succeeded()
    assert f"mock for {Host.native().triple}" in done.stderr
    with tarfile.open(output) as archive:
        assert "mock-3.0/lib/libmock.so" in archive.getnames()
    about = cli("package", library, "--tar", output, "--json").json
    assert about["output"] == str(output)
    assert about["bytes"] == output.stat().st_size
    assert [one["name"] for one in about["libraries"]] == ["mock"]


@pytest.mark.java
def test_classes_apart_in_a_repository(cli, tmp_path):
    done = cli("package", "--only-classes", "--repository", tmp_path / "repo").succeeded()
    folder = tmp_path / "repo/ai/tvmflow/tvmflow-runtime" / __version__
    names = [f"tvmflow-runtime-{__version__}.{end}" for end in ("aar", "pom")]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert f"ai.tvmflow:tvmflow-runtime:{__version__}" in done.stderr
    cli("package", "--aar", tmp_path / "a.aar").refused("were expected")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "one of --aar, --tar and --repository was expected"),
        (("--aar", "a.aar", "--tar", "a.tar.gz"), "one of --aar, --tar and --repository"),
        (("--tar", "a.tar.gz", "--prefab"), "--prefab is for --aar"),
        (("--tar", "a.tar.gz", "--no-classes"), "--no-classes is for --aar"),
        (("--aar", "a.aar", "--only-classes"), "--only-classes takes no libraries"),
        (("--aar", "a.aar", "--maven", "a:b"), "--maven goes with libraries in a --repository"),
        (("--repository", "repo"), "--maven goes with libraries in a --repository"),
        (("--repository", "repo", "--maven", "a/b"), "'a/b' is not of the form GROUP:ARTIFACT"),
        (("--tar", "a.tar.gz", "--package-version", "1.0-beta"), "one to four numbers"),
        (("--aar", "a.aar"), "libraries for Android were expected"),
        (("--tar", "nowhere/a.tar.gz"), "the folder nowhere does not exist"),
    ],
)
def test_what_it_cannot_do_is_said(cli, library, tmp_path, options, words):
    before = sorted(tmp_path.iterdir())
    cli("package", library, *options).refused(words)
    assert sorted(tmp_path.iterdir()) == before
