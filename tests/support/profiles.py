"""An invented profile, for tests of pages and reports."""

from __future__ import annotations

import numpy as np

from tvmflow.explain.profiling.record import (
    BOUNDS,
    FINDING_KINDS,
    CacheCeiling,
    Ceilings,
    DeviceFacts,
    Finding,
    FirstCall,
    KernelLaunch,
    MemoryStep,
    ModuleFacts,
    Profile,
)
from tvmflow.runtime.timing import Spread

_FAMILIES = ("conv2d_1x1", "depthwise", "conv2d", "moving", "softmax", "fallback")
_CACHES = (CacheCeiling("L1", 98_304, 350.0), CacheCeiling("L2", 4_194_304, 80.0))
_CEILINGS = Ceilings(20.0, 400.0, 6.5, 14.0, fp16_gflops=None, int8_gops=900.0, caches=_CACHES)


def synthetic_profile(kernels: int = 100, seed: int = 0) -> Profile:
    """Return a profile of this many launches, with text and findings of plausible size."""
    rng = np.random.default_rng(seed)
    launches, start = [], 3.0
    for number in range(kernels):
        launches.append(_kernel(number, start, rng))
        start += launches[-1].median_us + float(rng.uniform(0.5, 4.0))
    names = [kernel.name for kernel in launches]
    whole_ms = start / 1e3 + 0.4
    return Profile(
        module=ModuleFacts("net.so", "net <1>", "opencl", "cpu", {"tvmflow": "0.1.0"}),
        device=DeviceFacts("A device & its cache", "1.2", "OpenCL 3.0"),
        ceilings=_CEILINGS,
        first_call=FirstCall(load_ms=31.0, build_ms=850.0, upload_ms=12.5, run_ms=9.0),
        runs=20,
        whole=Spread(whole_ms, 0.97 * whole_ms, 1.2 * whole_ms),
        weights_bytes=13_900_000,
        memory=tuple(
            MemoryStep(number, kernel.function, int(rng.integers(1, 5_000_000)))
            for number, kernel in enumerate(launches)
        ),
        kernels=tuple(launches),
        findings=tuple(
            _finding(name, FINDING_KINDS[number % len(FINDING_KINDS)], number)
            for number, name in enumerate(names)
        ),
        tir={kernel.function: _text(kernel.function, "T.grid(1, 14, 14)") for kernel in launches},
        sources={name: _text(name, "vstore4(x, 0, y);") for name in names},
        notes=("Nothing was measured.",),
    )


def _kernel(number: int, start_us: float, rng: np.random.Generator) -> KernelLaunch:
    family = _FAMILIES[number % len(_FAMILIES)]
    median_us = float(rng.lognormal(4.0, 1.0))
    counted = number % 10 != 9
    flops, read, written = (int(v) for v in rng.integers(10_000, 4_000_000, 3))
    intensity = flops / (read + written)
    reachable = min(_CEILINGS.fp32_gflops, _CEILINGS.copy_gbps * intensity)
    share = float(min(1.0, flops / median_us / 1e3 / reachable))
    return KernelLaunch(
        name=f"{family}_{number}_kernel",
        function=f"{family}_{number}",
        nodes=(f"/features/{number}/Conv", f"/features/{number}/Clip<{number}>"),
        family=family,
        knobs={"tile": 4, "unrolled": True},
        global_size=(56 * 7, 4, 1),
        local_size=(56, 1, 1),
        clock="device",
        start_us=start_us,
        median_us=median_us,
        p10_us=0.95 * median_us,
        p90_us=1.3 * median_us,
        flops=flops if counted else None,
        bytes_read=read if counted else None,
        bytes_written=written if counted else None,
        gflops=flops / median_us / 1e3 if counted else None,
        gbps=(read + written) / median_us / 1e3 if counted else None,
        intensity=intensity if counted else None,
        roofline_share=share if counted else None,
        bound=BOUNDS[number % len(BOUNDS)] if counted else None,
    )


def _finding(kernel: str, kind: str, number: int) -> Finding:
    return Finding(
        kernel=kernel,
        kind=kind,
        access="lv<0>[n, c * 4 + lane, y, x]" if number % 2 else "",
        line=number % 30 + 1 if number % 3 else 0,
        cost={("bytes", "cycles")[number % 2]: 1000.0 * (number + 1)},
        share=(number % 10) / 10,
        sentence=f"Adjacent work-items are {number} elements apart & each moves a line.",
        remedy="Bind the innermost axis to the work-items.",
    )


def _text(name: str, line: str) -> str:
    return "\n".join([f"def {name}(x, y):", *(f"    # {n}: {line} < 3" for n in range(40))])
