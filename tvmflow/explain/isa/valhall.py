"""Reader of machine code for Mali GPUs since 2019 (Valhall) that Mesa's compiler prints."""

from __future__ import annotations

import re

from ...devices.gpus import Gpu
from .listing import Instruction, classes, kernel_code
from .record import KernelCode, KernelSource

#: Environment variables that make Mesa print the code of compute kernels.
ENVIRONMENT = {"BIFROST_MESA_DEBUG": "shaders,shaderdb", "PAN_MESA_DEBUG": "shaderdb"}

_KINDS = classes(
    multiply_adds="FMA",
    fetches="TEX|VAR_TEX",
    spills=r"(LOAD|STORE)\.tls",
    loads="LOAD|LD_",
    stores="STORE|ST_",
    conversions=r"[FSUIV]\d+_TO_",
)
#: Patterns of the line of statistics, and of its numbers with their names.
_STATISTICS = re.compile(r"^MESA_SHADER_\w+ shader: (.*)$", re.MULTILINE)
_FACT = re.compile(r"([\d.]+) ([a-z][a-z ]*)")
_SPILLS = re.compile(r"(\d+):(\d+) spills:fills")
_JUMP = re.compile(r"offset:(-?\d+)$")
#: Units whose cycles the compiler counts: arithmetic, conversions, special functions, varyings,
#: textures, loads and stores.
_UNITS = ("fma", "cvt", "sfu", "v", "t", "ls")
#: Waves of a core if each work-item has at most 32 registers; half as many with up to 64.
_WAVES = 64


def parse(output: str, kernel: KernelSource, gpu: Gpu) -> KernelCode | None:
    """Read the listing of a kernel, ``None`` if the output has none.

    Mesa compiles two variants; the last listing is the one for launches without an offset.
    """
    statistics = list(_STATISTICS.finditer(output))
    if not statistics:
        return None
    facts = {name.strip(): float(n) for n, name in _FACT.findall(statistics[-1][1])}
    spills = _SPILLS.search(statistics[-1][1])
    # Braces before the listing enclose the compiler's intermediate form.
    listing = output[: statistics[-1].start()].rpartition("}")[2].partition("\n")[2].strip("\n")
    return kernel_code(
        kernel,
        _instructions(listing),
        _KINDS,
        registers=int(facts["registers used"]),
        waves=int(_WAVES * facts["threads"]) // 2,
        wave=gpu.wave,
        spills=sum(map(int, spills.groups())) if spills else 0,
        cycles={unit: facts[unit] for unit in _UNITS},
        listing=listing,
    )


def _instructions(listing: str) -> list[Instruction]:
    """Read the lines of a listing; jump offsets count from the next instruction."""
    lines = [line.strip() for line in listing.splitlines() if line.strip()]
    code = []
    for number, line in enumerate(lines):
        opcode = line.split()[0]
        if "thread_local_pointer" in line:
            opcode = f"{opcode.partition('.')[0]}.tls"
        jump = _JUMP.search(line) if opcode.startswith(("BRANCH", "JUMP")) else None
        to = str(number + 1 + int(jump[1])) if jump else None
        waits = ".wait" in line
        idle = opcode.startswith("NOP")
        code.append(Instruction(opcode, 1 - idle, int(idle), waits, to, str(number)))
    return code
