"""Reader of ONNX models from a path, bytes or a message in memory, without large tensors.

Protocol Buffers store a message as a sequence of fields, each with a tag (number and
wire type) and, for nested messages and bytes, a length.  That makes it possible to walk
to a tensor's ``raw_data`` in a memory-mapped file, leave it out, and re-encode only the
lengths of the messages around it.  The rest is parsed as usual, and the omitted tensors are
memory-mapped like external data.

The format is specified at https://protobuf.dev/programming-guides/encoding/, the field
numbers by ``onnx.proto``.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePath

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from ..errors import ModelError, UnsupportedModelError
from ..ir.limits import LARGE_WEIGHT_BYTES, check_size
from ..ir.tensors import TensorType
from ..runtime.regular_files import open_file
from .nested import all_nodes, nested_graphs

#: Element types that can be compiled, by ONNX's number.
DTYPES: dict[int, str] = {
    helper.np_dtype_to_tensor_dtype(np.dtype(name)): name
    for name in (
        "float32", "float16", "float64", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "bool",
    )
}  # fmt: skip

#: Dtypes that hold the numbers of element types of 2 and 4 bits.
PACKED: dict[int, str] = {
    TensorProto.INT4: "int8", TensorProto.UINT4: "uint8",
    TensorProto.INT2: "int8", TensorProto.UINT2: "uint8",
}  # fmt: skip

#: Location of external data that is in the model's own file.
_SAME_FILE = "\0same file"

_VARINT, _BYTES = 0, 2
#: Sizes of the other wire types in bytes.
_FIXED = {1: 8, 5: 4}

#: Nested messages to walk through: message -> field number -> message.
_PATHS = {
    "Model": {7: "Graph"},
    "Graph": {1: "Node", 5: "Tensor"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph"},
}
_RAW_DATA = 9

#: Types of a Constant node's numeric attributes.
_NUMBERS = {
    "value_float": np.float32, "value_floats": np.float32,
    "value_int": np.int64, "value_ints": np.int64,
}  # fmt: skip

_COPY_AGAIN = "Copy or export the model again."


@dataclass
class Source:
    """A parsed model and its origin."""

    #: The file's stem, or the graph's name.
    name: str
    #: The parsed message; large tensors and external data are not loaded.
    model: onnx.ModelProto
    #: Tensors of at least this size are not loaded.
    large_weight_bytes: int
    #: The model's own file, whose folder has the external data; ``None`` without a path.
    file: Path | None = None

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """Return the inputs that a caller provides: those without an initializer."""
        weights = {tensor.name for tensor in self.model.graph.initializer}
        return [value for value in self.model.graph.input if value.name not in weights]

    @property
    def label(self) -> str:
        """Return the model's name for messages."""
        return "the model" if self.file is None else repr(str(self.file))


def open_model(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | Source,
    large_weight_bytes: int = LARGE_WEIGHT_BYTES,
) -> Source:
    """Parse a model without loading its large tensors; return a parsed model unchanged.

    A message in memory is used without a copy: no later step changes it.

    Raises ``ModelError`` if there is no such file, it cannot be read, or it is not an ONNX model.
    """
    if isinstance(model, Source):
        return model
    if isinstance(model, onnx.ModelProto):
        if not model.HasField("graph"):
            raise ModelError(
                "The onnx.ModelProto has no graph, expected a model.",
                remedy="Pass a model that onnx.load has read.",
            )
        return Source(model.graph.name or "model", model, large_weight_bytes)
    if isinstance(model, (bytes, bytearray, memoryview)):
        parsed = _parse(bytes(model), "The serialized model")
        return Source(parsed.graph.name or "model", parsed, large_weight_bytes)
    if not isinstance(model, (str, os.PathLike)):
        raise ModelError(
            f"Cannot load a model from a {type(model).__name__}: expected a path, bytes or an "
            "onnx.ModelProto.",
            remedy="Pass the path of an ONNX file.",
        )
    path, label = Path(model), repr(os.fspath(Path(model)))
    parsed = _parse(_read(path, label, large_weight_bytes), label)
    return Source(path.stem, parsed, large_weight_bytes, path)


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
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size < large_weight_bytes:
                return file.read()
            with (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as view,
            ):
                return _strip_large_tensors(view, large_weight_bytes)
    except (OSError, ValueError) as error:  # a null character in the path is a ValueError
        reason = str(error)
        if isinstance(error, FileNotFoundError):
            reason = "there is no such file"
        elif isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise ModelError(f"Cannot read {label}: {reason}.", remedy="Check the path.") from error


