"""Listings of machine code: instructions, loops, and issue slots by category."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .record import KernelCode, KernelSource, Slots

#: Share of the multiply-adds in a loop, below which a kernel counts as straight-line code.
_LOOPS_COUNT = 0.3


@dataclass(frozen=True)
class Instruction:
    """One line of a listing."""

    opcode: str
    #: Issue slots that it takes, including repetitions, and idle slots that it adds.
    slots: int = 1
    idle: int = 0
    #: Whether it waits for others.
    waits: bool = False
    #: Label that it jumps to, if it jumps.
    jumps_to: str | None = None
    #: Label of its own position, if it has one.
    label: str | None = None


#: Pattern for the beginning of an opcode, by the field of `Slots` that counts it.
Classes = Mapping[str, re.Pattern[str]]


def classes(**prefixes: str) -> Classes:
    """Compile the patterns of opcodes for the fields of `Slots`."""
    return {name: re.compile(pattern) for name, pattern in prefixes.items()}


def slots(code: Sequence[Instruction], kinds: Classes) -> Slots:
    """Count the issue slots of a piece of code."""
    found: Counter[str] = Counter()
    for each in code:
        found["issue"] += each.slots + each.idle
        found["idle"] += each.idle
        found["waits"] += each.waits
        kind = next((name for name, known in kinds.items() if known.match(each.opcode)), None)
        if kind is not None:
            found[kind] += each.slots
    names = Slots.__dataclass_fields__
    return Slots(**{name: found[name] for name in names})


def kernel_code(
    kernel: KernelSource,
    code: Sequence[Instruction],
    kinds: Classes,
    *,
    registers: int,
    waves: int,
    wave: int,
    spills: int | None = None,
    cycles: Mapping[str, float] | None = None,
    listing: str,
) -> KernelCode:
    """Count the slots of a kernel and of its hottest loop.

    A loop is the code between a label and a later jump back to it.  If the compiler does not count
    spills, they are the accesses to private memory in the code.
    """
    at = {each.label: position for position, each in enumerate(code) if each.label}
    loops = [
        (at[each.jumps_to], position + 1)
        for position, each in enumerate(code)
        if each.jumps_to in at and at[each.jumps_to] <= position
    ]
    innermost = [
        (begin, end)
        for begin, end in loops
        if not any((b, e) != (begin, end) and begin <= b and e <= end for b, e in loops)
    ]
    whole = slots(code, kinds)
    counted = (slots(code[begin:end], kinds) for begin, end in innermost)
    hot = max(counted, key=lambda loop: loop.multiply_adds, default=whole)
    is_straight = not loops or hot.multiply_adds <= _LOOPS_COUNT * whole.multiply_adds
    return KernelCode(
        kernel=kernel.name,
        function=kernel.function,
        group=kernel.group,
        groups=kernel.groups,
        registers=registers,
        waves=waves,
        wave=wave,
        loops=len(loops),
        is_straight=is_straight,
        hot=whole if is_straight else hot,
        whole=whole,
        spills=whole.spills if spills is None else spills,
        cycles=cycles or {},
        flops=kernel.flops,
        listing=listing,
    )
