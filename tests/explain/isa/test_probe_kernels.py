"""Kernels that measure a device keep their work in machine code for a phone's GPU."""

from __future__ import annotations

import re

import pytest

from tvmflow.devices.gpus import GPUS
from tvmflow.explain.isa.record import KernelCode, KernelSource
from tvmflow.explain.isa.report import find_compiler
from tvmflow.probe.kernels import CHAINS, LIVE, live_values, source

pytestmark = pytest.mark.mesa

#: Steps of kernels whose loops are unrolled in the source, and lanes of a vector.
UNROLLED = LANES = 4


@pytest.fixture(scope="module")
def compiled() -> dict[str, KernelCode]:
    """Return the machine code of each kernel."""
    defines = f"#define LANES {LANES}\n#define IMAGES\n#define HALF\n"
    kernels = [*alone(defines + source()), *alone(live_values())]
    _, found = find_compiler(GPUS["adreno-740"])(kernels)
    assert all(isinstance(code, KernelCode) for code in found), found
    return {code.kernel: code for code in found}


def alone(text):
    """Yield each kernel of a program without the others."""
    pieces = re.split(r"(?m)^(?=kernel void |#|//)", text)
    # Mesa's compiler knows no subgroups.
    for name in set(re.findall(r"(?m)^kernel void (\w+)\(", text)) - {"wave"}:
        kept = (p for p in pieces if not p.startswith("kernel ") or f" {name}(" in p)
        yield KernelSource(name, name, "".join(kept), (64,))


def test_reads_and_writes_stay_in_their_loops(compiled):
    for name, code in compiled.items():
        if name.startswith(("read", "reread", "write", "copy")):
            assert code.loops >= 1, name
    for name in ("read_image", "reread_image"):
        assert compiled[name].whole.fetches == UNROLLED
    for name in ("read_buffer", "reread_buffer", "read_half_buffer", "reread_half_buffer"):
        assert compiled[name].whole.loads >= UNROLLED
    assert compiled["read_local"].whole.local >= UNROLLED


def test_multiply_adds_stay_in_their_loops(compiled):
    expected = UNROLLED * CHAINS * LANES
    for name in ("multiply_add", "multiply_add_half"):
        assert compiled[name].hot.multiply_adds == expected
    # Each product in fp16 is converted, so none was computed before the loop.
    assert compiled["multiply_half_add"].hot.conversions == expected


def test_live_values_stay_in_registers(compiled):
    registers = [compiled[f"live_{count}"].registers for count in LIVE]
    assert registers == sorted(registers)
    for count in LIVE[:-3]:
        code = compiled[f"live_{count}"]
        assert count <= code.registers <= count + 3
        assert (code.hot.multiply_adds, code.spills) == (count * LANES, 0)
