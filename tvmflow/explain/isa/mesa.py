"""Mesa's compilers for Adreno, Mali and AMD GPUs, on GPUs that it only pretends to have.

Mesa's OpenCL driver (rusticl) compiles for the GPU of a kernel driver.  Its package
``mesa-drm-shim`` answers in place of that driver, for a GPU that the environment names; nothing
can run there, but kernels are compiled, and each compiler prints its machine code when its
debugging variables are set.

A *tree* is a folder with Mesa and all that it needs of a Debian system.  The machine's own
(``/``) is used where it has Mesa of :data:`OLDEST` or newer with the shim; else what `setup`
fetched (:mod:`.packages`).
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...devices.gpus import Gpu
from ...devices.host import Host
from ...errors import DeviceError
from ...module.files import user_cache
from ...module.link import Tool, first_success, native_folder, tools
from . import ir3, rdna, valhall
from .record import Failure, KernelCode, KernelSource

#: Older versions lack the newest GPUs, or spill where this one does not.
OLDEST = (26, 0)
#: A kernel that takes the compiler longer than this is given up, in seconds.
LIMIT_S = 120.0
#: Debian's name of an architecture, the dynamic loader of its programs, and its library folder.
_SYSTEMS = {
    "amd64": ("lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu", "x86_64-linux-gnu"),
    "arm64": ("lib/ld-linux-aarch64.so.1", "usr/lib/aarch64-linux-gnu", "aarch64-linux-gnu"),
}
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_QEMU = {"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}
_OPTIONS = "-cl-mad-enable"
#: Marks of ``native/isa/build_kernels.c``.
_FILE = re.compile(rb"^@@ file .*\n", re.MULTILINE)
_REFUSED = re.compile(r"^@@ failed: (.*)", re.MULTILINE | re.DOTALL)
_END = "@@ end"
#: What Mesa puts in front of lines that it logs.
_LOGGED = re.compile(r"^MESA: info: ?", re.MULTILINE)
_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class _Driver:
    """Mesa's driver for an instruction set."""

    #: The shim's name, and the driver's for rusticl.
    shim: str
    driver: str
    #: The variable that names the GPU.
    variable: str
    environment: dict[str, str]
    parse: Callable[[str, KernelSource, Gpu], KernelCode | None]


_DRIVERS = {
    "ir3": _Driver("freedreno", "freedreno", "FD_GPU_ID", ir3.ENVIRONMENT, ir3.parse),
    "valhall": _Driver("panfrost", "panfrost", "PAN_GPU_ID", valhall.ENVIRONMENT, valhall.parse),
    "rdna": _Driver("amdgpu", "radeonsi", "AMDGPU_GPU_ID", rdna.ENVIRONMENT, rdna.parse),
}


def architecture_of(gpu: Gpu) -> str:
    """Return the architecture of Debian whose Mesa has the GPU's driver: Mali's only for Arm."""
    return "arm64" if gpu.isa == "valhall" else _here() or "amd64"


def _here() -> str | None:
    """Return this machine's architecture, by Debian's name."""
    return _MACHINES.get(Host.native().architecture)


