"""Linking compiled objects to a shared library, for this machine or another one.

TVM compiles host code for any triple; only the last step needs a linker for that
triple.  Linkers are tried in this order: the system's own compiler (for this
machine), an installed cross compiler, ``clang``, and the clang of the Python
package ``ziglang`` (extra ``cross``).

For Android the NDK is used if it is installed.  Otherwise stub libraries replace Android's: they
have the same names and define its functions (`SYMBOLS`) as empty ones, so that the linker refuses
functions that Android lacks, and the result records the libraries that it needs.  ``native/bionic``
replaces Android's headers.
"""

from __future__ import annotations

import errno
import functools
import importlib.resources
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from .._versions import install_command
from ..devices.host import Host
from ..errors import TargetError
from ..runtime.notices import told_if_slow

logger = logging.getLogger(__name__)

#: Names of output formats in LLVM's linker, by architecture.
_LLD_EMULATIONS = {"aarch64": "aarch64linux", "armv7a": "armelf_linux_eabi", "x86_64": "elf_x86_64"}
#: Free space below which a linker's failure is reported as a full disk: it may give no reason.
FULL_BYTES = 64 << 10
_HARDENING = ("-z", "now", "-z", "relro", "-z", "noexecstack")

T = TypeVar("T")


@dataclass(frozen=True)
class Tool:
    """A compiler and linker that compile C, assemble and link for one host."""

    name: str  #: Name in messages and in the metadata of modules.
    compiler: tuple[str, ...]  #: Command that compiles and assembles; options are appended.
    linker: tuple[str, ...]  #: Command that links; options are appended.
    #: Whether the linker is called through a compiler, which passes options on to it.
    is_driver: bool = True
    #: Libraries of the host that the tool lacks, with their symbols.
    stubs: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    #: Command that compiles the functions that compiled code calls and no library of the host has;
    #: the output's name is appended.
    builtins: tuple[str, ...] = ()
    #: Whether the result runs with the oldest supported C library, not only with this machine's.
    is_portable: bool = False

    def link(
        self,
        objects: Sequence[str | Path],
        output: Path,
        work: Path,
        options: Sequence[str] = (),
        libraries: Sequence[str] = ("m",),
        *,
        executable: bool = False,
    ) -> None:
        """Link a shared library, or an executable, of a host's object files.

        `work` is a folder for intermediate files; `libraries` are names of the host's libraries,
        as for ``-l``.  Raises as `run` does.
        """
        options = (*_HARDENING, *options)
        if self.is_driver:
            options = (
                "-fPIE" if executable else "-fPIC",
                *(word for one in options for word in ("-Xlinker", one)),
            )
        stubs = [self._stub(name, symbols, work) for name, symbols in self.stubs.items()]
        found = stubs or [f"-l{name}" for name in libraries]
        if self.builtins:
            found.append(str(work / "builtins.o"))
            self.run([*self.builtins, f"-femit-bin={found[-1]}"], work)
        kind = self._executable_options() if executable else ("-shared",)
        self.run([*self.linker, *kind, *options, "-o", output, *objects, *found], work)

    def _executable_options(self) -> tuple[str, ...]:
        """Return the options for an executable, which only LLVM's linker for Android needs more of.

        Its loader has another name on systems of 32 bits.
        """
        if self.is_driver:
            return ("-pie",)
        bits = "" if _LLD_EMULATIONS["armv7a"] in self.linker else "64"
        return ("-pie", "-dynamic-linker", f"/system/bin/linker{bits}")

    def compile(self, source: Path, target: Path, work: Path, flags: Sequence[str] = ()) -> None:
        """Compile a C file, or assemble a ``.s`` file, to an object file."""
        # Run in the source's folder: neither messages nor objects then depend on its path, and
        # headers next to it are found.
        command = [*self.compiler, *flags, "-c", source.name, "-o", str(target.absolute())]
        self.run(command, work, source.parent)

    def run(self, command: Sequence[str | Path], work: Path, folder: Path | None = None) -> str:
        """Run one of the tool's commands in a folder, default the current one; return its output.

        Raises `OSError` if the command fails because the disk is full, whatever it prints then, and
        `subprocess.CalledProcessError` if it fails for another reason.
        """
        environment = {**os.environ, "ZIG_LOCAL_CACHE_DIR": str(work.absolute() / "zig-cache")}
        if not _has_cache_folder():
            # zig does not work without such a folder.  In a temporary one it compiles the C library
            # anew each time.
            environment["ZIG_GLOBAL_CACHE_DIR"] = str(work.absolute() / "zig-global")
        first = ", which at its first use compiles the C library, too" if self.is_portable else ""
        try:
            with told_if_slow(logger, f"Waiting for {self.name}{first}."):
                return subprocess.run(
                    command,
                    check=True,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    env=environment,
                    cwd=folder,
                ).stdout
        except subprocess.CalledProcessError as error:
            full = os.strerror(errno.ENOSPC)
            if full in error.stderr or shutil.disk_usage(work).free < FULL_BYTES:
                raise OSError(errno.ENOSPC, full) from error
            raise

    def _stub(self, library: str, symbols: frozenset[str], work: Path) -> str:
        """Write a shared library that defines the symbols as empty functions."""
        source, target, stub = (work / f"{library}{end}" for end in (".s", ".o", ""))
        lines = [f".globl {name}\n.type {name}, %function\n{name}:\n" for name in sorted(symbols)]
        source.write_text("".join([".text\n", *lines]))
        self.compile(source, target, work)
        self.run([*self.linker, "-shared", "-soname", library, target, "-o", stub], work)
        return str(stub)


