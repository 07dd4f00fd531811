"""``tvmflow models``: list and build the example networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ModelError
from ..ir.units import bytes_text
from .options import parse_parameters
from .output import note_file, print_json, print_table
from .session import command

app = typer.Typer(
    help="Build the example networks as ONNX files.", no_args_is_help=True, rich_markup_mode="rich"
)

_LIST_EXAMPLES = """
[bold]Example[/bold]
  tvmflow models list
"""
_BUILD_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow models build mobilenet_v2 -o mobilenet_v2.onnx
  tvmflow models build mobilenet_v1 --param width=0.25 --param size=128
"""


def _names() -> list[str]:
    from ..models import BUILDERS

    return list(BUILDERS)


@app.command("list", epilog=_LIST_EXAMPLES)
@command
def list_models() -> None:
    """List the networks and their parameters."""
    from ..models import BUILDERS

    described = [
        {
            "name": builder.name,
            "description": builder.description,
            "parameters": [{**vars(p), "type": p.type.__name__} for p in builder.parameters],
        }
        for builder in BUILDERS.values()
    ]
    if print_json(described):
        return
    for builder in BUILDERS.values():
        rows = [(p.name, str(p.default), p.description) for p in builder.parameters]
        title = f"{builder.name}: {builder.description}"
        print_table(title, ["--param", ">default", "meaning"], rows)


@app.command("build", epilog=_BUILD_EXAMPLES)
@command
def build_model(
    name: Annotated[
        str,
        typer.Argument(autocompletion=_names),
        "NAME",
        "The network; `tvmflow models list` lists them.",
    ],
    output: Annotated[
        Path | None, "FILE.onnx", "The file to write. Default: NAME.onnx in this folder."
    ] = None,
    param: Annotated[
        list[str] | None, "NAME=VALUE", "A parameter of the network; repeatable."
    ] = None,
) -> None:
    """Build a network with seeded random weights."""
    # Values stay text: the builder knows the types of its parameters.
    parameters: dict[str, Any] = {**parse_parameters(param or [])}
    from ..models import build
    from ..module.files import ONNX

    final = output or Path(f"{name}.onnx")
    ONNX.check(final)
    try:
        written = build(name, final, **parameters)
    except ValueError as error:
        raise ModelError(
            f"Building {name} failed: {error}",
            remedy="`tvmflow models list` shows the networks and their parameters.",
        ) from error
    except OSError as error:
        raise ModelError(
            f"Writing {final} failed: {error.strerror or error}.",
            remedy="Name a file in an existing folder that can be written with -o.",
        ) from error
    data = written.with_name(f"{written.name}.data")
    files = [written, data] if data.exists() else [written]
    if print_json({"files": [{"name": str(f), "bytes": f.stat().st_size} for f in files]}):
        return
    for file in files:
        note_file(file, f" ({bytes_text(file.stat().st_size)})")
