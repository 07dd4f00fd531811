"""Sources of the kernels that measure a device.

The method is that of microsoft/ArchProbe (MIT) and krrishnarraj/clpeak (Apache-2.0): kernels that
are bound by one unit each, and for registers a chain of dependent operations on ever more live
values.  The kernels are our own.
"""

from __future__ import annotations

from pathlib import Path

#: Live vectors of four whose time is measured.
LIVE = (4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
#: Chains of the kernels of arithmetic, as in kernels.cl.
CHAINS = 8
#: Vectors of four in the local memory of `read_local`, as in kernels.cl.
LOCAL_VECTORS = 256


def source() -> str:
    """Return the kernels of kernels.cl."""
    return Path(__file__).with_name("kernels.cl").read_text(encoding="utf-8")


def live_values() -> str:
    """Return a kernel for each number of live values: a chain of multiply-adds through all of them.

    Each multiply-add needs the one before, so that its latency is hidden by other waves only.
    Multiplied by 0, the last value moves through all others.
    """
    return "\n".join(_live(count) for count in LIVE)


def _live(count: int) -> str:
    names = [f"v{i}" for i in range(count)]
    loads = "".join(f"  float4 {v} = source[{i}];\n" for i, v in enumerate(names))
    chain = "".join(
        f"    {v} = mad({v}, zero, {before});\n"
        for before, v in zip([names[-1], *names], names, strict=False)
    )
    return (
        f"kernel void live_{count}(global const float4* source, global float* sums, int steps,\n"
        "                    float4 zero) {\n"
        f"{loads}"
        "  for (int i = 0; i < steps; ++i) {\n"
        f"{chain}"
        "  }\n"
        f"  const float4 total = {' + '.join(names)};\n"
        "  sums[get_global_id(0)] = total.x + total.y + total.z + total.w;\n"
        "}\n"
    )
