"""Machine code on the page of a profile: a row per GPU, the findings, and the listing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.profiles import synthetic_profile

from tvmflow.devices.gpus import find_gpu
from tvmflow.explain.isa.findings import all_findings
from tvmflow.explain.isa.listing import Instruction, classes, kernel_code
from tvmflow.explain.isa.record import Failure, KernelSource, Report

browser_test = pytest.mark.browser
PROFILE = synthetic_profile(3)


def report(gpu: str, *names: str) -> Report:
    """Return a report on these kernels of the profile; the others failed."""
    kinds = classes(multiply_adds="mad", spills="stp")
    code = [*[Instruction("mad")] * 30, *[Instruction("stp")] * 7]
    kernels = tuple(
        kernel_code(
            KernelSource(name, "f", "", (12, 1, 1), 4), code, kinds, registers=48, waves=4,
            wave=64, listing=f"mad <r1> of {name}",
        )
        for name in names
    )  # fmt: skip
    failed = (k.name for k in PROFILE.kernels if k.name not in names)
    failures = tuple(Failure(name, "signal <SIGSEGV>") for name in failed)
    found = all_findings(kernels, find_gpu(gpu))
    return Report("net.so", "net", "adreno", gpu, "Mesa 26.2", kernels, failures, found)


@browser_test
def test_a_kernel_shows_its_machine_code(show) -> None:
    first, second, _ = (kernel.name for kernel in PROFILE.kernels)
    codes = [report("adreno-740", first, second), report("mali-g610", first)]
    page = show(PROFILE, codes=codes)
    page.run("location.hash = 'k0.0'")
    page.wait_for("document.querySelector('#kernel[open] pre')")
    assert page.texts("#code tbody tr:first-child td") == [
        *("adreno-740", "12 × 1 × 1", "19 %", "48", "4", "37", "0", "all", "81 %", "0", "0", "7")
    ]
    kinds = page.texts("#code .kind")
    assert "adreno-740: registers" in kinds
    assert "mali-g610: occupancy" in kinds
    # One button per text: TIR, source, and the listing of each GPU.
    assert page.texts("#kernel .controls button") == ["TIR", "source", "adreno-740", "mali-g610"]
    page.click("#kernel .controls button:nth-child(3)")
    assert [line.strip() for line in page.texts("#kernel pre .line")] == [f"mad <r1> of {first}"]
    page.run("location.hash = 'k0.1'")
    page.wait_for(f"document.querySelector('#kernel-name').textContent === '{second}'")
    assert page.texts("#code tbody tr:last-child td") == [
        "mali-g610", "The compiler failed: signal <SIGSEGV>",
    ]  # fmt: skip


@browser_test
def test_machine_code_belongs_to_the_later_profile(show) -> None:
    name = PROFILE.kernels[0].name
    page = show(PROFILE, before=replace(PROFILE, runs=5), codes=[report("adreno-740", name)])
    for side, count in ((0, 0), (1, 1)):
        page.run(f"location.hash = 'k{side}.0'")
        page.wait_for("document.querySelector('#kernel[open] pre')")
        assert page.count("#code") == count


@browser_test
def test_without_reports_there_is_none(show) -> None:
    page = show(PROFILE)
    page.run("location.hash = 'k0.0'")
    page.wait_for("document.querySelector('#kernel[open] pre')")
    assert page.count("#code") == 0
    assert page.texts("#kernel .controls button") == ["TIR", "source"]
