"""An AAR, what Android's build takes of a library: classes, libraries by ABI, a manifest.

::

    AndroidManifest.xml, R.txt      merged into the app's
    classes.jar, proguard.txt       the Java classes, and what R8 must leave of them
    jni/ABI/libNAME.so
    assets/tvmflow/libNAME.so.weights   where weights are not in the library
    prefab/                         for C and C++: headers, and the libraries again
    META-INF/…                      what Android's Gradle plug-in is asked for
    SHA256SUMS

Files: https://developer.android.com/studio/projects/android-library, "Anatomy of an AAR file";
``prefab``: https://google.github.io/prefab, "Package Structure".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ...files import ZIP, publish, staging
from .archive import Contents, with_sums, write_zip
from .java import classes_jar
from .libraries import Library, for_android, headers, read_libraries, weights_of

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
    paths: Sequence[Path], output: Path, *, prefab: bool = False, version: str = "1.0.0"
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
    """
    attempt = f"Packaging {output.name}"
    by_abi = for_android(read_libraries(paths, attempt), attempt)
    libraries = [library for found in by_abi.values() for library in found]
    with staging(output, ZIP) as stage:
        contents: dict[str, bytes | Path] = {
            "AndroidManifest.xml": _manifest(output, libraries).encode(),
            "R.txt": b"",
            "classes.jar": classes_jar(stage, attempt),
            "proguard.txt": RULES.encode(),
            _METADATA: _metadata(libraries).encode(),
        }
        for library in libraries:
            contents[f"jni/{library.abi}/{library.path.name}"] = library.path
            if library.weights is not None:
                contents[f"assets/tvmflow/{weights_of(library)}"] = library.weights
        if prefab:
            contents |= _prefab(output, libraries, version)
        write_zip(with_sums(contents), stage / output.name)
        publish({stage / output.name: output})
    return libraries


def _manifest(output: Path, libraries: Sequence[Library]) -> str:
    names = OPENCL_LIBRARIES if any(library.uses_opencl for library in libraries) else ()
    own = [f'<uses-native-library android:name="{n}" android:required="false" />' for n in names]
    application = "".join(f"        {element}\n" for element in own)
    # Each library of an app has a package of its own; a part of it begins with a letter.
    part = re.sub(r"\W", "_", output.stem.lower(), flags=re.ASCII)
    part = part if part[:1].isalpha() else f"net{part}"
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<manifest xmlns:android="http://schemas.android.com/apk/res/android"\n'
        f'    package="ai.tvmflow.{part}">\n'
        f'    <uses-sdk android:minSdkVersion="{_least_level(libraries)}" />\n'
        f"    <application>\n{application}    </application>\n"
        "</manifest>\n"
    )


def _least_level(libraries: Sequence[Library]) -> int:
    return max(library.host.android_level for library in libraries)


def _metadata(libraries: Sequence[Library]) -> str:
    text = "aarFormatVersion=1.0\naarMetadataVersion=1.0\n"
    if any(library.uses_opencl for library in libraries):
        text += f"minCompileSdk={_LEAST_PLATFORM}\n"
    return text


def _prefab(output: Path, libraries: Sequence[Library], version: str) -> Contents:
    about = {"schema_version": 2, "name": output.stem, "version": version, "dependencies": []}
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
