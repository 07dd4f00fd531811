"""The C and C++ interfaces and examples, compiled strictly and run on the mock model."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support import pages
from support.commands import output, run
from support.mock_library import BINDINGS, C_COMPILER, CPP_COMPILER, ROOT, build_mock

WARNINGS = ("-pedantic", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


def compiled(command, *arguments, folder):
    """Compile a program, and return its path."""
    program = folder / "program"
    run(*command, *WARNINGS, f"-I{BINDINGS}", *arguments, "-ldl", "-o", program)
    return program


def test_the_c_example_is_built_by_its_makefile_and_runs(mock, tmp_path):
    folder = tmp_path / "c"
    folder.mkdir()
    for name in ("main.c", "Makefile"):
        (folder / name).write_text((ROOT / "examples" / "c" / name).read_text())
    model = tmp_path / mock.name
    model.write_bytes(mock.read_bytes())
    flags = [
        f"MODEL={model}",
        f"TVMFLOW={BINDINGS}",
        f"CC={' '.join(C_COMPILER)}",
        "CFLAGS=-Werror",
    ]
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    subprocess.run(["make", "-C", str(folder), *flags], check=True, env=env)
    # Link another model, including one that is older than the program.
    again = subprocess.run(["make", "-q", "-C", str(folder), *flags], check=False, env=env)
    assert again.returncode == 1
    lines = output(folder / "run", tmp_path).splitlines()
    assert f'"cache": "{tmp_path}"' in lines[0]
    assert lines[1:4] == [
        "self-test passed: 6 elements, 0.5 of the tolerance used",
        "input a: 2 3 (24 bytes)",
        "input b/𝄞: 2 3 (24 bytes)",
    ]
    assert lines[4].startswith("median of 50 runs: ")
    assert lines[5:] == ["output sum: 2 3 (24 bytes)", "  first value 0"]


def test_a_library_that_was_cut_short_is_refused_and_ends_nothing(mock, tmp_path):
    """The cut may be anywhere: glibc's loader would kill the process if code is missing."""
    program = compiled(
        [*CPP_COMPILER, "-std=c++17"], ROOT / "examples" / "cpp" / "main.cpp", folder=tmp_path
    )
    content, cut = mock.read_bytes(), tmp_path / "libcut.so"
    for length in range(64, len(content) // 2, 1009):
        cut.write_bytes(content[:length])
        process = run(program, cut, status=1)
        assert "libcut.so failed: it was cut short: copy it again" in process.stderr, length
    cut.write_bytes(content[:40])
    assert "libcut.so failed: " in run(program, cut, status=1).stderr
    cut.unlink()
    os.mkfifo(cut)
    assert "it is no regular file" in run(program, cut, status=1).stderr


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("fail create 2", "Error 2: Creating the model failed"),
        ("fail test 9", "Error 9: The self-test failed"),
        ("fail run 7", "Error 7: Running failed"),
    ],
)
def test_the_c_example_says_what_failed_and_leaks_nothing(tmp_path, how, message):
    model = build_mock(tmp_path / "libmock.so", flags=SANITIZERS)
    program = compiled(
        [*C_COMPILER, "-std=c99"],
        *SANITIZERS,
        ROOT / "examples" / "c" / "main.c",
        model,
        f"-Wl,-rpath,{tmp_path}",
        folder=tmp_path,
    )
    process = run(program, "", how, status=1)
    assert process.stderr.startswith(message), process.stderr
    assert "Sanitizer" not in process.stderr, process.stderr


def test_the_cpp_example_runs_two_models_in_one_program(mock, mock_tenfold, tvm_module, tmp_path):
    source = ROOT / "examples" / "cpp" / "main.cpp"
    program = compiled([*CPP_COMPILER, "-std=c++17"], source, folder=tmp_path)
    assert output(program, mock, mock_tenfold).count("sum: 6 values, the first is 0") == 2
    process = run(program, mock, tmp_path / "none.so", status=1)
    assert process.stderr.startswith(f"Error: Opening the library {tmp_path}/none.so failed: ")
    # This holds even if the program has TVM's runtime, and the loader finds all symbols.
    (tmp_path / "tvm.c").write_text("void TVMFFIErrorSetRaisedFromCStrParts(void) {}\n")
    runtime = tmp_path / "libtvm.so"
    run(*C_COMPILER, "-shared", "-fPIC", tmp_path / "tvm.c", "-o", runtime)
    for env in ({}, {"LD_PRELOAD": runtime}):
        process = run(program, mock, tvm_module, status=1, **env)
        assert "compile it with --standalone" in process.stderr


@pytest.mark.parametrize("exceptions", [True, False], ids=["exceptions", "no-exceptions"])
@pytest.mark.parametrize("linked", [False, True], ids=["dlopen", "linked"])
def test_the_cpp_wrapper(tmp_path, exceptions, linked):
    checked = () if linked else SANITIZERS
    model = build_mock(tmp_path / "libmock.so", flags=checked)
    tenfold = build_mock(tmp_path / "libtenfold.so", scale=10, flags=checked)
    program = compiled(
        [*CPP_COMPILER, "-std=c++17"],
        *checked,
        Path(__file__).with_name("wrapper.cpp"),
        *([] if exceptions else ["-fno-exceptions"]),
        *(["-DLINKED", model, f"-Wl,-rpath,{tmp_path}"] if linked else []),
        folder=tmp_path,
    )
    assert output(program, model, tenfold) == "passed\n"


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_what_the_guide_shows_compiles(language, tmp_path):
    blocks = [block.code for block in pages.blocks("docs/deploying.md", language)]
    assert blocks
    includes, lines = ["#include <stdio.h>", '#include "tvmflow_library.h"'], []
    for line in "".join(blocks).splitlines():
        (includes if line.startswith("#include") else lines).append(line)
    given = "const char* folder = 0; static float image[6], scores[6];"
    given += " static unsigned char pixels[6]; unsigned row_bytes = 6;"
    options = ""
    if language == "cpp":
        given, options = "const std::vector<float> image(6);", "tvmflow_options options{};"
    body = [*includes, "int main() {", given, options, *lines, "}"]
    source = tmp_path / f"guide.{language}"
    source.write_text("\n".join(body) + "\n", encoding="utf-8")
    command = [*C_COMPILER, "-std=c11"] if language == "c" else [*CPP_COMPILER, "-std=c++17"]
    run(*command, "-fsyntax-only", f"-I{BINDINGS}", source)


@pytest.mark.parametrize("standard", ["c99", "c11", "c++11", "c++20"])
def test_headers_compile_without_a_warning(standard, tmp_path):
    headers = ["tvmflow.h", "tvmflow_library.h", "tvmflow_check.h"]
    headers += ["tvmflow.hpp"] if standard == "c++20" else []
    suffix, compiler = (".cpp", CPP_COMPILER) if "+" in standard else (".c", C_COMPILER)
    source = (tmp_path / "headers").with_suffix(suffix)
    source.write_text("".join(f'#include "{header}"\n' for header in headers))
    run(*compiler, f"-std={standard}", *WARNINGS, "-fsyntax-only", f"-I{BINDINGS}", source)
