"""Android archives (AAR): classes, libraries by ABI, and a manifest, for Android's build.

::

    AndroidManifest.xml, R.txt      merged into the app's
    classes.jar, proguard.txt       the Java classes, and names that R8 must keep
    jni/ABI/libNAME.so
    assets/tvmflow/libNAME.so.weights   if weights are not in the library
    prefab/                         for C and C++: headers, and the libraries again
    LICENSE, NOTICE                 of the runtime and the classes
    META-INF/…                      requirements on Android's Gradle plug-in
    SHA256SUMS

An app must not contain the classes twice: packages of several teams leave them out, and depend on
the package of only the classes (`write_runtime_aar`).

Files: https://developer.android.com/studio/projects/android-library, "Anatomy of an AAR file";
``prefab``: https://google.github.io/prefab, "Package Structure".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ....devices.host import Host
from ...files import ZIP, publish, staging
from .archive import Contents, with_sums, write_zip
from .java import classes_jar
from .libraries import Library, for_android, headers, licenses, read_libraries, weights_of
from .maven import RUNTIME, Coordinates

#: Libraries that the runtime opens by bare name (native/core/library_names.c): since Android
#: 12, an app can only open libraries that its manifest names.
OPENCL_LIBRARIES = ("libOpenCL.so", "libOpenCL-pixel.so", "libOpenCL-car.so")
#: R8's rules: a library's functions refer to this class by its name (native/bindings/jni.c).
RULES = "-keepclasseswithmembernames class ai.tvmflow.Native { native <methods>; }\n"
#: The oldest platform whose tools know `uses-native-library`.
_LEAST_PLATFORM = 31
_METADATA = "META-INF/com/android/build/gradle/aar-metadata.properties"
#: NDK version in the metadata, which is required but has no effect.
_NDK = 27


def write_aar(
    paths: Sequence[Path],
    output: Path,
    *,
    prefab: bool = False,
    version: str = "1.0.0",
    classes: bool = True,
    coordinates: Coordinates | None = None,
) -> list[Library]:
    """Write an AAR of libraries for Android, and return the libraries.

    Each is one network for one ABI.  The name of ``output`` becomes part of the manifest's package.
    With ``prefab``, the app's C and C++ code can be linked to the libraries, in this ``version``.
    Without ``classes``, the app needs the Java classes of `RUNTIME`.  With ``coordinates``, its
    name for Maven, a file ``.pom`` is written next to it.

    Raises `ArtifactError` if they cannot form a package or it cannot be written, and `TargetError`
    if the Java classes cannot be compiled.
    """
    attempt = f"Packaging {output.name}"
    by_abi = for_android(read_libraries(paths, attempt), attempt)
    libraries = [library for found in by_abi.values() for library in found]
    with staging(output, ZIP) as stage:
        contents = _common(_package(output, coordinates), libraries)
        if classes:
            contents |= _classes(stage, attempt)
        for library in libraries:
            contents[f"jni/{library.abi}/{library.path.name}"] = library.path
            if library.weights is not None:
                contents[f"assets/tvmflow/{weights_of(library)}"] = library.weights
        if prefab:
            name = coordinates.artifact if coordinates else output.stem
            contents |= _prefab(name, libraries, version)
        _write(contents, output, stage, coordinates, () if classes else (RUNTIME,))
    return libraries


def write_runtime_aar(output: Path, *, coordinates: Coordinates | None = None) -> None:
    """Write an AAR of only the Java classes, for packages of libraries without them.

    Raises `ArtifactError` if it cannot be written, and `TargetError` if the classes cannot be
    compiled.
    """
    with staging(output, ZIP) as stage:
        contents = _common(_package(output, coordinates), ())
        contents |= _classes(stage, f"Packaging {output.name}")
        _write(contents, output, stage, coordinates, ())


def _write(
    contents: Contents,
    output: Path,
    stage: Path,
    coordinates: Coordinates | None,
    needed: Sequence[Coordinates],
) -> None:
    write_zip(with_sums(contents), stage / output.name)
    files = {stage / output.name: output}
    if coordinates is not None:
        pom = stage / f"{output.stem}.pom"
        pom.write_text(coordinates.pom(*needed), encoding="utf-8")
        files = {pom: output.with_name(pom.name), **files}
    publish(files)


def _common(package: str, libraries: Sequence[Library]) -> dict[str, bytes | Path]:
    return {
        "AndroidManifest.xml": _manifest(package, libraries).encode(),
        "R.txt": b"",
        _METADATA: _metadata(libraries).encode(),
        **licenses(),
    }


def _classes(stage: Path, attempt: str) -> dict[str, bytes | Path]:
    return {"classes.jar": classes_jar(stage, attempt), "proguard.txt": RULES.encode()}


def _package(output: Path, coordinates: Coordinates | None) -> str:
    """Return the manifest's package name, which must differ between an app's AARs."""
    parts = ["ai", "tvmflow", output.stem]
    if coordinates is not None:
        parts = [*coordinates.group.split("."), *coordinates.artifact.split(".")]
    # Each part must begin with a letter.
    plain = [re.sub(r"\W", "_", part.lower(), flags=re.ASCII) for part in parts]
    return ".".join(part if part[:1].isalpha() else f"net{part}" for part in plain)


def _manifest(package: str, libraries: Sequence[Library]) -> str:
    names = OPENCL_LIBRARIES if any(library.uses_opencl for library in libraries) else ()
    own = [f'<uses-native-library android:name="{n}" android:required="false" />' for n in names]
    levels = [library.host.android_level for library in libraries]
    least = max(levels or [Host.parse("android-arm64").android_level])
    application = "".join(f"        {element}\n" for element in own)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<manifest xmlns:android="http://schemas.android.com/apk/res/android"\n'
        f'    package="{package}">\n'
        f'    <uses-sdk android:minSdkVersion="{least}" />\n'
        f"    <application>\n{application}    </application>\n"
        "</manifest>\n"
    )


def _metadata(libraries: Sequence[Library]) -> str:
    text = "aarFormatVersion=1.0\naarMetadataVersion=1.0\n"
    if any(library.uses_opencl for library in libraries):
        text += f"minCompileSdk={_LEAST_PLATFORM}\n"
    return text


def _prefab(name: str, libraries: Sequence[Library], version: str) -> Contents:
    about = {"schema_version": 2, "name": name, "version": version, "dependencies": []}
    contents: dict[str, bytes | Path] = {"prefab/prefab.json": _json(about)}
    for library in libraries:
        module = f"prefab/modules/{library.name}"
        # `tvmflow_library.h` calls functions of libdl, which older C libraries do not contain.
        contents[f"{module}/module.json"] = _json({"export_libraries": ["-ldl"]})
        contents |= headers(f"{module}/include")
        folder = f"{module}/libs/android.{library.abi}"
        level = library.host.android_level
        abi = {"abi": library.abi, "api": level, "ndk": _NDK, "stl": "none", "static": False}
        contents[f"{folder}/abi.json"] = _json(abi)
        contents[f"{folder}/{library.path.name}"] = library.path
    return contents


def _json(value: object) -> bytes:
    return f"{json.dumps(value, indent=2)}\n".encode()
