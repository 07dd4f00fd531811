"""Whether a shared library fits the machine that is to load it, told from its ELF file.

Rules are for files as this project writes them: standalone libraries, and modules for TVM's
runtime.  They say nothing of what the code does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...devices.host import Host
from ..elf import ElfFacts, Undefined, read_facts
from ..link import PAGE_BYTES, SYMBOLS, ZIG_GLIBC

#: Libraries of systems with glibc that may be needed; the loader is one of them.
_GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux")
#: What the runtime of TVM has, for its modules.
_OF_TVM = ("TVM", "__TVM")
_ANDROID_NOTE = ".note.android.ident"


@dataclass(frozen=True)
class Verdict:
    """What a rule expected and found."""

    rule: str
    expected: str
    found: str
    kept: bool
    #: Whether the loader refuses a library that breaks it (else it is unsafe or too open).
    fatal: bool


@dataclass(frozen=True)
class Report:
    """All that is known of a library and the machine that it is for."""

    path: Path
    facts: ElfFacts
    host: Host
    verdicts: tuple[Verdict, ...]
    #: Why Android would not load it; empty if it would, as far as the file tells.
    android_refuses: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether no rule is broken."""
        return all(verdict.kept for verdict in self.verdicts)


def check_host_abi(path: str | os.PathLike[str], host: Host | None = None) -> Report:
    """Check a library against the rules of its host.

    Parameters
    ----------
    path
        A shared library.
    host
        The machine that is to load it; by default what the file looks to be made for.

    Raises
    ------
    ArtifactError
        If the file cannot be read, or is no ELF shared library.
    """
    facts = read_facts(path)
    machine = host or guess_host(facts)
    file_name = Path(path).name
    verdicts = tuple(_verdicts(facts, machine, file_name))
    android = Host(facts.architecture, "linux", "android24")
    refused = tuple(
        f"{verdict.rule}: {verdict.found}"
        for verdict in _verdicts(facts, android, file_name)
        if verdict.fatal and not verdict.kept
    )
    return Report(Path(path), facts, machine, verdicts, refused)


def guess_host(facts: ElfFacts) -> Host:
    """Return the host that a library looks to be made for."""
    if _ANDROID_NOTE in facts.sections or SYMBOLS.keys() & set(facts.needed):
        return Host(facts.architecture, "linux", "android24")
    return Host(facts.architecture, "linux", "gnu")


#: A rule: what it is called, whether breaking it keeps the library from being loaded, and what
#: it expects, finds and decides.
_Rule = Callable[[ElfFacts, Host], tuple[str, str, bool]]


def _verdicts(facts: ElfFacts, host: Host, file_name: str) -> Iterator[Verdict]:
    fatal: dict[str, _Rule] = {
        "architecture": _architecture,
        "needed libraries": _needed,
        "symbol versions": _versions,
        "undefined symbols": _undefined,
        "text relocations": _text_relocations,
        "segments": _segments,
    }
    unsafe: dict[str, _Rule] = {
        "exported symbols": _exported,
        "stack": _stack,
        "read-only after loading": _relro,
        "search paths": _search_paths,
    }
    if host.is_android:
        fatal |= {
            "page alignment": _page_alignment,
            "thread-local storage": _thread_local,
            "relocation format": _relocation_format,
            "symbol tables": _symbol_tables,
        }
        unsafe |= {"build id": _build_id}
    yield _own_name(facts, host, file_name)
    for rules, is_fatal in ((fatal, True), (unsafe, False)):
        for name, rule in rules.items():
            expected, found, kept = rule(facts, host)
            yield Verdict(name, expected, found, kept, is_fatal)


def _own_name(facts: ElfFacts, host: Host, file_name: str) -> Verdict:
    # TVM's modules are opened by their path, and may be renamed.
    may_lack = facts.is_tvm_module
    kept = facts.soname == file_name or (facts.soname is None and may_lack)
    expected = file_name + (" or none" if may_lack else "")
    return Verdict("own name (SONAME)", expected, facts.soname or "none", kept, host.is_android)