def _has_cache_folder() -> bool:
    """Return whether zig can write to its cache of compiled C libraries."""
    base = os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME', '')}/.cache"
    place = Path(os.environ.get("ZIG_GLOBAL_CACHE_DIR") or f"{base}/zig")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK)


def ziglang() -> tuple[str, ...] | None:
    """Return the command of the Python package ``ziglang``, if it is installed."""
    return (sys.executable, "-m", "ziglang") if find_spec("ziglang") else None


def native_folder(name: str) -> Path:
    """Return the path of a folder of C files in ``native``."""
    return Path(__file__).parents[1] / "native_sources" / name


NDK_VARIABLE = "ANDROID_NDK_HOME"

#: Flags for objects for Android, in addition to the target: the functions that such code would
#: call are in no library of the device.
COMPILE_FLAGS = ("-fno-emulated-tls", "-fno-stack-protector")
#: Flags for Arm: no calls of helper functions for atomics, and no use of the register that the
#: system reserves.
ARM_FLAGS = ("-ffixed-x18", "-mno-outline-atomics")
#: Page size of newer devices, which refuse smaller ones; older devices accept it.
PAGE_BYTES = 16384
LINK_OPTIONS = (
    *("-z", "text", "-z", f"max-page-size={PAGE_BYTES}", "-z", f"common-page-size={PAGE_BYTES}"),
    # Both hash tables: devices before API 23 only read the older one.
    *("--hash-style=both", "--build-id=sha1", "--eh-frame-hdr"),
)

