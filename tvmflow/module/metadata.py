"""Schemas of modules' metadata: every entry that any code reads.

Digests detect damage; these checks detect files with correct digests that were made by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.limits import MOST_DIMENSIONS, MOST_VARIANTS, excess
from ..ir.tensors import TensorType, count_name
from ..runtime.json_types import JsonMapping, JsonObject
from .schema import (
    SchemaError,
    anything,
    either,
    flag,
    list_of,
    matching,
    maybe,
    named,
    number,
    one_of,
    record,
    text,
    whole,
)
from .weights import DTYPE_NAMES

SHAPE = list_of(whole(0), most=MOST_DIMENSIONS)
DTYPE = one_of(DTYPE_NAMES)
IMAGE = maybe(matching(r"\d{1,9}x\d{1,9}(x\d{1,9})?", "an extent in texels"))
HEX = maybe(matching(r"[0-9a-f]+", "hexadecimal digits"))
#: Name of a file in the module's folder.
FILE_NAME = maybe(matching(r"(?!\.\.?$)[^/\0]{1,255}", "the name of a file next to the module"))

TENSOR = record(
    {"name": text, "shape": SHAPE, "dtype": DTYPE},
    {
        "layout": maybe(text), "logical_shape": maybe(SHAPE), "scope": maybe(text),
        "image": IMAGE, "open_dims": maybe(SHAPE), "bounded_axis": maybe(whole()),
    },
)  # fmt: skip
LIMIT = record(
    {"count": text, "node": text, "bound": whole()},
    {"least": maybe(whole(-(2**63))), "reason": maybe(text)},
)
WEIGHT = record({"name": text, "shape": SHAPE, "dtype": DTYPE, "bytes": whole()})
SCHEDULE = record(
    {"family": text, "knobs": named(anything), "source": text},
    {"origin": maybe(text), "shape": maybe(named(anything))},
)
CALL_CHECK = record(
    {
        "node": text,
        "operator": text,
        "attributes": named(anything),
        "operands": list_of(maybe(either(text, record({"dtype": DTYPE, "shape": SHAPE})))),
    }
)
PLACEMENT = record(
    {
        "tensor": text, "shape": SHAPE, "stored_as": text, "constant": flag, "storage": text,
        "image": maybe(text), "scope": maybe(text), "cause": text, "reason": text,
    }
)  # fmt: skip
MEMORY = record(
    {
        "peak_bytes": whole(),
        "lower_bound_bytes": whole(),
        "steps": list_of(text),
        "blocks": list_of(record({"bytes": whole(), "image": maybe(text)})),
        "tensors": list_of(
            record(
                {
                    "name": text, "shape": SHAPE, "dtype": text, "stored_as": text,
                    "layout": text, "scope": maybe(text), "image": maybe(text), "bytes": whole(),
                    "first": whole(), "last": whole(), "producer": maybe(text),
                    "readers": list_of(text), "storage": text, "block": maybe(whole()),
                },
            )
        ),
    },
)  # fmt: skip
FUSION = record(
    {
        "tensor": text, "producer": text, "consumer": text, "saved_bytes": whole(),
        "all_bytes": whole(), "prevented_by": text, "parameter": text,
    }
)  # fmt: skip

#: Entries that both formats of modules have.
_COMMON = {
    **dict.fromkeys(("name", "target", "device", "host", "tvmflow", "tvm"), text),
    "options": record({}, {"results": named(text)}),
    "stage_ms": named(number),
}

#: Axis of the batch in a tensor, and its extent for each sample: `tvmflow.frontend.batch`.
BATCH = record({"axis": whole(0, MOST_DIMENSIONS - 1), "each": whole(1)})

_PROOF = maybe(
    record(
        {"proven": flag, "inputs": named(BATCH), "outputs": named(BATCH)},
        {"reason": text, "node": text},
    )
)

#: Required entries of a module, or of each of its shapes if it has several.
_INTERFACE = {
    "inputs": list_of(TENSOR),
    "outputs": list_of(TENSOR),
    "kernels": list_of(record({"name": text, "function": text})),
    "memory": MEMORY,
}
_OF_SHAPE = {
    "call_checks": list_of(CALL_CHECK),
    "schedules": named(SCHEDULE),
    "nodes": named(list_of(text)),
    "fusion_left": list_of(FUSION),
    "half_sums": list_of(whole()),
    "algorithms": list_of(record({"convolution": text, "algorithm": text, "reason": text})),
    "settled_storage": maybe(text),
    "placements": list_of(PLACEMENT),
    "loops": list_of(text),
}

MODULE = record(
    {
        **_COMMON,
        "tvm_ffi": text,
        **_INTERFACE,
        "weights": list_of(WEIGHT),
        "weights_file": FILE_NAME,
        "weights_digest": HEX,
        "weights_xxh64": HEX,
        "functions_digest": HEX,
        "linked_with": text,
    },
    {
        **_OF_SHAPE,
        "extensions": list_of(text),
        "weight_scopes": named(maybe(text)),
        "weight_names": list_of(text),
        "initializers": named(list_of(text)),
        "cpu": maybe(text),
        "limits": list_of(LIMIT),
        "variants": list_of(
            record({"entry": text, "weight_names": list_of(text), **_INTERFACE}, _OF_SHAPE),
            most=MOST_VARIANTS,
        ),
        "batch": _PROOF,
        "shared_memory_bytes": whole(),
    },
)

STANDALONE = record(
    {**_COMMON, "storage_summary": text, "memory_bytes": whole()},
    {
        "half_sums": list_of(whole()),
        "halves": list_of(text),
        "logical_shapes": named(SHAPE),
        "open_dims": named(SHAPE),
        "storage_counts": named(whole()),
        "reference": text,
        "bounded_axes": named(whole()),
        "limits": list_of(LIMIT),
        "batch": _PROOF,
        "variants": list_of(record({}, {"logical_shapes": named(SHAPE)}), most=MOST_VARIANTS),
    },
)


def check_module(metadata: JsonObject) -> None:
    """Raise `SchemaError` if this cannot be the metadata of a module for TVM's runtime."""
    MODULE(metadata, "")
    _check_names(metadata, "weights")
    _check_shape(metadata)
    _check_weight_names(metadata, metadata, "")
    if "variants" in metadata:
        _check_variants(metadata)


