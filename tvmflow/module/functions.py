"""Functions in modules: source of device code, and primary functions stored for profiles."""

from __future__ import annotations

import lzma

import tvm
from tvm import IRModule, tirx

from ..runtime.json_types import JsonMapping


def modules_in(root: tvm.runtime.Module) -> list[tvm.runtime.Module]:
    """Return the modules of device code within a module, at any depth of TVM's imports."""
    found, queue = [], [root]
    while queue:
        module = queue.pop()
        queue.extend(module.imports)
        if module.kind in ("opencl", "cuda"):
            found.append(module)
    return found


def sources_in(root: tvm.runtime.Module) -> list[str]:
    """Return the source of the device code within a module."""
    return [str(module.inspect_source()) for module in modules_in(root)]


def pack_functions(mod: IRModule | None) -> bytes:
    """Compress the primary functions of a scheduled module."""
    functions = {} if mod is None else mod.functions
    kept = {gv: f for gv, f in functions.items() if isinstance(f, tirx.PrimFunc)}
    if not kept:
        return b""
    # LZMA's fastest preset compresses as well as zlib's best.
    return lzma.compress(tvm.ir.save_json(IRModule(kept)).encode(), preset=0)


def unpack_functions(content: bytes) -> dict[str, tirx.PrimFunc]:
    """Return primary functions by name, each with its name as ``global_symbol``."""
    if not content:
        return {}
    mod = tvm.ir.load_json(lzma.decompress(content).decode())
    return {
        gv.name_hint: function.with_attr("global_symbol", gv.name_hint)
        for gv, function in mod.functions.items()
    }


def functions_of_shape(content: bytes, metadata: JsonMapping) -> dict[str, tirx.PrimFunc]:
    """Unpack the primary functions of the shape that the metadata describes."""
    found = unpack_functions(content)
    if not found or not {"entry", "variants"} & metadata.keys():
        return found
    called = {kernel["function"] for kernel in metadata["kernels"]}
    return {name: function for name, function in found.items() if name in called}


def tir_text(function: tirx.PrimFunc) -> str:
    """Return a function as TVMScript text; findings refer to its lines, counted from 1."""
    # Most indices are int64: without this option each constant is wrapped in T.int64().
    return str(function.script(show_meta=False, int_dtype="int64"))
