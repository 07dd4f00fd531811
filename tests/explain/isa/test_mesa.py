"""Mesa's compilers: their process, which may crash or hang, and the places of their search."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tvmflow.devices.gpus import find_gpu
from tvmflow.errors import DeviceError
from tvmflow.explain.isa import mesa
from tvmflow.explain.isa.mesa import run_parts
from tvmflow.explain.isa.record import KernelSource

ADRENO = find_gpu("adreno-740")

#: Output of the driver's process, and its exit status.
SAYS = """
import os, sys, time
print("@@ device FD740", flush=True)
for name in sys.argv[1:]:
    print("@@ file", name)
    print("MESA: info: code of", name, flush=True)
    if name == "crash":
        os.kill(os.getpid(), 11)
    if name == "hang":
        time.sleep(60)
    if name == "refused":
        print("@@ failed: OpenCL error -11\\nerror: no such function")
    print("@@ end", flush=True)
"""


def parts(*names: str, limit_s: float = 20) -> list[mesa.Part]:
    return run_parts([sys.executable, "-c", SAYS, *names], dict(os.environ), limit_s)


def test_what_is_printed_is_told_apart_by_file() -> None:
    head, first, second = parts("a", "b")
    assert "@@ device FD740" in head.text
    assert first.text.startswith("code of a\n")
    assert "code of b" in second.text
    assert [first.problem, second.problem] == [None, None]


def test_a_crash_is_told_at_the_kernel_that_it_is_at() -> None:
    _, good, bad = parts("a", "crash", "b")
    assert good.problem is None
    assert bad.problem == "the compiler's process ended with signal SIGSEGV"


def test_a_kernel_that_takes_too_long_is_given_up() -> None:
    _, good, bad = parts("a", "hang", "b", limit_s=2)
    assert good.problem is None
    assert bad.problem == "it took the compiler more than 2 s"


def test_a_kernel_that_the_compiler_refuses_has_its_message() -> None:
    _, bad, good = parts("refused", "b")
    assert bad.problem is not None
    assert bad.problem.startswith("OpenCL error -11\nerror: no such function")
    assert good.problem is None


def test_the_program_that_calls_the_driver_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tree = mesa.Tree(Path("/"), mesa.this_architecture() or "amd64")
    first, second = tmp_path / "first", tmp_path / "second"
    mesa.build_program(tree, first)
    (kept,) = (tmp_path / "cache/tvmflow/mesa").iterdir()
    monkeypatch.setattr(mesa, "first_success", None)
    mesa.build_program(tree, second)
    assert second.read_bytes() == first.read_bytes() == kept.read_bytes()
    assert os.access(second, os.X_OK)
    # Another source is another program.
    sources = tmp_path / "native"
    for name in ("isa", "core"):
        shutil.copytree(mesa.native_folder(name), sources / name)
    with (sources / "isa/build_kernels.c").open("a") as file:
        file.write("// changed\n")
    monkeypatch.setattr(mesa, "native_folder", lambda name: sources / name)
    with pytest.raises(TypeError, match="NoneType"):
        mesa.build_program(tree, tmp_path / "third")


@pytest.mark.parametrize(("architecture", "factor"), [("own", 1), ("other", 10)])
def test_an_emulator_has_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, factor: int
) -> None:
    limits = []

    def none_done(command: list[str], environment: object, limit_s: float) -> list[mesa.Part]:
        limits.append(limit_s)
        return [mesa.Part("", "no device")]

    monkeypatch.setattr(mesa, "build_program", lambda tree, output: None)
    monkeypatch.setattr(mesa, "run_parts", none_done)
    monkeypatch.setattr(mesa.Tree, "command", lambda self, program, preload: [])
    (tmp_path / "tmp").mkdir()
    own = mesa.this_architecture() or "amd64"
    other = "amd64" if own == "arm64" else "arm64"
    tree = mesa.Tree(tmp_path, own if architecture == "own" else other)
    with pytest.raises(DeviceError, match="came to no kernel"):
        mesa.compile_kernels([KernelSource("a", "a", "")], ADRENO, tree, limit_s=3)
    assert limits == [3 * factor]


def test_without_mesa_the_remedy_is_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(mesa, "MESA", replace(mesa.MESA, is_new=lambda: False))
    with pytest.raises(DeviceError) as error:
        mesa.find_tree(ADRENO, "sid")
    assert error.value.remedy == "tvmflow isa --setup --gpu adreno-740"
