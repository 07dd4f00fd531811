"""OpenCL libraries for a standalone module, and where its built programs are kept.

The same choices as the plug-in's (native/opencl/library.cc, settings.cc), for processes that
do not load it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...runtime.plugin import search_folders
from ..files import user_cache

#: Intel's runtime opens these by bare name; the loader then answers with what is loaded.
_INTEL_NEEDS = (
    "libtbb.so.12",
    "libtbbmalloc.so.2",
    "libtcm.so.1",
    "libimf.so",
    "libsvml.so",
    "libirng.so",
    "libintlc.so.5",
    "libcommon_clang.so",
    "libocl_svml_*.so",
)


def opencl_libraries() -> Iterator[str | None]:
    """Libraries to try, in order; ``None`` stands for the places that the runtime knows."""
    # As the plug-in does, and for the same reasons (native/opencl/pocl_quirks.h): PoCL compiles one
    # variant of each kernel.  A library leaves the environment of its process alone; who loads it
    # may decide.
    os.environ.setdefault("POCL_WORK_GROUP_SPECIALIZATION", "0")
    if chosen := os.environ.get("TVMFLOW_OPENCL_LIBRARY"):
        yield _ready(chosen)
        return
    yield None
    folders = [Path(folder) for folder in search_folders()]
    for pattern in ("libintelocl.so", "pyopencl/.libs/libpocl-*.so"):
        for folder in folders:
            for path in sorted(folder.glob(pattern)):
                yield _ready(str(path))


def cache_folder() -> str | None:
    """The folder for built programs, made if it is not there; ``None`` keeps none."""
    if os.environ.get("TVMFLOW_CACHE") == "0":
        return None
    folder = os.environ.get("TVMFLOW_CACHE_DIR") or user_cache() / "programs"
    # Not among the plug-in's programs: it keeps more of them before the oldest go.
    found = os.path.join(folder, "standalone")
    with suppress(OSError):
        os.makedirs(found, exist_ok=True)
    return found


def _ready(library: str) -> str:
    path = Path(library)
    if path.name.startswith("libintelocl"):
        for pattern in _INTEL_NEEDS:
            for needed in path.parent.glob(pattern):
                with suppress(OSError):
                    ctypes.CDLL(str(needed))
    return library
