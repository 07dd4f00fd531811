"""Networks as scheduled primary functions."""

from __future__ import annotations

import onnx
from tvm import IRModule, tirx

from support.first_stages import compiled_until
from tvmflow.compiler.scheduling import schedule_module
from tvmflow.devices.target import TargetSpec


def fused(model: onnx.ModelProto, target: TargetSpec, storage: str) -> IRModule:
    """Return a module whose primary functions are fused but not scheduled."""
    mod = compiled_until("weights", model, target, storage=storage).mod
    assert mod is not None
    return mod


def scheduled(model: onnx.ModelProto, target: TargetSpec, storage: str) -> dict[str, tirx.PrimFunc]:
    """Primary functions by name."""
    functions = schedule_module(fused(model, target, storage), target)[0].functions
    return {
        gv.name_hint: function.with_attr("global_symbol", gv.name_hint)
        for gv, function in functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