def _architecture(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    found = f"{facts.architecture}, {facts.bits} bits"
    return host.architecture, found, facts.architecture == host.architecture


def _needed(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    if host.is_android:
        allowed: tuple[str, ...] = tuple(SYMBOLS)
    elif host.abi.startswith("gnu"):
        allowed = _GLIBC
    else:
        allowed = ("libc.",)
    foreign = [name for name in facts.needed if not name.startswith(allowed)]
    if host.is_android:
        foreign = [name for name in facts.needed if name not in allowed]
    return f"only {', '.join(allowed)}", _list(foreign or facts.needed), not foreign


def _versions(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    names = {name for versions in facts.versions.values() for name in versions}
    glibc = sorted((n for n in names if n.startswith("GLIBC_")), key=_version)
    if not host.abi.startswith("gnu"):
        return "none of glibc's", _list(glibc), not glibc
    newest = glibc[-1:]
    kept = not newest or _version(newest[0]) <= _version(f"GLIBC_{ZIG_GLIBC}")
    return f"at most GLIBC_{ZIG_GLIBC}", newest[0] if newest else "none", kept


def _version(name: str) -> tuple[int, ...]:
    """Numbers of a version's name; what is not numbered (``GLIBC_PRIVATE``) is newest."""
    parts = name.partition("_")[2].split(".")
    return tuple(int(part) for part in parts) if all(p.isdigit() for p in parts) else (1 << 30,)


def _undefined(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
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
    return f"all in the {provider}", found, not missing


def _text_relocations(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    return "none", "some" if facts.text_relocations else "none", not facts.text_relocations


def _segments(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    both = sum(load.writable and load.executable for load in facts.loads)
    return "none writable and executable", f"{both} of {len(facts.loads)}", not both


def _exported(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    allowed: tuple[str, ...] = ("tvmflow_", "Java_", "JNI_On")
    if facts.is_tvm_module:
        # The last two convert half precision; TVM puts them into each module.
        allowed = ("__tvm_ffi_", "__TVM", "TVM", "__extendhfsf2", "__truncsfhf2")
    foreign = [name for name in facts.exported if not name.startswith(allowed)]
    found = _list(foreign) if foreign else f"{len(facts.exported)}"
    return f"only {', '.join(name + '*' for name in allowed)}", found, not foreign


def _stack(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    states = {None: "not said", True: "executable", False: "not executable"}
    return "not executable", states[facts.executable_stack], facts.executable_stack is False


def _relro(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    found = [
        "table of functions" if facts.bind_now else "functions are looked up late",
        "relocated data" if facts.relro else "no relocated data",
    ]
    kept = facts.bind_now and facts.relro is not None
    if host.is_android and facts.relro is not None and _shares_page(facts):
        # Android makes whole pages read-only, with what else is on the last one.
        return "ends on a page", "ends within a page of writable data", False
    return "table of functions, relocated data", ", ".join(found), kept


def _shares_page(facts: ElfFacts) -> bool:
    """Whether writable data follows on the last page of what becomes read-only."""
    _, end = facts.relro or (0, 0)
    rounded = end + -end % PAGE_BYTES
    return any(
        load.writable and load.begin < rounded and load.end > end and end % PAGE_BYTES
        for load in facts.loads
    )


def _search_paths(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    return "none", _list(facts.search_paths), not facts.search_paths


def _page_alignment(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    wrong = [
        load
        for load in facts.loads
        if load.align % PAGE_BYTES or (load.begin - load.offset) % PAGE_BYTES
    ]
    found = ", ".join(sorted({f"{load.align:#x}" for load in facts.loads}))
    return f"multiples of {PAGE_BYTES:#x}", found, bool(facts.loads) and not wrong


def _thread_local(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    found = f"{facts.thread_local_bytes} bytes" if facts.thread_local_bytes else "none"
    return "none (Android 10 is the first with it)", found, not facts.thread_local_bytes


def _relocation_format(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    return "not packed", _list(facts.packed_relocations), not facts.packed_relocations


def _symbol_tables(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    return "sysv, gnu", _list(facts.hash_tables), len(facts.hash_tables) == 2


def _build_id(facts: ElfFacts, host: Host) -> tuple[str, str, bool]:
    return "one (for reports of crashes)", facts.build_id or "none", facts.build_id is not None


def _list(names: Any) -> str:
    names = list(names)
    shown = ", ".join(sorted(names)[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "none"
