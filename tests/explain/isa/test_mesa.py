"""Mesa's compilers: their process, which may crash or hang, and fetching their packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvmflow.devices.gpus import find_gpu
from tvmflow.errors import DeviceError
from tvmflow.explain.isa import mesa
from tvmflow.explain.isa.mesa import run_parts
from tvmflow.explain.isa.packages import setup

ADRENO = find_gpu("adreno-740")

#: What the driver's process prints, and how it ends.
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


# -- fetching ----------------------------------------------------------------------------------

APT = """#!/bin/sh
case "$1" in
  indextargets) echo http://mirror.test/debian/ ;;
  update) [ -z "$NO_NETWORK" ] || { echo "E: Failed to fetch" >&2; exit 100; } ;;
  install) state=$(sed -n 's/^Dir::Cache "\\(.*\\)";/\\1/p' "$APT_CONFIG")
     cp "$PACKAGES"/*.deb "$state/archives" ;;
esac
"""


def package(folder: Path, name: str, files: list[str]) -> None:
    """Build a package of Debian's with empty files."""
    root = folder / name
    (root / "DEBIAN").mkdir(parents=True)
    about = f"Package: {name}\nVersion: 26.2-1\nArchitecture: amd64\nMaintainer: x <x@test>\n"
    (root / "DEBIAN/control").write_text(f"{about}Description: test\n")
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    subprocess.run(
        ["dpkg-deb", "--build", str(root), f"{root}.deb"], check=True, capture_output=True
    )


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system whose apt has two packages; the folder of these."""
    folder = tmp_path / "packages"
    libraries = "usr/lib/x86_64-linux-gnu"
    package(folder, "mesa-opencl-icd", [f"{libraries}/libRusticlOpenCL.so.1"])
    package(folder, "mesa-drm-shim", [f"{libraries}/libfreedreno_noop_drm_shim.so"])
    apt = tmp_path / "bin/apt-get"
    apt.parent.mkdir()
    apt.write_text(APT)
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apt.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PACKAGES", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def cached(tmp_path: Path) -> list[str]:
    """What the cache has afterwards."""
    return sorted(path.name for path in (tmp_path / "cache/tvmflow/mesa").iterdir())


needs_debian = pytest.mark.skipif(
    not Path("/usr/bin/dpkg-deb").exists() or os.uname().machine != "x86_64",
    reason="builds packages with Debian's dpkg-deb, for amd64",
)


@needs_debian
def test_setup_unpacks_packages_and_records_versions(debian: Path, tmp_path: Path) -> None:
    tree = setup(ADRENO, "sid")
    assert tree.has(ADRENO)
    assert not tree.has(find_gpu("amd-navi21"))
    versions = json.loads((tree.root / "versions.json").read_text())
    assert versions == {"mesa-drm-shim": "26.2-1", "mesa-opencl-icd": "26.2-1"}
    assert cached(tmp_path) == ["sid-amd64"]
    assert mesa.find_tree(ADRENO, "sid") == tree


@needs_debian
@pytest.mark.parametrize("damage", ["network", "package", "driver"])
def test_a_setup_that_fails_leaves_nothing(
    debian: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    if damage == "network":
        monkeypatch.setenv("NO_NETWORK", "1")
    elif damage == "package":
        content = (debian / "mesa-drm-shim.deb").read_bytes()
        (debian / "mesa-drm-shim.deb").write_bytes(content[: len(content) // 2])
    else:
        (debian / "mesa-drm-shim.deb").unlink()
    said = {
        "network": "reading sid of http://mirror.test/debian/ ended with status 100",
        "package": "unpacking mesa-drm-shim.deb ended with status",
        "driver": "its packages of sid have no driver for adreno-740",
    }
    with pytest.raises(DeviceError, match=said[damage]):
        setup(ADRENO, "sid")
    assert cached(tmp_path) == []


@needs_debian
def test_a_setup_that_fails_leaves_what_was_there(
    debian: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(ADRENO, "sid")
    monkeypatch.setenv("NO_NETWORK", "1")
    with pytest.raises(DeviceError, match="Failed to fetch"):
        setup(ADRENO, "sid")
    assert mesa.find_tree(ADRENO, "sid").has(ADRENO)


def test_without_mesa_the_remedy_is_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(mesa, "_is_new", lambda: False)
    with pytest.raises(DeviceError) as error:
        mesa.find_tree(ADRENO, "sid")
    assert error.value.remedy == "tvmflow isa --setup --gpu adreno-740"
