"""``tvmflow run`` and ``tvmflow verify``: run a module, and compare it with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import VerificationError
from .options import load_operators
from .output import note_file, out_console, print_json, print_table
from .session import command
from .text import shape_text

if TYPE_CHECKING:
    import numpy as np

    from ..runtime.json_types import JsonObject

_STATISTICS = ("min", "mean", "max")
#: Number of the largest values that are printed; arrays of at most `_FEW` elements are printed
#: whole.
_TOP, _FEW = 5, 8
RUN_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow run net.so --inputs in.npz --outputs out.npz
      in.npz from Python: numpy.savez("in.npz", **{"input.1": image})
  tvmflow run libnet.so --picture face.jpg
      a library that was compiled with --image-input
  tvmflow run net.so --random-seed 0
      random inputs; prints the outputs' shapes and largest values
  tvmflow run libnet.so --random-seed 0 --on adb
      a standalone library on an attached phone
"""
VERIFY_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow verify net.onnx net.so
      random inputs, the same at every call
  tvmflow verify net.onnx net.so --inputs in.npz --json
  tvmflow verify net.onnx libnet.so --on adb
      a standalone library on an attached phone

[bold]Errors[/bold]
  absolute  max |a - b| over an output a and its reference b
  relative  max |a - b| / max |b|
  An output passes when every element satisfies
  |a - b| <= relative tolerance · |b| + absolute tolerance · max |b|.
"""


@command
def run_module(
    module: Path,
    inputs: Path | None = None,
    picture: list[str] | None = None,
    outputs: Annotated[Path | None, "OUT.npz", "Write the outputs by ONNX name."] = None,
    random_seed: Annotated[
        int | None, "N", "Seed of random values for the inputs that no file gives."
    ] = None,
    of_shape: list[str] | None = None,
    of_extents: str | None = None,
    pad_batch: Annotated[
        bool,
        "Pad a batch that the module does not have to the next larger one, if samples are "
        "independent.",
    ] = False,
    device_index: int = 0,
    backend: str = "auto",
    check_weights: bool = True,
    on: str | None = None,
    secret_file: Path | None = None,
) -> None:
    """Run a compiled network once.

    A module with several shapes takes inputs of any of them, and other batches in parts if the
    network's samples are independent of each other.
    """
    if inputs is None and random_seed is None and not picture:
        raise typer.BadParameter(
            "give --inputs IN.npz, --picture FILE, or --random-seed N for random inputs."
        )
    from ..module.blocked_layout import all_to_logical
    from ..module.files import ZIP, check_writable
    from .arrays import choose_inputs, write_outputs
    from .places import Place, loaded
    from .shapes import chosen

    if outputs is not None:
        check_writable(outputs, ZIP)
    place = Place(on, secret_file)
    with loaded(module, place, device_index, check_weights, backend) as network:
        one = chosen(network, of_shape, of_extents) or network
        values = choose_inputs(inputs, random_seed, one, picture)
        given = one.run(values, pad_batch=pad_batch)
        results = all_to_logical(network.outputs, dict(given.items()))
    if outputs is not None:
        write_outputs(outputs, results)
    summary = [_summary(name, array) for name, array in results.items()]
    if print_json({"outputs": summary, "written": outputs}):
        return
    if outputs is not None:
        note_file(outputs)
        return
    rows = [
        (s["name"], s["dtype"], shape_text(s["shape"]), _values_text(results[s["name"]], s["top"]))
        for s in summary
    ]
    print_table(None, ["output", "dtype", "shape", "values, or the largest by index"], rows)


def _summary(name: str, array: np.ndarray) -> JsonObject:
    import numpy as np

    statistics: dict[str, float | None] = dict.fromkeys(_STATISTICS)
    top: list[JsonObject] = []
    if array.size:
        wide = array.astype("float64")
        statistics = {kind: float(getattr(wide, kind)()) for kind in _STATISTICS}
        # Among equal values the first; NaN come last.
        order = np.argsort(-wide, axis=None, kind="stable")[:_TOP]
        for place in order.tolist():
            index = [int(i) for i in np.unravel_index(place, array.shape)]
            top.append({"index": index, "value": float(wide.flat[place])})
    about = {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
    return {**about, **statistics, "top": top}


def _values_text(array: np.ndarray, top: Sequence[JsonObject]) -> str:
    """Return all values of a small array, or the largest ones with their indices."""
    if array.size <= _FEW:
        return " ".join(f"{value:.6g}" for value in array.astype("float64").ravel())
    # The index along an axis of extent 1 is always 0.
    axes = [axis for axis, extent in enumerate(array.shape) if extent > 1]
    return ", ".join(
        f"{','.join(str(each['index'][axis]) for axis in axes)}: {each['value']:.4g}"
        for each in top
    )


@command
def verify_module(
    model: Path,
    module: Path,
    inputs: Path | None = None,
    ops: list[Path] | None = None,
    random_seed: int = 0,
    of_shape: list[str] | None = None,
    of_extents: str | None = None,
    device_index: int = 0,
    backend: str = "auto",
    check_weights: bool = True,
    pad: Annotated[
        str | None,
        "VALUE",
        "Pad smaller --inputs to the module's shapes with this number, or with edge (the last "
        "elements), and crop the outputs: shows what padding changes.",
    ] = None,
    runs: Annotated[
        int,
        "N",
        "Further runs of the self-test of a standalone library, whose outputs must be equal.",
    ] = 0,
    on: str | None = None,
    secret_file: Path | None = None,
) -> None:
    """Compare a compiled network with ONNX Runtime on the CPU.

    A network with custom operators is compared with ONNX's reference evaluator.  A standalone
    library also runs its self-test, which names the functions that the device computes wrongly.

    Exits with status 1 when an output differs by more than the tolerance of its dtype.
    """
    from ..module.standalone.loaded import StandaloneModule
    from ..verify.compare import verify
    from .arrays import choose_inputs
    from .places import Place, loaded
    from .shapes import chosen

    load_operators(ops)
    place = Place(on, secret_file)
    with loaded(module, place, device_index, check_weights, backend) as network:
        one = chosen(network, of_shape, of_extents) or network
        padding = pad if pad is None else _number(pad)
        report = verify(model, one, choose_inputs(inputs, random_seed, one), pad=padding)
        tested, failure = None, None
        if isinstance(network, StandaloneModule) and network.has_self_test:
            try:
                tested = network.self_test(runs)
            except VerificationError as error:
                failure = error
    outputs = [{**vars(output), "passed": output.passed} for output in report.outputs]
    fields = ("passed", "reference", "not_finite", "lost", "undecided")
    about = {key: getattr(report, key) for key in fields}
    self_test = {} if tested is None else {"self_test": tested.report}
    if not print_json({**about, "outputs": outputs, **self_test}):
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
        if tested is not None:
            for sentence in (tested.summary(), *tested.findings()):
                out_console().print(sentence, markup=False)
    report.raise_if_failed()
    if failure is not None:
        raise failure


def _number(text: str) -> float | str:
    """Return a number that was written as text, or the text."""
    try:
        return float(text)
    except ValueError:
        return text
