"""Results of a library's self-test."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...runtime.json_types import JsonMapping


@dataclass(frozen=True)
class SelfTest:
    """Difference between a device's results and those in the library."""

    largest_error: float  #: Largest absolute error in all outputs.
    tolerance_used: float  #: Largest ratio of an element's error to its tolerance.
    compared: int  #: Number of elements that were compared.
    #: The library's report (docs/standalone.md).
    report: JsonMapping = field(default_factory=dict)

    def summary(self) -> str:
        """Return a sentence about what was compared."""
        tensors, runs = self.report.get("tensors", 0), self.report.get("runs", 0)
        between = f" and {tensors} tensors between functions" if tensors else ""
        repeated = f", and the outputs of {runs} more runs were equal" if runs else ""
        return f"Self-test: {self.compared} values of outputs{between} are right{repeated}."

    def findings(self) -> list[str]:
        """Return a sentence for each function that was wrong, or differed between runs."""
        return list(map(_sentence, self.report.get("functions", ())))

    @property
    def details(self) -> str | None:
        """Return the findings as the details of an error; ``None`` if there are none."""
        return "\n".join(self.findings()) or None


#: Names of the kernels that replace wrong ones, by the report's word.
_KERNELS = {
    "plain": "its plain kernels",
    "choice": "its kernels with other knobs",
    "default": "its usual kernels",
}


def _sentence(found: JsonMapping) -> str:
    nodes = f" ({found['nodes']})" if found["nodes"] else ""
    if found["fault"] == "differs":
        what = "gives different results in equal runs"
    else:
        what = f"uses {found['tolerance_used']:.3g} of its tolerance"
    if not found["replaced"]:
        then = "it has no other kernels, or they are in use"
    elif found["right"]:
        then = f"{_KERNELS[found['by']]} are right, and replace it"
    else:
        then = "its other kernels are not right, either"
    return f"The function {found['function']}{nodes} {what}; {then}."
