"""Refuses kernels that an OpenCL driver or this TVM would get silently wrong.

What is checked of every primary function that touches an image:

- a store writes a whole texel: four lanes of the image's type;
- no access to an image is left as an access to memory;
- no image is both written and read: OpenCL C 1.2 has no such images, and a cached
  read need not see the write;
- no image is allocated inside: all of them are parameters, and planned with the graph.

That an image is within the device's limits is checked where its coordinates are made
(:mod:`.textures`).
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op
from tvm.ir.expr import TensorLoad

from ..ir.passes import prim_func_pass, refuse
from ..ir.scope import CHANNELS, is_texture
from .textures import LOAD, STORE, image_of, name_of


@prim_func_pass("VerifyTextures")
def VerifyTextures(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Check one lowered function; a pass that changes nothing.

    Raises
    ------
    CompileError
        Naming the primary function and what is wrong in it.
    """
    check(function)
    return function


def check(function: tirx.PrimFunc) -> None:
    """The pass as a function."""
    name = name_of(function)
    accessed: dict[str, set[Any]] = {LOAD: set(), STORE: set()}

    def wrong(what: str) -> None:
        refuse(f"The primary function {name} {what}.", remedy="Compile with `storage=buffer`.")

    def call(node: Call) -> None:
        operator = node.op.name if isinstance(node.op, Op) else None
        if operator not in accessed:
            return
        accessed[operator].add(image_of(node.args[0]))
        lanes = tvm_ffi.dtype(node.args[5].ty.dtype).lanes if operator == STORE else CHANNELS
        if lanes != CHANNELS:
            wrong(f"stores {lanes} of the {CHANNELS} channels of a texel of an image")

    def access(node: Any) -> None:
        buffer = node.source if isinstance(node, TensorLoad) else node.buffer
        if tirx.is_buffer_var(buffer) and is_texture(buffer.scope()):
            wrong(f"treats the image {buffer.name} as memory")

    def allocate(statement: tirx.AllocBuffer) -> None:
        if is_texture(statement.buffer.scope()):
            wrong(f"allocates the image {statement.buffer.name} for itself")

    tvm_ffi.structural_walk(
        function.body,
        [
            (Call, call),
            (TensorLoad, access),
            (tirx.BufferStore, access),
            (tirx.AllocBuffer, allocate),
        ],
    )
    for image in accessed[LOAD] & accessed[STORE]:
        wrong(f"writes and reads the image {image.name}")
