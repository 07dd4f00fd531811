"""Linking of runtime, plan and weights to a shared library with a C interface.

Each version of the C runtime is compiled once for a host: its objects are kept in the user's cache
folder under a hash of everything that they depend on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...devices.host import Host
from ...errors import TargetError
from ...runtime.caches import user_cache
from ...runtime.notices import told_if_slow
from ..artifact import SIDECAR_SUFFIX, remove_stale_sidecar
from ..files import place_copy, publish, staging
from ..link import Tool, first_success, native_folder, tools
from . import code_digest
from .format import WEIGHT_ALIGNMENT
from .plan import COPY, Plan

logger = logging.getLogger(__name__)

#: Compiler flags of the runtime, for every host.
FLAGS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    # Export only the functions that the header declares.
    "-fvisibility=hidden",
    # This saves 7 KB.
    "-fno-unroll-loops",
    # The linker drops unused functions and data.
    *("-ffunction-sections", "-fdata-sections"),
    # The bytes must not depend on the compiler's name and version.
    "-fno-ident",
)


def runtime_objects(tool: Tool, work: Path) -> list[Path]:
    """Return the runtime's object files, compiled now or taken from the cache.

    ``work`` is a folder for intermediate files, and for the objects if they cannot be cached.
    """
    files = [path for path in _sources("core", "standalone", "bindings") if path.suffix == ".c"]
    # Next to the programs that drivers have built.
    cache = Path(os.environ.get("TVMFLOW_CACHE_DIR") or user_cache()) / "standalone"
    final = cache / _key(tool, work)
    kept = [final / f"{path.stem}.o" for path in files]
    if all(path.is_file() for path in kept):
        return kept
    fresh = _new_folder(final, work)
    once = f"Compiling the runtime of standalone libraries with {tool.name}, which is done once."
    with told_if_slow(logger, once), ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = pool.map(
            lambda path: tool.compile(path, fresh / f"{path.stem}.o", work, FLAGS), files
        )
        # Raise the error of a compilation that failed.
        list(compiled)
    if fresh.parent == work:
        return [fresh / path.name for path in kept]
    if final.is_dir() and not all(path.is_file() for path in kept):
        # Some of its files were removed.
        shutil.rmtree(final, ignore_errors=True)
    try:
        os.rename(fresh, final)
    except OSError:
        # Another process has stored the same objects meanwhile.
        shutil.rmtree(fresh, ignore_errors=True)
    return kept


def _new_folder(final: Path, work: Path) -> Path:
    """Create a folder that can be renamed to `final`, or one in `work` if that is impossible."""
    with suppress(OSError):
        final.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    return Path(tempfile.mkdtemp(prefix="objects.", dir=work))


def _key(tool: Tool, work: Path) -> str:
    """Return a hash of everything that the objects depend on."""
    digest = hashlib.sha256()
    version = tool.run([*tool.compiler, "--version"], work)
    for part in (*tool.compiler, version, *FLAGS):
        digest.update(part.encode() + b"\0")
    for path in _sources("core", "standalone", "bindings", "bionic"):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _sources(*folders: str) -> Iterator[Path]:
    for name in folders:
        yield from sorted(native_folder(name).rglob("*.[ch]"))


#: Size limit of a library, because code addresses its data with signed 32-bit offsets.
LARGEST_BYTES = (1 << 31) - (16 << 20)

#: Section of the weights.  The linker script places it after everything else that is loaded, so
#: that in a truncated file the code that reports this is complete.
_WEIGHTS = ".tvmflow.weights"
_SCRIPT = f"SECTIONS {{ {_WEIGHTS} : {{ KEEP(*({_WEIGHTS})) }} }} INSERT AFTER .bss;\n"

_OPTIONS = (
    *("--gc-sections", "--no-undefined", "--as-needed", "-s"),
    *("--hash-style=both", "--build-id=sha1", "--eh-frame-hdr"),
    # All libraries have functions of the same names.  Each must call its own, even in a program
    # that is linked to another library.
    "-Bsymbolic",
)
#: Libraries of Linux; in older versions of glibc, threads are a separate library.
_LIBRARIES = ("m", "dl", "pthread")
_ANDROID_LIBRARIES = ("m", "dl")


#: Version script that exports only the interface, no functions of kernels.
_EXPORTED = "{ global: tvmflow_*; Java_*; JNI_*; local: *; };\n"


@dataclass(frozen=True)
class Functions:
    """Kernels that are functions of the host: their execution plan, also as bytes."""

    encoded: bytes
    plan: Plan

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Return kernels, each with a function of the code and the CPU feature that it needs.

        Functions that need a feature come first.
        """
        called = sorted({launch.kernel for launch in self.plan.launches} - {COPY})
        return [
            (name, code.symbols[name], code.feature)
            for code in reversed(self.plan.code)
            for name in called
            if name in code.symbols
        ]


