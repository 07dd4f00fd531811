"""Fetch compilers and their dependencies from Debian into the user's cache.

apt does the work with a separate state: it reads the mirror and the keys from the machine's
configuration, checks signatures and digests, and resolves dependencies as if nothing were
installed.  No file of the system is changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ...devices.gpus import Gpu
from ...errors import DeviceError
from ...module.files import write_file
from .intel import OCLOC
from .mesa import MESA, other_gpu
from .tree import Software, Tree

#: Packages with the compiler of an instruction set.
_SOFTWARE = {"ir3": MESA, "valhall": MESA, "rdna": MESA, "xe": OCLOC}
_TOOLS = ("apt-get", "dpkg-deb")
#: Suites that need another one for their dependencies.
_BASES = {"trixie-backports": "trixie"}
_SUITE = re.compile(r"[a-z][a-z0-9-]*")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
#: Large folders that are not needed.
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale")


def setup(gpu: Gpu, suite: str) -> Tree:
    """Fetch the GPU's compiler from a suite, and replace the one that was fetched before.

    `DeviceError` if Debian has no compiler of the GPU, this is no Debian system with apt, there is
    no network, or a package is damaged; the previous tree is then still there.
    """
    if gpu.isa not in _SOFTWARE or not gpu.chip:
        remedy = _PIP if gpu.isa == "sass" else other_gpu(gpu)
        raise _failed(f"Debian has no compiler for {gpu.name}", remedy)
    if not _SUITE.fullmatch(suite):
        raise _failed(f"{suite!r} is no name of a suite of Debian", _OTHER_SUITE)
    software = _SOFTWARE[gpu.isa]
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise _failed(
            f"{' and '.join(missing)} were expected, which Debian and its relatives have",
            "Run it on such a system, or copy the folder that it fetched there.",
        )
    final = software.folder(gpu, suite)
    try:
        return _install(software, gpu, suite, final)
    except OSError as error:
        raise _failed(
            f"{final} cannot be written ({error})",
            "Free 300 MB there, or set XDG_CACHE_HOME to another folder.",
        ) from error


def _install(software: Software, gpu: Gpu, suite: str, final: Path) -> Tree:
    """Fetch into a temporary folder, which replaces the final one when it is complete."""
    final.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        tree = Tree(stage / "tree", software.architecture(gpu))
        packages = _download(stage / "apt", software, suite, tree.architecture)
        _unpack(packages, tree.root)
        if not software.is_in(tree, gpu):
            raise _failed(
                f"the packages of {software.name} in {suite} have no compiler for {gpu.name}",
                _OTHER_SUITE,
            )
        versions = dict(map(_name_and_version, packages))
        write_file(tree.root / "versions.json", json.dumps(versions, indent=1))
        if final.exists():
            final.rename(stage / "before")
        tree.root.rename(final)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return Tree(final, tree.architecture)


_PIP = "python -m pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm"
_OTHER_SUITE = "Name another suite of Debian with `suite=trixie-backports`, for example."


def _failed(reason: str, remedy: str, details: str | None = None) -> DeviceError:
    return DeviceError(f"Fetching a compiler failed: {reason}.", remedy=remedy, details=details)


def _mirror() -> str:
    """Return the first Debian mirror in apt's configuration."""
    found = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], {}, "reading its sources")
    for line in found.splitlines():
        if line.rstrip("/").endswith("/debian"):
            return line
    raise _failed(
        "apt's configuration names no mirror of Debian",
        "Add one to /etc/apt/sources.list.d.",
    )


def _download(state: Path, software: Software, suite: str, architecture: str) -> list[Path]:
    """Download packages of a suite with their dependencies."""
    mirror = _mirror()
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True)
    (state / "status").touch()
    suites = (suite, _BASES[suite]) if suite in _BASES else (suite,)
    options = f"arch={architecture} signed-by={_KEYRING}"
    sources = "".join(f"deb [{options}] {mirror} {name} main\n" for name in suites)
    (state / "sources.list").write_text(sources)
    settings = {
        "APT::Architecture": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Debug::NoLocking": "true",
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
    }
    lines = [f'{name} "{value}";\n' for name, value in settings.items()]
    lines.append(f'APT::Architectures {{"{architecture}";}};\n')
    (state / "apt.conf").write_text("".join(lines))
    environment = {"APT_CONFIG": str(state / "apt.conf")}
    _run(["apt-get", "update", "--error-on=any"], environment, f"reading {suite} of {mirror}")
    fetch = ["apt-get", "install", "--yes", "--download-only", "--target-release", suite]
    names = software.packages
    _run([*fetch, *names], environment, f"downloading {', '.join(names)} of {suite}")
    return sorted((state / "cache/archives").glob("*.deb"))


def _unpack(packages: list[Path], root: Path) -> None:
    root.mkdir()
    for package in packages:
        _run(["dpkg-deb", "--extract", str(package), str(root)], {}, f"unpacking {package.name}")
    for name in ("lib", "lib64", "bin", "sbin"):
        # Debian's base system has these links.
        if not (root / name).exists() and not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    for name in _LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("dev", "tmp"):
        (root / name).mkdir(exist_ok=True)
    (root / "dev/null").touch()


def _name_and_version(package: Path) -> tuple[str, str]:
    query = ["dpkg-deb", "--show", "--showformat=${Package} ${Version}", str(package)]
    name, _, version = _run(query, {}, f"reading {package.name}").partition(" ")
    return name, version


def _run(command: list[str], environment: dict[str, str], attempt: str) -> str:
    """Run one of Debian's tools; return its output."""
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **environment, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode:
        raise _failed(
            f"{attempt} ended with status {done.returncode}",
            "Check the network and apt's configuration; the tool's messages are below.",
            done.stderr.strip()[-2000:] or None,
        )
    return done.stdout
