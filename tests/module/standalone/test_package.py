"""Packages of standalone libraries: their content, their users, and refusals."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZipFile

import pytest
from support.commands import output
from support.mock_library import BINDINGS, C_COMPILER, JAVA, ROOT
from support.small_plans import add_plan

from tvmflow._versions import __version__
from tvmflow.devices.host import Host
from tvmflow.errors import ArtifactError, TargetError
from tvmflow.module import link as host_link
from tvmflow.module.standalone.link import link_library
from tvmflow.module.standalone.package.aar import OPENCL_LIBRARIES, write_aar, write_runtime_aar
from tvmflow.module.standalone.package.libraries import licenses
from tvmflow.module.standalone.package.maven import RUNTIME, Coordinates
from tvmflow.module.standalone.package.tar import write_linux_tar

#: Hosts and the ABIs of their libraries; a library for 32-bit Arm takes seconds to link.
ABIS = {"android-arm64": "arm64-v8a", "android-x64": "x86_64"}
ARMV7 = {"android-armv7": "armeabi-v7a"}
ANDROID = "{http://schemas.android.com/apk/res/android}"
HEADERS = {"tvmflow.h", "tvmflow.hpp", "tvmflow_check.h", "tvmflow_library.h"}


def network(folder: Path, host: str, name: str = "libface.so", seed: int = 1, embed: bool = True):
    """Return a library of ``y = 2 * x + w`` in a folder of its host."""
    plan, _ = add_plan(seed=seed)
    path = folder / host / name
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = path.with_name("weights")
    weights.write_bytes(plan.weights())
    parsed = Host.parse(host)
    link_library(plan.encode(parsed), weights, parsed, path, embed=embed)
    weights.unlink()
    return path


@pytest.fixture(scope="module")
def android(tmp_path_factory):
    """Return a network for two ABIs."""
    folder = tmp_path_factory.mktemp("android")
    return [network(folder, host) for host in ABIS]


def unpacked(archive: Path, folder: Path) -> Path:
    """Return the files of an archive, after checking their checksums."""
    folder.mkdir()
    shutil.unpack_archive(archive, folder, "zip" if archive.suffix == ".aar" else "gztar")
    (sums,) = folder.rglob("SHA256SUMS")
    lines = [line.split("  ") for line in sums.read_text().splitlines()]
    for digest, name in lines:
        assert hashlib.sha256((sums.parent / name).read_bytes()).hexdigest() == digest
    files = {str(p.relative_to(sums.parent)) for p in sums.parent.rglob("*") if p.is_file()}
    assert files == {name for _, name in lines} | {sums.name}
    return sums.parent


@pytest.mark.cross
@pytest.mark.java
class TestAar:
    def test_it_holds_classes_libraries_and_what_android_is_asked_for(self, android, tmp_path):
        (armv7,) = [network(tmp_path, host) for host in ARMV7]
        found = write_aar([*android, armv7], tmp_path / "face.aar")
        assert [library.abi for library in found] == sorted([*ABIS.values(), *ARMV7.values()])
        folder = unpacked(tmp_path / "face.aar", tmp_path / "files")
        abis = [*ABIS.values(), *ARMV7.values()]
        for path, abi in zip([*android, armv7], abis, strict=True):
            assert (folder / "jni" / abi / "libface.so").read_bytes() == path.read_bytes()
        manifest = ElementTree.parse(folder / "AndroidManifest.xml").getroot()
        assert manifest.get("package") == "ai.tvmflow.face"
        assert manifest.find("uses-sdk").get(f"{ANDROID}minSdkVersion") == "24"
        asked = {
            element.get(f"{ANDROID}name"): element.get(f"{ANDROID}required")
            for element in manifest.findall("application/uses-native-library")
        }
        assert asked == dict.fromkeys(OPENCL_LIBRARIES, "false")
        metadata = folder / "META-INF/com/android/build/gradle/aar-metadata.properties"
        assert "minCompileSdk=31\n" in metadata.read_text()
        assert (folder / "R.txt").read_bytes() == b""
        for name in ("LICENSE", "NOTICE"):
            assert (folder / name).read_bytes() == (ROOT / name).read_bytes()
        assert not (folder / "prefab").exists()

    def test_its_classes_are_those_of_the_bindings_for_java_8(self, android, tmp_path):
        write_aar(android, tmp_path / "face.aar")
        with ZipFile(tmp_path / "face.aar") as aar, aar.open("classes.jar") as file:
            jar = ZipFile(file)
            assert jar.testzip() is None
            classes = {name: jar.read(name) for name in jar.namelist()}
        outer = {name for name in classes if "$" not in name}
        assert outer == {
            f"{p.relative_to(JAVA).with_suffix('')}.class" for p in JAVA.rglob("*.java")
        }
        for name, content in classes.items():
            assert content[:8] == b"\xca\xfe\xba\xbe\0\0\0\x34", name
        # The rules name the class that the library looks up by name.
        rules = ZipFile(tmp_path / "face.aar").read("proguard.txt").decode()
        (kept,) = re.findall(r"class ([\w.]+)", rules)
        assert f"{kept.replace('.', '/')}.class" in classes
        assert f"Java_{kept.replace('.', '_')}_##name" in (BINDINGS / "jni.c").read_text()

    def test_its_bytes_depend_on_the_libraries_alone(self, android, tmp_path):
        copies = tmp_path / "elsewhere"
        moved = [copies / path.parent.name / path.name for path in android]
        for path, copy in zip(android, moved, strict=True):
            copy.parent.mkdir(parents=True)
            shutil.copyfile(path, copy)
        write_aar(android, tmp_path / "face.aar", prefab=True)
        write_aar(moved[::-1], copies / "face.aar", prefab=True)
        assert (tmp_path / "face.aar").read_bytes() == (copies / "face.aar").read_bytes()

    def test_a_prefab_package_for_c_and_cpp(self, android, tmp_path):
        write_aar(android, tmp_path / "face.aar", prefab=True, version="2.1")
        prefab = unpacked(tmp_path / "face.aar", tmp_path / "files") / "prefab"
        about = {"schema_version": 2, "name": "face", "version": "2.1", "dependencies": []}
        assert json.loads((prefab / "prefab.json").read_text()) == about
        module = prefab / "modules" / "face"
        assert json.loads((module / "module.json").read_text()) == {"export_libraries": ["-ldl"]}
        assert {path.name for path in (module / "include").iterdir()} == HEADERS
        for abi in ABIS.values():
            folder = module / "libs" / f"android.{abi}"
            told = json.loads((folder / "abi.json").read_text())
            assert (told["abi"], told["api"], told["stl"]) == (abi, 24, "none")
            assert told["static"] is False
            assert isinstance(told["ndk"], int)
            assert (folder / "libface.so").is_file()

    def test_weights_beside_the_libraries_become_one_asset(self, tmp_path):
        hosts = ("android-arm64", "android-x64")
        paths = [network(tmp_path, host, embed=False) for host in hosts]
        write_aar(paths, tmp_path / "face.aar")
        folder = unpacked(tmp_path / "face.aar", tmp_path / "files")
        asset = folder / "assets" / "tvmflow" / "libface.so.weights"
        assert asset.read_bytes() == Path(f"{paths[0]}.weights").read_bytes()
        network(tmp_path, "android-x64", seed=2, embed=False)
        with pytest.raises(ArtifactError, match=r"those next to libface\.so differ") as caught:
            write_aar(paths, tmp_path / "face.aar")
        assert "`embed_limit_bytes=" in caught.value.remedy

    def test_several_networks_each_for_all_abis(self, android, tmp_path):
        other = network(tmp_path, "android-arm64", "libpose.so")
        paths = [*android, other]
        with pytest.raises(ArtifactError, match=r"there is no libpose\.so for x86_64"):
            write_aar(paths, tmp_path / "both.aar")
        paths.append(network(tmp_path, "android-x64", "libpose.so"))
        found = write_aar(paths, tmp_path / "2 both.aar")
        assert [(library.abi, library.name) for library in found] == [
            (abi, name) for abi in ("arm64-v8a", "x86_64") for name in ("face", "pose")
        ]
        manifest = ZipFile(tmp_path / "2 both.aar").read("AndroidManifest.xml").decode()
        assert 'package="ai.tvmflow.net2_both"' in manifest

    def test_packages_of_two_teams_share_the_classes_of_a_third(self, android, tmp_path):
        pose = [network(tmp_path, host, "libpose.so") for host in ABIS]
        names = [Coordinates("com.one", "face", "2.1"), Coordinates("org.two", "1net", "3")]
        archives = []
        for name, libraries in zip(names, (android, pose), strict=True):
            archives.append(name.path(tmp_path / "repo"))
            archives[-1].parent.mkdir(parents=True)
            write_aar(libraries, archives[-1], classes=False, coordinates=name, prefab=True)
        archives.append(RUNTIME.path(tmp_path / "repo"))
        archives[-1].parent.mkdir(parents=True)
        write_runtime_aar(archives[-1], coordinates=RUNTIME)
        assert archives[0] == tmp_path / "repo/com/one/face/2.1/face-2.1.aar"
        folders = [unpacked(path, tmp_path / path.stem) for path in archives]
        assert [(f / "classes.jar").exists() for f in folders] == [False, False, True]
        assert [(f / "proguard.txt").exists() for f in folders] == [False, False, True]
        assert [(f / "jni").exists() for f in folders] == [True, True, False]
        manifests = [ElementTree.parse(f / "AndroidManifest.xml").getroot() for f in folders]
        packages = [manifest.get("package") for manifest in manifests]
        assert packages == ["com.one.face", "org.two.net1net", "ai.tvmflow.tvmflow_runtime"]
        assert json.loads((folders[0] / "prefab/prefab.json").read_text())["name"] == "face"
        tag = "{http://maven.apache.org/POM/4.0.0}"
        for path, name in zip(archives, [*names, RUNTIME], strict=True):
            pom = ElementTree.parse(path.with_suffix(".pom")).getroot()
            found = [pom.findtext(f"{tag}{key}") for key in ("groupId", "artifactId", "version")]
            assert found == [name.group, name.artifact, name.version]
            assert pom.findtext(f"{tag}packaging") == "aar"
            needed = [
                (one.findtext(f"{tag}groupId"), one.findtext(f"{tag}artifactId"),
                 one.findtext(f"{tag}version"), one.findtext(f"{tag}type"))
                for one in pom.iter(f"{tag}dependency")
            ]  # fmt: skip
            runtime = ("ai.tvmflow", "tvmflow-runtime", __version__, "aar")
            assert needed == ([] if name is RUNTIME else [runtime])

    def test_without_a_jdk_it_says_what_to_install(self, android, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        with pytest.raises(TargetError, match="there is no javac on the path") as caught:
            write_aar(android, tmp_path / "face.aar")
        assert "default-jdk-headless" in caught.value.remedy
        assert not list(tmp_path.iterdir())


@pytest.mark.cross
class TestRefused:
    """Inputs that make no package; nothing is written."""

    def refused(self, paths, folder, *words, write=write_aar):
        with pytest.raises(ArtifactError) as caught:
            write(paths, folder / "out")
        text = str(caught.value)
        assert text.startswith("Packaging out failed: "), text
        for word in words:
            assert word in text
        assert not (folder / "out").exists()

    def test_two_libraries_for_one_abi(self, android, tmp_path):
        second = network(tmp_path, "android-arm64", seed=2)
        both = (str(android[0]), str(second), "both for arm64-v8a")
        self.refused([*android, second], tmp_path, *both)

    def test_a_library_of_the_other_system(self, android, mock, tmp_path):
        words = (str(mock), "for x86_64-linux-gnu", "`tar`")
        if Host.native().triple == "x86_64-linux-gnu":
            self.refused([*android, mock], tmp_path, *words)
        linux = network(tmp_path, "linux-arm64")
        self.refused([linux], tmp_path, f"{linux} is for aarch64-linux-gnu")
        words = ("for aarch64-linux-android24", '`host="linux-arm64"`', "`aar`")
        self.refused(android[:1], tmp_path, *words, write=write_linux_tar)

    def test_two_libraries_in_an_archive_for_linux(self, mock, mock_tenfold, tmp_path):
        words = ("one library was expected, but there are 2",)
        self.refused([mock, mock_tenfold], tmp_path, *words, write=write_linux_tar)

    @pytest.mark.parametrize("write", [write_aar, write_linux_tar])
    def test_what_is_no_standalone_library(self, android, tvm_module, write, tmp_path):
        text = tmp_path / "libtext.so"
        text.write_text("no library")
        for path in (text, tvm_module):
            words = (f"{path} is none that this tvmflow reads", "--standalone")
            self.refused([path], tmp_path, *words, write=write)
        cut = tmp_path / "libface.so"
        cut.write_bytes(android[0].read_bytes()[:-20000])
        with pytest.raises(ArtifactError):
            write([cut], tmp_path / "out")
        with pytest.raises(ArtifactError, match="No such file"):
            write([tmp_path / "libnone.so"], tmp_path / "out")

    def test_other_names_than_the_libraries_have(self, android, tmp_path):
        renamed, odd = tmp_path / "libnose.so", tmp_path / "face.so.1"
        for path in (renamed, odd):
            shutil.copyfile(android[0], path)
        self.refused([renamed], tmp_path, "written into it, libface.so", "Compile it to libnose.so")
        self.refused([odd], tmp_path, "a name such as libface.so was expected", "face.so.1")

    def test_what_newer_androids_do_not_load(self, tmp_path, monkeypatch):
        pages = [word.replace("16384", "4096") for word in host_link.LINK_OPTIONS]
        monkeypatch.setattr(host_link, "LINK_OPTIONS", tuple(pages))
        path = network(tmp_path, "android-arm64")
        self.refused([path], tmp_path, "Android would not load", "page alignment: 0x1000")

    def test_binaries_that_an_app_would_not_find(self, android, tmp_path):
        path = tmp_path / "libface.so"
        shutil.copyfile(android[0], path)
        Path(f"{path}.programs").touch()
        self.refused([path], tmp_path, "no folder in which libface.so.programs", "cache folder")


def test_an_installed_package_has_the_licenses_among_its_metadata(monkeypatch):
    tree = licenses()
    monkeypatch.setattr("tvmflow.module.standalone.package.libraries.native_folder",
                        lambda name: Path("/nowhere/native") / name)  # fmt: skip
    installed = licenses()
    assert {*installed} == {"LICENSE", "NOTICE"}
    for name, path in installed.items():
        assert path != tree[name]
        assert path.read_bytes() == tree[name].read_bytes()
    monkeypatch.setattr("importlib.metadata.files", lambda name: None)
    with pytest.raises(ArtifactError, match="tvmflow's LICENSE, which this installation lacks"):
        licenses()


def test_what_apps_get_says_its_license():
    sources = [*BINDINGS.rglob("*.h"), *BINDINGS.rglob("*.hpp"), *JAVA.rglob("*.java"),
               *(ROOT / "examples/android").rglob("ai/tvmflow/*.kt")]  # fmt: skip
    assert len(sources) > 15
    for source in sources:
        first, _, _ = source.read_text(encoding="utf-8").partition("\n")
        assert first == "// SPDX-License-Identifier: Apache-2.0", source


class TestTar:
    @pytest.fixture
    def folder(self, mock, tmp_path):
        """Return the folder that the archive unpacks to, in an arbitrary place."""
        (library,) = write_linux_tar([mock], tmp_path / "mock.tar.gz", version="1.2")
        assert library.abi == Host.native().triple
        return unpacked(tmp_path / "mock.tar.gz", tmp_path / "some where")

    def test_checksums_are_those_that_the_system_checks(self, folder):
        assert folder.name == "mock-1.2"
        for name in ("LICENSE", "NOTICE"):
            assert (folder / name).read_bytes() == (ROOT / name).read_bytes()
        assert "FAILED" not in output("sh", "-c", f"cd '{folder}' && sha256sum -c SHA256SUMS")

    def test_cmake_finds_it_and_the_program_runs(self, folder, tmp_path):
        if shutil.which("cmake") is None:
            pytest.skip("the command cmake is not installed")
        project = tmp_path / "project"
        project.mkdir()
        shutil.copyfile(ROOT / "examples" / "c" / "main.c", project / "main.c")
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.16)\n"
            "project(run C)\n"
            "find_package(mock 1.1 REQUIRED)\n"
            "add_executable(run main.c)\n"
            "target_link_libraries(run mock::mock)\n"
        )
        build = project / "build"
        output("cmake", "-S", project, "-B", build, f"-DCMAKE_PREFIX_PATH={folder}")
        output("cmake", "--build", build)
        assert "self-test passed: 6 elements" in output(build / "run", tmp_path)

    def test_pkg_config_finds_it_and_the_program_runs(self, folder, tmp_path):
        if shutil.which("pkg-config") is None:
            pytest.skip("the command pkg-config is not installed")
        # A folder whose name has a blank needs quotes of the shell.
        found = {"PKG_CONFIG_PATH": folder / "lib/pkgconfig"}
        flags = output("pkg-config", "--cflags", "--libs", "mock >= 1.2", **found)
        program, source = tmp_path / "run", ROOT / "examples" / "c" / "main.c"
        rpath = f"-Wl,-rpath,'{folder}/lib'"
        command = f"{' '.join(C_COMPILER)} '{source}' {flags.strip()} {rpath} -o '{program}'"
        output("sh", "-c", command)
        assert "self-test passed: 6 elements" in output(program, tmp_path)

    def test_its_bytes_depend_on_the_library_alone(self, mock, tmp_path):
        copy = tmp_path / "copy" / mock.name
        copy.parent.mkdir()
        shutil.copyfile(mock, copy)
        first, second = tmp_path / "a.tar.gz", tmp_path / "b.tar.gz"
        write_linux_tar([mock], first)
        write_linux_tar([copy], second)
        assert first.read_bytes() == second.read_bytes()
        with tarfile.open(first) as archive:
            assert {member.name.partition("/")[0] for member in archive} == {"mock-1.0.0"}

    @pytest.mark.cross
    def test_what_lies_beside_the_library_comes_along(self, tmp_path):
        path = network(tmp_path, "linux-x64", embed=False)
        Path(f"{path}.programs").write_bytes(b"binaries")
        write_linux_tar([path], tmp_path / "face.tar.gz")
        lib = unpacked(tmp_path / "face.tar.gz", tmp_path / "files") / "lib"
        for end in (".weights", ".programs"):
            assert (lib / f"libface.so{end}").read_bytes() == Path(f"{path}{end}").read_bytes()
