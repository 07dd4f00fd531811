"""Tensors of an ONNX file as NumPy arrays; large ones stay memory-mapped."""

from __future__ import annotations

import errno
from math import prod
from pathlib import Path, PurePath

import numpy as np
from onnx import TensorProto, numpy_helper

from ..errors import ModelError, UnsupportedModelError
from ..ir.limits import check_size
from ..ir.tensors import TensorType
from .source import Source
from .wire import SAME_FILE

#: Element types that can be compiled, by ONNX's number.
DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
    TensorProto.BOOL: "bool",
}


def dtype_name(elem_type: int) -> str:
    """ONNX's name of an element type, for messages."""
    try:
        return TensorProto.DataType.Name(elem_type)
    except ValueError:
        return f"number {elem_type}"


def to_array(tensor: TensorProto, source: Source | None) -> np.ndarray:
    """Return a tensor's values.

    External data is memory-mapped, never read here.

    Parameters
    ----------
    tensor
        An initializer or an attribute's tensor.
    source
        Where the model came from; ``None`` for a tensor that holds its own values.

    Raises
    ------
    ModelError
        If external data is missing, cut short or outside the model's folder, or the tensor
        is too large.
    UnsupportedModelError
        If the element type cannot be compiled.
    """
    what = f"Tensor {tensor.name!r}"
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None:
        raise UnsupportedModelError(
            f"{what} has the element type {dtype_name(tensor.data_type)}, expected one of "
            f"{', '.join(sorted(DTYPES.values()))}.",
            remedy="Convert the model to one of these types.",
        )
    if tensor.HasField("segment"):
        raise UnsupportedModelError(
            f"{what} is stored in segments, which is not supported.",
            remedy="Save the model again with onnx.save.",
        )
    if any(extent < 0 for extent in tensor.dims):
        raise ModelError(
            f"{what} has the negative shape {list(tensor.dims)}.",
            remedy="Copy or export the model again.",
        )
    check_size(
        what, TensorType(tuple(tensor.dims), dtype), "Split it into smaller tensors, or copy or "
        "export the model again if it should not be that large.", in_memory=False,
    )  # fmt: skip
    if tensor.data_location == TensorProto.EXTERNAL:
        return _map_external(tensor, dtype, source)
    shape = tuple(tensor.dims)
    if tensor.HasField("raw_data"):
        expected = prod(shape) * np.dtype(dtype).itemsize
        if len(tensor.raw_data) != expected:
            raise ModelError(
                f"{what} holds {len(tensor.raw_data)} bytes, expected {expected} for "
                f"{dtype}{list(shape)}.",
                remedy="Copy or export the model again.",
            )
        if source and expected >= source.large_weight_bytes:
            # A view of the parsed bytes instead of a copy.
            stored = np.dtype(dtype).newbyteorder("<")
            return np.frombuffer(tensor.raw_data, stored).reshape(shape)
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"{what} does not hold the values of a {dtype}{list(shape)}: {error}",
            remedy="Copy or export the model again.",
        ) from error


def check_external_files(source: Source) -> None:
    """Look where external data lies, for whoever lets another program read the model's file.

    Raises
    ------
    ModelError
        If a file of it is outside the model's folder.
    """
    graphs = (source.model.graph, *source.model.functions)
    attributes = (a for graph in graphs for node in graph.node for a in node.attribute)
    for tensor in (*source.model.graph.initializer, *(a.t for a in attributes)):
        location = next((e.value for e in tensor.external_data if e.key == "location"), None)
        if location is not None and location != SAME_FILE:
            _external_file(f"Tensor {tensor.name!r}", location, source)


def _map_external(tensor: TensorProto, dtype: str, source: Source | None) -> np.ndarray:
    """Memory-map a tensor's external data."""
    what = f"Tensor {tensor.name!r}"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location, shape = entries.get("location", ""), tuple(tensor.dims)
    size = prod(shape) * np.dtype(dtype).itemsize
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or size)
    except ValueError:
        offset = length = -1
    if offset < 0 or length != size:
        raise ModelError(
            f"{what} needs {size} bytes for {dtype}{list(shape)}, but its external data is said "
            f"to have length {entries.get('length')} at offset {entries.get('offset', 0)}.",
            remedy="Export the model again.",
        )
    in_model = source.file if source and location == SAME_FILE else None
    file = in_model or _external_file(what, location, source)
    try:
        available = file.stat().st_size
        if not file.is_file():
            raise OSError(errno.EINVAL, "it is not a regular file")
    except OSError as error:
        raise ModelError(
            f"{what} keeps its values in {str(file)!r}, which cannot be read: {error.strerror}.",
            remedy=f"Put {file.name!r} back beside the model.",
        ) from error
    if offset + size > available:
        raise ModelError(
            f"{what} needs bytes {offset} to {offset + size} of {str(file)!r}, which ends at "
            f"{available}.",
            remedy=f"Copy {file.name!r} again, it is cut short.",
        )
    if size == 0:
        return np.zeros(shape, dtype)
    try:
        return np.memmap(file, np.dtype(dtype).newbyteorder("<"), "r", offset, shape)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{what}: {str(file)!r} cannot be memory-mapped: {error}.",
            remedy="Copy it to a local disk.",
        ) from error


def _external_file(what: str, location: str, source: Source | None) -> Path:
    """Return the file of external data, which must really lie in the model's folder."""
    if source is None or source.folder is None or source.file is None:
        raise ModelError(
            f"{what} keeps its values in the file {location!r}, but the model was not given "
            "as a path.",
            remedy="Pass the model's path instead of its content.",
        )
    relative = PurePath(location)
    outside = ModelError(
        f"{what} keeps its values in {location!r}, which is not a file in the model's folder.",
        remedy="Export the model with external data beside it.",
    )
    if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts:
        raise outside
    # A model that is a link may lie elsewhere with all of its data: caches are made like that.
    folders = list(dict.fromkeys([source.folder, source.file.resolve().parent]))
    places = [folder / relative for folder in folders]
    try:
        file = next((place for place in places if place.exists()), places[0])
        real, homes = file.resolve(), [folder.resolve() for folder in folders]
    except (OSError, RuntimeError) as error:  # a name that is too long; links in a circle
        raise outside from error
    if not any(real.is_relative_to(home) for home in homes):
        raise ModelError(
            f"{what} keeps its values in {location!r}, which is a link out of the model's folder, "
            f"to {str(real)!r}.",
            remedy="Copy the file itself into the model's folder.",
        )
    return file