def link_library(
    plan: bytes,
    weights: Path | None,
    host: Host,
    output: Path,
    *,
    embed: bool,
    functions: Functions | None = None,
) -> None:
    """Write a library that runs a network, from runtime, execution plan and weights.

    The bytes depend only on the plan, the weights and the compiler.  The file (or the two files)
    appear complete or not at all.

    ``plan`` has the layout of :mod:`.format`; with ``functions``, kernels for the host's
    processors, it is empty or the plan for OpenCL.  ``weights`` is the file of the weights, if
    there are any, which is embedded in the library (``embed``) or copied to ``OUTPUT.weights``.
    The name of ``output`` becomes the library's SONAME.

    Raises `TargetError` if no compiler for `host` is installed, all of them fail, or the weights
    are too large to be embedded, and `ArtifactError` if a file cannot be written.
    """
    embedded = weights if embed else None
    if embedded is not None and embedded.stat().st_size + len(plan) > LARGEST_BYTES:
        raise TargetError(
            f"Linking {output.name} failed: at most {LARGEST_BYTES} bytes fit into a library, but "
            f"plan and weights have {embedded.stat().st_size + len(plan)}.",
            remedy="Leave `embed_limit_bytes` at its default: the weights then go to a file "
            "next to the library.",
        )
    sidecar = output.with_name(output.name + SIDECAR_SUFFIX)
    with staging(output) as stage:
        library = stage / "library"
        (stage / "plan").write_bytes(plan)
        if embedded is None:
            (stage / "weights").touch()
        else:
            (stage / "weights").symlink_to(embedded.absolute())
        (stage / "drivers").write_bytes(driver_faults())
        rows = [] if functions is None else functions.rows
        (stage / "cpu_plan").write_bytes(b"" if functions is None else functions.encoded)
        (stage / "data.s").write_text(_data() + function_table(rows))
        (stage / "script.ld").write_text(_SCRIPT)
        (stage / "exported.map").write_text(_EXPORTED)
        code: list[Path] = []
        for each in [] if functions is None else functions.plan.code:
            code.append(stage / f"kernels{len(code)}.o")
            code[-1].write_bytes(each.content)
        libraries = _ANDROID_LIBRARIES if host.is_android else _LIBRARIES
        scripts = ("-T", str(stage / "script.ld"), "--version-script", str(stage / "exported.map"))
        options = ("-soname", output.name, *scripts, *_OPTIONS)

        def link(tool: Tool) -> None:
            objects = runtime_objects(tool, stage)
            tool.compile(stage / "data.s", stage / "data.o", stage)
            tool.link([*objects, *code, stage / "data.o"], library, stage, options, libraries)

        attempt = f"Linking {output.name} for the host {host.triple}"
        # Prefer tools whose libraries also run on older systems.
        candidates = sorted(tools(host), key=lambda tool: not tool.is_portable)
        first_success(link, candidates, attempt, host)
        code_digest.stamp(library, _WEIGHTS)
        outputs = {library: output}
        if weights is not None and not embed:
            place_copy(weights, stage / sidecar.name)
            outputs = {stage / sidecar.name: sidecar, **outputs}
        publish(outputs)
    if embed or weights is None:
        remove_stale_sidecar(sidecar)


def driver_faults() -> bytes:
    """Return the table of drivers' known faults, drivers.json, without white space."""
    table = json.loads((native_folder("standalone") / "drivers.json").read_text("utf-8"))
    return json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()


def _data() -> str:
    """Return assembler text of the library's data.

    It has the plans, the table of drivers' faults and the weights, between symbols by which the
    runtime finds them, and the note for the digest of the code.
    """
    text = ""
    for name, section, alignment in (
        ("plan", ".rodata.tvmflow_plan", 64),
        ("cpu_plan", ".rodata.tvmflow_cpu_plan", 64),
        ("drivers", ".rodata.tvmflow_drivers", 1),
        ("weights", _WEIGHTS, WEIGHT_ALIGNMENT),
    ):
        text += f'.section {section},"a",%progbits\n'
        for end, before in (("begin", f".balign {alignment}"), ("end", f'.incbin "{name}"')):
            symbol = f"tvmflow_{name}_{end}"
            text += f"{before}\n.globl {symbol}\n.hidden {symbol}\n{symbol}:\n"
    # The linker script needs the section .bss, which exists only if it has content.
    text += '.section .bss.tvmflow_anchor,"awR",%nobits\n.zero 1\n'
    text += code_digest.note()
    return text + '.section .note.GNU-stack,"",%progbits\n'


def function_table(functions: Sequence[tuple[str, str, str]]) -> str:
    """Return assembler text of the table of functions (native/standalone/cpu.h).

    Each function is given by its kernel's name, its own name, and a required CPU feature.
    """
    rows = texts = ""
    for i, (name, symbol, feature) in enumerate(functions):
        rows += f".quad name{i}, feature{i}, __tvm_ffi_{symbol}\n"
        texts += f'name{i}: .asciz "{name}"\nfeature{i}: .asciz "{feature}"\n'
    begin, end = (
        f".globl {symbol}\n.hidden {symbol}\n{symbol}:\n"
        for symbol in ("tvmflow_functions_begin", "tvmflow_functions_end")
    )
    table = f'.section .data.rel.ro.tvmflow_functions,"aw",%progbits\n.balign 8\n{begin}{rows}{end}'
    return f'{table}.section .rodata.tvmflow_names,"a",%progbits\n{texts}'
