"""Folders with Debian programs, and how to run programs in them.

A *tree* is a folder with a program and everything that it needs of a Debian system.  The machine's
own system (``/``) is used if it has the program, else the tree that `tvmflow isa --setup` fetched
(:mod:`.packages`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...devices.gpus import Gpu
from ...devices.host import Host
from ...errors import DeviceError
from ...runtime.caches import user_cache

#: Dynamic loader, library folder and triple of an architecture, by Debian's name.
SYSTEMS = {
    "amd64": ("lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu", "x86_64-linux-gnu"),
    "arm64": ("lib/ld-linux-aarch64.so.1", "usr/lib/aarch64-linux-gnu", "aarch64-linux-gnu"),
}
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_QEMU = {"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}
#: Emulated processors.  One without signed pointers compiles kernels some six times faster than
#: the emulator's default, which spends most of its time on signatures.
_PROCESSOR = {"amd64": [], "arm64": ["-cpu", "cortex-a76"]}


def this_architecture() -> str | None:
    """Return Debian's name of this machine's architecture."""
    return _MACHINES.get(Host.native().architecture)


@dataclass(frozen=True)
class Tree:
    """A folder with programs of one architecture."""

    root: Path
    architecture: str

    @property
    def libraries(self) -> Path:
        """Folder of the libraries."""
        return self.root / SYSTEMS[self.architecture][1]

    @property
    def is_entered(self) -> bool:
        """Whether programs run with the tree as their root folder."""
        return self.root != Path("/") and not self.is_emulated

    @property
    def is_emulated(self) -> bool:
        """Whether the programs are for another architecture than this machine's."""
        return self.architecture != this_architecture()

    def inside(self, path: Path) -> str:
        """Return the path of a file as programs in the tree see it."""
        return f"/{path.relative_to(self.root)}" if self.is_entered else str(path)

    def command(self, program: Path, preload: Path | None = None) -> list[str]:
        """Return the command that runs a program of the tree.

        The functions of ``preload``, a library of the tree, override all others.  `DeviceError` if
        this machine lacks an emulator for the architecture, or chroot.
        """
        loader = SYSTEMS[self.architecture][0]
        first = [] if preload is None else ["--preload", self.inside(preload)]
        if self.root == Path("/"):
            return [*(["env", f"LD_PRELOAD={preload}"] if preload else []), str(program)]
        if self.is_entered:
            return [*_enter(self.root), f"/{loader}", *first, self.inside(program)]
        qemu = shutil.which(_QEMU[self.architecture])
        if qemu is None:
            raise DeviceError(
                f"Running a program for {self.architecture} failed: {_QEMU[self.architecture]} "
                "was expected, and it is not installed.",
                remedy="apt-get install qemu-user-static",
            )
        folders = [str(self.libraries), *map(str, sorted(self.root.glob("usr/lib/llvm-*/lib")))]
        loaded = ["--library-path", ":".join(folders), *first]
        emulator = [qemu, *_PROCESSOR[self.architecture], "-L", str(self.root)]
        return [*emulator, str(self.root / loader), *loaded, str(program)]


def _enter(root: Path) -> list[str]:
    """Return the command prefix that makes a folder the root of a program's file system."""
    chroot = shutil.which("chroot", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if chroot is None:
        raise DeviceError(
            "Running a program in a folder of its own failed: the command chroot was expected.",
            remedy="apt-get install coreutils",
        )
    # Users other than root need a namespace for that.
    return [*([] if os.geteuid() == 0 else ["unshare", "-r"]), chroot, str(root)]


@dataclass(frozen=True)
class Software:
    """Debian packages with the compiler of some GPUs."""

    #: Name in messages; the folder in the cache has the same name in lower case.
    name: str
    #: Requirement, as error messages state it.
    expected: str
    #: Packages, without their dependencies.
    packages: tuple[str, ...]
    #: Debian architecture whose packages have the compiler of a GPU.
    architecture: Callable[[Gpu], str]
    #: Whether a tree contains the compiler of a GPU.
    is_in: Callable[[Tree, Gpu], bool]
    #: Whether the machine's own version is new enough.
    is_new: Callable[[], bool]

    def folder(self, gpu: Gpu, suite: str) -> Path:
        """Return the folder in the user's cache for the packages of a suite."""
        return user_cache() / self.name.lower() / f"{suite}-{self.architecture(gpu)}"

    def find(self, gpu: Gpu, suite: str) -> Tree:
        """Return the tree that has a GPU's compiler; `DeviceError` if there is none yet."""
        architecture = self.architecture(gpu)
        fetched = Tree(self.folder(gpu, suite), architecture)
        if self.is_in(fetched, gpu):
            return fetched
        system = Tree(Path("/"), architecture)
        if self.is_in(system, gpu) and self.is_new():
            return system
        raise DeviceError(
            f"Compiling for {gpu.name} failed: {self.expected} was expected on the system or in "
            f"{fetched.root}, and it is in neither.",
            remedy=f"tvmflow isa --setup --gpu {gpu.name}",
        )


def environment(**values: str) -> dict[str, str]:
    """Return environment variables for a program in a tree; it inherits only ``PATH``."""
    path = os.environ.get("PATH", "")
    return {"PATH": f"{path}:/usr/sbin:/sbin", "HOME": "/tmp", **values}
