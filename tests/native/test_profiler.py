"""Profiler sessions that end while other threads launch, under ThreadSanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from shutil import which

import pytest

NATIVE = Path(__file__).parents[2] / "native"
SOURCES = (
    "profiler", "device", "errors", "pocl_declarations", "chain", "kernel",
    "memory", "settings",
)  # fmt: skip


def test_sessions_end_beside_other_threads_launches(tmp_path: Path):
    compiler = os.environ.get("CXX") or which("g++") or which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    command = [compiler, "-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    empty = tmp_path / "empty.cc"
    empty.write_text("int main() {}\n")
    program = tmp_path / "profiler"
    sanitizer = ["-fsanitize=thread"]
    probe = subprocess.run(
        [*command, *sanitizer, empty, "-o", program], capture_output=True, check=False
    )
    if probe.returncode or subprocess.run([program], capture_output=True, check=False).returncode:
        sanitizer = []  # not installed, or not for this system: results are compared all the same
    core = sorted((NATIVE / "core").glob("*.c"))
    # One by one: given several, g++ takes them for C++.
    for path in core:
        in_c = [compiler, "-x", "c", "-std=gnu11", "-O1", "-g", *sanitizer, "-c", path]
        subprocess.run(in_c, cwd=tmp_path, check=True)
    sources = [Path(__file__).with_name("profiler.cc")]
    sources += [NATIVE / "opencl" / f"{name}.cc" for name in SOURCES]
    objects = [tmp_path / f"{path.stem}.o" for path in core]
    subprocess.run([*command, *sanitizer, *sources, *objects, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout == "sessions 600, launches 3000, missing 0, live 0\n"
