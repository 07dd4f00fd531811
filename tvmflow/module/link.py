"""Linking compiled objects to a shared library, for this machine or another one.

TVM compiles host code for any triple by itself; only the last step needs a
linker for that triple.  A linker is looked for in this order: the system's own
compiler (for this machine), an installed cross compiler, ``clang``, and the clang
that comes as the Python package ``ziglang`` (extra ``cross``).  For Android see
:mod:`.android`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ..devices.host import Host
from ..errors import TargetError
from .android import NDK_VARIABLE, android_tools
from .tool import Tool, ziglang

T = TypeVar("T")

#: glibc whose symbol versions zig links against: old enough for every supported board.
ZIG_GLIBC = "2.28"


def link_shared(objects: Sequence[str], output: Path, host: Host, work: Path) -> str:
    """Link object files to a shared library with the first tool that can.

    Parameters
    ----------
    objects
        Object files for `host`.
    output
        The library to write.
    host
        The machine it is for.
    work
        A folder for the tool's intermediate files.

    Returns
    -------
    str
        The name of the tool used.

    Raises
    ------
    TargetError
        If no tool for `host` is installed, or all fail; the details hold what
        each said.
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
    """Do something with the first tool that can, and return what it returns.

    Parameters
    ----------
    action
        What is done with a tool; raises `subprocess.CalledProcessError` when it cannot.
    candidates
        The tools for `host`.
    attempt
        What is attempted, for the message.
    host
        The machine that the result is for.

    Raises
    ------
    TargetError
        If there is no tool, or all fail; the details hold what each said.
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
        remedy=f"Install {package}, or: python -m pip install 'tvmflow[cross]'",
        details="\n".join(failures) or None,
    )


def check_linker(host: Host) -> None:
    """Refuse a host that nothing here links for, before anything is compiled for it.

    For another machine than this one an empty library is linked: compilers for it are often
    installed without its C library.

    Raises
    ------
    TargetError
        If no tool for `host` is installed, or all fail.
    """
    attempt = f"Linking a module for the host {host.triple}"
    if host.is_native:
        first_success(lambda tool: None, tools(host), attempt, host)
        return
    found = tuple((tool.name, tool.compiler) for tool in tools(host))
    if (host, found) in _that_link:
        return

    def link(tool: Tool) -> None:
        with tempfile.TemporaryDirectory(prefix="tvmflow-link-") as folder:
            work = Path(folder)
            (work / "empty.s").touch()
            tool.compile(work / "empty.s", work / "empty.o", work)
            tool.link([work / "empty.o"], work / "empty.so", work)

    first_success(link, tools(host), attempt, host)
    _that_link.add((host, found))


#: Hosts with the tools for them that have linked an empty library in this process.
_that_link: set[tuple[Host, tuple[tuple[str, tuple[str, ...]], ...]]] = set()

_COMPILER_PACKAGES = {
    "x86_64-linux-gnu": "gcc",
    "aarch64-linux-gnu": "gcc-aarch64-linux-gnu",
    "arm-linux-gnueabihf": "gcc-arm-linux-gnueabihf",
    "riscv64-linux-gnu": "gcc-riscv64-linux-gnu",
}


def tools(host: Host) -> Iterator[Tool]:
    """Yield the compilers for a host that are installed, the preferred one first."""
    if host.is_android:
        yield from android_tools(host)
        return
    names = [f"{host.triple}-{suffix}" for suffix in ("gcc", "clang")]
    if host.is_native:
        names = ["cc", "gcc", "clang", *names]
    tried = set()
    for name in names:
        path = shutil.which(name)
        # Several names of one compiler would fail alike.
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
