"""Checks of a shared library's ELF file against the machine that shall load it.

The rules are for the files that this project writes: standalone libraries, and modules for TVM's
runtime.  They do not examine the code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...devices.host import Host
from ..elf import ElfFacts, Undefined, read_facts
from ..link import PAGE_BYTES, SYMBOLS, ZIG_GLIBC

#: Prefixes of libraries that a library may need on systems with glibc, the loader included.
_GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux")
#: Prefixes of symbols in TVM's runtime, for its modules.
_OF_TVM = ("TVM", "__TVM")
_ANDROID_NOTE = ".note.android.ident"


@dataclass(frozen=True)
class Verdict:
    """A rule, with its expectation and the finding."""

    rule: str
    expected: str
    found: str
    kept: bool
    #: Whether the loader refuses a library that breaks the rule; otherwise the library is unsafe
    #: or exports too much.
    fatal: bool


@dataclass(frozen=True)
class Report:
    """Results of all checks of a library for a host."""

    path: Path
    facts: ElfFacts
    host: Host
    verdicts: tuple[Verdict, ...]
    #: Reasons why Android would not load it; empty if none are apparent from the file.
    android_refuses: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Return whether no rule is broken."""
        return all(verdict.kept for verdict in self.verdicts)


def check_host_abi(path: str | os.PathLike[str], host: Host | None = None) -> Report:
    """Check a library against the rules of a host, by default the one that its file suggests.

    Raises `ArtifactError` if the file cannot be read, or is no ELF shared library.
    """
    facts = read_facts(path)
    arm = facts.architecture == "arm"
    android = Host.parse("android-armv7") if arm else Host(facts.architecture, "android24")
    if host is None:
        for_android = _ANDROID_NOTE in facts.sections or SYMBOLS.keys() & set(facts.needed)
        host = android if for_android else Host(facts.architecture, "gnu")
    file_name = Path(path).name
    refused = tuple(
        f"{verdict.rule}: {verdict.found}"
        for verdict in _verdicts(facts, android, file_name)
        if verdict.fatal and not verdict.kept
    )
    return Report(Path(path), facts, host, tuple(_verdicts(facts, host, file_name)), refused)


def _verdicts(facts: ElfFacts, host: Host, file_name: str) -> Iterator[Verdict]:
    """Yield the verdict of each rule, first of those that the loader enforces."""
    android = host.is_android
    # Modules for TVM's runtime are opened by their path, and may be renamed.
    may_lack = facts.is_tvm_module
    yield Verdict(
        "own name (SONAME)",
        file_name + (" or none" if may_lack else ""),
        facts.soname or "none",
        kept=facts.soname == file_name or (facts.soname is None and may_lack),
        fatal=android,
    )
    found = f"{facts.architecture}, {facts.bits} bits"
    # ELF does not distinguish versions of Arm's architecture.
    expected = "arm" if host.architecture.startswith("armv") else host.architecture
    yield Verdict("architecture", expected, found, facts.architecture == expected, fatal=True)
    yield _needed(facts, host)
    yield _versions(facts, host)
    yield _undefined(facts, host)
    yield _none("text relocations", ["some"] if facts.text_relocations else [], fatal=True)
    both = sum(load.writable and load.executable for load in facts.loads)
    found = f"{both} of {len(facts.loads)}"
    yield Verdict("segments", "none writable and executable", found, not both, fatal=True)
    if android:
        found = ", ".join(sorted({f"{load.align:#x}" for load in facts.loads}))
        gaps = [gap for load in facts.loads for gap in (load.align, load.begin - load.offset)]
        kept = bool(gaps) and not any(gap % PAGE_BYTES for gap in gaps)
        expected = f"multiples of {PAGE_BYTES:#x}"
        yield Verdict("page alignment", expected, found, kept, fatal=True)
        local = [f"{facts.thread_local_bytes} bytes"] if facts.thread_local_bytes else []
        expected = "none (Android 10 is the first with it)"
        yield _none("thread-local storage", local, expected, fatal=True)
        yield _none("relocation format", facts.packed_relocations, "not packed", fatal=True)
        hashes = facts.hash_tables
        yield Verdict("symbol tables", "sysv, gnu", _list(hashes), len(hashes) == 2, fatal=True)
    yield _exported(facts)
    stack = {None: "not said", True: "executable", False: "not executable"}[facts.executable_stack]
    yield Verdict("stack", "not executable", stack, stack == "not executable", fatal=False)
    yield _read_only(facts, host)
    yield _none("search paths", facts.search_paths, fatal=False)
    if android:
        found, kept = facts.build_id or "none", facts.build_id is not None
        yield Verdict("build id", "one (for reports of crashes)", found, kept, fatal=False)


