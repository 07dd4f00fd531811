"""Compilation of the Java classes in ``native/bindings``."""

from __future__ import annotations

import os
import shutil
import subprocess
from io import BytesIO
from pathlib import Path

from ....errors import TargetError
from ...link import native_folder
from .archive import write_zip

#: Options of the compiler: Java 8, which all of Android's tools support, for old machines.
_OPTIONS = ("--release", "8", "-Xlint:-options", "-encoding", "UTF-8", "-g:source,lines")


def classes_jar(work: Path, attempt: str) -> bytes:
    """Compile the classes in a folder, and return them as a JAR.

    Raises `TargetError`, begun by `attempt`, if there is no Java compiler, or it fails.
    """
    home = os.environ.get("JAVA_HOME")
    compiler = shutil.which("javac", path=f"{home}/bin" if home else None) or shutil.which("javac")
    if compiler is None:
        raise TargetError(
            f"{attempt} failed: its Java classes are compiled, but there is no javac on the path.",
            remedy="Install a JDK (on Debian and Ubuntu default-jdk-headless), or name one in "
            "JAVA_HOME.",
        )
    folder = native_folder("bindings") / "java"
    # Use relative paths, so that the classes do not contain the location of the sources.
    sources = sorted(path.relative_to(folder) for path in folder.rglob("*.java"))
    classes = work.absolute() / "classes"
    done = subprocess.run(
        [compiler, *_OPTIONS, "-d", classes, *sources],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise TargetError(
            f"{attempt} failed: {compiler} does not compile the Java classes.",
            remedy="Use a JDK of version 9 or newer.",
            details=done.stderr.strip(),
        )
    compiled = {str(path.relative_to(classes)): path for path in classes.rglob("*.class")}
    jar = BytesIO()
    write_zip(compiled, jar)
    return jar.getvalue()