def _check_names(metadata: JsonMapping, kind: str) -> None:
    if len({tensor["name"] for tensor in metadata[kind]}) < len(metadata[kind]):
        raise SchemaError(f"two of the {kind} have one name")


def _check_shape(metadata: JsonMapping) -> None:
    """Check the entries of a module, or of one of its shapes, against each other."""
    for side in ("inputs", "outputs"):
        _check_names(metadata, side)
        for index, tensor in enumerate(metadata[side]):
            check_interface(tensor, f"{side}[{index}]")
    check_counts(metadata["outputs"], metadata.get("limits", ()))
    _check_memory(metadata["memory"])


def _check_variants(metadata: JsonMapping) -> None:
    """Check that the shapes agree with each other and with the module's weights and batch."""
    variants = metadata["variants"]
    if len(variants) < 2:
        raise SchemaError(f"variants has {len(variants)} shapes, expected several")
    if len({variant["entry"] for variant in variants}) < len(variants):
        raise SchemaError("two of the variants have one entry")
    shapes = set()
    for index, variant in enumerate(variants):
        where = f"variants[{index}]"
        try:
            _check_shape(variant)
        except SchemaError as error:
            raise SchemaError(f"{where}: {error}") from error
        for side in ("inputs", "outputs"):
            alike = [
                [(t["name"], t["dtype"], len(t["shape"])) for t in each[side]]
                for each in (variant, metadata)
            ]
            if alike[0] != alike[1]:
                raise SchemaError(f"{where}.{side} are others than those of the module")
        shapes.add(tuple(tuple(tensor["shape"]) for tensor in variant["inputs"]))
        _check_weight_names(metadata, variant, f"{where}.")
    if len(shapes) < len(variants):
        raise SchemaError("two of the variants have the same shapes")
    _check_batch(metadata)


def _check_weight_names(metadata: JsonMapping, shape: JsonMapping, where: str) -> None:
    """Check that the module has all weights that the function of a shape takes."""
    weights = {weight["name"] for weight in metadata["weights"]}
    if missing := [name for name in shape.get("weight_names", ()) if name not in weights]:
        raise SchemaError(f"{where}weight_names has {missing[0]}, which is no weight")


def _check_batch(metadata: JsonMapping) -> None:
    """Check that inputs and outputs have the axes of the batch."""
    batch = metadata.get("batch") or {}
    for side in ("inputs", "outputs"):
        tensors = {tensor["name"]: tensor for tensor in metadata[side]}
        for name, place in batch.get(side, {}).items():
            tensor = tensors.get(name)
            shape = () if tensor is None else tensor.get("logical_shape") or tensor["shape"]
            if place["axis"] >= len(shape):
                raise SchemaError(f"batch.{side}.{name} has an axis that is not there")
    if batch.get("proven") and set(batch["outputs"]) != {t["name"] for t in metadata["outputs"]}:
        raise SchemaError("batch.outputs are not those of the module")


def check_interface(tensor: JsonMapping, where: str) -> None:
    """Check the shapes of an input or output, for which memory will be allocated.

    Raises `SchemaError` if they are too large, or, for a blocked tensor, do not match each other.
    """
    shape, logical = tensor["shape"], tensor.get("logical_shape")
    reason = excess(TensorType(tuple(shape), tensor["dtype"]), in_memory=False)
    if reason is not None:
        raise SchemaError(f"{where} is too large: {reason}")
    if logical is None:
        return
    blocks = len(logical) == 4 and len(shape) == 5 and shape[4] > 0
    batch, channels, *image = logical if blocks else (0, 0)
    if not blocks or shape[:4] != [batch, -(-channels // shape[4]), *image]:
        raise SchemaError(f"{where}.shape is {shape}, which are no blocks of {logical}")


def check_counts(outputs: Sequence[JsonMapping], limits: Sequence[JsonMapping]) -> None:
    """Check that each size that is known only at run time has an output with its value."""
    counts = {
        tensor["name"] for tensor in outputs if tensor["dtype"] == "int64" and not tensor["shape"]
    }
    wanted = [limit["count"] for limit in limits]
    for tensor in outputs:
        axis = tensor.get("bounded_axis")
        if axis is None:
            continue
        if axis >= len(tensor["shape"]):
            raise SchemaError(f"{tensor['name']} has no axis {axis}")
        wanted.append(count_name(tensor["name"]))
    if missing := [name for name in wanted if name not in counts]:
        raise SchemaError(f"there is no output {missing[0]}, an int64 scalar")


def _check_memory(memory: JsonMapping) -> None:
    """Check that the tensors of a memory plan refer to its steps and blocks."""
    blocks, steps = len(memory["blocks"]), len(memory["steps"])
    for index, tensor in enumerate(memory["tensors"]):
        where = f"memory.tensors[{index}]"
        if (tensor["block"] or 0) >= max(blocks, 1):
            raise SchemaError(f"{where}.block is {tensor['block']}, but there are {blocks}")
        if not tensor["first"] <= tensor["last"] <= steps:
            raise SchemaError(f"{where} lives beyond the {steps} steps")
