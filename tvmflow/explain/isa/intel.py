"""Machine code of Intel's GPUs, compiled by ``ocloc``, which needs no driver."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...devices.gpus import Gpu
from ...errors import DeviceError
from .listing import Instruction, classes, kernel_code
from .record import Failure, KernelCode, KernelSource
from .tree import Software, Tree, environment

#: Time limit of the compiler for a kernel, in seconds.
LIMIT_S = 120.0
_KINDS = classes(
    multiply_adds=r"(mad|mac)\.(h?f|df|bf)|dp4a|dpas",
    fetches=r"send\S*\.smpl",
    spills=r"send\S* (hword scratch|\S+\.ss\[)",
    local=r"send\S*\.slm|send\S* slm",
    loads=r"send\S* .*(load|read)",
    stores=r"send\S* .*(store|write)",
    conversions="cvt",
)
_LABEL = re.compile(r"(L\d+):")
_LINE = re.compile(r"(?:\([^)]*\))?\s*([a-z][\w.]*)([^{/]*)(\{[^}]*\})?(?:.*?; (.*))?")
_TYPE = re.compile(r":(u?[bwdq]|h?f|df|bf)\b")
_JUMP = re.compile(r"(?:jmpi|while|goto)\b.*\b(L\d+)\s*$")
#: Descriptor of a message to local memory: its last byte is 254 (Xe-LP).
_LOCAL = re.compile(r"0x[0-9A-F]+FE\s*$")
_WAITS = re.compile(r"\$\d+\.(dst|src)")
_FACT = re.compile(r"^\s+(grf_count|simd_size|eu_thread_count|spill_size):\s+(\d+)", re.MULTILINE)


def _program(tree: Tree) -> Path | None:
    """Find ocloc in a tree; the name of Debian's program contains the version."""
    if tree.root == Path("/"):
        found = shutil.which("ocloc")
        return Path(found) if found else None
    return max(tree.root.glob("usr/bin/ocloc-*"), default=None)


def _is_in(tree: Tree, _gpu: Gpu) -> bool:
    # ocloc loads the compiler library only when it compiles.
    compilers = tree.root == Path("/") or any(tree.libraries.glob("libigc.so.*"))
    return _program(tree) is not None and compilers


OCLOC = Software(
    name="ocloc",
    expected="ocloc",
    packages=("intel-ocloc", "libigc2", "libigdfcl2"),
    architecture=lambda _gpu: "amd64",
    is_in=_is_in,
    is_new=lambda: True,
)


def compile_kernels(
    kernels: Sequence[KernelSource], gpu: Gpu, tree: Tree, *, limit_s: float = LIMIT_S
) -> tuple[str, list[KernelCode | Failure]]:
    """Compile kernels one by one; a crash or a timeout affects only the current kernel.

    Return the compiler with its version, and a result for each kernel in order; `DeviceError` if
    ocloc does not run at all.
    """
    program = _program(tree)
    assert program is not None
    command = tree.command(program)
    version, problem = _run([*command, "--version"], limit_s)
    if problem:
        raise DeviceError(
            f"Compiling for {gpu.name} failed: ocloc did not tell its version ({problem}).",
            remedy=f"tvmflow isa --setup --gpu {gpu.name} fetches it again.",
        )
    with tempfile.TemporaryDirectory(dir=tree.root / "tmp", prefix="isa.") as folder:
        place = Path(folder)
        found = [_compiled(kernel, gpu, tree, command, place, limit_s) for kernel in kernels]
    return f"ocloc {version.strip()}", found


def _compiled(
    kernel: KernelSource, gpu: Gpu, tree: Tree, command: list[str], place: Path, limit_s: float
) -> KernelCode | Failure:
    source, output, parts = place / "kernel.cl", place / "kernel.bin", place / kernel.name
    source.write_text(kernel.text)
    build = ["compile", "-file", tree.inside(source), "-device", gpu.chip, "-exclude_ir", "-q"]
    place_of_output = ["-output", "kernel", "-output_no_suffix", "-out_dir", tree.inside(place)]
    _, problem = _run([*command, *build, *place_of_output, "-options", "-cl-mad-enable"], limit_s)
    if not problem:
        read = ["disasm", "-file", tree.inside(output), "-dump", tree.inside(parts)]
        _, problem = _run([*command, *read], limit_s)
    about, listing = parts / ".ze_info", parts / f".text.{kernel.name}.asm"
    if not problem and about.exists() and listing.exists():
        return parse(about.read_text(), listing.read_text(), kernel, gpu)
    return Failure(kernel.name, problem or "the compiler printed no code")


def _run(command: list[str], limit_s: float) -> tuple[str, str]:
    """Run a command; return its output, and the reason if it failed."""
    try:
        done = subprocess.run(
            command,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment(),
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return "", f"it took the compiler more than {limit_s:g} s"
    status = done.returncode
    if status < 0:
        return "", f"the compiler's process ended with signal {signal.Signals(-status).name}"
    return done.stdout, f"status {status}: {done.stdout.strip()[:2000]}" if status else ""


def parse(about: str, listing: str, kernel: KernelSource, gpu: Gpu) -> KernelCode:
    """Read ocloc's disassembly of a kernel; ``about`` is the section `.ze_info`, in YAML."""
    facts = {name: int(number) for name, number in _FACT.findall(about)}
    register_bytes = 4 * gpu.wave
    return kernel_code(
        kernel,
        [each for line in listing.splitlines() for each in _instructions(line.strip())],
        _KINDS,
        registers=facts["grf_count"] * gpu.wave // facts["simd_size"],
        waves=facts["eu_thread_count"],
        wave=facts["simd_size"],
        spills=facts.get("spill_size", 0) // register_bytes,
        listing=listing,
    )


def _instructions(line: str) -> list[Instruction]:
    """Read a line: ``(W) mad (8|M0) r1.0<1>:f r2.0<8;1>:f … {@1} // comment; more``."""
    if label := _LABEL.match(line):
        return [Instruction("", 0, label=label[1])]
    found = _LINE.match(line)
    if found is None or found[1] == "illegal":
        # Padding after the end, for the instruction cache.
        return []
    opcode, operands, tokens, comment = found[1], found[2], found[3] or "", found[4] or ""
    types = _TYPE.findall(operands)
    if opcode.startswith("send"):
        to = "slm " if _LOCAL.search(operands.rstrip()) else ""
        opcode = f"{opcode} {to}{comment}"
    elif opcode == "mov" and len(set(types)) > 1:
        opcode = "cvt"
    elif types:
        opcode = f"{opcode}.{types[0]}"
    jump = _JUMP.match(f"{found[1]}{operands.rstrip()}")
    idle = found[1].startswith(("sync", "nop"))
    return [
        Instruction(
            opcode,
            1 - idle,
            int(idle),
            idle or _WAITS.search(tokens) is not None,
            jump[1] if jump else None,
        )
    ]
