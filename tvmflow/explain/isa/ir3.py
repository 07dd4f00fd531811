"""Reader of Adreno machine code that Mesa's compiler ir3 prints."""

from __future__ import annotations

import re

from ...devices.gpus import Gpu
from .listing import Instruction, classes, kernel_code
from .record import KernelCode, KernelSource

#: Environment variables that make ir3 print the code of compute kernels.
ENVIRONMENT = {"IR3_SHADER_DEBUG": "cs,disasm,nocache", "FD_MESA_DEBUG": "shaderdb"}

_KINDS = classes(
    multiply_adds=r"mad\.f",
    fetches=r"(i?sam|gather)",
    loads=r"(ldg|ldib|ldc)",
    stores=r"(stg|stib)",
    local=r"(ldl|stl)",
    spills=r"(ldp|stp)",
    conversions="cov",
)
_LABEL = re.compile(r"(l\d+):\s*(.*)")
_FLAG = re.compile(r"\(([a-z]+?)(\d*)\)")
_JUMP = re.compile(r"#(l\d+)")
_FACT = re.compile(r"(\d+) \(?([a-z][\w-]*)\)?")


def parse(output: str, kernel: KernelSource, gpu: Gpu) -> KernelCode | None:
    """Read the listing of a kernel, ``None`` if the output has none.

    Mesa compiles a kernel more than once; the last variant is the one for launches without an
    offset.
    """
    listing = output.rpartition("Native code for ")[2].partition("\n")[2]
    code: list[Instruction] = []
    facts: dict[str, int] = {}
    is_over = False
    for line in listing.splitlines():
        if line.startswith("; CL prog"):
            facts.update({name: int(n) for n, name in _FACT.findall(line.split(":", 1)[1])})
        elif facts and not line.startswith(";"):
            break
        elif not facts and line and line[0] not in ";@" and not is_over:
            code += _instructions(line)
            # Padding after the end fills the instruction cache.
            is_over = line.split()[-1] == "end"
    if "instr" not in facts:
        return None
    wave = gpu.wave * (2 if facts.get("double_threadsize") else 1)
    return kernel_code(
        kernel,
        code,
        _KINDS,
        registers=facts["full"],
        waves=facts["max_waves"],
        wave=wave,
        listing=listing,
    )


def _instructions(line: str) -> list[Instruction]:
    """Read a line: ``l3: (sy)(rpt2)(nop1) mad.f32 r0.x, …``; labels may stand alone."""
    label, text = None, line.strip()
    if named := _LABEL.match(text):
        label, text = named[1], named[2]
    flags = {name: int(number or 1) for name, number in _FLAG.findall(text)}
    words = _FLAG.sub(" ", text).split()
    opcode = words[0] if words else ""
    if opcode.startswith("alias") or not opcode:
        # A prefix of the next instruction (a7xx) has no slot; a label may stand alone.
        return [Instruction("", 0, label=label)] if label else []
    jump = _JUMP.search(text)
    repeated = 1 + flags.get("rpt", 0)
    is_idle = opcode == "nop"
    return [
        Instruction(
            opcode,
            0 if is_idle else repeated,
            flags.get("nop", 0) + (repeated if is_idle else 0),
            "sy" in flags or "ss" in flags,
            jump[1] if jump else None,
            label,
        )
    ]
