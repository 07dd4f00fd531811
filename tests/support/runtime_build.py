"""The standalone runtime, compiled for tests and linked with a plan and weights."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from support.build_cache import cached_build
from tvmflow.module.standalone import code_digest
from tvmflow.module.standalone.link import driver_faults, function_table

NATIVE = Path(__file__).parents[2] / "native" / "standalone"
CORE = NATIVE.with_name("core")
BINDINGS = NATIVE.with_name("bindings")
COMPILER = shlex.split(os.environ.get("CC", "cc"))
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", *WARNINGS)
SYSTEM = ("-ldl", "-lm", "-pthread")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"


@cache
def objects(*flags: str) -> list[str]:
    """Return object files of the runtime, compiled with more flags."""
    command = [*COMPILER, *_FLAGS, *flags, "-c"]

    def build(folder: Path) -> None:
        for source in sources:
            if source.suffix == ".c":
                _run([*command, str(source), "-o", str(folder / f"{source.stem}.o")])

    sources = [path for part in (CORE, NATIVE, BINDINGS) for path in part.glob("*.[ch]*")]
    folder = cached_build("runtime", command, sources, build)
    return sorted(map(str, folder.glob("*.o")))


def data_object(
    output: Path,
    contents: dict[str, bytes],
    section: str = '.rodata.tvmflow, "a"',
    functions: Sequence[str] = (),
) -> str:
    """Return an object file with bytes between hidden symbols ``<name>_begin`` and ``<name>_end``.

    ``functions`` are those of the table of CPU kernels, without ``__tvm_ffi_``; one may
    replace another, as ``NAME=FUNCTION:FEATURE``.
    """
    lines = [f".section {section}"]
    if "tvmflow_plan" in contents:
        contents = {"tvmflow_cpu_plan": b"", "tvmflow_drivers": driver_faults(), **contents}
        rows = [re.fullmatch(r"(\w+)(?:=(\w+):(.*))?", row) for row in functions]
        table = function_table([(r[1], r[2] or r[1], r[3] or "") for r in rows if r])
        lines = [table, *lines]
    for name, content in contents.items():
        binary = output.with_suffix(f".{name}.bin")
        binary.write_bytes(content)
        lines += [".balign 128"]
        lines += [f".globl {name}_begin", f".hidden {name}_begin", f"{name}_begin:"]
        lines += [f'.incbin "{binary}"']
        lines += [f".globl {name}_end", f".hidden {name}_end", f"{name}_end:"]
    lines += [code_digest.note() + '.section .note.GNU-stack, "", @progbits', ""]
    source = output.with_suffix(".s")
    source.write_text("\n".join(lines))
    _run([*COMPILER, "-c", str(source), "-o", str(output)])
    return str(output)


def link(
    output: Path,
    plan: bytes,
    weights: bytes = b"",
    *flags: str,
    more: Sequence[str] = (),
    cpu_plan: bytes = b"",
    functions: Sequence[str] = (),
    drivers: bytes | None = None,
) -> Path:
    """Return a library of the runtime with this plan; empty ``weights``: in a sidecar, or none.

    The runtime is compiled with ``flags``; ``more`` are other object files, such as those of
    the ``functions`` that ``cpu_plan`` calls.  ``drivers`` replaces the table of drivers' faults.
    """
    contents = {"tvmflow_plan": plan, "tvmflow_cpu_plan": cpu_plan, "tvmflow_weights": weights}
    contents |= {} if drivers is None else {"tvmflow_drivers": drivers}
    data = data_object(output.with_suffix(".o"), contents, functions=functions)
    shared = ("-shared", "-Wl,--no-undefined")
    _run([*COMPILER, *shared, *flags, "-o", str(output), *objects(*flags), data, *more, *SYSTEM])
    code_digest.stamp(output, "")
    return output


def program(output: Path, main: Path, plan: bytes, weights: bytes = b"") -> Path:
    """Return a program with the runtime and sanitizers; plan and weights can be written to."""
    contents = {"tvmflow_plan": plan, "tvmflow_weights": weights}
    data = data_object(output.with_suffix(".o"), contents, '.data.tvmflow, "aw"')
    flags = ("-std=gnu11", f"-I{NATIVE}", f"-I{BINDINGS}", *WARNINGS, *SANITIZERS)
    files = (str(main), data, *objects(*SANITIZERS))
    _run([*COMPILER, *flags, "-o", str(output), *files, *SYSTEM])
    return output
