"""Runtime, plan and weights in one library: its content, its layout, and its host."""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvmflow.devices.host import HOSTS, Host
from tvmflow.errors import TargetError
from tvmflow.module import link as host_link
from tvmflow.module.link import Tool
from tvmflow.module.standalone import link
from tvmflow.module.standalone.host_abi import check_host_abi

NATIVE = Path(__file__).parents[3] / "native"
#: Replacement of the runtime that returns the bytes between the linker's symbols.
SOURCE = """
#include <stddef.h>
#define HIDDEN extern __attribute__((visibility("hidden"))) const unsigned char
HIDDEN tvmflow_plan_begin[], tvmflow_plan_end[], tvmflow_weights_begin[], tvmflow_weights_end[];
__attribute__((visibility("default"))) const void* tvmflow_data(int weights, size_t* bytes) {
  *bytes = weights ? tvmflow_weights_end - tvmflow_weights_begin
                   : tvmflow_plan_end - tvmflow_plan_begin;
  return weights ? tvmflow_weights_begin : tvmflow_plan_begin;
}
"""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a small runtime, which is compiled instead of the real one."""
    folder = tmp_path / "native" / "standalone"
    folder.mkdir(parents=True)
    (folder / "data.c").write_text(SOURCE)
    (folder / "drivers.json").write_text("[]")
    monkeypatch.setattr(link, "native_folder", folder.with_name)
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def weights(tmp_path: Path, rng: np.random.Generator) -> Path:
    path = tmp_path / "net.bin"
    path.write_bytes(b"TVMFWGTS" + rng.bytes(100_001))
    return path


def content(library: Path, of_weights: bool) -> tuple[bytes, int]:
    """Return bytes as the runtime sees them, and their address."""
    size = ctypes.c_size_t()
    function = ctypes.CDLL(str(library)).tvmflow_data
    function.restype = ctypes.c_void_p
    address = function(int(of_weights), ctypes.byref(size))
    return ctypes.string_at(address, size.value), address


@pytest.mark.cross
def test_the_library_holds_plan_and_weights(runtime: Path, weights: Path, tmp_path: Path):
    plan, output = b"a plan" * 99, tmp_path / "libnet.so"
    link.link_library(plan, weights, Host.native(), output, embed=True)
    found, address = content(output, of_weights=False)
    assert found == plan
    assert address % 64 == 0
    found, address = content(output, of_weights=True)
    assert found == weights.read_bytes()
    assert address % 128 == 0
    assert not output.with_name("libnet.so.weights").exists()


@pytest.mark.cross
@pytest.mark.parametrize("host", HOSTS)
def test_the_same_input_gives_the_same_bytes(
    host: str, runtime: Path, weights: Path, tmp_path: Path
):
    written = []
    for folder in ("one", "two"):
        output = tmp_path / folder / "libnet.so"
        output.parent.mkdir()
        link.link_library(b"plan", weights, Host.parse(host), output, embed=True)
        written.append(output.read_bytes())
    assert written[0] == written[1]
    # A truncated file lacks weights, not code.
    assert written[0].index(weights.read_bytes()) + weights.stat().st_size > len(written[0]) - 4096


@pytest.mark.cross
def test_large_weights_lie_beside_the_library(runtime: Path, weights: Path, tmp_path: Path):
    output, beside = tmp_path / "libnet.so", tmp_path / "libnet.so.weights"
    link.link_library(b"plan", weights, Host.native(), output, embed=False)
    assert content(output, of_weights=True)[0] == b""
    assert beside.read_bytes() == weights.read_bytes()
    # The weights of an older library of that name would belong to nothing.
    link.link_library(b"plan", weights, Host.native(), output, embed=True)
    assert not beside.exists()
    beside.write_text("somebody else's")
    link.link_library(b"plan", None, Host.native(), output, embed=True)
    assert beside.read_text() == "somebody else's"
    assert {path.name for path in tmp_path.iterdir()} == {
        *("libnet.so", "libnet.so.weights", "net.bin", "native", "cache")
    }


@pytest.mark.cross
def test_folders_with_unusual_names(
    runtime: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / """a "b" 'c' \\d, $e é"""
    folder.mkdir()
    monkeypatch.chdir(folder)
    link.link_library(b"plan", weights, Host.native(), Path("lib a,b.so"), embed=True)
    assert content(folder / "lib a,b.so", of_weights=True)[0] == weights.read_bytes()
    assert check_host_abi(folder / "lib a,b.so").facts.soname == "lib a,b.so"


def test_with_the_system_s_compiler(
    runtime: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(host_link, "find_spec", lambda name: None)
    for data in (weights, None):
        output = tmp_path / f"lib{bool(data)}.so"
        link.link_library(b"plan", data, Host.native(), output, embed=True)
        assert content(output, of_weights=False)[0] == b"plan"
        assert content(output, of_weights=True)[0] == (data.read_bytes() if data else b"")
        broken = {one.rule for one in check_host_abi(output).verdicts if not one.kept}
        assert broken <= {"symbol versions"}


def test_too_much_for_a_library(tmp_path: Path):
    weights = tmp_path / "weights"
    with open(weights, "wb") as file:
        file.truncate(1 << 31)
    output = tmp_path / "libnet.so"
    with pytest.raises(TargetError, match="bytes fit into a library") as caught:
        link.link_library(b"plan", weights, Host.native(), output, embed=True)
    assert "`embed_limit_bytes`" in str(caught.value)
    assert not output.exists()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the C files that are compiled."""
    names: list[str] = []
    real = Tool.compile

    def compile_c(self: Tool, source: Path, *arguments: Any) -> None:
        if source.suffix == ".c":
            names.append(source.name)
        real(self, source, *arguments)

    monkeypatch.setattr(Tool, "compile", compile_c)
    return names


