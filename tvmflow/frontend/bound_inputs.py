"""Option `inputs`: bind inputs of a model to constants, which become its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import ShapeError
from .shapes import declared_dims, is_fixed
from .source import DTYPES, Source

#: First version of the file format in which a weight need not also be an input.
_WEIGHTS_APART = 4


def with_bound_inputs(source: Source, inputs: Mapping[str, Any] | None) -> Source:
    """Return a copy of a model in which these inputs are constants.

    ``inputs`` gives a number or nested lists for each; a number fills the shape that the model
    states.

    Raises `ShapeError` if there is no such input, or a value does not fit its type or shape.
    """
    if not inputs:
        return source
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    values = {value.name: value for value in source.inputs}
    declared = declared_dims(source.inputs)
    for name, given in inputs.items():
        if name not in values:
            known = ", ".join(map(repr, values)) or "no inputs"
            raise ShapeError(
                f"A value is given for the input {name!r}, but the model has {known}.",
                remedy="Use the name of one of the model's inputs in `inputs`.",
            )
        dtype = DTYPES[values[name].type.tensor_type.elem_type]
        array = _array(name, given, dtype, declared[name])
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    if model.ir_version >= _WEIGHTS_APART:
        kept = [value for value in model.graph.input if value.name not in inputs]
        del model.graph.input[:]
        model.graph.input.extend(kept)
    return replace(source, model=model)


def _array(name: str, given: Any, dtype: str, dims: list[int | str | None] | None) -> np.ndarray:
    """Return a given value as an array of an input's type and shape."""
    try:
        array = np.asarray(given)
        with np.errstate(all="ignore"):
            typed = array.astype(dtype)
        exact = np.dtype(dtype).kind == "f" or bool((typed == array).all())
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact:
        raise ShapeError(
            f"The value {given!r} of the input {name!r} is not of its type {dtype}.",
            remedy=f"Give {name!r} a value that {dtype} holds in `inputs`.",
        )
    if dims is None:
        return typed
    if not typed.ndim and all(map(is_fixed, dims)):
        return np.full([int(dim) for dim in dims if dim is not None], typed, dtype)
    fits = len(dims) == typed.ndim and all(
        not is_fixed(dim) or dim == extent for dim, extent in zip(dims, typed.shape, strict=True)
    )
    if not fits:
        shape = "[" + ", ".join("?" if dim is None else str(dim) for dim in dims) + "]"
        raise ShapeError(
            f"The value of the input {name!r} has the shape {list(typed.shape)}, which contradicts "
            f"{shape} in the model.",
            remedy=f"Give {name!r} nested lists of that shape in `inputs`.",
        )
    return typed