def _parse(content: bytes, label: str) -> onnx.ModelProto:
    if not content:
        raise ModelError(f"{label} is empty, expected an ONNX model.", remedy=_COPY_AGAIN)
    try:
        model = onnx.ModelProto.FromString(content)
    except DecodeError:
        model = onnx.ModelProto()
    # The parser skips unknown fields, so other data can parse as a model without a graph.  It does
    # not check text either: strings that are not UTF-8 are returned as bytes.
    whole = model.HasField("graph") and model.ir_version
    if not whole or not all(isinstance(text, str) for text in _texts(model)):
        raise ModelError(
            f"{label} is not an ONNX model, or is damaged or cut short.", remedy=_COPY_AGAIN
        )
    return model


def _texts(model: onnx.ModelProto) -> Iterator[object]:
    """Yield all names in a model."""
    for opset in model.opset_import:
        yield opset.domain
    for graph in (model.graph, *model.functions):
        yield graph.name
        for node in all_nodes(graph.node):
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (attribute.name for attribute in node.attribute)
    for graph in _graphs(model):
        for tensor in graph.initializer:
            yield tensor.name
            for entry in tensor.external_data:
                yield from (entry.key, entry.value)
        for value in (*graph.input, *graph.output):
            yield value.name
            yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield all nodes, including those of functions and nested graphs."""
    for graph in (model.graph, *model.functions):
        yield from all_nodes(graph.node)


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and all nested ones."""
    yield model.graph
    for node in _nodes(model):
        yield from nested_graphs(node)


# Omission of large tensors ---------------------------------------------------------------


def _strip_large_tensors(data: memoryview, limit_bytes: int) -> bytes:
    """Return the serialized model without raw data of ``limit_bytes`` and more.

    Each such tensor becomes one with external data, whose location is ``_SAME_FILE`` and
    whose offset counts from the start of ``data``.
    """
    pieces = _strip(data, 0, len(data), "Model", limit_bytes)
    return b"".join(data[piece] if isinstance(piece, slice) else piece for piece in pieces)


def _strip(
    data: memoryview, start: int, end: int, message: str, limit_bytes: int
) -> list[bytes | slice]:
    """Return the pieces of the message in ``data[start:end]``; unchanged ones are slices.

    Slices instead of views: an error's traceback would keep views alive, and the file mapped.
    """
    pieces: list[bytes | slice] = []
    copied_to = start
    for number, begin, payload, stop in _large_fields(data, start, end, limit_bytes):
        inner = _PATHS.get(message, {}).get(number)
        pieces.append(slice(copied_to, begin))
        if message == "Tensor" and number == _RAW_DATA:
            pieces.append(_external(payload, stop - payload))
        elif inner is not None:
            parts = _strip(data, payload, stop, inner, limit_bytes)
            length = sum(p.stop - p.start if isinstance(p, slice) else len(p) for p in parts)
            pieces += [_varint(number << 3 | _BYTES), _varint(length), *parts]
        else:
            pieces.append(slice(begin, stop))
        copied_to = stop
    return [*pieces, slice(copied_to, end)]


def _external(offset: int, length: int) -> bytes:
    """Encode the fields that make a tensor external, with the location of its bytes."""
    tensor = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", _SAME_FILE), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor.SerializeToString()


