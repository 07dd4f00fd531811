"""The Android project: what can be checked of it without an SDK."""

from __future__ import annotations

import re
import subprocess
from xml.etree import ElementTree

import pytest
from mock_library import JAVA, ROOT

PROJECT = ROOT / "examples" / "android"
MAIN = PROJECT / "app" / "src" / "main"
ANDROID = "{http://schemas.android.com/apk/res/android}"


def text(path):
    return path.read_text(encoding="utf-8")


def one(pattern, path):
    """The only match of a pattern in a file."""
    (found,) = re.findall(pattern, text(path), re.MULTILINE)
    return found


@pytest.fixture(scope="module")
def manifest():
    return ElementTree.parse(MAIN / "AndroidManifest.xml").getroot()


def test_the_manifest_asks_for_opencl_and_can_do_without(manifest):
    libraries = {
        e.get(f"{ANDROID}name"): e.get(f"{ANDROID}required")
        for e in manifest.findall("application/uses-native-library")
    }
    # All names that the runtime tries without a path: Android gives an application no others.
    names = re.findall(
        r'^    "(libOpenCL\S*\.so)"', text(ROOT / "native/standalone/opencl.c"), re.MULTILINE
    )
    assert len(names) == 3
    assert libraries == dict.fromkeys(names, "false")
    guide = text(ROOT / "docs" / "deploying.md")
    assert re.findall(r'<uses-native-library android:name="(\S+)"', guide) == names


def test_activity_packages_and_folders_agree(manifest):
    namespace = one(r'namespace = "(.*)"', PROJECT / "app" / "build.gradle.kts")
    assert namespace == one(r'applicationId = "(.*)"', PROJECT / "app" / "build.gradle.kts")
    (activity,) = manifest.findall("application/activity")
    name = namespace + activity.get(f"{ANDROID}name")
    source = MAIN / "java" / f"{name.replace('.', '/')}.kt"
    assert one(r"^package (\S+)", source) == namespace
    assert one(r"^class (\w+)", source) == name.rpartition(".")[2]
    assert f"adb shell am start -n {namespace}/{activity.get(f'{ANDROID}name')}" in text(
        PROJECT / "README.md"
    )


def test_every_source_lies_in_the_folder_of_its_package():
    sources = [*JAVA.rglob("*.java"), *(MAIN / "java").rglob("*.kt")]
    assert len(sources) >= 8
    for source in sources:
        package = one(r"^package ([\w.]+);?$", source)
        folder = source.parent.relative_to(JAVA if JAVA in source.parents else MAIN / "java")
        assert package == ".".join(folder.parts), source


def test_strings_of_the_manifest_exist(manifest):
    label = manifest.find("application").get(f"{ANDROID}label")
    strings = ElementTree.parse(MAIN / "res" / "values" / "strings.xml").getroot()
    assert label.removeprefix("@string/") in {e.get("name") for e in strings}


def test_the_library_that_the_readme_makes_is_the_one_that_the_activity_opens():
    name = one(r'const val MODEL = "(.*)"', MAIN / "java/ai/tvmflow/example/MainActivity.kt")
    output = one(r"--standalone -o (\S+)", PROJECT / "README.md")
    abi = one(r'abiFilters \+= "(.*)"', PROJECT / "app" / "build.gradle.kts")
    assert output == f"examples/android/app/src/main/jniLibs/{abi}/lib{name}.so"
    assert f"--host-abi {output}" in text(PROJECT / "README.md")


def test_kotlin_uses_what_the_java_classes_have():
    java = "".join(text(path) for path in JAVA.rglob("*.java"))
    methods = set(re.findall(r"public (?:static )?(?:synchronized )?[\w.<>\[\]]+ (\w+)\(", java))
    activity = text(MAIN / "java/ai/tvmflow/example/MainActivity.kt")
    called = set(re.findall(r"\b(?:model|error)\.(\w+)\(", activity))
    assert called == {"describe", "inputs", "run", "selfTest", "setInput", "status"}
    assert called <= methods
    extension = text(MAIN / "java" / "ai" / "tvmflow" / "Models.kt")
    assert "Model.open(library, ModelOptions().cacheFolder(codeCacheDir)" in extension
    assert {"open", "cacheFolder"} <= methods
    fields = set(re.findall(r"public final \w+ (\w+);", java))
    assert set(re.findall(r"\b(?:tensor|test)\.(\w+)", activity)) <= fields


def test_gradle_has_the_plugins_that_the_application_applies():
    plugin = r'^    id\("([\w.]+)"\)'
    declared = re.findall(plugin + " version", text(PROJECT / "build.gradle.kts"), re.MULTILINE)
    applied = re.findall(plugin, text(PROJECT / "app" / "build.gradle.kts"), re.MULTILINE)
    assert len(applied) == 2
    assert sorted(declared) == sorted(applied)
    assert '":app"' in text(PROJECT / "settings.gradle.kts")


def test_models_are_not_kept_in_the_repository():
    libraries = "examples/android/app/src/main/jniLibs/arm64-v8a/libmobilenet.so"
    process = subprocess.run(["git", "check-ignore", "-q", libraries], cwd=ROOT, check=False)
    assert process.returncode in (0, 128)  # 128: not a working tree of git


#: The few classes of Android that the example uses, as Java.
ANDROID_CLASSES = {
    "android/os/Bundle": "public final class Bundle {}",
    "android/content/Context": "public class Context { public java.io.File getCodeCacheDir() "
    "{ return null; } }",
    "android/view/View": "public class View { public View(android.content.Context c) {} "
    "public void setPadding(int a, int b, int c, int d) {} public void addView(View v) {} }",
    "android/widget/ScrollView": "public class ScrollView extends android.view.View { "
    "public ScrollView(android.content.Context c) { super(c); } }",
    "android/widget/TextView": "public class TextView extends android.view.View { "
    "public TextView(android.content.Context c) { super(c); } public void setTextSize(float f) {} "
    "public float getTextSize() { return 0; } public void setTextIsSelectable(boolean b) {} "
    "public final void append(CharSequence s) {} }",
    "android/app/Activity": "public class Activity extends android.content.Context { "
    "protected void onCreate(android.os.Bundle b) {} "
    "public void setContentView(android.view.View v) {} "
    "public final void runOnUiThread(Runnable r) {} }",
    "org/json/JSONObject": "public class JSONObject { public JSONObject(String s) {} "
    'public String toString(int n) { return ""; } }',
}


@pytest.mark.java
@pytest.mark.kotlin
def test_kotlin_compiles_with_the_few_classes_of_android_that_it_uses(tmp_path):
    sources = []
    for name, body in ANDROID_CLASSES.items():
        sources.append(tmp_path / f"{name}.java")
        sources[-1].parent.mkdir(parents=True, exist_ok=True)
        package = name.rpartition("/")[0].replace("/", ".")
        sources[-1].write_text(f"package {package};\n{body}\n")
    sources += JAVA.rglob("*.java")
    classes = tmp_path / "classes"
    subprocess.run(["javac", "-encoding", "UTF-8", "-d", classes, *sources], check=True)
    command = ["kotlinc", "-jvm-target", "1.8", "-cp", classes, MAIN / "java", JAVA, "-d", classes]
    subprocess.run(command, check=True)
    assert (classes / "ai" / "tvmflow" / "example" / "MainActivity.class").is_file()
