"""Build the app without Gradle: what its Gradle files say, with the Android tools that Debian has.

    apt install aapt zipalign apksigner android-framework-res default-jdk-headless
    python build_apk.py --android-jar ANDROID.jar --jar STDLIB.jar --jar COROUTINES.jar -o app.apk

``kotlinc`` and ``d8`` come from their own downloads; the jars are Kotlin's standard library and
coroutines. It signs with a key that it makes, so that the file can be installed, not published.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

APP = Path(__file__).resolve().parent / "app"
ANDROID = "http://schemas.android.com/apk/res/android"
#: Devices with pages of this size map libraries from where they lie in the APK.
PAGE_BYTES = 16384


def run(*command: str | Path) -> None:
    """Run a command, which prints what is wrong."""
    subprocess.run([str(word) for word in command], check=True)


def setting(name: str) -> str:
    """Return what the app's Gradle file sets."""
    text = (APP / "build.gradle.kts").read_text(encoding="utf-8")
    found = re.search(rf'^ *{name} = "?([\w.]+)"?$', text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"build.gradle.kts sets no {name}.")
    return found[1]


def merged_manifest(aars: Sequence[ZipFile]) -> bytes:
    """Return the app's manifest, with what Gradle would add of its own file and the AARs'."""
    ElementTree.register_namespace("android", ANDROID)
    root = ElementTree.parse(APP / "src" / "main" / "AndroidManifest.xml").getroot()
    root.set("package", setting("namespace"))
    application = root.find("application")
    assert application is not None
    # Libraries are loaded from the APK, where they lie uncompressed.
    application.set(f"{{{ANDROID}}}extractNativeLibs", "false")
    names = {element.get(f"{{{ANDROID}}}name") for element in application}
    for aar in aars:
        for element in ElementTree.fromstring(aar.read("AndroidManifest.xml")).iter():
            name = element.get(f"{{{ANDROID}}}name")
            if element.tag == "uses-native-library" and name not in names:
                application.append(element)
                names.add(name)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def package_resources(arguments: argparse.Namespace, aars: Sequence[ZipFile], work: Path) -> Path:
    """Write an APK of manifest, resources and assets."""
    manifest, assets, apk = work / "AndroidManifest.xml", work / "assets", work / "resources.apk"
    manifest.write_bytes(merged_manifest(aars))
    assets.mkdir()
    for aar in aars:
        for name in aar.namelist():
            if name.startswith("assets/"):
                aar.extract(name, work)
    levels = ("--min-sdk-version", setting("minSdk"), "--target-sdk-version", setting("targetSdk"))
    version = ("--version-code", setting("versionCode"), "--version-name", setting("versionName"))
    run(
        *("aapt", "package", "-f", *levels, *version, "-M", manifest, "-A", assets),
        *("-S", APP / "src" / "main" / "res", "-I", arguments.framework, "-F", apk),
    )
    return apk


def compile_classes(arguments: argparse.Namespace, aars: Sequence[ZipFile], work: Path) -> Path:
    """Compile the app's Kotlin, and all classes to what Android runs."""
    jars = [Path(jar) for jar in arguments.jar]
    for index, aar in enumerate(aars):
        if "classes.jar" not in aar.namelist():
            continue
        jars.append(work / f"classes{index}.jar")
        jars[-1].write_bytes(aar.read("classes.jar"))
    own, dex = work / "app.jar", work / "dex.zip"
    classpath = ":".join(map(str, [arguments.android_jar, *jars]))
    run(
        *(*shlex.split(arguments.kotlinc), "-jvm-target", "1.8", "-no-stdlib", "-no-reflect"),
        *("-cp", classpath, "-d", own, APP / "src" / "main" / "java"),
    )
    levels = ("--min-api", setting("minSdk"), "--lib", arguments.android_jar)
    run(*shlex.split(arguments.d8), *levels, "--release", "--output", dex, own, *jars)
    return dex


def build(arguments: argparse.Namespace, work: Path) -> None:
    """Write the APK."""
    aars = [ZipFile(path) for path in sorted((APP / "libs").glob("*.aar"))]
    if not aars:
        raise SystemExit(f"There is no AAR in {APP / 'libs'}: see README.md.")
    apk = package_resources(arguments, aars, work)
    with ZipFile(apk, "a") as target, ZipFile(compile_classes(arguments, aars, work)) as dex:
        for name in dex.namelist():
            target.writestr(name, dex.read(name), ZIP_DEFLATED)
        for aar in aars:
            for name in aar.namelist():
                if name.startswith("jni/"):
                    target.writestr(name.replace("jni/", "lib/", 1), aar.read(name), ZIP_STORED)
    aligned, key = work / "aligned.apk", work / "debug.keystore"
    run("zipalign", "-f", str(PAGE_BYTES), apk, aligned)
    password = ("-storepass", "android", "-keypass", "android")
    run(
        *("keytool", "-genkeypair", "-keystore", key, "-alias", "debug", *password),
        *("-keyalg", "RSA", "-keysize", "2048", "-validity", "10000", "-dname", "CN=Android Debug"),
    )
    signing = ("--ks", key, "--ks-pass", "pass:android", "--v1-signing-enabled", "false")
    run("apksigner", "sign", *signing, "--out", arguments.output, aligned)


def main() -> None:
    """Build the app as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--android-jar", type=Path, required=True, help="the platform's classes")
    parser.add_argument(
        "--framework",
        type=Path,
        default="/usr/share/android-framework-res/framework-res.apk",
        help="the platform's resources; android.jar has them, too",
    )
    parser.add_argument("--jar", action="append", default=[], help="goes into the app; repeatable")
    parser.add_argument("--kotlinc", default="kotlinc", help="the command")
    parser.add_argument("--d8", default="d8", help="the command")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the APK to write")
    with TemporaryDirectory() as folder:
        build(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    main()