def _large_fields(
    data: memoryview, start: int, end: int, limit_bytes: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number, start of tag, start of payload and end of each long field of a message."""
    position = start
    while position < end:
        begin = position
        tag, position = _read_varint(data, position, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type in _FIXED:
            position += _FIXED[wire_type]
        elif wire_type in (_VARINT, _BYTES):
            value, position = _read_varint(data, position, end)
            if wire_type == _BYTES:
                payload, position = position, position + value
                if position <= end and value >= limit_bytes:
                    yield number, begin, payload, position
        if wire_type not in (_VARINT, _BYTES, *_FIXED) or position > end:
            raise _damaged(begin)


def _read_varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Read a base-128 number, least significant group first; return it and the next position."""
    value = 0
    for index in range(min(10, end - position)):
        byte = data[position + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise _damaged(position)


def _varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def _damaged(position: int) -> ModelError:
    return ModelError(
        f"The model's file is damaged or cut short: no valid field at byte {position}.",
        remedy=_COPY_AGAIN,
    )


def dtype_name(elem_type: int) -> str:
    """Return ONNX's name for an element type, for messages."""
    try:
        return TensorProto.DataType.Name(elem_type)
    except ValueError:
        return f"number {elem_type}"


def to_array(tensor: TensorProto, source: Source | None) -> np.ndarray:
    """Return the values of an initializer or an attribute's tensor; memory-map external data.

    Numbers of 2 and 4 bits become bytes; :func:`.prepare.prepare` checks which nodes read them.

    ``source`` is the tensor's model; ``None`` for a tensor that contains its own values.

    Raises ``ModelError`` if external data is missing, cut short or outside the model's folder, or
    the tensor is too large; ``UnsupportedModelError`` if the element type cannot be compiled.
    """
    what, shape = f"Tensor {tensor.name!r}", tuple(tensor.dims)
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None and tensor.data_type in PACKED and not tensor.external_data:
        return numpy_helper.to_array(tensor).astype(PACKED[tensor.data_type])
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
    if any(extent < 0 for extent in shape):
        raise ModelError(f"{what} has the negative shape {list(shape)}.", remedy=_COPY_AGAIN)
    check_size(
        what, TensorType(shape, dtype), "Split it into smaller tensors, or copy or "
        "export the model again if it should not be that large.", in_memory=False,
    )  # fmt: skip
    if tensor.data_location == TensorProto.EXTERNAL:
        return _map_external(tensor, dtype, source)
    if tensor.HasField("raw_data"):
        expected = prod(shape) * np.dtype(dtype).itemsize
        if len(tensor.raw_data) != expected:
            raise ModelError(
                f"{what} holds {len(tensor.raw_data)} bytes, expected {expected} for "
                f"{dtype}{list(shape)}.",
                remedy=_COPY_AGAIN,
            )
        if source and expected >= source.large_weight_bytes:
            # This is a view of the parsed bytes, which avoids a copy.
            stored = np.dtype(dtype).newbyteorder("<")
            return np.frombuffer(tensor.raw_data, stored).reshape(shape)
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"{what} does not hold the values of a {dtype}{list(shape)}: {error}",
            remedy=_COPY_AGAIN,
        ) from error


def external_files(source: Source) -> list[Path]:
    """Return the files of external data; raises ``ModelError`` if one is outside the folder."""
    weights = (tensor for graph in _graphs(source.model) for tensor in graph.initializer)
    attributes = (a.t for node in _nodes(source.model) for a in node.attribute)
    locations: dict[str, str] = {}
    for tensor in (*weights, *attributes):
        location = next((e.value for e in tensor.external_data if e.key == "location"), None)
        if location is not None and location != _SAME_FILE:
            locations.setdefault(location, tensor.name)
    return [
        _external_file(f"Tensor {name!r}", location, source) for location, name in locations.items()
    ]


def _map_external(tensor: TensorProto, dtype: str, source: Source | None) -> np.ndarray:
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
    in_model = source.file if source and location == _SAME_FILE else None
    file = in_model or _external_file(what, location, source)
    try:
        available = file.stat().st_size
        if not file.is_file():
            raise OSError(errno.EINVAL, "it is not a regular file")
    except OSError as error:
        raise ModelError(
            f"{what} keeps its values in {str(file)!r}, which cannot be read: {error.strerror}.",
            remedy=f"Put {file.name!r} back next to the model.",
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
        with open_file(file) as opened:
            return np.memmap(opened, np.dtype(dtype).newbyteorder("<"), "r", offset, shape)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{what}: {str(file)!r} cannot be memory-mapped: {error}.",
            remedy="Copy it to a local disk.",
        ) from error


def _external_file(what: str, location: str, source: Source | None) -> Path:
    """Return the file of external data, which must be inside the model's folder."""
    if source is None or source.file is None:
        raise ModelError(
            f"{what} keeps its values in the file {location!r}, but the model was not given "
            "as a path.",
            remedy="Pass the model's path instead of its content.",
        )
    relative = PurePath(location)
    outside = ModelError(
        f"{what} keeps its values in {location!r}, which is not a file in the model's folder.",
        remedy="Export the model with external data next to it.",
    )
    if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts:
        raise outside
    # A model may be a link to another folder that has all of its data: download caches do that.
    folders = list(dict.fromkeys([source.file.parent, source.file.resolve().parent]))
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


def constant_value(node: onnx.NodeProto, source: Source | None = None) -> np.ndarray | None:
    """Return the value of a Constant node, ``None`` if it is not a dense numeric tensor."""
    if len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value":
        return to_array(attribute.t, source)
    if attribute.name in _NUMBERS:
        return np.array(helper.get_attribute_value(attribute), _NUMBERS[attribute.name])
    return None
