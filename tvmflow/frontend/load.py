"""From an ONNX model to a Relax module with static shapes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import tvm

from ..errors import UnsupportedModelError
from ..ir.limits import LARGE_WEIGHT_BYTES
from ..ir.tensors import TensorInfo
from ..module.call_checks import CallCheck
from .convert import binding_names, to_relax
from .graph import Graph, unsupported
from .prepare import prepare
from .propagate import call_checks, propagate
from .rewrite import fold_batch_norms, widen
from .source import open_model


@dataclass
class ImportedModel:
    """A model in Relax.

    Parameters
    ----------
    name
        The file's stem, or the graph's name.
    mod
        Its function ``main`` takes the inputs in order, then the large weights, and
        returns a tensor for one output, else a tuple.  The attribute ``num_input`` counts
        the inputs.  Bindings are named after ONNX nodes: ``NODE`` for a node's result,
        ``NODE#1`` and so on for what it needs in between.
    inputs, outputs
        In the model's order, with the model's names.
    weights
        Weights of 64 MiB and more (by default) by parameter name, in the order of the parameters;
        memory-mapped where they come from a file.
    bindings
        Names of bindings by the names that ONNX has for their tensors.
    call_checks
        Values of inputs that custom operators look at, at each call.
    """

    name: str
    mod: tvm.IRModule
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    weights: dict[str, np.ndarray]
    bindings: dict[str, str] = field(default_factory=dict)
    call_checks: tuple[CallCheck, ...] = ()
    #: True if it was in float16, before it was widened to fp32.
    half: bool = False


def load_model(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    large_weight_bytes: int = LARGE_WEIGHT_BYTES,
) -> ImportedModel:
    """Import an ONNX model.

    Parameters
    ----------
    model
        A path, a serialized model, or a model in memory.  External data is found beside
        the path.
    shapes
        Shapes by input name, for inputs with dynamic dimensions.
    large_weight_bytes
        Weights of at least this size are not loaded but returned as memory-mapped arrays.

    Raises
    ------
    ModelError
        If the model cannot be read, is damaged or describes no computation.
    ShapeError
        If an input's shape is not static in the end.
    UnsupportedModelError
        If the model uses what cannot be compiled right; lists all of it.
    """
    source = open_model(model, large_weight_bytes)
    graph = prepare(source, shapes)
    output_names = list(graph.outputs)
    propagate(graph)
    widen(graph)
    fold_batch_norms(graph)
    mod, weights = to_relax(graph)
    if mod is None:
        raise unsupported(graph.problems, source.label)
    return ImportedModel(
        name=graph.name,
        mod=mod,
        inputs=graph.inputs,
        outputs=_outputs(output_names, graph),
        weights=weights,
        bindings=binding_names(graph),
        call_checks=call_checks(graph),
        half=graph.is_widened,
    )


def _outputs(names: Sequence[str], graph: Graph) -> tuple[TensorInfo, ...]:
    """Describe the outputs under the names that the model gives them."""
    outputs = []
    for name, value in zip(names, graph.outputs, strict=True):
        kind = graph.type_of(value)
        info = TensorInfo(name, kind.shape, kind.dtype)
        if value in graph.half_outputs:
            info = replace(info, dtype="float16")
        if info.elements == 0:
            raise UnsupportedModelError(
                f"The output {name!r} has the shape {list(info.shape)}, without any elements.",
                remedy="Remove the output from the model.",
            )
        outputs.append(info)
    return tuple(outputs)
