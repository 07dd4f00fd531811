"""What a module carries of its functions and its graph, so that it can be profiled anywhere."""

from __future__ import annotations

import lzma
from typing import Any

import tvm
from tvm import IRModule, tirx


def pack_functions(mod: IRModule | None) -> bytes:
    """The primary functions of a scheduled module, compressed."""
    functions = {} if mod is None else mod.functions
    kept = {gv: f for gv, f in functions.items() if isinstance(f, tirx.PrimFunc)}
    if not kept:
        return b""
    # The fastest setting is as small as zlib's smallest.
    return lzma.compress(tvm.ir.save_json(IRModule(kept)).encode(), preset=0)


def unpack_functions(content: bytes) -> dict[str, Any]:
    """Primary functions by name, each with its name as ``global_symbol``."""
    mod = tvm.ir.load_json(lzma.decompress(content).decode())
    return {
        gv.name_hint: function.with_attr("global_symbol", gv.name_hint)
        for gv, function in mod.functions.items()
    }


def tir_text(function: tirx.PrimFunc) -> str:
    """A function as people read it; findings name its lines, from 1."""
    # Most indices are int64: without this option each constant is wrapped in T.int64().
    return str(function.script(show_meta=False, int_dtype="int64"))
