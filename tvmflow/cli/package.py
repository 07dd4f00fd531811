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
  tvmflow package --only-classes --repository repo
  tvmflow package arm64/libface.so --no-classes --repository repo --maven com.example:face
      for apps with networks of several teams: implementation("com.example:face:1.0.0"), which needs
      ai.tvmflow:tvmflow-runtime
  tvmflow package libface.so --tar face.tar.gz
      for Linux, with files for CMake and pkg-config
"""


@command
def package_libraries(
    libraries: Annotated[
        list[Path] | None,
        typer.Argument(),
        "LIB.so…",
        "Libraries that `compile --standalone` wrote, one for each ABI.",
    ] = None,
    aar: Annotated[Path | None, "FILE.aar", "Write an AAR, for Android. It needs a JDK."] = None,
    tar: Annotated[Path | None, "FILE.tar.gz", "Write an archive for Linux."] = None,
    repository: Annotated[
        Path | None, "FOLDER", "Write an AAR into a Maven repository, which Gradle can use."
    ] = None,
    maven: Annotated[
        str | None, "GROUP:ARTIFACT", "Coordinates in --repository; see --package-version."
    ] = None,
    no_classes: Annotated[
        bool, "Leave the Java classes out: the app gets them once, from --only-classes."
    ] = False,
    only_classes: Annotated[
        bool, "Write an AAR of the Java classes only, ai.tvmflow:tvmflow-runtime in a repository."
    ] = False,
    prefab: Annotated[
        bool, "Let C and C++ code of an app link to the libraries of the AAR."
    ] = False,
    package_version: Annotated[str, "N.N.N", "Version of the package."] = "1.0.0",
) -> None:
    """Package standalone libraries for the build of an app, or for programs on Linux."""
    from ..module.standalone.package.aar import write_aar, write_runtime_aar
    from ..module.standalone.package.maven import RUNTIME, Coordinates
    from ..module.standalone.package.tar import write_linux_tar

    if not re.fullmatch(r"\d+(\.\d+){0,3}", package_version):
        raise typer.BadParameter("one to four numbers with dots", param_hint="'--package-version'")
    if (aar, tar, repository).count(None) != 2:
        raise typer.BadParameter("one of --aar, --tar and --repository was expected.")
    if tar is not None and (option := _about_aar(prefab, no_classes, only_classes)):
        raise typer.BadParameter(f"{option} is for --aar and --repository.")
    if only_classes and (libraries or no_classes or prefab):
        raise typer.BadParameter("--only-classes takes no libraries, --no-classes or --prefab.")
    if not only_classes and not libraries:
        raise typer.BadParameter("libraries LIB.so… were expected.")
    if (maven is not None) != (repository is not None and not only_classes):
        raise typer.BadParameter("--maven goes with libraries in a --repository, and only there.")
    coordinates = Coordinates.parse(maven, package_version) if maven else None
    if maven and coordinates is None:
        raise typer.BadParameter(f"{maven!r} is not of the form GROUP:ARTIFACT.")
    if repository is not None:
        coordinates = coordinates or RUNTIME
        aar = coordinates.path(repository)
        aar.parent.mkdir(parents=True, exist_ok=True)
    if tar is not None:
        output, found = tar, write_linux_tar(libraries or (), tar, version=package_version)
    elif only_classes:
        assert aar is not None
        output, found = aar, []
        write_runtime_aar(aar, coordinates=coordinates)
    else:
        assert aar is not None
        output, found = (
            aar,
            write_aar(
                libraries or (),
                aar,
                prefab=prefab,
                version=package_version,
                classes=not no_classes,
                coordinates=coordinates,
            ),
        )
    size = output.stat().st_size
    about = [{"path": str(one.path), "name": one.name, "abi": one.abi} for one in found]
    if print_json({"output": str(output), "bytes": size, "libraries": about}):
        return
    note_file(output, f" ({bytes_text(size)})")
    for one in found:
        note((one.name, "bold"), f" for {one.abi}")
    if coordinates is not None:
        note(f"{coordinates.group}:{coordinates.artifact}:{coordinates.version}")


def _about_aar(prefab: bool, no_classes: bool, only_classes: bool) -> str | None:
    options = {"--prefab": prefab, "--no-classes": no_classes, "--only-classes": only_classes}
    return next((name for name, given in options.items() if given), None)
