"""An AAR, what Android's build takes of a library: classes, libraries by ABI, a manifest.

::

    AndroidManifest.xml, R.txt      merged into the app's
    classes.jar, proguard.txt       the Java classes, and what R8 must leave of them
    jni/ABI/libNAME.so
    assets/tvmflow/libNAME.so.weights   where weights are not in the library
    prefab/                         for C and C++: headers, and the libraries again
    LICENSE, NOTICE                 of the runtime and the classes
    META-INF/…                      what Android's Gradle plug-in is asked for
    SHA256SUMS

An app must not get the classes twice: packages of several teams leave them out, and need the
package that has nothing else (`write_runtime_aar`).

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

#: What the runtime opens by its bare name (native/standalone/opencl.c): from Android 12 on, an app
#: gets only what its manifest names.
OPENCL_LIBRARIES = ("libOpenCL.so", "libOpenCL-pixel.so", "libOpenCL-car.so")
#: A library finds the functions of this class by its name (native/bindings/jni.c).
RULES = "-keepclasseswithmembernames class ai.tvmflow.Native { native <methods>; }\n"
#: The oldest platform whose tools know `uses-native-library`.
_LEAST_PLATFORM = 31
_METADATA = "META-INF/com/android/build/gradle/aar-metadata.properties"
#: The NDK's version must be said, and nothing is decided by it.
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
    """Write an AAR of libraries for Android, and return them.

    Each is one network for one ABI.  An `ArtifactError` says why they make no package, or that it
    cannot be written, a `TargetError` that the Java classes are not compiled.

    Parameters
    ----------
    paths, output
        The libraries; the AAR, whose name becomes part of the manifest's package.
    prefab, version
        Whether C and C++ of the app can be linked to the libraries, which have this version then.
    classes
        Whether the Java classes are in it; without them the app needs `RUNTIME`'s.
    coordinates
        Name it has for Maven; a file ``.pom`` is written next to it.
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
    """Write an AAR of the Java classes alone, for packages of libraries without them.

    An `ArtifactError` says that it cannot be written, a `TargetError` that the classes are not
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
    """Return a package of the manifest, of which each library of an app has its own."""
    parts = ["ai", "tvmflow", output.stem]
    if coordinates is not None:
        parts = [*coordinates.group.split("."), *coordinates.artifact.split(".")]
    # A part begins with a letter.
    plain = [re.sub(r"\W", "_", part.lower(), flags=re.ASCII) for part in parts]
    return ".".join(part if part[:1].isalpha() else f"net{part}" for part in plain)


def _manifest(package: str, libraries: Sequence[Library]) -> str:
    names = OPENCL_LIBRARIES if any(library.uses_opencl for library in libraries) else ()
    own = [f'<uses-native-library android:name="{n}" android:required="false" />' for n in names]
    application = "".join(f"        {element}\n" for element in own)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<manifest xmlns:android="http://schemas.android.com/apk/res/android"\n'
        f'    package="{package}">\n'
        f'    <uses-sdk android:minSdkVersion="{_least_level(libraries)}" />\n'
        f"    <application>\n{application}    </application>\n"
        "</manifest>\n"
    )


def _least_level(libraries: Sequence[Library]) -> int:
    levels = [library.host.android_level for library in libraries]
    return max(levels or [Host.parse("android-arm64").android_level])


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
        # Links what `tvmflow_library.h` calls, where the C library does not have it.
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
