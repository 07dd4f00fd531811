"""The Android project: its files agree, and an app is built without an SDK."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZIP_STORED, ZipFile

import pytest
from support.android_tools import FRAMEWORK, kotlin_jars, kotlinc, r8
from support.commands import output, run
from support.mock_library import JAVA, ROOT
from support.small_plans import add_plan

from tvmflow.devices.host import Host
from tvmflow.module.standalone.link import link_library
from tvmflow.module.standalone.package.aar import OPENCL_LIBRARIES, write_aar

PROJECT = ROOT / "examples" / "android"
MAIN = PROJECT / "app" / "src" / "main"
ANDROID = "{http://schemas.android.com/apk/res/android}"


def text(path):
    return path.read_text(encoding="utf-8")


def one(pattern, path):
    """Return the only match of a pattern in a file."""
    (found,) = re.findall(pattern, text(path), re.MULTILINE)
    return found


@pytest.fixture(scope="module")
def manifest():
    return ElementTree.parse(MAIN / "AndroidManifest.xml").getroot()


def test_packages_ask_for_the_opencl_that_the_runtime_opens():
    # These are all names that it tries without a path: Android offers an application no others.
    runtime = text(ROOT / "native/core/library_names.c")
    assert re.findall(r'^    "(libOpenCL\S*\.so)"', runtime, re.MULTILINE) == list(OPENCL_LIBRARIES)
    guide = text(ROOT / "docs" / "deploying.md")
    assert re.findall(r'<uses-native-library android:name="(\S+)"', guide) == list(OPENCL_LIBRARIES)


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
    readme = text(PROJECT / "README.md")
    libraries = re.findall(r"--standalone -o (\S+)", readme)
    assert {path.rpartition("/")[2] for path in libraries} == {f"lib{name}.so"}
    command = re.search(r"tvmflow package ((?:\S+\.so )+).*--aar (\S+)", readme, re.DOTALL)
    assert command[1].split() == libraries
    used = one(r'files\("(.*?)"\)', PROJECT / "app" / "build.gradle.kts")
    assert command[2] == f"examples/android/app/{used}"


def test_the_wrapper_s_gradle_is_the_one_that_the_readme_names():
    properties = text(PROJECT / "gradle" / "wrapper" / "gradle-wrapper.properties")
    (version,) = re.findall(r"gradle-([\d.]+)-bin\.zip", properties)
    assert f"Gradle {version}" in text(PROJECT / "README.md")
    assert f"Gradle {version}" in text(PROJECT / "build.gradle.kts")


def test_gradle_has_the_plugins_that_the_application_applies():
    plugin = r'^    id\("([\w.]+)"\)'
    declared = re.findall(plugin + " version", text(PROJECT / "build.gradle.kts"), re.MULTILINE)
    applied = re.findall(plugin, text(PROJECT / "app" / "build.gradle.kts"), re.MULTILINE)
    assert len(applied) == 2
    assert sorted(declared) == sorted(applied)
    assert '":app"' in text(PROJECT / "settings.gradle.kts")


def test_models_are_not_kept_in_the_repository():
    libraries = "examples/android/app/libs/mobilenet.aar"
    process = run("git", "-C", ROOT, "check-ignore", "-q", libraries, status=None)
    assert process.returncode in (0, 128)  # 128: not in a git working tree


#: The few Android classes that the example uses, as Java.
ANDROID_CLASSES = {
    "android/os/Bundle": "public final class Bundle {}",
    "android/content/res/AssetManager": "public final class AssetManager { "
    "public java.io.InputStream open(String n) throws java.io.IOException { return null; } }",
    "android/content/Context": "public class Context { public java.io.File getCodeCacheDir() "
    "{ return null; } public android.content.res.AssetManager getAssets() { return null; } }",
    "android/view/View": "public class View { public View(android.content.Context c) {} "
    "public void setPadding(int a, int b, int c, int d) {} public void addView(View v) {} }",
    "android/widget/ScrollView": "public class ScrollView extends android.view.View { "
    "public ScrollView(android.content.Context c) { super(c); } }",
    "android/widget/TextView": "public class TextView extends android.view.View { "
    "public TextView(android.content.Context c) { super(c); } public void setTextSize(float f) {} "
    "public float getTextSize() { return 0; } public void setTextIsSelectable(boolean b) {} "
    "public final void append(CharSequence s) {} public final void setText(CharSequence s) {} "
    "public CharSequence getText() { return null; } }",
    "android/app/Activity": "public class Activity extends android.content.Context { "
    "protected void onCreate(android.os.Bundle b) {} protected void onDestroy() {} "
    "public int checkSelfPermission(String n) { return 0; } "
    "public void setContentView(android.view.View v) {} "
    "public final void runOnUiThread(Runnable r) {} }",
    "android/Manifest": "public final class Manifest { public static final class permission { "
    'public static final String CAMERA = "android.permission.CAMERA"; } }',
    "android/content/pm/PackageManager": "public abstract class PackageManager { "
    "public static final int PERMISSION_GRANTED = 0; }",
    "android/widget/LinearLayout": "public class LinearLayout extends android.view.View { "
    "public static final int VERTICAL = 1; public LinearLayout(android.content.Context c) "
    "{ super(c); } public void setOrientation(int o) {} "
    "public int getOrientation() { return 0; } }",
    "org/json/JSONObject": "public class JSONObject { public JSONObject(String s) {} "
    'public String toString(int n) { return ""; } }',
}
#: Those of AndroidX and CameraX; an analysis passes a test's frames to the analyzer.
ANDROIDX_CLASSES = {
    "com/google/common/util/concurrent/ListenableFuture": "public interface ListenableFuture<V> "
    "extends java.util.concurrent.Future<V> { "
    "void addListener(Runnable r, java.util.concurrent.Executor e); }",
    "androidx/lifecycle/LifecycleOwner": "public interface LifecycleOwner {}",
    "androidx/activity/result/ActivityResultCallback": "public interface ActivityResultCallback<O> "
    "{ void onActivityResult(O result); }",
    "androidx/activity/result/ActivityResultLauncher": "public abstract class "
    "ActivityResultLauncher<I> { public void launch(I input) {} }",
    "androidx/activity/result/contract/ActivityResultContract": "public abstract class "
    "ActivityResultContract<I, O> {}",
    "androidx/activity/result/contract/ActivityResultContracts": "public final class "
    "ActivityResultContracts { public static final class RequestPermission "
    "extends ActivityResultContract<String, Boolean> {} }",
    "androidx/activity/ComponentActivity": "public class ComponentActivity "
    "extends android.app.Activity implements androidx.lifecycle.LifecycleOwner { "
    "public final <I, O> androidx.activity.result.ActivityResultLauncher<I> "
    "registerForActivityResult(androidx.activity.result.contract.ActivityResultContract<I, O> c, "
    "androidx.activity.result.ActivityResultCallback<O> b) { return null; } }",
    "androidx/core/content/ContextCompat": "public class ContextCompat { public static "
    "java.util.concurrent.Executor getMainExecutor(android.content.Context c) { return null; } }",
    "androidx/camera/core/UseCase": "public abstract class UseCase {}",
    "androidx/camera/core/Camera": "public interface Camera {}",
    "androidx/camera/core/CameraSelector": "public final class CameraSelector { "
    "public static final CameraSelector DEFAULT_BACK_CAMERA = new CameraSelector(); }",
    "androidx/camera/core/ImageInfo": "public interface ImageInfo { int getRotationDegrees(); }",
    "androidx/camera/core/ImageProxy": "public interface ImageProxy extends AutoCloseable { "
    "void close(); int getWidth(); int getHeight(); ImageInfo getImageInfo(); "
    "PlaneProxy[] getPlanes(); interface PlaneProxy { int getRowStride(); int getPixelStride(); "
    "java.nio.ByteBuffer getBuffer(); } }",
    "androidx/camera/core/ImageAnalysis": "public final class ImageAnalysis extends UseCase { "
    "public static final int STRATEGY_KEEP_ONLY_LATEST = 0; "
    "public interface Analyzer { void analyze(ImageProxy image); } "
    "private java.util.concurrent.Executor executor; private Analyzer analyzer; "
    "public synchronized void setAnalyzer(java.util.concurrent.Executor e, Analyzer a) "
    "{ executor = e; analyzer = a; } "
    "public synchronized void clearAnalyzer() { analyzer = null; } "
    "public synchronized boolean give(ImageProxy i) { Analyzer a = analyzer; "
    "if (a != null) executor.execute(() -> a.analyze(i)); return a != null; } "
    "public static final class Builder { public Builder setBackpressureStrategy(int s) "
    "{ return this; } public ImageAnalysis build() { return new ImageAnalysis(); } } }",
    "androidx/camera/lifecycle/ProcessCameraProvider": "public final class ProcessCameraProvider { "
    "public static com.google.common.util.concurrent.ListenableFuture<ProcessCameraProvider> "
    "getInstance(android.content.Context c) { return null; } public androidx.camera.core.Camera "
    "bindToLifecycle(androidx.lifecycle.LifecycleOwner o, androidx.camera.core.CameraSelector s, "
    "androidx.camera.core.UseCase... u) { return null; } }",
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    """Return an ``android.jar`` of these classes."""
    folder = tmp_path_factory.mktemp("platform")
    sources = []
    for name, body in (ANDROID_CLASSES | ANDROIDX_CLASSES).items():
        sources.append(folder / f"{name}.java")
        sources[-1].parent.mkdir(parents=True, exist_ok=True)
        package = name.rpartition("/")[0].replace("/", ".")
        sources[-1].write_text(f"package {package};\n{body}\n")
    options = ("--release", "8", "-Xlint:-options", "-d", folder / "classes")
    output("javac", *options, *sources)
    output("jar", "cf", folder / "android.jar", "-C", folder / "classes", ".")
    return folder / "android.jar"


@pytest.fixture(scope="module")
def aar(tmp_path_factory):
    """Return a package of a small network for all ABIs."""
    folder = tmp_path_factory.mktemp("aar")
    write_aar(libraries("mobilenet", folder), folder / "mobilenet.aar")
    return folder / "mobilenet.aar"


def libraries(name, folder, hosts=("android-arm64", "android-armv7", "android-x64")):
    """Return libraries of a small network for these hosts."""
    plan, _ = add_plan()
    (folder / "weights").write_bytes(plan.weights())
    paths = [folder / host / f"lib{name}.so" for host in hosts]
    for path in paths:
        host = Host.parse(path.parent.name)
        path.parent.mkdir(exist_ok=True)
        link_library(plan.encode(host), folder / "weights", host, path, embed=True)
    return paths


@pytest.mark.slow
@pytest.mark.cross
@pytest.mark.java
@pytest.mark.kotlin
@pytest.mark.android
def test_the_app_is_built_and_android_s_tools_read_it_back(aar, platform, tmp_path):
    project = shutil.copytree(PROJECT, tmp_path / "android", ignore=shutil.ignore_patterns("libs"))
    (project / "app" / "libs").mkdir()
    shutil.copyfile(aar, project / "app" / "libs" / aar.name)
    # A package of another team has the same classes.
    second = project / "app" / "libs" / "pose.aar"
    write_aar(libraries("pose", tmp_path, ["android-arm64"]), second, classes=False)
    apk = tmp_path / "app.apk"
    tools = ("--kotlinc", shlex.join(kotlinc()), "--d8", shlex.join(r8("D8")))
    jars = [word for jar in kotlin_jars() for word in ("--jar", jar)]
    framework = ("--android-jar", platform, "--framework", FRAMEWORK)
    output(sys.executable, project / "build_apk.py", *framework, *jars, *tools, "-o", apk)

    badging = output("aapt", "dump", "badging", apk)
    assert "package: name='ai.tvmflow.example' versionCode='1' versionName='1.0'" in badging
    assert "launchable-activity: name='ai.tvmflow.example.MainActivity'" in badging
    assert "sdkVersion:'24'\ntargetSdkVersion:'36'\n" in badging
    assert "native-code: 'arm64-v8a' 'armeabi-v7a' 'x86_64'" in badging
    tree = output("aapt", "dump", "xmltree", apk, "AndroidManifest.xml")
    assert re.findall(r'E: uses-native-library.*\n.*name\S*="(\S+?)"', tree) == list(
        OPENCL_LIBRARIES
    )
    assert re.search(r"extractNativeLibs\S+\(type 0x12\)0x0", tree)

    report = output("apksigner", "verify", "--verbose", "--min-sdk-version", "24", apk)
    assert "Verified using v2 scheme (APK Signature Scheme v2): true" in report
    with ZipFile(apk) as archive, ZipFile(aar) as package:
        assert archive.testzip() is None
        found = [info for info in archive.infolist() if info.filename.endswith("mobilenet.so")]
        assert len(found) == 3
        assert "lib/arm64-v8a/libpose.so" in archive.namelist()
        for info in found:
            own = package.read(info.filename.replace("lib/", "jni/", 1))
            assert archive.read(info) == own
            # A device with pages of 16 KiB maps it from there.
            assert info.compress_type == ZIP_STORED
            assert apk.read_bytes().index(own) % 16384 == 0
    classes = set(re.findall(r"Class descriptor\s+: '(\S+)'", output("dexdump", apk)))
    names = ("Model", "Native", "CameraKt", "FlowsKt", "ModelsKt", "example/MainActivity")
    assert {f"Lai/tvmflow/{name};" for name in names} <= classes
    assert "Lkotlinx/coroutines/flow/FlowKt;" in classes


def classes_of_java_8(jar):
    """Write a JDK's classes of Java 8; this R8 cannot read newer ones."""
    home = Path(shutil.which("javac")).resolve().parents[1]
    with ZipFile(home / "lib" / "ct.sym") as known, ZipFile(jar, "w") as target:
        for name in known.namelist():
            versions, _, path = name.partition("/")
            if "8" in versions and path.endswith(".sig"):
                module, _, rest = path.partition("/")
                path = rest if "." in module else path
                target.writestr(path.removesuffix(".sig") + ".class", known.read(name))
    return jar


