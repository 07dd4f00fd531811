"""Parts of the C++ runtime that need no device: hashes, half precision, JSON, build logs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from shutil import which

import numpy as np
import pytest
from support.build_cache import cached_build

NATIVE = Path(__file__).parents[2] / "native" / "opencl"


@pytest.fixture(scope="module")
def ask() -> Callable[[list[str]], list[str]]:
    """Compile the program; return a function that answers lines with lines."""
    compiler = os.environ.get("CXX") or which("g++") or which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    sources = [Path(__file__).with_name("units.cc"), NATIVE / "sha256.cc", NATIVE / "build_log.cc"]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    check = ["-fsanitize=undefined", "-fno-sanitize-recover"]
    command = [compiler, "-std=c++20", "-O1", *warnings, *check, *map(str, sources)]

    def build(folder: Path) -> None:
        subprocess.run([*command, "-o", str(folder / "units")], check=True)

    headers = [*NATIVE.glob("*.h"), *NATIVE.with_name("core").glob("*.h")]
    program = cached_build("units", command, [*sources, *headers], build) / "units"

    def answer(lines: list[str]) -> list[str]:
        text = "".join(f"{line}\n" for line in lines)
        process = subprocess.run(
            [program], input=text.encode("latin-1"), capture_output=True, check=False
        )
        assert process.returncode == 0, process.stderr
        return process.stdout.decode("latin-1").split("\n")[:-1]

    return answer


def test_sha256_equals_the_standard_librarys(ask):
    texts = ["x" * length for length in (0, 1, 3, 55, 56, 57, 63, 64, 65, 127, 128, 1000)]
    questions = [(piece, text) for text in texts for piece in (1, 7, 64, 1001)]
    got = ask([f"sha256\t{piece}\t{text}" for piece, text in questions])
    assert got == [hashlib.sha256(text.encode()).hexdigest() for _, text in questions]


def test_half_precision_equals_numpys(ask, rng):
    values = [0.0, -0.0, 1.0, -2.5, 65504.0, 65519.9, 65520.0, 1e30, -1e30, 6.1e-5, 5.96e-8]
    values += [
        2.98e-8,
        2.9e-8,
        -3e-8,
        1e-20,
        float("inf"),
        float("-inf"),
        1 + 2**-11,
        1 + 3 * 2**-11,
    ]
    values += list(rng.standard_normal(500) * 10.0 ** rng.integers(-8, 5, 500))
    values = np.array(values, "float32")
    got = ask([f"half\t{value!r}" for value in values.tolist()])
    with np.errstate(over="ignore"):
        expected = values.astype("float16").view("uint16")
    assert [int(bits) for bits in got] == expected.tolist()
    (nan,) = ask(["half\tnan"])
    assert np.isnan(np.array(int(nan), "uint16").view("float16"))


@pytest.mark.parametrize("text", ['plain "quoted" back\\slash', "bell\x07", "caf\xe9 \xff"])
def test_json_texts_come_back(ask, text):
    (got,) = ask([f"json\t{text}"])
    # JSON is UTF-8, which a byte of another encoding is not.
    assert got.isascii()
    assert json.loads(got) == text


@pytest.mark.parametrize(
    ("text", "recent"),
    [
        ("OpenCL 1.2", True),
        ("OpenCL 1.2 LINUX", True),
        ("OpenCL 3.0 PoCL 4", True),
        ("OpenCL 10.0 of some day", True),
        ("OpenCL 10.1", True),
        ("OpenCL 1.10", True),
        ("OpenCL 2", True),
        ("OpenCL 1.1 fake", False),
        ("OpenCL 1.0", False),
        ("OpenCL 0.9", False),
        ("OpenCL 1", False),
        ("OpenCL C 1.2", False),
        ("OpenCL ", False),
        ("3.0", False),
        ("", False),
    ],
)
def test_versions_are_compared_as_numbers(ask, text, recent):
    assert ask([f"version\t{text}\t2"]) == ["yes" if recent else "no"]


@pytest.mark.parametrize(
    ("log", "named"),
    [
        ("<source>:3:9: error: no", 3),
        (":3:9: error: no", 3),
        ("3:9: error: no", 3),
        ("/tmp/x.cl:3:9: error: no", 3),
        ('"/tmp/1.cl", line 3: error: no', 3),
        ("<kernel>(3) : error 12: no", 3),
        ("input.cl:3:48: error: invalid digit", 3),
    ],
)
def test_a_log_of_each_form_names_its_line(ask, log, named):
    source = "|".join(f"line {number}" for number in range(1, 101))
    (message,) = ask([f"lines\t{log}\t{source}"])
    shown = [int(number) for number in re.findall(r"\x1f  (\d+) \| line \1\b", message)]
    assert shown == list(range(max(1, named - 2), named + 3))


def test_a_log_without_a_line_shows_the_beginning(ask):
    source = "|".join(f"line {number}" for number in range(1, 101))
    (message,) = ask([f"lines\tit just failed\t{source}"])
    assert len(re.findall(r"\| line", message)) == 40


def test_gaps_between_lines_are_marked(ask):
    source = "|".join(f"line {number}" for number in range(1, 101))
    (message,) = ask([f"lines\tx.cl:10:1: a|x.cl:50:1: b\t{source}"])
    assert "\x1f  12 | line 12\x1f  ...\x1f  48 | line 48" in message
