"""Inputs, outputs and metadata of a model, as ONNX Runtime describes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto

from ..frontend.source import Source, dtype_name

#: Names of element types that are not ONNX's in lower case.
_TYPES = {TensorProto.FLOAT: "float", TensorProto.DOUBLE: "double"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output."""

    name: str
    #: Extents: a number, the name of an open one, or ``None`` for one without a name.
    shape: list[int | str | None]
    type: str  #: ``tensor(float)``, for example.


@dataclass(frozen=True)
class ModelMetadata:
    """Origin and purpose of a model, as its file states them."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


def inputs_of(source: Source) -> list[NodeArg]:
    """Return the inputs that a caller provides."""
    return _described(source.inputs)


def outputs_of(source: Source) -> list[NodeArg]:
    """Return the outputs."""
    return _described(source.model.graph.output)


def metadata_of(model: onnx.ModelProto) -> ModelMetadata:
    """Return the model's metadata."""
    return ModelMetadata(
        model.producer_name,
        model.graph.name,
        model.domain,
        model.doc_string,
        model.graph.doc_string,
        model.model_version,
        {entry.key: entry.value for entry in model.metadata_props},
    )


def _described(values: Iterable[onnx.ValueInfoProto]) -> list[NodeArg]:
    found = []
    for value in values:
        tensor = value.type.tensor_type
        name = _TYPES.get(tensor.elem_type) or dtype_name(tensor.elem_type).lower()
        shape: list[int | str | None] = [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
            for dim in tensor.shape.dim
        ]
        found.append(NodeArg(value.name, shape, f"tensor({name})"))
    return found
