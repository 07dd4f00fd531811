"""``tvmflow package``."""

from __future__ import annotations

import tarfile

import pytest
from mock_library import build_mock

from tvmflow.devices.host import Host


@pytest.fixture
def library(tmp_path):
    return build_mock(tmp_path / "libmock.so")


def test_an_archive_for_linux(cli, library, tmp_path):
    output = tmp_path / "mock.tar.gz"
    done = cli("package", library, "--tar", output, "--package-version", "3.0")
    assert done.status == 0, done.stderr
    assert f"mock for {Host.native().triple}" in done.stderr
    with tarfile.open(output) as archive:
        assert "mock-3.0/lib/libmock.so" in archive.getnames()
    about = cli("package", library, "--tar", output, "--json").json
    assert about["output"] == str(output)
    assert about["bytes"] == output.stat().st_size
    assert [one["name"] for one in about["libraries"]] == ["mock"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "either --aar or --tar was expected"),
        (("--aar", "a.aar", "--tar", "a.tar.gz"), "either --aar or --tar was expected"),
        (("--tar", "a.tar.gz", "--prefab"), "--prefab is about --aar"),
        (("--tar", "a.tar.gz", "--package-version", "1.0-beta"), "one to four numbers"),
        (("--aar", "a.aar"), "libraries for Android were expected"),
        (("--tar", "nowhere/a.tar.gz"), "the folder nowhere does not exist"),
    ],
)
def test_what_it_cannot_do_is_said(cli, library, tmp_path, options, words):
    before = sorted(tmp_path.iterdir())
    cli("package", library, *options).refused(words)
    assert sorted(tmp_path.iterdir()) == before
