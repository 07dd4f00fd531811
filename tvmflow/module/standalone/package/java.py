"""The Java classes of ``native/bindings``, compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
from io import BytesIO
from pathlib import Path

from ....errors import TargetError
from ...link import native_folder
from .archive import write_zip

#: For the oldest virtual machines that they run on: Android's tools take all of Java 8.
_OPTIONS = ("--release", "8", "-Xlint:-options", "-encoding", "UTF-8", "-g:source,lines")


def classes_jar(work: Path, attempt: str) -> bytes:
    """Return an archive of the classes, compiled in a folder.

    A `TargetError` says that there is no compiler for Java, or that it fails; `attempt` begins its
    sentence.
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
    # Relative: the classes do not tell where the sources lay.
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
