"""Programs of Debian in a folder of their own, and how they run there.

A *tree* is a folder with a program and all that it needs of a Debian system.  The machine's own
(``/``) is used where it has the program; else what `tvmflow isa --setup` fetched
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

#: Debian's name of an architecture, the dynamic loader of its programs, and its library folder.
SYSTEMS = {
    "amd64": ("lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu", "x86_64-linux-gnu"),
    "arm64": ("lib/ld-linux-aarch64.so.1", "usr/lib/aarch64-linux-gnu", "aarch64-linux-gnu"),
}
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_QEMU = {"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}
#: A processor without the signed pointers of the emulator's own, whose signatures cost it most of
#: the time: kernels compile some six times faster.
_PROCESSOR = {"amd64": [], "arm64": ["-cpu", "cortex-a76"]}


def this_architecture() -> str | None:
    """Return this machine's architecture, by Debian's name."""
    return _MACHINES.get(Host.native().architecture)


@dataclass(frozen=True)
class Tree:
    """A folder with programs of one architecture."""

    root: Path
    architecture: str

    @property
    def libraries(self) -> Path:
        """The folder of its libraries."""
        return self.root / SYSTEMS[self.architecture][1]

    @property
    def is_entered(self) -> bool:
        """Whether programs run with it as their root folder."""
        return self.root != Path("/") and not self.is_emulated

    @property
    def is_emulated(self) -> bool:
        """Whether its programs are those of another machine."""
        return self.architecture != this_architecture()

    def inside(self, path: Path) -> str:
        """A path of this machine as programs in the tree see it."""
        return f"/{path.relative_to(self.root)}" if self.is_entered else str(path)

    def command(self, program: Path, preload: Path | None = None) -> list[str]:
        """Return what runs a program in the tree; the program lies in it.

        Parameters
        ----------
        preload
            A library of the tree whose functions come before those of all others.

        Raises
        ------
        DeviceError
            If programs of its architecture cannot be run here, or not in a folder as root.
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
    """Return what runs a command with a folder as its root: nothing outside of it is seen."""
    chroot = shutil.which("chroot", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if chroot is None:
        raise DeviceError(
            "Running a program in a folder of its own failed: the command chroot was expected.",
            remedy="apt-get install coreutils",
        )
    # A user other than root may do so in a namespace of its own.
    return [*([] if os.geteuid() == 0 else ["unshare", "-r"]), chroot, str(root)]


@dataclass(frozen=True)
class Software:
    """Packages of Debian with the compiler of some GPUs."""

    #: What it is called; in the cache, its folder has the same name in small letters.
    name: str
    #: What has to be there, as a clause.
    expected: str
    #: The packages; what they depend on comes with them.
    packages: tuple[str, ...]
    #: Debian's architecture that has the compiler of a GPU.
    architecture: Callable[[Gpu], str]
    #: Whether a tree has it.
    is_in: Callable[[Tree, Gpu], bool]
    #: Whether the machine's own is new enough.
    is_new: Callable[[], bool]

    def folder(self, gpu: Gpu, suite: str) -> Path:
        """Return the folder in the user's cache for what is fetched of a suite."""
        return user_cache() / self.name.lower() / f"{suite}-{self.architecture(gpu)}"

    def find(self, gpu: Gpu, suite: str) -> Tree:
        """Return the tree that has a GPU's compiler.

        Raises
        ------
        DeviceError
            If there is none yet.
        """
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
    """Return the variables of a program in a tree: the machine's own say nothing to it."""
    path = os.environ.get("PATH", "")
    return {"PATH": f"{path}:/usr/sbin:/sbin", "HOME": "/tmp", **values}
