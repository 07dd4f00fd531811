"""Tar archives for C and C++ on Linux: library, headers, files for CMake and pkg-config.

The files refer to each other by relative paths, so the archive can be unpacked anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...files import GZIP, publish, staging
from ..programs import sidecar_path
from .archive import with_sums, write_tar
from .libraries import Library, for_linux, headers, licenses, read_libraries, weights_of

_CONFIG = """\
# find_package({name}) gives the target {name}::{name}.
if(NOT TARGET {name}::{name})
  get_filename_component(_root "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
  add_library({name}::{name} SHARED IMPORTED)
  set_target_properties({name}::{name} PROPERTIES
    IMPORTED_LOCATION "${{_root}}/lib/lib{name}.so"
    IMPORTED_SONAME "lib{name}.so"
    INTERFACE_INCLUDE_DIRECTORIES "${{_root}}/include"
    INTERFACE_LINK_LIBRARIES "${{CMAKE_DL_LIBS}}")
  unset(_root)
endif()
"""
_CONFIG_VERSION = """\
set(PACKAGE_VERSION "{version}")
if(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
"""
_PKG_CONFIG = """\
prefix=${{pcfiledir}}/../..

Name: {name}
Description: A neural network with its runtime ({host})
Version: {version}
Cflags: -I${{prefix}}/include
Libs: -L${{prefix}}/lib -l{name}
Libs.private: -ldl
"""


def write_linux_tar(
    paths: Sequence[Path], output: Path, *, version: str = "1.0.0"
) -> list[Library]:
    """Write an archive of a library for Linux, and return the library.

    Its files are in the folder ``NAME-VERSION``.  Raises `ArtifactError` if there is not exactly
    one library, it is for Android, or the archive cannot be written.
    """
    attempt = f"Packaging {output.name}"
    library = for_linux(read_libraries(paths, attempt), attempt)
    name = library.name
    values = {"name": name, "version": version, "host": library.host.triple}
    contents: dict[str, bytes | Path] = {
        f"lib/{library.path.name}": library.path,
        **headers("include"),
        **licenses(),
        f"lib/cmake/{name}/{name}-config.cmake": _CONFIG.format(**values).encode(),
        f"lib/cmake/{name}/{name}-config-version.cmake": _CONFIG_VERSION.format(**values).encode(),
        f"lib/pkgconfig/{name}.pc": _PKG_CONFIG.format(**values).encode(),
    }
    # The library looks for its sidecars in its own folder.
    if library.weights is not None:
        contents[f"lib/{weights_of(library)}"] = library.weights
    if library.programs is not None:
        contents[f"lib/{sidecar_path(library.path).name}"] = library.programs
    top = f"{name}-{version}"
    with staging(output, GZIP) as stage:
        summed = with_sums(contents)
        write_tar({f"{top}/{key}": content for key, content in summed.items()}, stage / output.name)
        publish({stage / output.name: output})
    return [library]
