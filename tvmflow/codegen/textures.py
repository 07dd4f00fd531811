"""TIR passes that turn accesses to textures into image reads and writes.

They run on loops without blocks, before vectorisation.  Before::

    for k in T.vectorized(4):
        y[n, c, h, w, k] = x[n, c, h, w, k] * 2

After, with both in the scope ``global.texture:p1``::

    texel = T.alloc_buffer((4,), scope="local")
    for k in T.vectorized(4):
        texel[k] = T.texture2d_load(x, w, (n * C + c) * H + h, 0, 128, k) * 2
    T.texture2d_store(y, w, (n * C + c) * H + h, 0, 128, texel[0:4])

TVM's passes of these names support three fixed mappings of axes to image coordinates and
store the lanes of a texel one by one; its code generator then writes a whole texel for each lane,
with the lane's value in all channels.

:func:`VerifyTextures` rejects kernels that an OpenCL driver or this TVM would execute wrong without
an error.  It checks of every primary function that accesses an image:

- a store writes a whole texel: four lanes of the image's type;
- no access to an image is left as an access to memory;
- no image is both written and read: OpenCL C 1.2 has no such images, and a cached
  read need not see the write;
- no image is allocated inside: all images are parameters, and planned with the graph.

Limits of an image's extent are checked when its coordinates are computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from ..ir.expressions import nodes_in, uses
from ..ir.passes import map_nodes, prim_func_pass, refuse
from ..ir.rewriter import op_name
from ..ir.scope import CHANNELS, coordinates, extent_of, is_texture

#: Attributes of TVM's OpenCL targets: width and height, and layers, of the largest image.
EXTENT_LIMIT = "texture_spatial_limit"
LAYERS_LIMIT = "texture_depth_limit"

LOAD = "tirx.texture2d_load"
STORE = "tirx.texture2d_store"


def image_of(pointer: tirx.Expr) -> tirx.Expr:
    """Return the variable of the pointer that an image access is given."""
    return pointer.args[0] if isinstance(pointer, Call) else pointer


@prim_func_pass()
def TextureFlatten(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace loads and stores of texture tensors by image accesses.

    Raises a `CompileError` if an image is too large, or not stored in whole texels.
    """
    for param in function.params:
        if _is_image(param):
            _check_extent(function, param)
    names = (f"texel{number}" for number in itertools.count())
    flat = map_nodes(function, (TensorLoad, _load), (tirx.For, partial(_store_texel, names)))
    for store in nodes_in(flat.body, tirx.BufferStore):
        if is_texture(store.buffer.scope()):
            refuse(
                function,
                f"stores single channels of the texture {store.buffer.name}; an image is written "
                f"in whole texels of {CHANNELS} channels",
                remedy="Compile with `storage=buffer`, or keep this tensor in a buffer.",
            )
    return flat


def _is_image(var: tirx.Var) -> bool:
    return tirx.is_buffer_var(var) and is_texture(var.scope())


def _check_extent(function: tirx.PrimFunc, buffer: tirx.Buffer) -> None:
    """Raise a `CompileError` if an image is larger than the target's limits."""
    target = (function.attrs or {}).get("target")
    attributes = {} if target is None else dict(target.attrs)
    # Images of symbolic extents are checked by the caller that creates them.
    known = all(isinstance(extent, tirx.IntImm) for extent in buffer.shape)
    if EXTENT_LIMIT not in attributes or not known:
        return
    extent = extent_of([int(d) for d in buffer.shape], buffer.scope())
    limit, layers = int(attributes[EXTENT_LIMIT]), int(attributes[LAYERS_LIMIT])
    if max(extent.width, extent.height) > limit or extent.layers > layers:
        refuse(
            function,
            f"has an image of {extent} texels, {buffer.name}; the device's are at most "
            f"{limit}x{limit} in {layers} layers",
            remedy="Compile with `storage=auto` or `storage=buffer`.",
        )


