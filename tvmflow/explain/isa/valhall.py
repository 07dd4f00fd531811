"""Machine code of Mali since 2019 (Valhall), as Mesa's compiler prints it."""

from __future__ import annotations

import re

from ...devices.gpus import Gpu
from .listing import Instruction, classes, kernel_code
from .record import KernelCode, KernelSource

#: What makes Mesa print the code of compute kernels, by variable.
ENVIRONMENT = {"BIFROST_MESA_DEBUG": "shaders,shaderdb", "PAN_MESA_DEBUG": "shaderdb"}

_KINDS = classes(
    multiply_adds="FMA",
    fetches="TEX|VAR_TEX",
    spills=r"(LOAD|STORE)\.tls",
    loads="LOAD|LD_",
    stores="STORE|ST_",
    conversions=r"[FSUIV]\d+_TO_",
)
#: The line of statistics, and its numbers with their names.
_STATISTICS = re.compile(r"^MESA_SHADER_\w+ shader: (.*)$", re.MULTILINE)
_FACT = re.compile(r"([\d.]+) ([a-z][a-z ]*)")
_SPILLS = re.compile(r"(\d+):(\d+) spills:fills")
_JUMP = re.compile(r"offset:(-?\d+)$")
#: Units whose cycles the compiler counts: arithmetic, conversions, special functions, varyings,
#: textures, loads and stores.
_UNITS = ("fma", "cvt", "sfu", "v", "t", "ls")
#: Waves of a core where each work-item has at most 32 registers; half as many with up to 64.
_WAVES = 64


def parse(output: str, kernel: KernelSource, gpu: Gpu) -> KernelCode | None:
    """Read the listing of a kernel, ``None`` if the output has none.

    The last one is that of the variant for launches without an offset.
    """
    statistics = list(_STATISTICS.finditer(output))
    if not statistics:
        return None
    facts = {name.strip(): float(n) for n, name in _FACT.findall(statistics[-1][1])}
    spills = _SPILLS.search(statistics[-1][1])
    # What comes before, in braces, is the compiler's own form of it.
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
    """Read the lines of a listing; jumps count instructions from the one behind them."""
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
