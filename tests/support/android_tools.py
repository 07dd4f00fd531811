"""Tools that build Android apps: Debian's, and those that `android_tools.sh` fetches."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import which

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("TVMFLOW_ANDROID_TOOLS") or ROOT / "build" / "android-tools")
R8_JAR = FOLDER / "r8.jar"
FRAMEWORK = Path("/usr/share/android-framework-res/framework-res.apk")
_GET = "tests/support/android_tools.sh gets it"


def no_kotlin() -> str | None:
    """Return why there is no compiler for Kotlin, or `None`."""
    return None if _kotlin().is_dir() else f"there is no Kotlin: {_GET}"


def no_android() -> str | None:
    """Return which of the tools for Android is missing, or `None`."""
    for name in ("aapt", "zipalign", "apksigner", "dexdump", "keytool"):
        if which(name) is None:
            return f"the command {name} is not installed"
    if not FRAMEWORK.is_file():
        return "there are no resources of Android (Debian's android-framework-res)"
    return None if R8_JAR.is_file() else f"there is no R8: {_GET}"


def _kotlin() -> Path:
    return FOLDER / "node_modules" / "kotlin-compiler"


def kotlinc() -> list[str]:
    """Return the command of Kotlin's compiler; npm installs it without the executable bit."""
    return ["bash", str(_kotlin() / "bin" / "kotlinc")]


def kotlin_jars() -> list[Path]:
    """Return Kotlin's standard library, and its coroutines."""
    return [
        _kotlin() / "lib" / f"{name}.jar"
        for name in ("kotlin-stdlib", "kotlinx-coroutines-core-jvm")
    ]


def r8(tool: str) -> list[str]:
    """Return the command of D8, which writes Android's code, or of R8, which shrinks it first."""
    return ["java", "-cp", str(R8_JAR), f"com.android.tools.r8.{tool}"]
