"""Mesa's compilers for Adreno, Mali and AMD GPUs, run with a simulated kernel driver.

Mesa's OpenCL driver (rusticl) compiles for the GPU of a kernel driver.  The package
``mesa-drm-shim`` answers in place of that driver, for a GPU that the environment names.  Kernels
can be compiled but not run, and each compiler prints its machine code if its debugging variables
are set.

The machine's own Mesa is used where it is :data:`OLDEST` or newer and has the shim.
"""

from __future__ import annotations

import hashlib
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

from ...devices.gpus import Gpu, typical_gpu
from ...devices.host import Host
from ...errors import DeviceError
from ...module.files import write_file
from ...module.link import Tool, first_success, native_folder, tools
from ...runtime.caches import user_cache
from . import ir3, rdna, valhall
from .record import Failure, KernelCode, KernelSource
from .tree import SYSTEMS, Software, Tree, environment, this_architecture

#: Oldest version: earlier ones lack the newest GPUs, or spill where this one does not.
OLDEST = (26, 0)
#: Time limit of the compiler for a kernel in seconds, and its factor in an emulator, where the
#: first kernel alone takes some seconds.
LIMIT_S, _EMULATED = 120.0, 10
_OPTIONS = "-cl-mad-enable"
#: Marks of ``native/isa/build_kernels.c``.
_FILE = re.compile(rb"^@@ file .*\n", re.MULTILINE)
_REFUSED = re.compile(r"^@@ failed: (.*)", re.MULTILINE | re.DOTALL)
_END = "@@ end"
#: Prefix of the lines that Mesa logs.
_LOGGED = re.compile(r"^MESA: info: ?", re.MULTILINE)
_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class _Driver:
    """Mesa's driver for an instruction set."""

    #: Name of the shim, and of the driver for rusticl.
    shim: str
    driver: str
    #: Environment variable that names the GPU.
    variable: str
    environment: dict[str, str]
    parse: Callable[[str, KernelSource, Gpu], KernelCode | None]


_DRIVERS = {
    "ir3": _Driver("freedreno", "freedreno", "FD_GPU_ID", ir3.ENVIRONMENT, ir3.parse),
    "valhall": _Driver("panfrost", "panfrost", "PAN_GPU_ID", valhall.ENVIRONMENT, valhall.parse),
    "rdna": _Driver("amdgpu", "radeonsi", "AMDGPU_GPU_ID", rdna.ENVIRONMENT, rdna.parse),
}


def _architecture(gpu: Gpu) -> str:
    """Return the Debian architecture whose Mesa has the GPU's driver; only Arm's has Mali's."""
    return "arm64" if gpu.isa == "valhall" else this_architecture() or "amd64"


def _shim(tree: Tree, gpu: Gpu) -> Path:
    """Return the library that stands in for a GPU's kernel driver."""
    return tree.libraries / f"lib{_DRIVERS[gpu.isa].shim}_noop_drm_shim.so"


def _is_in(tree: Tree, gpu: Gpu) -> bool:
    return (tree.libraries / "libRusticlOpenCL.so.1").exists() and _shim(tree, gpu).exists()


def other_gpu(gpu: Gpu) -> str:
    """Return the remedy for a GPU without a known compiler."""
    other = typical_gpu(gpu.target, gpu.preset)
    return f"Choose a GPU of the same vendor, such as {other.name}."


def find_tree(gpu: Gpu, suite: str) -> Tree:
    """Return the tree that has a GPU's compiler.

    `DeviceError` if it is not installed, or if no compiler for the GPU is known.
    """
    if not gpu.chip:
        raise DeviceError(
            f"Compiling for {gpu.name} failed: tvmflow knows no compiler for this GPU.",
            remedy=other_gpu(gpu),
        )
    return MESA.find(gpu, suite)


def _is_new() -> bool:
    """Return whether the package of the machine's own Mesa is new enough."""
    query = ["dpkg-query", "-W", "-f", "${Version}", "mesa-opencl-icd"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    version = _VERSION.search(said)
    return version is not None and (int(version[1]), int(version[2])) >= OLDEST


MESA = Software(
    name="Mesa",
    expected=f"Mesa {OLDEST[0]}.{OLDEST[1]} or newer with its drm-shim",
    packages=("mesa-opencl-icd", "mesa-drm-shim"),
    architecture=_architecture,
    is_in=_is_in,
    is_new=_is_new,
)


def build_program(tree: Tree, output: Path) -> None:
    """Compile the program that calls the driver, for the architecture of a tree.

    The cache keeps it next to the fetched trees.  `TargetError` if there is no C compiler for that
    architecture.
    """
    host = Host.parse(SYSTEMS[tree.architecture][2])
    source = native_folder("isa") / "build_kernels.c"
    include = native_folder("core")
    content = source.read_bytes() + (include / "cl_types.h").read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    kept = user_cache() / "mesa" / f"{source.stem}-{tree.architecture}-{digest}"

    def compile_with(tool: Tool) -> None:
        flags = ["-std=c11", "-O1", f"-I{include}", str(source), "-o", str(output), "-ldl"]
        tool.run([*tool.compiler, *flags], output.parent)

    if kept.exists():
        shutil.copyfile(kept, output)
        output.chmod(0o755)
        return
    first_success(compile_with, tools(host), f"Compiling {source.name} for {host.triple}", host)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_file(kept, output.read_bytes())


def compile_kernels(
    kernels: Sequence[KernelSource], gpu: Gpu, tree: Tree, *, limit_s: float = LIMIT_S
) -> tuple[str, list[KernelCode | Failure]]:
    """Compile kernels one by one; a crash or a timeout affects only the current kernel.

    Return the compiler with its version, and a result for each kernel in order; `DeviceError` if
    the driver does not begin with any kernel.
    """
    driver = _DRIVERS[gpu.isa]
    limit_s *= _EMULATED if tree.is_emulated else 1
    with tempfile.TemporaryDirectory(dir=tree.root / "tmp", prefix="isa.") as folder:
        place = Path(folder)
        place.chmod(0o755)
        program = place / "build_kernels"
        build_program(tree, program)
        files = []
        for number, kernel in enumerate(kernels):
            files.append(place / f"{number:04d}.cl")
            files[-1].write_text(kernel.text)
        command = [*tree.command(program, _shim(tree, gpu)), _OPTIONS]
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
    """Output for one file, or before the first one."""

    text: str
    #: Reason why it is incomplete; ``None`` if it is complete.
    problem: str | None


def run_parts(command: Sequence[str], environment: dict[str, str], limit_s: float) -> list[Part]:
    """Run ``build_kernels``; return its output before the first file, and for each file.

    The process is killed if a part takes longer than ``limit_s``.
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
            # A mark may be split over two chunks.
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
    return environment(
        **driver.environment,
        **{driver.variable: gpu.chip},
        MESA_SHADER_CACHE_DISABLE="true",
        RUSTICL_ENABLE=driver.driver,
    )
