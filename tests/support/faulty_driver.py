"""Compile and control the faulty OpenCL driver (``module/standalone/faulty_driver.c``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support.fake_opencl import ROOT, compile_c
from tvmflow.module.standalone.format import ArgumentKind, Section
from tvmflow.module.standalone.read import EncodedPlan

SOURCE = ROOT / "tests" / "module" / "standalone" / "faulty_driver.c"


def build_faulty_driver(folder: Path, loader: str) -> Path:
    """Put the driver into the folder, in front of an OpenCL loader."""
    link = ("-Wl,--no-as-needed", f"-l:{loader}", "-pthread")
    return compile_c(folder / "libOpenCL.so", "-D_GNU_SOURCE", "-shared", SOURCE, *link)


def fault(kernel: str, argument: int = 0, rate: int = 1, seed: int = 0) -> dict[str, str]:
    """Return the variables with which the driver computes a kernel wrong; "" is none."""
    values = {"KERNEL": kernel, "ARGUMENT": argument, "RATE": rate, "SEED": seed}
    return {f"FAULTY_{name}": str(value) for name, value in values.items()}


def functions_of(plan: EncodedPlan) -> dict[str, tuple[str, int]]:
    """Return each kernel that ends a tested function: the function, and the result's argument."""
    found = {}
    for row in plan[Section.TEST_TENSORS]:
        launch = plan[Section.LAUNCHES][row["launch"]]
        first = int(launch["first_argument"])
        arguments = plan[Section.ARGUMENTS][first : first + int(launch["arguments"])]
        ours = (arguments["kind"] == ArgumentKind.MEMORY) & (
            arguments["allocation"] == row["allocation"]
        )
        function = plan.text(int(launch["function"]))
        found[plan.text(int(launch["kernel"]))] = function, int(np.flatnonzero(ours)[0])
    return found
