"""Report on libraries that fit no machine, or not the one that is to load them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tvmflow.devices.host import Host
from tvmflow.errors import ArtifactError
from tvmflow.module.link import LINK_OPTIONS, SYMBOLS, Tool, ziglang
from tvmflow.module.standalone.host_abi import check_host_abi

pytestmark = pytest.mark.cross

ANDROID = Host.parse("android-arm64")
LINUX = Host.parse("linux-arm64")
GOOD = ".text\n.globl tvmflow_create\n.type tvmflow_create, %function\ntvmflow_create:\n ret\n"
#: A pointer that the loader fills in.
POINTER = ".data\n.balign 8\n.quad tvmflow_create\n"
#: Pointers that the loader only relocates.
RELATIVE = ".data\n.balign 8\nhere:\n" + ".quad here\n" * 64


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that builds a library from assembler text and linker options.

    ``extra`` are libraries to link against: name → (symbols, version of the symbols).
    """
    zig = ziglang()
    assert zig is not None
    tool = Tool(
        "ziglang",
        (*zig, "clang", f"--target={ANDROID.llvm_triple}"),
        (*zig, "ld.lld", "-m", "aarch64linux"),
        is_driver=False,
    )

    def library(name: str, symbols: str, version: str) -> Path:
        text = "".join(f".globl {s}\n.type {s}, %function\n{s}:\n" for s in symbols.split())
        script = tmp_path / "versions"
        script.write_text(f"{version or 'NONE'} {{ *; }};\n")
        options = ["-soname", name]
        if version:
            options += ["--version-script", str(script)]
        return shared(f".text\n{text}", name, options)

    def shared(text: str, name: str, options: list[str]) -> Path:
        source, target = tmp_path / "x.s", tmp_path / "x.o"
        source.write_text(text)
        tool.compile(source, target, tmp_path)
        tool.run([*tool.linker, "-shared", *options, target, "-o", tmp_path / name], tmp_path)
        return tmp_path / name

    def make(
        text: str = "",
        *options: str,
        extra: dict[str, tuple[str, str]] | None = None,
        soname: str | None = "libnet.so",
        defaults: tuple[str, ...] = (*LINK_OPTIONS, "-z", "now", "-z", "relro"),
    ) -> Path:
        libraries = [str(library(name, *about)) for name, about in (extra or {}).items()]
        named = ["-soname", soname] if soname else []
        return shared(GOOD + POINTER + text, "libnet.so", [*defaults, *named, *options, *libraries])

    return make


def broken(path: Path, host: Host | None = ANDROID) -> dict[str, str]:
    """Return the rules that a library breaks, with what was found."""
    report = check_host_abi(path, host)
    found = {verdict.rule: verdict.found for verdict in report.verdicts if not verdict.kept}
    assert report.fits == (not found)
    return found


def test_a_good_library_breaks_no_rule(build):
    path = build(extra={"libdl.so": ("dlopen", "")}, text=".text\n bl dlopen\n")
    assert broken(path) == {}
    assert check_host_abi(path).host == ANDROID
    assert check_host_abi(path).android_refuses == ()


#: How to break each rule: assembler text, options, libraries.
BREAKS = {
    "own name (SONAME)": ("", ("-soname", "libother.so"), {}),
    "needed libraries": ("", (), {"libstdc++.so.6": ("anything", "")}),
    "symbol versions": (".text\n bl read\n", (), {"libc.so": ("read", "GLIBC_2.17")}),
    # LLVM turns comparisons of memory into calls of it, for other C libraries; Android has none.
    "undefined symbols": (".text\n bl bcmp\n", ("--unresolved-symbols=ignore-all",), {}),
    "text relocations": (".text\n.quad tvmflow_create\n", ("-z", "notext"), {}),
    "segments": ('.section .both,"awx",%progbits\n.quad 1\n', (), {}),
    "page alignment": ("", ("-z", "max-page-size=4096", "-z", "common-page-size=4096"), {}),
    "thread-local storage": ('.section .tbss,"awT",%nobits\n.zero 8\n', (), {}),
    "relocation format": (RELATIVE, ("--pack-dyn-relocs=relr",), {}),
    "symbol tables": ("", ("--hash-style=gnu",), {}),
    "exported symbols": (".globl helper\n.text\nhelper:\n ret\n", (), {}),
    "stack": ("", ("-z", "execstack"), {}),
    "read-only after loading": ("", ("-z", "norelro"), {}),
    "search paths": ("", ("-rpath", "/opt/lib"), {}),
    "build id": ("", ("--build-id=none",), {}),
}


@pytest.mark.parametrize("rule", BREAKS)
def test_a_library_that_breaks_one_rule(rule: str, build):
    text, options, extra = BREAKS[rule]
    path = build(text, *options, "--no-as-needed", extra=extra)
    # The segment that becomes read-only then ends within a larger page, too.
    also = {"read-only after loading"} if rule == "page alignment" else set()
    assert set(broken(path)) == {rule} | also


