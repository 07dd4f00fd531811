"""Libraries for Android on x86-64 and 32-bit Arm, run with Android's names on glibc."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from shutil import which

import numpy as np
import pytest
from support.fake_opencl import SOURCES
from support.small_plans import add_plan

from tvmflow.devices.host import Host
from tvmflow.module.link import tools, ziglang
from tvmflow.module.standalone.link import link_library

HERE = Path(__file__).parent / "arm64"
NATIVE = Path(__file__).parents[3] / "native"
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


def compile_c(host: str, output: Path, *arguments: object) -> Path:
    """Compile C for Linux on a host's processor."""
    zig = ziglang()
    assert zig is not None
    command = [*zig, "cc", "-target", LINUX[host], "-std=gnu11", "-O1", "-o", output, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


@HOSTS
def test_declarations_have_the_layout_of_the_system(host, tmp_path):
    tool = next(iter(tools(Host.parse(host))))
    tool.compile(HERE / "layout.c", tmp_path / "layout.o", tmp_path)
    # Android's functions take files of any size.
    wide = () if host == "android-x64" else ("-D_FILE_OFFSET_BITS=64",)
    compile_c(host, tmp_path / "linux.o", *wide, "-c", HERE / "layout.c")


@HOSTS
def test_a_library_runs_and_keeps_what_the_driver_built(host, tmp_path):
    command = emulator(host)
    (tmp_path / "libdl.c").touch()
    # The linker drops a library that is not called.
    (tmp_path / "libm.c").write_text("float rintf(float);\nfloat (*called)(float) = rintf;\n")
    for source in (HERE / "bionic.c", tmp_path / "libdl.c", tmp_path / "libm.c"):
        name = "libc.so" if source.stem == "bionic" else f"{source.stem}.so"
        own = ("-shared", "-fPIC", f"-Wl,-soname,{name}", "-lm")
        compile_c(host, tmp_path / name, source, *own)
    flags = ("-shared", "-fPIC", "-fvisibility=hidden", f"-I{NATIVE / 'opencl'}", "-pthread")
    driver = compile_c(host, tmp_path / "libOpenCL.so", *flags, *sorted(SOURCES.glob("*.c")))
    flags = (f"-I{NATIVE / 'bindings'}", "-ldl", "-pthread")
    program = compile_c(host, tmp_path / "use_library", HERE / "use_library.c", *flags)
    plan, w = add_plan(48, 1.5)
    plan.test([(3, 1.0, 1.0)], {0: 1.5 + w})
    x = np.random.default_rng(6).normal(size=48).astype(np.float32)
    x.tofile(tmp_path / "input.bin")
    (tmp_path / "weights").write_bytes(plan.weights())
    library, parsed = tmp_path / "libnet.so", Host.parse(host)
    link_library(plan.encode(parsed), tmp_path / "weights", parsed, library, embed=True)
    option = ["-E"] if command[0] != "env" else []
    for variable in (f"LD_LIBRARY_PATH={tmp_path}", f"LD_PRELOAD={tmp_path / 'libc.so'}"):
        command += [*option, variable]
    lines = []
    for _ in range(2):
        done = subprocess.run(
            [*command, program, library, driver, tmp_path],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines.append(done.stdout.splitlines())
    assert [found[-1] for found in lines] == ["good", "good"]
    # The system's structures report a file's owner and its write permissions.
    told = [json.loads(found[0].removeprefix("describe: ")) for found in lines]
    assert [one["programs_from_cache"] for one in told] == [False, True], told
    output = np.fromfile(tmp_path / "output.bin", np.float32)[:48]
    np.testing.assert_allclose(output, 1.5 * x + w, rtol=1e-6)