def _access(buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> list[tirx.Expr]:
    """Return the arguments of an image access: image, column, row, layer, and bits of a texel."""
    bits = CHANNELS * buffer.dtype.bits
    place = coordinates(buffer.shape, buffer.scope(), indices)
    return [buffer.data, *place, tirx.const(bits, "int32")]


def _load(load: TensorLoad) -> tirx.Expr:
    if not _is_image(load.source):
        return load
    return Call(LOAD, [*_access(load.source, load.indices), load.indices[-1]], ret_ty=load.ty)


def _store_texel(names: Iterator[str], loop: tirx.For) -> tirx.Stmt:
    """Gather the lanes that a loop stores one by one, and store them as one texel."""
    body, guard = loop.body, None
    if isinstance(body, tirx.IfThenElse) and body.else_case is None:
        body, guard = body.then_case, body.condition
    if not (isinstance(body, tirx.BufferStore) and is_texture(body.buffer.scope())):
        return loop
    *place, lane = body.indices
    is_whole = lane.same_as(loop.loop_var) and (int(loop.min), int(loop.extent)) == (0, CHANNELS)
    if not is_whole or any(uses(expr, lane) for expr in (*place, guard) if expr is not None):
        return loop
    texel = tirx.decl_buffer((CHANNELS,), body.buffer.dtype, next(names), scope="local")
    gathered = tirx.BufferStore(texel, body.value, [lane])
    gather = tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, gathered, annotations=loop.annotations
    )
    lanes = tirx.BufferLoad(texel, [tirx.Ramp(0, 1, CHANNELS)])
    texel_store = Call(STORE, [*_access(body.buffer, body.indices), lanes], ret_ty="void")
    statement = tirx.SeqStmt([tirx.AllocBuffer(texel), gather, tirx.Evaluate(texel_store)])
    return statement if guard is None else tirx.IfThenElse(guard, statement, None)


@prim_func_pass()
def NameTexels(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind the value of each image store to a separate variable.

    TVM's OpenCL code generator caches the text of a stored value and reuses its variable for the
    same text, even if memory has been written in between: unrolled code would store its first texel
    everywhere.  A variable is used directly.
    """
    names = (f"texel_{number}" for number in itertools.count())

    def bind(statement: tirx.Evaluate) -> tirx.Stmt:
        call = statement.value
        if op_name(call) != STORE:
            return statement
        *place, value = call.args
        texel = tirx.Var(next(names), value.ty)
        store = tirx.Evaluate(Call(call.op, [*place, texel], ret_ty=call.ty))
        return tirx.SeqStmt([tirx.Bind(texel, value), store])

    return map_nodes(function, (tirx.Evaluate, bind))


@prim_func_pass()
def VerifyTextures(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Raise a `CompileError` if a lowered function misuses images; changes nothing."""
    accessed: dict[str, set[tirx.Var]] = {LOAD: set(), STORE: set()}
    wrong = partial(refuse, function, remedy="Compile with `storage=buffer`.")
    for node in nodes_in(function.body, Call, TensorLoad, tirx.BufferStore, tirx.AllocBuffer):
        if isinstance(node, Call):
            operator = op_name(node)
            if operator not in accessed:
                continue
            accessed[operator].add(image_of(node.args[0]))
            lanes = node.args[5].ty.dtype.lanes if operator == STORE else CHANNELS
            if lanes != CHANNELS:
                wrong(f"stores {lanes} of the {CHANNELS} channels of a texel of an image")
            continue
        buffer = node.source if isinstance(node, TensorLoad) else node.buffer
        if _is_image(buffer) and isinstance(node, tirx.AllocBuffer):
            wrong(f"allocates the image {buffer.name} for itself")
        if _is_image(buffer):
            wrong(f"treats the image {buffer.name} as memory")
    for image in accessed[LOAD] & accessed[STORE]:
        wrong(f"writes and reads the image {image.name}")
    return function
