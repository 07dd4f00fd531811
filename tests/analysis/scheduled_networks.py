"""Networks as scheduled primary functions."""

from __future__ import annotations

import onnx
from tvm import IRModule, tirx

from tvmflow.build import schedule_module
from tvmflow.frontend import load_model
from tvmflow.graph.fuse import legalize_and_fuse
from tvmflow.graph.simplify import simplify
from tvmflow.graph.weights import lift_weights
from tvmflow.target import TargetSpec
from tvmflow.texture.layout import apply_layouts
from tvmflow.texture.storage import place_tensors


def fused(model: onnx.ModelProto, target: TargetSpec, storage: str) -> IRModule:
    """Calls of primary functions, before these are scheduled."""
    mod, _ = apply_layouts(simplify(load_model(model).mod), target.device)
    mod, _ = place_tensors(legalize_and_fuse(mod, target), target.device, storage)
    return lift_weights(mod)[0]


def scheduled(model: onnx.ModelProto, target: TargetSpec, storage: str) -> dict[str, tirx.PrimFunc]:
    """Primary functions by name."""
    functions = schedule_module(fused(model, target, storage), target).mod.functions
    return {
        gv.name_hint: function.with_attr("global_symbol", gv.name_hint)
        for gv, function in functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
