"""``tvmflow package``: standalone libraries as an AAR, or as an archive for Linux."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ..ir.units import bytes_text
from .output import note, note_file, print_json
from .session import command

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow package arm64/libface.so x64/libface.so --aar face.aar
      for apps: implementation(files("libs/face.aar")); compiled with --host android-arm64 and
      android-x64
  tvmflow package libface.so --aar face.aar --prefab
      for apps with C or C++, too: find_package(face), face::face
  tvmflow package libface.so --tar face.tar.gz
      for Linux, with files for CMake and pkg-config
"""


@command
def package_libraries(
    libraries: Annotated[
        list[Path], typer.Argument(), "LIB.so…", "What `compile --standalone` wrote, for each ABI."
    ],
    aar: Annotated[Path | None, "FILE.aar", "Write an AAR, for Android. It needs a JDK."] = None,
    tar: Annotated[Path | None, "FILE.tar.gz", "Write an archive for Linux."] = None,
    prefab: Annotated[
        bool, "Let C and C++ of an app be linked to the libraries of the AAR."
    ] = False,
    package_version: Annotated[str, "N.N.N", "The version that others see."] = "1.0.0",
) -> None:
    """Package standalone libraries for the build of an app, or of a program for Linux."""
    from ..module.standalone.package.aar import write_aar
    from ..module.standalone.package.tar import write_linux_tar

    if not re.fullmatch(r"\d+(\.\d+){0,3}", package_version):
        raise typer.BadParameter("one to four numbers with dots", param_hint="'--package-version'")
    if prefab and aar is None:
        raise typer.BadParameter("--prefab is about --aar.")
    if aar is not None and tar is None:
        output, found = aar, write_aar(libraries, aar, prefab=prefab, version=package_version)
    elif tar is not None and aar is None:
        output, found = tar, write_linux_tar(libraries, tar, version=package_version)
    else:
        raise typer.BadParameter("either --aar or --tar was expected.")
    size = output.stat().st_size
    about = [{"path": str(one.path), "name": one.name, "abi": one.abi} for one in found]
    if print_json({"output": str(output), "bytes": size, "libraries": about}):
        return
    note_file(output, f" ({bytes_text(size)})")
    for one in found:
        note((one.name, "bold"), f" for {one.abi}")