def test_every_rule_is_broken_by_a_test(build):
    rules = {verdict.rule for verdict in check_host_abi(build(), ANDROID).verdicts}
    assert rules == {*BREAKS, "architecture"}


def test_the_wrong_architecture(build):
    assert "architecture" in broken(build(), Host.parse("linux-x64"))


def test_a_library_without_a_name(build):
    assert broken(build(soname=None)) == {"own name (SONAME)": "none"}


def test_functions_that_are_looked_up_late(build):
    text = ".text\n bl dlopen\n"
    path = build(text, "-z", "lazy", extra={"libdl.so": ("dlopen", "")})
    assert list(broken(path)) == ["read-only after loading"]


@pytest.mark.parametrize("form", ["android", "android+relr"])
def test_relocations_of_newer_systems(form: str, build):
    path = build(RELATIVE, f"--pack-dyn-relocs={form}")
    assert list(broken(path)) == ["relocation format"]


def test_data_on_the_last_page_that_becomes_read_only(build):
    path = build()
    content = bytearray(path.read_bytes())
    count = int.from_bytes(content[56:58], "little")
    for start in range(64, 64 + 56 * count, 56):
        if int.from_bytes(content[start : start + 4], "little") == 0x6474E552:  # PT_GNU_RELRO
            size = int.from_bytes(content[start + 40 : start + 48], "little")
            content[start + 40 : start + 48] = (size - 8).to_bytes(8, "little")
    path.write_bytes(content)
    found = {"read-only after loading": "ends within a page of writable data"}
    assert broken(path) == found
    # Other systems leave such a page writable.
    assert "read-only after loading" not in broken(path, LINUX)


def test_symbols_of_libraries_that_are_not_needed(build):
    """The function is Android's, but the library does not list its library as needed."""
    path = build(".text\n bl dlopen\n", "--unresolved-symbols=ignore-all")
    assert broken(path) == {"undefined symbols": "unknown to them: dlopen"}
    path = build(".weak dlopen\n.text\n bl dlopen\n")
    assert broken(path) == {}


@pytest.mark.parametrize(
    ("version", "rules"),
    [
        ("GLIBC_2.17", []),
        ("GLIBC_2.28", []),
        ("GLIBC_2.29", ["symbol versions"]),
        ("GLIBC_2.2.5", []),
        ("GLIBC_PRIVATE", ["symbol versions"]),
    ],
)
def test_versions_of_glibc(version: str, rules: list[str], build):
    path = build(".text\n bl read\n", extra={"libc.so.6": ("read", version)})
    assert list(broken(path, None)) == rules
    assert check_host_abi(path).host == LINUX
    refused = check_host_abi(path).android_refuses
    assert f"symbol versions: {version}" in refused
    assert "needed libraries: libc.so.6" in refused


def test_a_function_that_glibc_does_not_have(build):
    path = build(".text\n bl nobody\n", "--unresolved-symbols=ignore-all")
    assert broken(path, LINUX) == {"undefined symbols": "unknown to them: nobody"}


def test_what_is_no_shared_library(tmp_path: Path, build):
    good = build()
    for name, content in {
        "empty": b"",
        "text": b"# a script",
        "magic": b"\x7fELF",
        "object": (tmp_path / "x.o").read_bytes(),
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="an ELF shared library was expected"):
            check_host_abi(path)
    with pytest.raises(ArtifactError, match="No such file"):
        check_host_abi(tmp_path / "none")
    whole = good.read_bytes()
    for size in range(0, len(whole), 97):
        good.write_bytes(whole[:size])
        with pytest.raises(ArtifactError):
            check_host_abi(good)


def test_damaged_libraries(build):
    """Any content gives a report, or a sentence."""
    path = build(".text\n bl read\n", extra={"libc.so.6": ("read", "GLIBC_2.17")})
    whole, numbers = path.read_bytes(), random.Random(8)
    told = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(numbers.randrange(1, 4)):
            # Damage the loadable part, or the table of sections at the end.
            at = numbers.choice((numbers.randrange(0x700), -numbers.randrange(1, 1500)))
            damaged[at] = numbers.choice((0, 0xFF, numbers.randrange(256)))
        path.write_bytes(damaged)
        try:
            check_host_abi(path)
        except ArtifactError:
            told += 1
    assert told > 20


def test_functions_that_our_headers_declare_are_android_s():
    folder = Path(__file__).parents[3] / "native" / "bionic"
    text = "".join(path.read_text() for path in sorted(folder.rglob("*.h")))
    declared = set(re.findall(r"^[a-zA-Z][\w *]*?(\w+)\(", text, re.MULTILINE))
    assert {"dlopen", "pthread_once", "ldexp", "fstat", "__errno", "memrchr"} <= declared
    assert declared - {name for names in SYMBOLS.values() for name in names} == set()
