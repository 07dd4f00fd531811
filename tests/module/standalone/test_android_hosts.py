"""Libraries for Android on x86-64 and 32-bit Arm, run with Android's names on glibc."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from shutil import which

import numpy as np
import pytest
from support.commands import output
from support.cross import FOLDER, Cross
from support.small_plans import add_plan

from tvmflow.devices.host import Host
from tvmflow.module.link import tools
from tvmflow.module.standalone.link import link_library

ARM_LIBRARIES = "/usr/arm-linux-gnueabi"

pytestmark = pytest.mark.cross


def emulator(host: str) -> list[str]:
    """Return the command that runs programs for the host; skip the test if there is none."""
    if host == "android-x64":
        if platform.machine() != "x86_64":
            pytest.skip("this processor is no x86-64")
        return ["env"]
    if which("qemu-arm-static") is None or not Path(ARM_LIBRARIES).is_dir():
        pytest.skip("32-bit Arm needs Debian's qemu-user-static and libc6-armel-cross")
    return ["qemu-arm-static", "-L", ARM_LIBRARIES]


#: Linux targets with the same calling convention, for the libraries around the tested one.
LINUX = {"android-x64": "x86_64-linux-gnu.2.36", "android-armv7": "arm-linux-gnueabi.2.36"}
HOSTS = pytest.mark.parametrize("host", LINUX)


@HOSTS
def test_declarations_have_the_layout_of_the_system(host, tmp_path):
    tool = next(iter(tools(Host.parse(host))))
    tool.compile(FOLDER / "layout.c", tmp_path / "layout.o", tmp_path)
    # Android's functions take files of any size.
    wide = () if host == "android-x64" else ("-D_FILE_OFFSET_BITS=64",)
    Cross(LINUX[host], tmp_path).compile("linux.o", *wide, "-c", FOLDER / "layout.c")


@HOSTS
def test_a_library_runs_and_keeps_what_the_driver_built(host, tmp_path):
    command = emulator(host)
    cross = Cross(LINUX[host], tmp_path)
    driver, program = cross.driver(), cross.program()
    plan, w = add_plan(48, 1.5)
    plan.test([(3, 1.0, 1.0)], {0: 1.5 + w})
    x = np.random.default_rng(6).normal(size=48).astype(np.float32)
    x.tofile(tmp_path / "input.bin")
    (tmp_path / "weights").write_bytes(plan.weights())
    library, parsed = tmp_path / "libnet.so", Host.parse(host)
    link_library(plan.encode(parsed), tmp_path / "weights", parsed, library, embed=True)
    option = ["-E"] if command[0] != "env" else []
    for name, value in cross.android().items():
        command += [*option, f"{name}={value}"]
    command += [program, library, driver, tmp_path]
    lines = [output(*command).splitlines() for _ in range(2)]
    assert [found[-1] for found in lines] == ["good", "good"]
    # The system's structures report a file's owner and its write permissions.
    told = [json.loads(found[0].removeprefix("describe: ")) for found in lines]
    assert [one["programs_from_cache"] for one in told] == [False, True], told
    y = np.fromfile(tmp_path / "output.bin", np.float32)[:48]
    np.testing.assert_allclose(y, 1.5 * x + w, rtol=1e-6)
