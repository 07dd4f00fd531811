"""``tvmflow verify``: a module against ONNX Runtime."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from .options import load_operators
from .output import print_json, print_table
from .session import command

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
    model: Path,
    module: Path,
    inputs: Path | None = None,
    ops: list[Path] | None = None,
    random_seed: int = 0,
    device_index: int = 0,
    check_weights: bool = True,
    as_json: bool = False,
) -> None:
    """Compare a compiled network with ONNX Runtime on the CPU.

    A network with custom operators is compared with ONNX's reference evaluator.

    Exits with status 1 when an output differs by more than the tolerance of its dtype.
    """
    from .. import load
    from ..verify.compare import verify
    from .arrays import choose_inputs

    load_operators(ops)
    with closing(load(module, device=device_index, check_weights=check_weights)) as network:
        report = verify(model, network, choose_inputs(inputs, random_seed, network))
    if as_json:
        outputs = [{**asdict(output), "passed": output.passed} for output in report.outputs]
        about = {"passed": report.passed, "reference": report.reference}
        print_json({**about, "outputs": outputs, "not_finite": report.not_finite})
    else:
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
        columns = ["output", ">max abs error", ">max rel error", ">rel tol", ">abs tol", ">used"]
        print_table(f"Compared with {report.reference}", [*columns, ""], rows)
    report.raise_if_failed()