def _none(rule: str, found: Sequence[str], expected: str = "none", *, fatal: bool) -> Verdict:
    return Verdict(rule, expected, _list(found), not found, fatal)


def _needed(facts: ElfFacts, host: Host) -> Verdict:
    allowed: tuple[str, ...] = _GLIBC if host.abi.startswith("gnu") else ("libc.",)
    foreign = [name for name in facts.needed if not name.startswith(allowed)]
    if host.is_android:
        allowed = tuple(SYMBOLS)
        foreign = [name for name in facts.needed if name not in allowed]
    expected, found = f"only {', '.join(allowed)}", _list(foreign or facts.needed)
    return Verdict("needed libraries", expected, found, not foreign, fatal=True)


def _versions(facts: ElfFacts, host: Host) -> Verdict:
    names = {name for versions in facts.versions.values() for name in versions}
    glibc = sorted((n for n in names if n.startswith("GLIBC_")), key=_version)
    expected, found, kept = "none of glibc's", _list(glibc), not glibc
    if host.abi.startswith("gnu"):
        expected, found = f"at most GLIBC_{ZIG_GLIBC}", glibc[-1] if glibc else "none"
        kept = not glibc or _version(glibc[-1]) <= _version(f"GLIBC_{ZIG_GLIBC}")
    return Verdict("symbol versions", expected, found, kept, fatal=True)


def _version(name: str) -> tuple[int, ...]:
    """Return a version's numbers; versions without numbers (``GLIBC_PRIVATE``) are newest."""
    parts = name.partition("_")[2].split(".")
    return tuple(int(part) for part in parts) if all(p.isdigit() for p in parts) else (1 << 30,)


def _undefined(facts: ElfFacts, host: Host) -> Verdict:
    def is_there(symbol: Undefined) -> bool:
        if symbol.weak or (facts.is_tvm_module and symbol.name.startswith(_OF_TVM)):
            return True
        if host.is_android:
            return any(symbol.name in SYMBOLS.get(name, ()) for name in facts.needed)
        return symbol.version is not None or not host.abi.startswith("gnu")

    missing = [symbol.name for symbol in facts.undefined if not is_there(symbol)]
    provider = "libraries of the host" + (" or TVM's runtime" if facts.is_tvm_module else "")
    found = f"{len(facts.undefined)}, all known"
    if missing:
        found = f"unknown to them: {_list(missing)}"
    return Verdict("undefined symbols", f"all in the {provider}", found, not missing, fatal=True)


def _exported(facts: ElfFacts) -> Verdict:
    allowed: tuple[str, ...] = ("tvmflow_", "Java_", "JNI_On")
    if facts.is_tvm_module:
        # The last two, which convert half precision, are in every module of TVM.
        allowed = ("__tvm_ffi_", "__TVM", "TVM", "__extendhfsf2", "__truncsfhf2")
    foreign = [name for name in facts.exported if not name.startswith(allowed)]
    found = _list(foreign) if foreign else f"{len(facts.exported)}"
    expected = f"only {', '.join(name + '*' for name in allowed)}"
    return Verdict("exported symbols", expected, found, not foreign, fatal=False)


def _read_only(facts: ElfFacts, host: Host) -> Verdict:
    expected = "table of functions, relocated data"
    table = "table of functions" if facts.bind_now else "functions are looked up late"
    found = f"{table}, {'relocated data' if facts.relro else 'no relocated data'}"
    kept = facts.bind_now and facts.relro is not None
    if host.is_android and facts.relro is not None and _shares_page(facts):
        # Android makes whole pages read-only, including other data on the last page.
        expected, found, kept = "ends on a page", "ends within a page of writable data", False
    return Verdict("read-only after loading", expected, found, kept, fatal=False)


def _shares_page(facts: ElfFacts) -> bool:
    """Return whether the last page that becomes read-only also has writable data."""
    _, end = facts.relro or (0, 0)
    rounded = end + -end % PAGE_BYTES
    return any(
        load.writable and load.begin < rounded and load.end > end and end % PAGE_BYTES
        for load in facts.loads
    )


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "none"
