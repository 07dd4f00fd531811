"""``tvmflow compile --host`` with the short names, and ``tvmflow inspect --host-abi``."""

from __future__ import annotations

import pytest


@pytest.mark.cross
@pytest.mark.parametrize(
    ("host", "triple", "other"),
    [
        ("android-arm64", "aarch64-linux-android24", "linux-arm64"),
        ("linux-arm64", "aarch64-linux-gnu", "android-arm64"),
        ("linux-x64", "x86_64-linux-gnu", "linux-arm64"),
    ],
)
@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_modules_for_hosts(cli, model, target: str, host: str, triple: str, other: str):
    device = "cpu" if target == "llvm" else "adreno"
    options = ("--target", target, "--device", device, "--shape", "x/in=1,3,8,8")
    assert cli("compile", model, *options, "--host", host, "-o", "net.so").status == 0
    assert cli("inspect", "net.so", "--json").json["host"] == triple
    result = cli("inspect", "net.so", "--host-abi", "--json")
    found = {rule["rule"]: rule["found"] for rule in result.json["rules"] if not rule["kept"]}
    assert found == {}
    assert result.status == 0
    assert result.json["host"] == triple
    assert result.json["kind"] == "module for TVM's runtime"
    # Whether Android takes the others of its architecture, too, depends on their linker.
    refused = bool(result.json["android_refuses"])
    assert refused == (host == "linux-x64") or host == "linux-arm64"
    # It is for one machine only.
    result = cli("inspect", "net.so", "--host-abi", "--host", other)
    assert result.status == 1
    assert "broken" in result.stdout


def test_what_cannot_be_checked(cli, compiled, tmp_path):
    (tmp_path / "script.so").write_text("#!/bin/sh")
    refused = cli("inspect", "script.so", "--host-abi")
    refused.refused("script.so failed: an ELF shared library was expected", "Remedy")
    cli("inspect", "none.so", "--host-abi").refused("No such file", "Remedy")
    cli("inspect", compiled, "--host", "linux-x64").refused("--host goes with --host-abi")
    cli("inspect", compiled, "--host-abi", "--host", "amiga").refused("'amiga' was not understood")