@dataclass(frozen=True)
class Tree:
    """A folder with Mesa's driver, for one architecture."""

    root: Path
    architecture: str

    @property
    def libraries(self) -> Path:
        """The folder of its libraries."""
        return self.root / _SYSTEMS[self.architecture][1]

    def shim(self, name: str) -> Path:
        """The library that pretends to be a kernel driver."""
        return self.libraries / f"lib{name}_noop_drm_shim.so"

    def has(self, gpu: Gpu) -> bool:
        """Tell whether it can compile for a GPU."""
        driver = self.libraries / "libRusticlOpenCL.so.1"
        return driver.exists() and self.shim(_DRIVERS[gpu.isa].shim).exists()

    @property
    def is_entered(self) -> bool:
        """Whether programs run with it as their root folder."""
        return self.root != Path("/") and self.architecture == _here()

    def inside(self, path: Path) -> str:
        """A path of this machine as programs in the tree see it."""
        return f"/{path.relative_to(self.root)}" if self.is_entered else str(path)

    def command(self, shim: str, program: Path) -> list[str]:
        """Return what runs a program in the tree; the program lies in it.

        Raises
        ------
        DeviceError
            If programs of its architecture cannot be run here, or not in a folder as root.
        """
        loader = _SYSTEMS[self.architecture][0]
        if self.root == Path("/"):
            return ["env", f"LD_PRELOAD={self.shim(shim)}", str(program)]
        if self.is_entered:
            preload = self.inside(self.shim(shim))
            return [*_enter(self.root), f"/{loader}", "--preload", preload, self.inside(program)]
        qemu = shutil.which(_QEMU[self.architecture])
        if qemu is None:
            raise DeviceError(
                f"Running Mesa for {self.architecture} failed: {_QEMU[self.architecture]} was "
                "expected, and it is not installed.",
                remedy="apt-get install qemu-user-static",
            )
        folders = [str(self.libraries), *map(str, sorted(self.root.glob("usr/lib/llvm-*/lib")))]
        loaded = ["--library-path", ":".join(folders), "--preload", str(self.shim(shim))]
        return [qemu, "-L", str(self.root), str(self.root / loader), *loaded, str(program)]