@pytest.mark.cross
def test_the_runtime_is_compiled_once(runtime: Path, compiled: list[str], tmp_path: Path):
    def write() -> bytes:
        link.link_library(b"plan", None, Host.native(), tmp_path / "libnet.so", embed=True)
        return (tmp_path / "libnet.so").read_bytes()

    first = write()
    assert write() == first
    assert compiled == ["data.c"]
    # The cache depends on all sources: its files, or a header next to them.
    (runtime / "part.h").write_text("")
    write()
    assert len(compiled) == 2
    (runtime / "more.c").write_text("int unused;\n")
    write()
    assert compiled[2:] == ["data.c", "more.c"]
    # An entry that lost a file counts as missing.
    for path in (tmp_path / "cache").rglob("more.o"):
        path.unlink()
    write()
    assert compiled[4:] == ["data.c", "more.c"]


@pytest.mark.cross
def test_without_a_folder_to_keep_objects_in(
    runtime: Path, compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path / "file"))
    for _ in range(2):
        link.link_library(b"plan", None, Host.native(), tmp_path / "libnet.so", embed=True)
    assert content(tmp_path / "libnet.so", of_weights=False)[0] == b"plan"
    assert compiled == ["data.c", "data.c"]


@pytest.mark.cross
def test_at_the_same_time(runtime: Path, tmp_path: Path):
    def write(index: int) -> bytes:
        output = tmp_path / str(index) / "libnet.so"
        output.parent.mkdir()
        link.link_library(b"plan", None, Host.native(), output, embed=True)
        return output.read_bytes()

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(write, range(4)))) == 1
    (kept,) = (tmp_path / "cache" / "standalone").iterdir()
    assert [path.name for path in kept.iterdir()] == ["data.o"]


@pytest.mark.cross
def test_a_compiler_s_complaint_is_told(runtime: Path, tmp_path: Path):
    (runtime / "bad.c").write_text("int f(void) { return nothing; }\n")
    output = tmp_path / "libnet.so"
    with pytest.raises(TargetError, match="every linker found failed") as caught:
        link.link_library(b"plan", None, Host.native(), output, embed=True)
    assert "bad.c" in str(caught.value.details)
    # The message has the final name: the library is built in a hidden folder.
    assert caught.value.message.startswith("Linking libnet.so for the host ")
    assert not output.exists()


#: Imitation of the NDK's compiler, except for the place of its libraries and headers.
CLANG = """#!{python}
import subprocess, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    print(*words, file=log)
zig = [sys.executable, "-m", "ziglang"]
if "--version" in words or "-c" in words:
    command = [*zig, "clang", *words, "-nostdinc", "-isystem", {builtin!r}, "-isystem", {headers!r}]
else:
    kept = [w for w in words if not w.startswith(("--target", "-f", "-l")) and w != "-Xlinker"]
    names = [f"{stubs}/lib{{w[2:]}}.so" for w in [*words, "-lc"] if w.startswith("-l")]
    command = [*zig, "ld.lld", "-m", "aarch64linux", *kept, *names]
sys.exit(subprocess.call(command))
"""


