"""``tvmflow run``: a module on inputs from a file, or on random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .formats import shape_text, table
from .options import CheckWeights, Debug, DeviceIndex, InputsFile, Json, ModuleFile, Quiet, Verbose
from .session import command, note_file, out_console, print_json

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow run net.so --inputs in.npz --outputs out.npz
      in.npz from Python: numpy.savez("in.npz", **{"input.1": image})
  tvmflow run net.so --random-seed 0
      random inputs; prints the outputs' shapes and ranges
"""


@command
def run_module(
    module: ModuleFile,
    inputs: InputsFile = None,
    outputs: Annotated[
        Path | None,
        typer.Option("--outputs", metavar="OUT.npz", help="Write the outputs by ONNX name."),
    ] = None,
    random_seed: Annotated[
        int | None,
        typer.Option(
            "--random-seed",
            metavar="N",
            min=0,
            help="Random values, the same for the same N, for inputs that no file gives.",
        ),
    ] = None,
    device_index: DeviceIndex = 0,
    check_weights: CheckWeights = True,
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Run a compiled network once."""
    if inputs is None and random_seed is None:
        raise typer.BadParameter("give --inputs IN.npz, or --random-seed N for random inputs.")
    from .. import load
    from ..module.blocked_layout import all_to_logical
    from ..module.files import check_writable
    from .arrays import choose_inputs, write_outputs

    if outputs is not None:
        check_writable(outputs)
    with load(module, device=device_index, check_weights=check_weights) as network:
        given = network(choose_inputs(inputs, random_seed, network))
        results = all_to_logical(network.outputs, dict(given.items()))
    if outputs is not None:
        write_outputs(outputs, results)
    summary = [_summary(name, array) for name, array in results.items()]
    if as_json:
        written = str(outputs) if outputs is not None else None
        print_json({"outputs": summary, "written": written})
        return
    if outputs is not None:
        note_file(outputs)
    rows = [
        (s["name"], s["dtype"], shape_text(s["shape"]), *(_number(s[k]) for k in _STATISTICS))
        for s in summary
    ]
    columns = ["output", "dtype", "shape", *(f">{name}" for name in _STATISTICS)]
    if outputs is None:
        out_console().print(table(columns, rows))


_STATISTICS = ("min", "mean", "max")


def _summary(name: str, array: Any) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(_STATISTICS)
    if array.size:
        wide = array.astype("float64")
        values = {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max())}
    return {"name": name, "dtype": array.dtype.name, "shape": list(array.shape), **values}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
