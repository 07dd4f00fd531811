"""First version: reads the file and uses TVM's importer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm.relax.frontend.onnx import from_onnx

from ..errors import ModelError, ShapeError
from ..tensors import TensorInfo


@dataclass
class ImportedModel:
    name: str
    mod: tvm.IRModule
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    weights: dict[str, np.ndarray] = field(default_factory=dict)


def _info(value: Any) -> TensorInfo:
    t = value.type.tensor_type
    dims = []
    for d in t.shape.dim:
        if not d.HasField("dim_value"):
            raise ShapeError(
                f"Input {value.name!r} has a dynamic shape.",
                remedy=f"--shape {value.name}=...",
            )
        dims.append(d.dim_value)
    return TensorInfo(
        value.name, tuple(dims), str(onnx.helper.tensor_dtype_to_np_dtype(t.elem_type))
    )


def load_model(
    model: Any, shapes: Mapping[str, Sequence[int]] | None = None
) -> ImportedModel:
    name = "model"
    if isinstance(model, (str, os.PathLike)):
        name = Path(model).stem
        try:
            model = onnx.load(os.fspath(model))
        except Exception as error:
            raise ModelError(f"Cannot read {os.fspath(model)!r}: {error}") from error
    for value in model.graph.input:
        if shapes and value.name in shapes:
            for d, n in zip(value.type.tensor_type.shape.dim, shapes[value.name]):
                d.dim_value = n
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    known = {t.name for t in model.graph.initializer}
    inputs = tuple(_info(v) for v in model.graph.input if v.name not in known)
    outputs = tuple(_info(v) for v in model.graph.output)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mod = from_onnx(model, sanitize_input_names=False)
    return ImportedModel(name, mod, inputs, outputs)
