"""Kernels that do not build: the error shows the log and the source lines."""

from __future__ import annotations

import re


def test_the_message_of_every_driver(driver, script):
    result = script("attempt.py", "broken", "bad", env=driver.env)
    assert result["type"] == "KernelBuildError"
    assert "Kernel 'bad' does not build on device" in result["message"]
    assert "undeclared_name" in result["details"]
    assert "Build options: -cl-mad-enable" in result["details"]


def test_source_lines_named_in_the_log(fake, script):
    result = script("attempt.py", "broken", "bad", env=fake)
    assert result["type"] == "KernelBuildError"
    assert "CL_BUILD_PROGRAM_FAILURE" in result["message"]
    assert "<source>:2:7: error: this does not compile" in result["details"]
    shown = re.findall(r"^  (\d+) \| (.*)$", result["details"], re.MULTILINE)
    assert [int(number) for number, _ in shown] == [1, 2, 3, 4]
    assert shown[1][1].strip() == "BROKEN"
    assert shown[0][1].startswith("__kernel void bad")


def test_the_kernels_beside_a_broken_one_still_run(fake, script, builds):
    script("attempt.py", "broken", "bad", env=fake)
    # All together, then the good one, then the bad one.
    assert builds() == ["source", "source", "source"]


def test_a_module_built_one_by_one_is_cached_too(fake, script, builds):
    script("attempt.py", "broken", "bad", env=fake)
    script("attempt.py", "broken", "bad", env=fake)
    assert builds()[3:] == ["source", "binary", "source"]
