"""Libraries for Android on x86-64, run here: glibc stands behind Android's names."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest
from fake_opencl import build_fake, compile_c
from small_plans import add_plan

from tvmflow.devices.host import Host
from tvmflow.module.link import tools
from tvmflow.module.standalone.link import link_library

HERE = Path(__file__).parent / "arm64"
BINDINGS = Path(__file__).parents[3] / "native" / "bindings"

pytestmark = [
    pytest.mark.cross,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="this processor is no x86-64"),
]


@pytest.mark.parametrize("host", ["linux-x64", "android-x64"])
def test_declarations_have_the_layout_of_the_system(host, tmp_path):
    tool = next(iter(tools(Host.parse(host))))
    tool.compile(HERE / "layout.c", tmp_path / "layout.o", tmp_path)


def test_a_library_runs_and_keeps_what_the_driver_built(tmp_path):
    for name in ("libc.so", "libdl.so", "libm.so"):
        source = [HERE / "bionic.c"] if name == "libc.so" else ["-x", "c", os.devnull]
        compile_c(tmp_path / name, *source, "-shared", f"-Wl,-soname,{name}")
    driver = build_fake(tmp_path)
    flags = (f"-I{BINDINGS}", "-ldl", "-pthread")
    program = compile_c(tmp_path / "use_library", HERE / "use_library.c", *flags)
    plan, w = add_plan(48, 1.5)
    plan.test([(3, 1.0, 1.0)], {0: 1.5 + w})
    x = np.random.default_rng(6).normal(size=48).astype(np.float32)
    x.tofile(tmp_path / "input.bin")
    (tmp_path / "weights").write_bytes(plan.weights())
    library = tmp_path / "libnet.so"
    host = Host.parse("android-x64")
    link_library(plan.encode(), tmp_path / "weights", host, library, embed=True)
    lines = [
        subprocess.run(
            [program, library, driver, tmp_path],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": f"{tmp_path}",
                "LD_PRELOAD": f"{tmp_path}/libc.so",
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert [found[-1] for found in lines] == ["good", "good"]
    # Whose file it is, and who may write it, is told by the system's structures.
    told = [json.loads(found[0].removeprefix("describe: ")) for found in lines]
    assert [one["programs_from_cache"] for one in told] == [False, True], told
    output = np.fromfile(tmp_path / "output.bin", np.float32)[:48]
    np.testing.assert_allclose(output, 1.5 * x + w, rtol=1e-6)
