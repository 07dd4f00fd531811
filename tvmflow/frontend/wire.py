"""Takes large tensors out of an ONNX file without reading them.

Protocol Buffers store a message as a sequence of fields, each with a tag (number and
wire type) and, for nested messages and bytes, a length.  That makes it possible to walk
to a tensor's ``raw_data`` in a memory-mapped file, leave it out, and encode only the
lengths around it again.  What is left is parsed as usual.

The format is specified at https://protobuf.dev/programming-guides/encoding/, the field
numbers by ``onnx.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from ..errors import ModelError

#: Marks external data that lies in the model's own file.
SAME_FILE = "\0same file"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

#: Nested messages to walk through: message -> field number -> message.
_PATHS = {
    "Model": {7: "Graph"},
    "Graph": {1: "Node", 5: "Tensor"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor"},
}
_RAW_DATA = 9


def strip_large_tensors(data: memoryview, limit_bytes: int) -> bytes:
    """Return the model without the raw data of its large tensors.

    Each such tensor becomes one with external data, whose location is ``SAME_FILE`` and
    whose offset counts from the start of ``data``.

    Parameters
    ----------
    data
        A serialized ``ModelProto``, usually a memory-mapped file.
    limit_bytes
        Raw data of at least this many bytes is left out.

    Raises
    ------
    ModelError
        If the fields do not fit into each other.
    """
    pieces, _ = _strip(data, 0, len(data), "Model", limit_bytes)
    return b"".join(pieces)


def _strip(
    data: memoryview, start: int, end: int, message: str, limit_bytes: int
) -> tuple[list[bytes | memoryview], int]:
    """Return the pieces of the message in ``data[start:end]`` and their total length."""
    pieces: list[bytes | memoryview] = []
    copied_to = start
    for number, begin, payload, stop in _large_fields(data, start, end, limit_bytes):
        inner = _PATHS.get(message, {}).get(number)
        if message == "Tensor" and number == _RAW_DATA:
            replacement: list[bytes | memoryview] = [_external(payload, stop - payload)]
        elif inner is not None:
            parts, length = _strip(data, payload, stop, inner, limit_bytes)
            replacement = [_varint(number << 3 | _BYTES) + _varint(length), *parts]
        else:
            continue
        pieces += [data[copied_to:begin], *replacement]
        copied_to = stop
    pieces.append(data[copied_to:end])
    return pieces, sum(len(piece) for piece in pieces)


def _external(offset: int, length: int) -> bytes:
    """Encode the fields that make a tensor external: where its bytes are."""
    tensor = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", SAME_FILE), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor.SerializeToString()


def _large_fields(
    data: memoryview, start: int, end: int, limit_bytes: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, begin of tag, begin of payload, end) of long fields of a message."""
    position = start
    while position < end:
        begin = position
        tag, position = _read_varint(data, position, end)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, position = _read_varint(data, position, end)
        elif wire_type == _FIXED64:
            position += 8
        elif wire_type == _FIXED32:
            position += 4
        elif wire_type == _BYTES:
            length, position = _read_varint(data, position, end)
            payload, position = position, position + length
            if position <= end and length >= limit_bytes:
                yield tag >> 3, begin, payload, position
        else:
            raise _damaged(begin)
        if position > end:
            raise _damaged(begin)


def _read_varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Read a base-128 number, least significant group first; return it and the next position."""
    value = shift = 0
    start = position
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _damaged(start)


def _varint(value: int) -> bytes:
    """Encode a base-128 number, least significant group first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _damaged(position: int) -> ModelError:
    return ModelError(
        f"The model's file is damaged or cut short: no valid field at byte {position}.",
        remedy="Copy or export the model again.",
    )
