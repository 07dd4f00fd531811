"""Verification of predicted times: how far measured times lie from predictions made without them.

A GPU's measured kernels are predicted with constants that were fitted without this GPU, or without
the kernel's network if only one GPU of the vendor was measured.  The kernels are AutoTVM's and a
fork's; ``python benchmarks/verified_times.py`` prints the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..devices.gpus import Gpu

#: Range of times, relative to a prediction.
Range = tuple[float, float]


@dataclass(frozen=True)
class Errors:
    """Errors of the predicted times of measured kernels."""

    #: Number of kernels.
    kernels: int
    #: Name of what each fit excluded: ``GPU`` or ``network``.
    without: str
    #: Tenth and ninetieth percentile of measured times, relative to the model's prediction.
    model: Range
    #: The same percentiles, relative to the bound of bytes and multiply-adds.
    bound: Range


#: Errors by GPU; those of a vendor give each of its measured GPUs the same weight.
ERRORS = {
    "adreno-630": Errors(80, "GPU", (0.72, 1.28), (1.08, 2.79)),
    "adreno-640": Errors(80, "GPU", (0.54, 0.72), (1.0, 3.05)),
    "adreno-660": Errors(360, "GPU", (0.98, 1.46), (1.5, 2.93)),
    "adreno-730": Errors(412, "GPU", (0.72, 1.26), (1.01, 2.31)),
    "adreno-740": Errors(327, "GPU", (0.77, 1.35), (1.18, 2.92)),
    "adreno": Errors(1259, "GPU", (0.6, 1.34), (1.12, 2.94)),
    "mali-g76": Errors(80, "network", (0.81, 1.21), (1.19, 1.73)),
    "mali": Errors(80, "network", (0.81, 1.21), (1.19, 1.73)),
}
#: Vendors, as entries of the table, by instruction set.
_VENDORS = {"ir3": "adreno", "bifrost": "mali", "valhall": "mali"}


@dataclass(frozen=True)
class Verification:
    """Errors to expect on a GPU, and whether they were measured there."""

    gpu: str
    errors: Errors
    #: GPUs whose kernels were measured.
    measured: tuple[str, ...]

    @property
    def is_verified(self) -> bool:
        """Return whether kernels were measured on the GPU itself."""
        return self.gpu in self.measured

    @property
    def sentence(self) -> str:
        """Return how far predictions for the GPU are verified, as text."""
        low, high = self.errors.model
        fit = f"fits without their {self.errors.without} predict"
        said = (
            f"{self.errors.kernels:,} kernels were measured on {', '.join(self.measured)}; 80 % of "
            f"them took {low:.2f} to {high:.2f} times as long as {fit}."
        )
        return said if self.is_verified else f"Not verified: no measurement of this GPU. {said}"


def verification_of(gpu: Gpu) -> Verification:
    """Return the errors to expect on a GPU: its own, or those of its vendor's measured GPUs."""
    if gpu.name in ERRORS:
        return Verification(gpu.name, ERRORS[gpu.name], (gpu.name,))
    vendor = _VENDORS[gpu.isa]
    measured = tuple(name for name in ERRORS if name.startswith(f"{vendor}-"))
    return Verification(gpu.name, ERRORS[vendor], measured)
