"""Fetching compilers from Debian: complete, or nothing; the packages here are made up."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tvmflow.devices.gpus import Gpu, find_gpu
from tvmflow.errors import DeviceError
from tvmflow.explain.isa.intel import OCLOC
from tvmflow.explain.isa.mesa import MESA
from tvmflow.explain.isa.packages import setup
from tvmflow.explain.isa.tree import Software

ADRENO, INTEL = find_gpu("adreno-740"), find_gpu("intel-tgl")

APT = """#!/bin/sh
case "$1" in
  indextargets) echo http://mirror.test/debian/ ;;
  update) [ -z "$NO_NETWORK" ] || { echo "E: Failed to fetch" >&2; exit 100; } ;;
  install) state=$(sed -n 's/^Dir::Cache "\\(.*\\)";/\\1/p' "$APT_CONFIG")
     for name; do [ ! -f "$PACKAGES/$name.deb" ] || cp "$PACKAGES/$name.deb" "$state/archives"
     done ;;
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
    """A system whose apt has four packages; the folder of these."""
    folder = tmp_path / "packages"
    libraries = "usr/lib/x86_64-linux-gnu"
    package(folder, "mesa-opencl-icd", [f"{libraries}/libRusticlOpenCL.so.1"])
    package(folder, "mesa-drm-shim", [f"{libraries}/libfreedreno_noop_drm_shim.so"])
    package(folder, "intel-ocloc", ["usr/bin/ocloc-26.27.1"])
    package(folder, "libigc2", [f"{libraries}/libigc.so.2"])
    apt = tmp_path / "bin/apt-get"
    apt.parent.mkdir()
    apt.write_text(APT)
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apt.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PACKAGES", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


needs_debian = pytest.mark.skipif(
    not Path("/usr/bin/dpkg-deb").exists() or os.uname().machine != "x86_64",
    reason="builds packages with Debian's dpkg-deb, for amd64",
)


@needs_debian
@pytest.mark.parametrize(
    ("gpu", "other", "software", "names"),
    [
        (ADRENO, "amd-navi21", MESA, ["mesa-drm-shim", "mesa-opencl-icd"]),
        (INTEL, "intel-dg2", OCLOC, ["intel-ocloc", "libigc2"]),
    ],
)
def test_setup_unpacks_packages_and_records_versions(
    debian: Path, gpu: Gpu, other: str, software: Software, names: list[str]
) -> None:
    tree = setup(gpu, "sid")
    assert software.is_in(tree, gpu)
    # Each GPU of Mesa's has a driver of its own.
    assert software.is_in(tree, find_gpu(other)) is (software is OCLOC)
    versions = json.loads((tree.root / "versions.json").read_text())
    assert versions == dict.fromkeys(names, "26.2-1")
    assert [path.name for path in tree.root.parent.iterdir()] == ["sid-amd64"]
    assert software.find(gpu, "sid") == tree


@needs_debian
@pytest.mark.parametrize(
    ("gpu", "software", "name"), [(ADRENO, MESA, "mesa-drm-shim"), (INTEL, OCLOC, "libigc2")]
)
@pytest.mark.parametrize("damage", ["network", "package", "missing"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_setup_that_fails_changes_nothing(
    debian: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpu: Gpu,
    software: Software,
    name: str,
    damage: str,
    is_there: bool,
) -> None:
    if is_there:
        setup(gpu, "sid")
    path = debian / f"{name}.deb"
    if damage == "network":
        monkeypatch.setenv("NO_NETWORK", "1")
    elif damage == "package":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.unlink()
    said = {
        "network": "reading sid of http://mirror.test/debian/ ended with status 100",
        "package": f"unpacking {name}.deb ended with status",
        "missing": f"the packages of {software.name} in sid have no compiler for {gpu.name}",
    }
    with pytest.raises(DeviceError, match=said[damage]) as error:
        setup(gpu, "sid")
    assert error.value.remedy
    folder = software.folder(gpu, "sid")
    assert [each.name for each in folder.parent.iterdir()] == ["sid-amd64"] * is_there
    if is_there:
        versions = json.loads((software.find(gpu, "sid").root / "versions.json").read_text())
        assert versions[name] == "26.2-1"


@pytest.mark.parametrize(
    ("gpu", "suite", "words"),
    [
        ("sm_90", "sid", "Debian has no compiler for sm_90"),
        ("mali-g76", "sid", "Debian has no compiler for mali-g76"),
        ("mali-g720", "sid", "Debian has no compiler for mali-g720"),
        ("adreno-640", "sid", "Debian has no compiler for adreno-640"),
        ("adreno-740", "../../home", "'../../home' is no name of a suite of Debian"),
        ("intel-tgl", "sid main\ndeb", "is no name of a suite"),
    ],
)
def test_what_cannot_be_fetched_is_refused_at_once(gpu: str, suite: str, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        setup(find_gpu(gpu), suite)


@pytest.mark.parametrize(
    ("gpu", "other"), [("adreno-640", "adreno-740"), ("mali-g76", "mali-g610")]
)
def test_the_remedy_names_a_gpu_of_the_same_vendor(gpu: str, other: str) -> None:
    with pytest.raises(DeviceError) as error:
        setup(find_gpu(gpu), "sid")
    assert error.value.remedy == f"Choose a GPU of the same vendor, such as {other}."


@needs_debian
def test_a_cache_that_cannot_be_written_is_told(
    debian: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        DeviceError, match=r"file/tvmflow/mesa/sid-amd64 cannot be written"
    ) as error:
        setup(ADRENO, "sid")
    assert "XDG_CACHE_HOME" in str(error.value.remedy)
