"""Compiling and linking for Android, with its NDK or without it.

Without the NDK its libraries are stood in for by empty functions of the same names
(`SYMBOLS`), in libraries of the same names: the linker refuses what Android lacks, and
the result records what it needs.  Its headers are replaced by ``native/bionic``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import TargetError
from .native import native_folder
from .tool import LLD_EMULATIONS, Tool, ziglang

if TYPE_CHECKING:
    from ..devices.host import Host

NDK_VARIABLE = "ANDROID_NDK_HOME"

#: What objects for Android are compiled with, beside the target: what these call is in no
#: library of the device.
COMPILE_FLAGS = ("-fno-emulated-tls", "-fno-stack-protector")
#: On Arm also without such functions for atomics, and without a register that the system keeps
#: for itself.
ARM_FLAGS = ("-ffixed-x18", "-mno-outline-atomics")
#: Newer devices have pages of 16 KiB and refuse less; older ones do not mind.
PAGE_BYTES = 16384
LINK_OPTIONS = (
    *("-z", "text", "-z", f"max-page-size={PAGE_BYTES}", "-z", f"common-page-size={PAGE_BYTES}"),
    # The older table of symbols too: devices before API 23 know no other.
    *("--hash-style=both", "--build-id=sha1", "--eh-frame-hdr"),
)

# Functions of Android's libraries on 64-bit Arm since API 24: of its C library what POSIX has of
# files, memory, text, time and threads, of the mathematical one what C99 has.
_LIBC = """
access chmod close closedir dirfd fclose fcntl fdopen feof ferror fflush fgets fileno flock fopen
fprintf fread fseek fseeko fstat fstatat fsync ftell ftello ftruncate futimens fwrite lseek lstat
mkdir mkstemp open opendir pread pwrite read readdir readlink realpath remove rename rmdir stat
stderr umask unlink unlinkat write

calloc free madvise malloc mmap munmap posix_memalign realloc sysconf

abs atoi bsearch isalnum isalpha isdigit isprint isspace isxdigit ldexp memchr memcmp memcpy memmove
memrchr memset qsort snprintf sscanf strcasestr strcat strchr strcmp strcpy strcspn strdup strerror
strlen strncmp strncpy strndup strnlen strpbrk strrchr strspn strstr strtod strtok_r strtol
strtoll strtoul strtoull tolower toupper vsnprintf

__cxa_atexit __cxa_finalize __errno __stack_chk_fail clock_gettime getenv geteuid getpid gettid
getuid nanosleep pthread_cond_broadcast pthread_cond_destroy pthread_cond_init pthread_cond_signal
pthread_cond_wait pthread_create pthread_detach pthread_getspecific pthread_join pthread_key_create
pthread_mutex_destroy pthread_mutex_init pthread_mutex_lock pthread_mutex_trylock
pthread_mutex_unlock pthread_once pthread_self pthread_setspecific sched_yield time usleep
"""
_LIBDL = "dladdr dlclose dlerror dlopen dlsym"
# Each for double, and with an f behind it for float.
_LIBM = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim
floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb
lrint lround modf nan nearbyint nextafter pow remainder remquo rint round scalbln scalbn sin sincos
sinh sqrt tan tanh tgamma trunc
"""
#: Symbols that a library for Android may need, by the library that has them.
SYMBOLS: Mapping[str, frozenset[str]] = {
    "libc.so": frozenset(_LIBC.split()),
    "libdl.so": frozenset(_LIBDL.split()),
    "libm.so": frozenset(f"{name}{end}" for name in _LIBM.split() for end in ("", "f"))
    - frozenset(_LIBC.split()),
}


def android_tools(host: Host) -> Iterator[Tool]:
    """Yield the compilers for Android: the NDK's, ziglang's, the system's clang.

    Raises
    ------
    TargetError
        If the environment names an NDK that has no compiler.
    """
    target = f"--target={host.llvm_triple}"
    flags = (*COMPILE_FLAGS, *(ARM_FLAGS if host.architecture == "aarch64" else ()))
    for clang in (_ndk_clang(), shutil.which(f"{host.triple}-clang")):
        if clang is not None:
            options = [word for option in LINK_OPTIONS for word in ("-Xlinker", option)]
            yield Tool("Android NDK", (clang, target, *flags), (clang, target, *options))
    emulation = LLD_EMULATIONS.get(host.architecture)
    if emulation is None:
        return
    headers = ("-isystem", str(native_folder("bionic")))
    found: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
    if (zig := ziglang()) is not None:
        # zig's own driver refuses Android.
        found.append(("ziglang ld.lld", (*zig, "clang", *_zig_headers()), (*zig, "ld.lld")))
    if (clang := shutil.which("clang")) and (lld := shutil.which("ld.lld")):
        found.append(("ld.lld", (clang, "-nostdlibinc"), (lld,)))
    for name, compiler, linker in found:
        yield Tool(
            name,
            (*compiler, target, *headers, *flags),
            (*linker, "-m", emulation, *LINK_OPTIONS),
            is_driver=False,
            stubs=SYMBOLS,
        )


def _zig_headers() -> tuple[str, ...]:
    """Options for the headers that belong to the compiler, which it does not find itself."""
    spec = find_spec("ziglang")
    folders = spec.submodule_search_locations if spec else None
    include = Path(next(iter(folders or ["."]))) / "lib" / "include"
    return ("-nostdinc", "-isystem", str(include))


def _ndk_clang() -> str | None:
    """Return the compiler of the NDK that the environment names, if it names one.

    Raises
    ------
    TargetError
        If there is no compiler where it should be.
    """
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
