"""Compiling the C runtime for a host, once for each version of it.

Objects are kept in the user's cache folder under a hash of everything that they depend on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ...devices.host import Host
from ..files import user_cache
from ..link import tools
from ..native import native_folder
from ..tool import Tool

#: What the runtime is compiled with on every host.
FLAGS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    # Only what the header declares is visible.
    "-fvisibility=hidden",
    # What nobody calls is left out.
    *("-ffunction-sections", "-fdata-sections"),
    # The same bytes, wherever it is compiled.
    "-fno-ident",
)


def candidates(host: Host) -> list[Tool]:
    """List the compilers for a host: first those whose result runs on older systems too.

    Raises
    ------
    TargetError
        If the environment names an NDK that has no compiler.
    """
    return sorted(tools(host), key=lambda tool: not tool.is_portable)


def runtime_objects(tool: Tool, work: Path) -> list[Path]:
    """Compile the runtime, or find it compiled; return its object files.

    Parameters
    ----------
    tool
        The compiler.
    work
        A folder for intermediate files, and for the objects where none can be kept.

    Raises
    ------
    subprocess.CalledProcessError
        If a file cannot be compiled.
    """
    files = [path for path in _sources("standalone", "bindings") if path.suffix == ".c"]
    final = _objects_folder() / _key(tool, work)
    kept = [final / f"{path.stem}.o" for path in files]
    if all(path.is_file() for path in kept):
        return kept
    fresh = _new_folder(final, work)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [
            pool.submit(tool.compile, path, fresh / f"{path.stem}.o", work, FLAGS) for path in files
        ]
        for job in jobs:
            job.result()
    if fresh.parent == work:
        return [fresh / path.name for path in kept]
    if final.is_dir() and not all(path.is_file() for path in kept):
        # Somebody has cleared a part of it.
        shutil.rmtree(final, ignore_errors=True)
    try:
        os.rename(fresh, final)
    except OSError:
        # Another process was faster, with the same result.
        shutil.rmtree(fresh, ignore_errors=True)
    return kept


def _objects_folder() -> Path:
    """The folder where compiled runtimes are kept, beside the drivers' programs."""
    return Path(os.environ.get("TVMFLOW_CACHE_DIR") or user_cache()) / "standalone"


def _new_folder(final: Path, work: Path) -> Path:
    """Make a folder that can be renamed to `final`, or one in `work` if there can be none."""
    with suppress(OSError):
        final.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    return Path(tempfile.mkdtemp(prefix="objects.", dir=work))


def _key(tool: Tool, work: Path) -> str:
    """Hash everything that the objects depend on."""
    digest = hashlib.sha256()
    version = tool.run([*tool.compiler, "--version"], work)
    for part in (*tool.compiler, version, *FLAGS):
        digest.update(part.encode() + b"\0")
    for path in _sources("standalone", "bindings", "opencl", "bionic"):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _sources(*folders: str) -> Iterator[Path]:
    for name in folders:
        yield from sorted(native_folder(name).rglob("*.[ch]"))