@pytest.fixture
def ndk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that imitates the used part of Android's NDK; record the compiler's calls."""
    folder, stubs, log = tmp_path / "ndk", tmp_path / "stubs", tmp_path / "log"
    clang = folder / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64" / "bin" / "clang"
    clang.parent.mkdir(parents=True)
    stubs.mkdir()
    (own,) = (one for one in host_link.android_tools(Host.parse("android-arm64")))
    own.link([], stubs / "empty", stubs)
    builtin = Path(str(find_spec("ziglang").submodule_search_locations[0])) / "lib" / "include"
    places = {"builtin": str(builtin), "headers": str(NATIVE / "bionic"), "stubs": stubs}
    clang.write_text(CLANG.format(python=sys.executable, log=str(log), **places))
    clang.chmod(0o755)
    monkeypatch.setenv("ANDROID_NDK_HOME", str(folder))
    return log


@pytest.mark.cross
def test_android_s_ndk(ndk: Path, weights: Path, tmp_path: Path):
    output = tmp_path / "libnet.so"
    link.link_library(b"plan", weights, Host.parse("android-arm64"), output, embed=True)
    report = check_host_abi(output)
    assert report.fits
    assert report.host.is_android
    assert weights.read_bytes() in output.read_bytes()
    commands = ndk.read_text().splitlines()
    assert len(commands) > len(list((NATIVE / "standalone").glob("*.c")))
    assert all(line.startswith("--target=aarch64-unknown-linux-android24") for line in commands)


def test_an_ndk_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    output = tmp_path / "libnet.so"
    with pytest.raises(TargetError, match="ANDROID_NDK_HOME is ") as caught:
        link.link_library(b"plan", None, Host.parse("android-arm64"), output, embed=True)
    assert "unset it" in str(caught.value)


@pytest.mark.cross
@pytest.mark.parametrize("host", HOSTS)
def test_the_runtime_fits_each_host(host: str, tmp_path: Path):
    """All of its C files need only the host's libraries; Android's need no NDK."""
    output = tmp_path / "libnet.so"
    link.link_library(b"plan", None, Host.parse(host), output, embed=True)
    report = check_host_abi(output)
    assert [verdict for verdict in report.verdicts if not verdict.kept] == []
    assert report.host == Host.parse(host)
    assert (report.android_refuses == ()) == ("android" in host)
    assert {"tvmflow_create", "tvmflow_self_test"} <= set(report.facts.exported)
    assert output.stat().st_size < 210_000
    # It never ends the process, and needs neither the C++ library nor its exceptions.
    wanted = {symbol.name for symbol in report.facts.undefined}
    assert not wanted & {"abort", "exit", "_exit", "raise", "kill", "__assert_fail", "__assert2"}
    assert not any(name.startswith(("_Z", "__cxa_throw", "_Unwind")) for name in wanted)


def test_the_runtime_is_small():
    """Only its own files count, without bindings and the files that the plug-in uses, too."""
    sources = [path for path in (NATIVE / "standalone").iterdir() if path.suffix in (".c", ".h")]
    lines = sum(len(path.read_text().splitlines()) for path in sources)
    assert 1000 < lines < 8100


#: One exported function calls the other, like those of the real runtime.
CALLS = """
extern __attribute__((visibility("hidden"))) const unsigned char tvmflow_plan_begin[];
#define EXPORTED __attribute__((visibility("default"), noinline))
EXPORTED int tvmflow_first(void) { return tvmflow_plan_begin[0]; }
EXPORTED int tvmflow_call(void) { return tvmflow_first(); }
"""


@pytest.mark.cross
def test_a_library_calls_its_own_functions_and_not_those_of_another(runtime: Path, tmp_path: Path):
    (runtime / "data.c").write_text(CALLS)
    loaded = []
    for name in ("A", "B"):
        output = tmp_path / f"lib{name}.so"
        link.link_library(name.encode(), None, Host.native(), output, embed=True)
        # A program linked to the library shares its functions with all others.
        loaded.append(ctypes.CDLL(str(output), ctypes.RTLD_GLOBAL))
    assert [chr(library.tvmflow_call()) for library in loaded] == ["A", "B"]