@pytest.mark.slow
@pytest.mark.cross
@pytest.mark.java
@pytest.mark.android
def test_the_rules_keep_what_the_library_calls_and_no_more(aar, platform, tmp_path):
    with ZipFile(aar) as package:
        for name in ("classes.jar", "proguard.txt"):
            package.extract(name, tmp_path)
    classes = tmp_path / "classes.jar"
    program = Path(__file__).with_name("RunModel.java")
    options = ("--release", "8", "-Xlint:-options", "-cp", classes, "-d", tmp_path / "program")
    output("javac", *options, program)
    (tmp_path / "app.txt").write_text("-keep class RunModel { void main(java.lang.String[]); }\n")
    java_8 = classes_of_java_8(tmp_path / "java8.jar")
    own = sorted((tmp_path / "program").glob("*.class"))

    def shrunk(*rules):
        """Return the native methods by class in R8's output."""
        options = [word for file in ("app.txt", *rules) for word in ("--pg-conf", tmp_path / file)]
        options += ["--lib", platform, "--lib", java_8, "--min-api", "24", "--release"]
        output(*r8("R8"), *options, "--output", tmp_path / "app.zip", classes, *own)
        _, *parts = output("dexdump", tmp_path / "app.zip").split("Class descriptor  : '")
        method = r"name +: '(\w+)'\n.*\n +access +: \w+ \(STATIC NATIVE\)"
        return {part.partition("'")[0]: re.findall(method, part) for part in parts}

    found = shrunk("proguard.txt")
    declared = re.findall(r"native [\w\[\]]+ (\w+)\(", text(JAVA / "ai/tvmflow/Native.java"))
    assert {"open", "run", "close"} <= set(found["Lai/tvmflow/Native;"]) < set(declared)
    # Other classes lose their names, and this one would, too.
    assert "Lai/tvmflow/ModelOptions;" not in found
    assert "Lai/tvmflow/Native;" not in shrunk()


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.kotlin
def test_coroutines_on_a_model(mock, platform, tmp_path):
    classes, jars = tmp_path / "classes", ":".join(map(str, [*kotlin_jars(), platform]))
    output("javac", "-encoding", "UTF-8", "-d", classes, *JAVA.rglob("*.java"))
    own = [MAIN / "java/ai/tvmflow" / f"{name}.kt" for name in ("Camera", "Flows")]
    sources = (*own, Path(__file__).with_name("FlowsTest.kt"))
    classpath = f"{classes}:{jars}"
    output(*kotlinc(), "-no-stdlib", "-no-reflect", "-cp", classpath, "-d", classes, *sources)
    assert output("java", "-cp", classpath, "FlowsTestKt", mock) == "passed\n"