# Functions of Android's libraries since API 24: POSIX's for files, memory, text, time and threads
# in the C library, and those of C99 in the mathematical library.
_LIBC = """
access chmod close closedir dirfd dup2 fclose fcntl fdopen feof ferror fflush fgets fileno flock
fopen fprintf fread fseek fseeko fstat fstatat fsync ftell ftello ftruncate futimens fwrite lseek
lstat mkdir mkstemp open opendir pread pwrite read readdir readlink realpath remove rename rmdir
stat stderr stdout symlink umask unlink unlinkat write

accept4 bind fputs getsockname inet_pton listen poll printf putchar puts setsockopt socket
socketpair

calloc free madvise malloc mmap munmap posix_memalign realloc sysconf

abs atoi bsearch isalnum isalpha isdigit isprint isspace isxdigit ldexp memchr memcmp memcpy memmove
memrchr memset qsort snprintf sscanf strcasestr strcat strchr strcmp strcpy strcspn strdup strerror
strlen strncmp strncpy strndup strnlen strpbrk strrchr strspn strstr strtod strtok_r strtol
strtoll strtoul strtoull tolower toupper vsnprintf

__cxa_atexit __cxa_finalize __errno __libc_init __stack_chk_fail _exit alarm clock_gettime fork
getauxval getenv geteuid getpid getppid gettid getuid kill nanosleep prctl setpgid signal waitpid
pthread_cond_broadcast pthread_cond_destroy pthread_cond_init pthread_cond_signal pthread_cond_wait
pthread_create pthread_detach pthread_getspecific pthread_join pthread_key_create
pthread_mutex_destroy pthread_mutex_init pthread_mutex_lock pthread_mutex_trylock
pthread_mutex_unlock pthread_once pthread_self pthread_setspecific sched_getaffinity
sched_setaffinity sched_yield syscall time usleep
"""
_LIBDL = "dladdr dlclose dlerror dlopen dlsym"
# Each name is the function for double; the one for float ends in f.
_LIBM = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim
floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb
lrint lround modf nan nearbyint nextafter pow remainder remquo rint round scalbln scalbn sin sincos
sinh sqrt tan tanh tgamma trunc
"""
#: Symbols that a library for Android may need, by the library that defines them.
SYMBOLS: Mapping[str, frozenset[str]] = {
    "libc.so": frozenset(_LIBC.split()),
    "libdl.so": frozenset(_LIBDL.split()),
    "libm.so": frozenset(f"{name}{end}" for name in _LIBM.split() for end in ("", "f"))
    - frozenset(_LIBC.split()),
}


#: Flags with which zig compiles its built-in functions for the oldest CPU of `armeabi-v7a`.
_BUILTINS = (
    *("-mcpu=generic+v7a+vfp3d16", "-fPIC", "-O", "ReleaseSmall"),
    *("-fstrip", "-fno-unwind-tables", "-ffunction-sections"),
)


def android_tools(host: Host) -> Iterator[Tool]:
    """Yield the compilers for Android: the NDK's, ziglang's, the system's clang."""
    target = f"--target={host.llvm_triple}"
    flags = (*COMPILE_FLAGS, *(ARM_FLAGS if host.architecture == "aarch64" else ()))
    for clang in (_ndk_clang(), shutil.which(f"{host.triple}-clang")):
        if clang is not None:
            passed_on = [word for option in LINK_OPTIONS for word in ("-Xlinker", option)]
            yield Tool("Android NDK", (clang, target, *flags), (clang, target, *passed_on))
    emulation = _LLD_EMULATIONS.get(host.architecture)
    if emulation is None:
        return
    headers = ("-isystem", str(native_folder("bionic")))
    found: list[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = []
    if (zig := ziglang()) is not None:
        # zig's own driver refuses Android, and its clang does not find its own headers.
        library = importlib.resources.files("ziglang") / "lib"
        options = ("-nostdinc", "-isystem", str(library / "include"))
        builtins: tuple[str, ...] = ()
        if host.architecture == "armv7a":
            # The CPU has no instruction for division, among others.
            source, target_cpu = str(library / "compiler_rt.zig"), "arm-linux-androideabi"
            builtins = (*zig, "build-obj", source, "-target", target_cpu, *_BUILTINS)
        found.append(("ziglang ld.lld", (*zig, "clang", *options), (*zig, "ld.lld"), builtins))
    if (clang := shutil.which("clang")) and (lld := shutil.which("ld.lld")):
        found.append(("ld.lld", (clang, "-nostdlibinc"), (lld,), ()))
    for name, compiler, linker, builtins in found:
        yield Tool(
            name,
            (*compiler, target, *headers, *flags),
            (*linker, "-m", emulation, *LINK_OPTIONS),
            is_driver=False,
            stubs=SYMBOLS,
            builtins=builtins,
        )


def _ndk_clang() -> str | None:
    """Return the compiler of the NDK that the environment names; ``None`` if it names none."""
    folder = os.environ.get(NDK_VARIABLE)
    if not folder:
        return None
    where = "toolchains/llvm/prebuilt/*/bin/clang"
    for path in sorted(Path(folder).glob(where)):
        if os.access(path, os.X_OK):
            return str(path)
    raise TargetError(
        f"Looking for Android's NDK failed: {NDK_VARIABLE} is {folder}, but there is no {where}.",
        remedy="Set it to the folder of an NDK, or unset it: without, the Python package ziglang "
        "(the extra cross of tvmflow) is used.",
    )


#: glibc version whose symbols zig links against; every supported board has it or a newer one.
ZIG_GLIBC = "2.28"


def link_shared(objects: Sequence[str], output: Path, host: Host, work: Path) -> str:
    """Link object files for `host` with the first tool that succeeds, and return its name.

    `work` is a folder for the tool's intermediate files.  Raises as `first_success` does.
    """
    # No name of its own (-soname): the file is renamed later.  Android's stand-ins lack the
    # functions of TVM's runtime, which are found when the module is loaded.
    options = ("--no-as-needed", "--unresolved-symbols=ignore-all") if host.is_android else ()

    def link(tool: Tool) -> str:
        tool.link(objects, output, work, options)
        return tool.name

    return first_success(link, tools(host), f"Linking a module for the host {host.triple}", host)


def first_success(
    action: Callable[[Tool], T], candidates: Iterable[Tool], attempt: str, host: Host
) -> T:
    """Return the result of `action` for the first of `host`'s tools with which it succeeds.

    `action` raises `subprocess.CalledProcessError` if a tool fails.  Raises `TargetError` if there
    is no tool, or all fail; `attempt` begins its sentence, and its details hold each tool's output.
    """
    failures = []
    for tool in candidates:
        try:
            return action(tool)
        except subprocess.CalledProcessError as error:
            failures.append(f"{tool.name}: {(error.stderr or '').strip() or error}")
    reason = "every linker found failed" if failures else "no linker for it was found"
    package = _COMPILER_PACKAGES.get(host.triple, "a compiler for it")
    if host.is_android:
        package = f"Android's NDK and set {NDK_VARIABLE} to its folder"
    raise TargetError(
        f"{attempt} failed: {reason}.",
        remedy=f"Install {package}, or: {install_command('cross')}",
        details="\n".join(failures) or None,
    )


def check_linker(host: Host) -> None:
    """Raise `TargetError`, before anything is compiled, if no installed tool links for a host.

    For another machine this links an empty library, because cross compilers are often installed
    without the C library.
    """
    _link_nothing(host, tuple(tools(host)))


@functools.cache
def _link_nothing(host: Host, found: tuple[Tool, ...]) -> None:
    def link(tool: Tool) -> None:
        if host.is_native:
            return
        with tempfile.TemporaryDirectory(prefix="tvmflow-link-") as folder:
            work = Path(folder)
            (work / "empty.s").touch()
            tool.compile(work / "empty.s", work / "empty.o", work)
            tool.link([work / "empty.o"], work / "empty.so", work)

    first_success(link, found, f"Linking a module for the host {host.triple}", host)


_COMPILER_PACKAGES = {
    "x86_64-linux-gnu": "gcc",
    "aarch64-linux-gnu": "gcc-aarch64-linux-gnu",
    "arm-linux-gnueabihf": "gcc-arm-linux-gnueabihf",
    "riscv64-linux-gnu": "gcc-riscv64-linux-gnu",
}


def tools(host: Host) -> Iterator[Tool]:
    """Yield the installed compilers for a host, the preferred one first.

    Raises `TargetError` if the environment names an NDK for Android that has no compiler.
    """
    if host.is_android:
        yield from android_tools(host)
        return
    names = [f"{host.triple}-{suffix}" for suffix in ("gcc", "clang")]
    if host.is_native:
        names = ["cc", "gcc", "clang", *names]
    tried = set()
    for name in names:
        path = shutil.which(name)
        # Several names of one compiler would fail in the same way.
        if path is not None and (real := os.path.realpath(path)) not in tried:
            tried.add(real)
            yield Tool(name, (path,), (path,))
    command: tuple[str, ...]
    if path := shutil.which("clang"):
        command = (path, f"--target={host.llvm_triple}")
        yield Tool("clang --target", command, command)
    if (zig := ziglang()) is not None:
        version = f".{ZIG_GLIBC}" if host.abi.startswith("gnu") else ""
        command = (*zig, "cc", "-target", f"{host.triple}{version}")
        yield Tool("ziglang cc", command, command, is_portable=True)
