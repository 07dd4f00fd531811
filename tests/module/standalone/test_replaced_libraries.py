"""Libraries that are replaced under their names while open, in every language."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from support.commands import output, run
from support.mock_library import C_COMPILER, CPP_COMPILER, STRICT, java_classes

from tvmflow.runtime import shared_library
from tvmflow.runtime.shared_library import OpenLibrary


def replace(source: Path, path: Path) -> None:
    """Replace a library with a copy of another one, as ``mv`` does."""
    shutil.copyfile(source, f"{path}.new")
    os.replace(f"{path}.new", path)


@pytest.fixture
def libraries(mock, mock_tenfold, tmp_path, monkeypatch):
    """Return the mock library, and one that replaces it under its name."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "libnet.so"
    shutil.copy(mock, path)
    monkeypatch.chdir(folder)
    return path, mock_tenfold


def names_of(library: OpenLibrary) -> str:
    return re.sub("(/[/.])+/", "/…/", library.name)


def test_names_are_plain_unless_another_file_is_open_under_them(libraries, tmp_path):
    path, other = libraries
    first, again = OpenLibrary(path), OpenLibrary("libnet.so")
    assert first.name == again.name == str(path)
    assert first.handle == again.handle
    link = tmp_path / "link.so"
    link.symlink_to(path)
    hard = tmp_path / "hard.so"
    os.link(path, hard)
    assert OpenLibrary(link).handle == OpenLibrary(hard).handle == first.handle
    replace(other, path)
    second, twice = OpenLibrary(path), OpenLibrary(path)
    assert second.handle == twice.handle != first.handle
    assert names_of(second) == f"{path.parent}/…/{path.name}"
    assert Path(second.name).samefile(path)
    # The earlier library is unchanged, under its new name.
    assert OpenLibrary(hard).handle == first.handle
    for library in (first, again, second, twice):
        library.close()


def test_a_file_that_is_replaced_while_it_is_opened_is_opened_again(libraries, monkeypatch):
    path, other = libraries
    opening, calls = shared_library.dlopen, []

    def replace_once(name, mode):
        if not calls:
            replace(other, path)
        calls.append(name)
        return opening(name, mode)

    monkeypatch.setattr(shared_library, "dlopen", replace_once)
    found = OpenLibrary(path)
    monkeypatch.undo()
    assert found.handle == OpenLibrary(path).handle
    assert len(calls) > 3


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_fifty_swaps_under_load_in_c_and_cpp(language, mock, mock_tenfold, tmp_path):
    compiler = [*C_COMPILER, "-std=gnu11"] if language == "c" else [*CPP_COMPILER, "-std=c++17"]
    source = Path(__file__).with_name(f"swaps.{language}")
    program = tmp_path / "program"
    run(*compiler, *STRICT, source, "-pthread", "-ldl", "-o", program)
    assert output(program, tmp_path / "libnet.so", mock, mock_tenfold, timeout=60) == "passed\n"


@pytest.mark.java
def test_fifty_swaps_under_load_in_java(mock, mock_tenfold, tmp_path):
    classes = java_classes(tmp_path / "classes", Path(__file__).with_name("Swaps.java"))
    command = ("java", "-Xcheck:jni", "-Xmx128m", "-cp", classes, "Swaps")
    libraries = (tmp_path / "libnet.so", mock, mock_tenfold)
    assert output(*command, *libraries, timeout=60) == "passed\n"
