"""``tvmflow lab``."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.usefixtures("known_ceilings")


def test_labs_are_listed(cli):
    assert "Product of two square matrices" in cli("lab").stdout
    listed = {lab["name"]: lab for lab in cli("lab", "--json").json}
    assert listed["matmul"]["size"] == 1024


def test_a_lab_prints_each_step_and_what_it_removes(cli):
    printed = cli("lab", "matmul", "--size", "40", "--seconds", "0.001").stdout
    for text in (
        "naive",
        "packed",
        "GFLOP/s",
        "NumPy",
        "of peak",
        "fp32 100000.0 GFLOP/s",
        "removes: One core works.",
    ):
        assert text in printed


def test_a_lab_prints_what_is_found_and_until_which_step(cli):
    # Vectors divide the size: what is left over is stored number by number, in every step.
    options = ("--size", "192", "--seconds", "0.001", "--steps", "naive,vectorised,blocked")
    printed = " ".join(cli("lab", "matmul", *options).stdout.split())
    naive, vectorised, blocked = re.split("vectorised: A|blocked: The", printed)
    line = re.search(r"found, until vectorised: vector-width, line (\d+): product is", naive)
    shown = cli("lab", "matmul", "--size", "192", "--show", "naive").stdout.splitlines()
    assert "product[" in shown[int(line.group(1)) - 1]
    assert "found, until blocked: accumulators" in vectorised
    assert "found: parallel" in blocked
    assert "until" not in blocked


def test_steps_can_be_chosen_and_are_counted(cli):
    options = ("--size", "50", "--seconds", "0.001", "--steps", "vectorised,packed", "--json")
    result = cli("lab", "matmul", *options).json
    assert [step["step"] for step in result["steps"]] == ["vectorised", "packed"]
    assert result["operations"] == 2 * 50**3
    assert result["bytes"] == 3 * 50 * 50 * 4
    first, last = result["steps"]
    ratio = first["times"]["median_ms"] / last["times"]["median_ms"]
    assert last["speedup"] == pytest.approx(ratio)
    assert last["gflops"] == pytest.approx(2 * 50**3 / last["times"]["median_ms"] / 1e6)
    assert last["error"] < 1e-5
    assert last["of_peak"] == min(1, max(last["gflops"] / 100, last["gbps"] / 10))


def test_a_batch_is_counted_and_named(cli):
    options = ("lab", "dot", "--size", "3", "--batch", "2", "--seconds", "0.001")
    result = cli(*options, "--json").json
    assert (result["batch"], result["operations"]) == (2, 2 * 3 * 1024 * 2)
    assert "dot, size 3, batch of 2" in cli(*options).stdout


def test_a_schedule_is_shown_without_a_device(cli):
    shown = cli("lab", "matmul", "--target", "cuda", "--show", "packed", "--size", "64")
    assert 'scope="shared"' in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("matmul", "--size", "0"), "was asked for 0 rows and columns; expected at least 1"),
        (("matmul", "--size", "1000000"), "a tensor of 1,000,000,000,000 elements"),
        (("matmul", "--steps", "naive,fast"), "has no step 'fast'; expected some of naive"),
        (("matmul", "--show", "fast"), "has no step 'fast'"),
        (("matmul", "--batch", "0"), "a batch of 0 samples; expected at least 1"),
        (("--batch", "2"), "need a lab; there is none on the command line"),
        (("matrix",), "There is no lab 'matrix'; expected one of matmul"),
        (("matmul", "--target", "llvm", "--device", "mali"), "The target llvm compiles for CPUs"),
        (("matmul", "--target", "metal"), "The target 'metal' is not known; expected one of"),
        (("--size", "5"), "need a lab; there is none on the command line"),
        (("matmul", "--device-index", "99"), "there is no llvm device 99"),
    ],
)
def test_mistakes_are_told(cli, arguments, message):
    cli("lab", *arguments).refused(message, "Remedy")
