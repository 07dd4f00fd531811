"""Reader of machine code for AMD's GPUs that Mesa's compiler ACO prints."""

from __future__ import annotations

import re

from ...devices.gpus import Gpu
from .listing import Instruction, classes, kernel_code
from .record import KernelCode, KernelSource

#: Environment variables that make radeonsi print the code of compute kernels.
ENVIRONMENT = {"AMD_DEBUG": "cs,asm,stats"}

_KINDS = classes(
    multiply_adds=r"v_(pk_|dual_)?(fma|mad_f|mac|dot)",
    fetches=r"image_(sample|load|gather)",
    loads=r"(global|flat)_load|s?_?buffer_load|s_load",
    stores=r"(global|flat|buffer|image)_store",
    local=r"ds_",
    spills=r"scratch_",
    conversions=r"v_cvt",
    waits=r"s_wait",
)
_FACT = re.compile(r"^([A-Z][\w ]+): (\d+)", re.MULTILINE)
_BEGIN, _STATISTICS = "*** SHADER STATS ***", "Max Waves"
_LABEL = re.compile(r"\s*(BB\d+):")
_WAVE = re.compile(r"\(CS, W(\d+)\)")
_IDLE = ("s_nop", "s_delay_alu", "s_code_end")


def parse(output: str, kernel: KernelSource, gpu: Gpu) -> KernelCode | None:
    """Read the listing of a kernel, ``None`` if the output has none."""
    before, _, statistics = output.rpartition(_BEGIN)
    facts = {name: int(n) for name, n in _FACT.findall(statistics)}
    if _STATISTICS not in facts:
        return None
    listing = before.rpartition("disassembly:\n")[2]
    code = [each for line in listing.splitlines() for each in _instructions(line)]
    wave = _WAVE.search(output)
    return kernel_code(
        kernel,
        code,
        _KINDS,
        registers=facts["VGPRS"],
        waves=facts[_STATISTICS],
        wave=int(wave[1]) if wave else gpu.wave,
        spills=facts["Spilled SGPRs"] + facts["Spilled VGPRs"],
        listing=listing,
    )


def _instructions(line: str) -> list[Instruction]:
    """Read a line: ``BB3:``, or a tab, the instruction, and its bytes after ``;``."""
    if named := _LABEL.match(line):
        return [Instruction("", 0, label=named[1])]
    if not line.startswith("\t"):
        return []
    words = line.split(";")[0].split()
    if not words:
        return []
    jump = words[-1] if words[0].startswith(("s_branch", "s_cbranch")) else None
    idle = words[0] in _IDLE
    return [Instruction(words[0], 0 if idle else 1, 1 if idle else 0, jumps_to=jump)]
