"""Opens an ONNX model: a path, its bytes, or a message in memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from ..errors import ModelError
from ..ir.limits import LARGE_WEIGHT_BYTES
from .wire import strip_large_tensors


@dataclass
class Source:
    """A parsed model and where it came from.

    Parameters
    ----------
    name
        The file's stem, or the graph's name.
    model
        The parsed message; large tensors and external data are not loaded.
    folder
        Where external data files are, ``None`` without a path.
    file
        The model's own file, ``None`` without a path.
    label
        What to call the model in messages.
    large_weight_bytes
        Tensors of at least this size are not loaded.
    """

    name: str
    model: onnx.ModelProto
    folder: Path | None
    file: Path | None
    label: str
    large_weight_bytes: int


def open_model(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    large_weight_bytes: int = LARGE_WEIGHT_BYTES,
) -> Source:
    """Parse a model without loading its large tensors.

    A message in memory is used as it is: nothing here or later changes it.

    Raises
    ------
    ModelError
        If there is no such file, it cannot be read, or it is no ONNX model.
    """
    if isinstance(model, onnx.ModelProto):
        if not model.HasField("graph"):
            raise ModelError(
                "The onnx.ModelProto has no graph, expected a model.",
                remedy="Pass a model that onnx.load has read.",
            )
        name = model.graph.name or "model"
        return Source(name, model, None, None, "the model", large_weight_bytes)
    if isinstance(model, (bytes, bytearray, memoryview)):
        parsed = _parse(bytes(model), "the serialized model")
        name = parsed.graph.name or "model"
        return Source(name, parsed, None, None, "the model", large_weight_bytes)
    if not isinstance(model, (str, os.PathLike)):
        raise ModelError(
            f"Cannot load a model from a {type(model).__name__}: expected a path, bytes or an "
            "onnx.ModelProto.",
            remedy="Pass the path of an ONNX file.",
        )
    path = Path(model)
    label = repr(str(path))
    parsed = _parse(_read(path, label, large_weight_bytes), label)
    return Source(path.stem, parsed, path.parent, path, label, large_weight_bytes)


def _read(path: Path, label: str, large_weight_bytes: int) -> bytes:
    """Return the file's content, without its large tensors."""
    if path.is_dir():
        raise ModelError(
            f"Cannot read {label}: it is a directory, expected an ONNX file.",
            remedy="Pass the path of the .onnx file in it.",
        )
    try:
        if path.exists() and not path.is_file():
            raise ModelError(
                f"Cannot read {label}: it is not a regular file.",
                remedy="Pass the path of an ONNX file.",
            )
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < large_weight_bytes:
                return file.read()
            with (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as view,
            ):
                return strip_large_tensors(view, large_weight_bytes)
    except FileNotFoundError as error:
        raise ModelError(
            f"Cannot read {label}: there is no such file.", remedy="Check the path."
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(f"Cannot read {label}: {reason}.", remedy="Check the path.") from error
    except ValueError as error:  # a null character in the path
        raise ModelError(f"Cannot read {label}: {error}.", remedy="Check the path.") from error


def _parse(content: bytes, label: str) -> onnx.ModelProto:
    """Parse a serialized model."""
    damaged = ModelError(
        f"{label[:1].upper() + label[1:]} is not an ONNX model, or is damaged or cut short.",
        remedy="Copy or export the model again.",
    )
    if not content:
        raise ModelError(
            f"{label[:1].upper() + label[1:]} is empty, expected an ONNX model.",
            remedy="Copy or export the model again.",
        )
    try:
        model = onnx.ModelProto.FromString(content)
    except DecodeError as error:
        raise damaged from error
    # The parser skips what it does not know: other data can parse as a model without a graph.
    if not model.HasField("graph") or not model.ir_version:
        raise damaged
    # Nor does it look at text: what is no UTF-8 comes out as bytes.
    if not all(isinstance(text, str) for text in _texts(model)):
        raise damaged
    return model


def _texts(model: onnx.ModelProto) -> Iterator[object]:
    """Yield all names in a model."""
    for opset in model.opset_import:
        yield opset.domain
    for graph in (model.graph, *model.functions):
        yield graph.name
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (attribute.name for attribute in node.attribute)
    for tensor in model.graph.initializer:
        yield tensor.name
        for entry in tensor.external_data:
            yield from (entry.key, entry.value)
    for value in (*model.graph.input, *model.graph.output):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
