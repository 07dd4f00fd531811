"""Machine code of NVIDIA's GPUs, from ``nvcc`` (with its ``ptxas``) and ``nvdisasm``."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...devices.gpus import Gpu
from ...errors import DeviceError, KernelBuildError
from ...runtime.cuda_compiler import find_tool, run_tool
from .listing import Instruction, classes, kernel_code
from .record import Failure, KernelCode, KernelSource

_KINDS = classes(
    multiply_adds=r"(FFMA|HFMA2|DFMA|HMMA|IMMA|IDP)",
    fetches=r"(TEX|TLD|SULD)",
    local=r"(LDS|STS|LDSM)",
    spills=r"(LDL|STL)",
    loads=r"(LDG|LDGSTS|LDC|ULDC|LD\b)",
    stores=r"(STG|SUST|ST\b)",
    conversions=r"(F2F|F2I|I2F|F2FP|I2FP|I2I)",
    waits=r"(BAR|DEPBAR|LDGDEPBAR|WARPSYNC)",
)
_FUNCTION = re.compile(r"^\s*\.section\s+\.text\.(\w+)|^\s*\.text\.(\w+):", re.MULTILINE)
_LABEL = re.compile(r"^(\.L_\w+):")
_LINE = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_JUMP = re.compile(r"`\((\.L_\w+)\)")
_USAGE = re.compile(
    r"Compiling entry function '(\w+)'.*?bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads.*?Used (\d+) registers",
    re.DOTALL,
)
#: Registers and waves of a multiprocessor since compute capability 8.0.
_REGISTERS, _WAVES, _PORTION = 65536, 64, 8


@dataclass(frozen=True)
class Reported:
    """Registers of a kernel as NVIDIA's assembler reports them."""

    #: 32-bit registers of a thread.
    registers: int
    #: Bytes of registers that a thread spills to memory, and that it reads back.
    spilled_bytes: int
    loaded_bytes: int


def reported_registers(source: str, arch: str) -> dict[str, Reported]:
    """Return the registers of CUDA C++ kernels by name, for an architecture such as ``sm_80``.

    The result is empty if ``nvcc`` is not installed or refuses the source.
    """
    with suppress(DeviceError, KernelBuildError), tempfile.TemporaryDirectory() as folder:
        return _assembled(source, arch, Path(folder, "kernels.cubin"), arch)
    return {}


def _assembled(source: str, chip: str, binary: Path, gpu: str) -> dict[str, Reported]:
    """Compile CUDA C++ to a file; return what the assembler reports of its kernels."""
    code = binary.with_suffix(".cu")
    code.write_text(source)
    options = ["-cubin", f"-arch={chip}", "-O3", "-Xptxas", "-v", "-std=c++17"]
    said = _run([find_tool("nvcc"), *options, str(code), "-o", str(binary)], gpu)
    return {
        name: Reported(int(registers), int(stores), int(loads))
        for name, stores, loads, registers in _USAGE.findall(said)
    }


def compile_kernels(
    kernels: Sequence[KernelSource], gpu: Gpu
) -> tuple[str, list[KernelCode | Failure]]:
    """Compile the kernels of a module for CUDA as one file, and read their code.

    `DeviceError` if a tool is missing, or refuses the source.
    """
    nvcc, nvdisasm = find_tool("nvcc"), find_tool("nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "kernels.cubin")
        usage = _assembled(kernels[0].text, gpu.chip, binary, gpu.name)
        listing = _run([nvdisasm, "--print-code", str(binary)], gpu.name)
    version = re.search(r"V(\d+[\d.]*)", _run([nvcc, "--version"], gpu.name))
    texts = _functions(listing)
    codes: list[KernelCode | Failure] = []
    for kernel in kernels:
        if kernel.name in texts and kernel.name in usage:
            codes.append(_code(kernel, gpu, texts[kernel.name], usage[kernel.name]))
        else:
            codes.append(Failure(kernel.name, "the compiler printed no code"))
    return f"ptxas {version[1] if version else ''}".strip(), codes


def _code(kernel: KernelSource, gpu: Gpu, listing: str, usage: Reported) -> KernelCode:
    portion = -(-usage.registers // _PORTION) * _PORTION * gpu.wave
    return kernel_code(
        kernel,
        [each for line in listing.splitlines() for each in _instructions(line)],
        _KINDS,
        registers=usage.registers,
        waves=min(_WAVES, _REGISTERS // max(portion, 1)),
        wave=gpu.wave,
        spills=(usage.spilled_bytes + usage.loaded_bytes) // 4,
        listing=listing,
    )


def _functions(listing: str) -> dict[str, str]:
    """Return the lines of each function in the listing of a whole file."""
    marks = list(_FUNCTION.finditer(listing))
    ends = [*(mark.start() for mark in marks[1:]), len(listing)]
    texts = {mark[1] or mark[2]: "" for mark in marks}
    for mark, end in zip(marks, ends, strict=True):
        texts[mark[1] or mark[2]] += listing[mark.end() : end]
    return texts


def _instructions(line: str) -> list[Instruction]:
    if label := _LABEL.match(line):
        return [Instruction("", 0, label=label[1])]
    found = _LINE.match(line)
    if found is None:
        return []
    jump = _JUMP.search(found[2]) if found[1].startswith("BRA") else None
    idle = found[1] == "NOP"
    return [Instruction(found[1], 1 - idle, int(idle), jumps_to=jump[1] if jump else None)]


def _run(command: Sequence[str], gpu: str) -> str:
    return run_tool(command, f"Compiling for {gpu} failed: {Path(command[0]).name} ended")
