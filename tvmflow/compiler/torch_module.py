"""Conversion of a PyTorch module to an ONNX file, with PyTorch's own exporter.

PyTorch traces the module with example inputs (``torch.export``) and writes ONNX: inputs have the
names of the parameters of ``forward``, and weights those of ``state_dict()``.  Shapes are those of
the examples.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx

from .._versions import install_command
from ..errors import ModelError

if TYPE_CHECKING:
    import torch

#: Any form of a model that can be compiled.
AnyModel: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | torch.nn.Module"
#: Arguments of ``forward``: one tensor, several in order, or several by parameter name.
Examples: TypeAlias = "torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]"


@contextmanager
def as_onnx(
    model: AnyModel, example_inputs: Examples | None
) -> Iterator[str | os.PathLike[str] | bytes | onnx.ModelProto]:
    """Yield the path of a temporary ONNX file for a PyTorch module; yield other models unchanged.

    Raises
    ------
    ModelError
        If a PyTorch module comes without examples or another model with some, the exporter is not
        installed, or it cannot export the module.
    """
    torch = sys.modules.get("torch")  # A caller with a PyTorch module has imported PyTorch.
    if torch is None or not isinstance(model, torch.nn.Module):
        if example_inputs is not None:
            raise ModelError(
                f"Example inputs were given for a {type(model).__name__}; only PyTorch modules are "
                "traced with some.",
                remedy="Leave `example_inputs` out; `shapes` sets open dimensions of ONNX models.",
            )
        yield model
        return
    if example_inputs is None:
        raise ModelError(
            f"Compiling the PyTorch module {type(model).__name__} needs inputs to trace it with.",
            remedy="tvmflow.compile(module, (torch.rand(1, 3, 224, 224),)), for example.",
        )
    if not find_spec("onnxscript"):
        raise ModelError(
            "PyTorch's ONNX exporter needs the package onnxscript, which is not installed.",
            remedy=install_command("torch"),
        )
    with tempfile.TemporaryDirectory(prefix="tvmflow-") as folder:
        path = Path(folder, f"{type(model).__name__}.onnx")
        _export(model, example_inputs, path)
        yield path


def _export(module: torch.nn.Module, examples: Examples, path: Path) -> None:
    """Export the module in inference mode: no dropout, batch norms with running statistics."""
    import torch

    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = {}
    if isinstance(examples, Mapping):
        kwargs = dict(examples)
    else:
        args = (examples,) if isinstance(examples, torch.Tensor) else tuple(examples)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            write_onnx(module, args, kwargs, path)
    finally:
        for part, training in modes:
            part.training = training


def write_onnx(
    program: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    path: Path,
) -> None:
    """Write a module traced with these arguments, or an exported program, as an ONNX file.

    Raises `ModelError` if PyTorch's exporter cannot do it.
    """
    import torch

    # Operators of tvmflow can only be in a program whose caller has imported their module.
    ops = sys.modules.get(f"{__package__.partition('.')[0]}.ops.torch")
    more = {} if ops is None else {"custom_translation_table": ops.onnx_translations()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            written = torch.onnx.export(
                program, args, kwargs=dict(kwargs), dynamo=True, verbose=False, **more
            )
            assert written is not None
            # Weights go to a separate file: a protobuf message is limited to 2 GB.
            written.save(path, external_data=True)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        name = type(program).__name__ if isinstance(program, torch.nn.Module) else "of a graph"
        raise ModelError(
            f"PyTorch could not export the module {name} to ONNX: "
            f"{lines[0] if lines else type(error).__name__}",
            remedy="torch.onnx.export(module, inputs, dynamo=True, report=True) tells what it does "
            "not take.",
            details="\n".join(lines[1:]) or None,
        ) from error