def _enter(root: Path) -> list[str]:
    """Return what runs a command with a folder as its root: nothing outside of it is seen."""
    chroot = shutil.which("chroot", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if chroot is None:
        raise DeviceError(
            "Running Mesa in a folder of its own failed: the command chroot was expected.",
            remedy="apt-get install coreutils",
        )
    # A user other than root may do so in a namespace of its own.
    return [*([] if os.geteuid() == 0 else ["unshare", "-r"]), chroot, str(root)]


def folder_of(suite: str, architecture: str) -> Path:
    """Return the folder in the user's cache of a tree that was fetched."""
    return user_cache() / "mesa" / f"{suite}-{architecture}"


def find_tree(gpu: Gpu, suite: str) -> Tree:
    """Return the tree that has a GPU's compiler.

    Raises
    ------
    DeviceError
        If there is none yet.
    """
    architecture = architecture_of(gpu)
    fetched = Tree(folder_of(suite, architecture), architecture)
    if fetched.has(gpu):
        return fetched
    system = Tree(Path("/"), architecture)
    if system.has(gpu) and _is_new():
        return system
    raise DeviceError(
        f"Compiling for {gpu.name} failed: Mesa {OLDEST[0]}.{OLDEST[1]} or newer with its "
        f"drm-shim was expected on the system or in {fetched.root}, and it is in neither.",
        remedy=f"tvmflow isa --setup --gpu {gpu.name}",
    )


def _is_new() -> bool:
    """Tell whether the machine's own Mesa is new enough, by its package."""
    query = ["dpkg-query", "-W", "-f", "${Version}", "mesa-opencl-icd"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    version = _VERSION.search(said)
    return version is not None and (int(version[1]), int(version[2])) >= OLDEST


def build_program(tree: Tree, output: Path) -> None:
    """Compile the program that calls the driver, for the machine that a tree is of.

    Raises
    ------
    TargetError
        If there is no C compiler for that machine.
    """
    host = Host.parse(_SYSTEMS[tree.architecture][2])
    source = native_folder("isa") / "build_kernels.c"
    include = f"-I{native_folder('opencl')}"

    def compile_with(tool: Tool) -> None:
        flags = ["-std=c11", "-O1", include, str(source), "-o", str(output), "-ldl"]
        tool.run([*tool.compiler, *flags], output.parent)

    first_success(compile_with, tools(host), f"Compiling {source.name} for {host.triple}", host)


def compile_kernels(
    kernels: Sequence[KernelSource], gpu: Gpu, tree: Tree, *, limit_s: float = LIMIT_S
) -> tuple[str, list[KernelCode | Failure]]:
    """Compile kernels one by one; a crash, or too much time, costs only the kernel that it is at.

    Returns
    -------
    str
        The compiler and its version.
    list of KernelCode or Failure
        Of each kernel, in order.

    Raises
    ------
    DeviceError
        If the driver does not come to a kernel at all.
    """
    driver = _DRIVERS[gpu.isa]
    with tempfile.TemporaryDirectory(dir=tree.root / "tmp", prefix="isa.") as folder:
        place = Path(folder)
        place.chmod(0o755)
        program = place / "build_kernels"
        build_program(tree, program)
        files = []
        for number, kernel in enumerate(kernels):
            files.append(place / f"{number:04d}.cl")
            files[-1].write_text(kernel.text)
        command = [*tree.command(driver.shim, program), _OPTIONS]
        compiler, found = "", list[KernelCode | Failure]()
        while len(found) < len(kernels):
            done = len(found)
            shown = [tree.inside(file) for file in files[done:]]
            head, *parts = run_parts([*command, *shown], _environment(driver, gpu), limit_s)
            compiler = compiler or _compiler(head.text, gpu)
            for kernel, part in zip(kernels[done:], parts, strict=False):
                code = None if part.problem else driver.parse(part.text, kernel, gpu)
                problem = part.problem or "the compiler printed no code"
                found.append(code or Failure(kernel.name, problem))
            if len(found) == done:
                raise DeviceError(
                    f"Compiling for {gpu.name} failed: Mesa's driver came to no kernel"
                    f" ({head.problem or 'no device'}).",
                    remedy=f"tvmflow isa --setup --gpu {gpu.name} fetches it again.",
                    details=head.text[-2000:],
                )
        return compiler, found


@dataclass(frozen=True)
class Part:
    """What was printed of a file, or before the first one."""

    text: str
    #: Why it is not complete, if it is not.
    problem: str | None


def run_parts(command: Sequence[str], environment: dict[str, str], limit_s: float) -> list[Part]:
    """Run ``build_kernels``; return what it printed before its first file, and of each.

    Parameters
    ----------
    limit_s
        Seconds that each part may take; then the process is ended.
    """
    texts, deadline, late = [bytearray()], time.monotonic() + limit_s, False
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as process:
        assert process.stdout is not None
        while True:
            ready, _, _ = select.select(
                [process.stdout], [], [], max(0, deadline - time.monotonic())
            )
            if not ready:
                late = True
                process.kill()
                break
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                break
            texts[-1] += chunk
            # A mark may come in two chunks.
            *before, rest = re.split(_FILE, bytes(texts[-1]))
            if before:
                texts[-1:] = [bytearray(text) for text in (*before, rest)]
                deadline = time.monotonic() + limit_s
    parts = []
    for number, text in enumerate(texts):
        said = _LOGGED.sub("", text.decode(errors="replace"))
        refused = _REFUSED.search(said)
        problem = refused[1].strip()[:2000] if refused else None
        if number == len(texts) - 1 and problem is None and _END not in said:
            status = process.returncode
            ended = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            problem = (
                f"it took the compiler more than {limit_s:g} s"
                if late
                else f"the compiler's process ended with {ended}"
            )
        parts.append(Part(said, problem))
    return parts


def _compiler(head: str, gpu: Gpu) -> str:
    driver = re.search(r"^@@ driver (.*)", head, re.MULTILINE)
    return f"Mesa {driver[1] if driver else 'of unknown version'}, {gpu.isa}"


def _environment(driver: _Driver, gpu: Gpu) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin",
        "HOME": "/tmp",
        "MESA_SHADER_CACHE_DISABLE": "true",
        "RUSTICL_ENABLE": driver.driver,
        driver.variable: gpu.chip,
        **driver.environment,
    }
