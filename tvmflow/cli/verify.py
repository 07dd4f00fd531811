"""``tvmflow verify``: a module against ONNX Runtime."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .formats import print_section, table
from .options import (
    CheckWeights,
    Debug,
    DeviceIndex,
    InputsFile,
    Json,
    ModelFile,
    ModuleFile,
    OpsFiles,
    Quiet,
    RandomSeed,
    Verbose,
    load_operators,
)
from .session import command, out_console, print_json

if TYPE_CHECKING:
    from ..verify.compare import Report

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow verify net.onnx net.so
      random inputs, the same at every call
  tvmflow verify net.onnx net.so --inputs in.npz --json

[bold]Errors[/bold]
  absolute  max |a - b| over an output a and its reference b
  relative  max |a - b| / max |b|
  An output passes when every element satisfies
  |a - b| <= relative tolerance · |b| + absolute tolerance · max |b|.
"""


@command
def verify_module(
    model: ModelFile,
    module: ModuleFile,
    inputs: InputsFile = None,
    ops: OpsFiles = None,
    random_seed: RandomSeed = 0,
    device_index: DeviceIndex = 0,
    check_weights: CheckWeights = True,
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Compare a compiled network with ONNX Runtime on the CPU.

    A network with custom operators is compared with ONNX's reference evaluator.

    Exits with status 1 when an output differs by more than the tolerance of its dtype.
    """
    from .. import load
    from ..verify.compare import verify
    from .arrays import choose_inputs

    load_operators(ops)
    network = load(module, device=device_index, check_weights=check_weights)
    try:
        values = choose_inputs(inputs, random_seed, network)
        report = verify(model, network, values)
    finally:
        network.close()
    if as_json:
        print_json(_describe(report))
    else:
        _print(report)
    report.raise_if_failed()


def _describe(report: Report) -> dict[str, Any]:
    outputs = [{**asdict(output), "passed": output.passed} for output in report.outputs]
    return {
        "passed": report.passed,
        "reference": report.reference,
        "outputs": outputs,
        "not_finite": list(report.not_finite),
    }


def _print(report: Report) -> None:
    rows = [
        (
            output.name,
            f"{output.max_abs_error:.3g}",
            f"{output.max_rel_error:.3g}",
            f"{output.tolerance.relative:g}",
            f"{output.tolerance.absolute:g}",
            f"{100 * output.used:.3g} %",
            "passed" if output.passed else "FAILED",
        )
        for output in report.outputs
    ]
    columns = ["output", ">max abs error", ">max rel error", ">rel tol", ">abs tol", ">used", ""]
    print_section(out_console(), f"Compared with {report.reference}", table(columns, rows))
