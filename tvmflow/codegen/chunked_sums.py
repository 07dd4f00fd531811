"""Sums with partial sums in 16 bits, ``--accumulate mixed``: code of the chunks.

The layout pass emits products of halves, converted to fp32 and added up; :mod:`..ir.half_sums`
decides which, and how long a chunk may be.  The schedule arranges loops as for any sum,
and :func:`SumInChunks` then finds the outermost loop that adds at most :data:`.CHUNK` products to
an element, or makes one by splitting a longer loop in two.  Before and after::

    for i in range(48):
        for k in T.unroll(4):
            for o in T.vectorized(4):
                acc[o] += T.Cast("float32", T.Cast("float16", x[i, k]) * T.Cast("float16", w[...]))

    for i in range(6):
        chunk = T.alloc_buffer((4,), "float16", scope="local")
        for o in T.vectorized(4):
            chunk[o] = 0
        for j in range(8):
            for k in T.unroll(4):
                for o in T.vectorized(4):
                    chunk[o] += T.Cast("float16", x[i * 8 + j, k]) * T.Cast("float16", w[...])
        for o in T.vectorized(4):
            acc[o] += T.Cast("float32", chunk[o])
"""

from __future__ import annotations

from math import prod

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from ..ir.expressions import CHOICE, nodes_in, substitute_vars, uses, with_fields
from ..ir.half_sums import CHUNK, is_product
from ..ir.passes import map_nodes, prim_func_pass
from ..ir.rewriter import op_name

#: Shortest even chunk, relative to the longest possible one; else the last chunk is shorter.
EVEN = 2 / 3


@prim_func_pass()
def SumInChunks(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute partial sums of products of halves in 16 bits; runs after blocks are lowered.

    A product of halves that is not added to private memory is computed in fp32, as for
    ``--accumulate fp32``: otherwise it would cost a conversion, and be no faster.
    """
    if not any(map(is_product, nodes_in(function.body, tirx.Cast))):
        return function
    # Nodes shared by both copies of a body (:mod:`.loop_peeling`) are found once in each.
    loops, stores = (set(nodes_in(function.body, kind)) for kind in (tirx.For, tirx.BufferStore))
    chunked: list[tuple[tirx.For, tirx.Stmt]] = []
    for store in stores:
        if _half_addend(store) is not None:
            around = [loop for loop in loops if _is_all_of(store, loop)]
            around.sort(key=lambda loop: -len(nodes_in(loop, tirx.For)))
            chunked += _chunked(store, around)

    def replace(loop: tirx.For) -> tirx.Stmt:
        return next((new for old, new in chunked if loop.same_as(old)), loop)

    function = map_nodes(function, (tirx.For, replace))
    return map_nodes(function, (tirx.Cast, _in_single))


def _in_single(cast: tirx.Cast) -> tirx.Expr:
    """Compute a product in fp32, of factors that were halves or are converted from fp32."""
    return _single(cast.value.a) * _single(cast.value.b) if is_product(cast) else cast


def _single(factor: tirx.Expr) -> tirx.Expr:
    is_converted = isinstance(factor, tirx.Cast) and factor.value.ty.dtype == "float32"
    return factor.value if is_converted else tirx.Cast("float32", factor)


def _half_addend(store: tirx.BufferStore) -> tirx.Expr | None:
    """Return the 16-bit value that a statement adds to private memory; ``None`` otherwise."""
    buffer, value = store.buffer, store.value
    is_sum = buffer.scope() == "local" and isinstance(value, tirx.Add)
    if not (is_sum and buffer.dtype == "float32" and isinstance(value.a, TensorLoad)):
        return None
    same = value.a.source.same_as(buffer) and all(
        tvm_ffi.structural_equal(*pair) for pair in zip(value.a.indices, store.indices, strict=True)
    )
    return _half(value.b) if same else None


def _half(value: tirx.Expr) -> tirx.Expr | None:
    """Return a product that is converted to fp32, or zero in its place, without the conversion."""
    if isinstance(value, tirx.Cast):
        return value.value if is_product(value) else None
    if isinstance(value, tirx.FloatImm):
        return tirx.const(value.value, "float16")
    if op_name(value) != CHOICE:
        return None
    sides = [_half(side) for side in value.args[1:]]
    return None if None in sides else tirx.if_then_else(value.args[0], *sides)


def _is_all_of(store: tirx.BufferStore, loop: tirx.For) -> bool:
    """Return whether this statement is a loop's only access to its sum."""
    stores = [s for s in nodes_in(loop, tirx.BufferStore) if s.buffer.same_as(store.buffer)]
    loads = [x for x in nodes_in(loop, TensorLoad) if x.source.same_as(store.buffer)]
    return len(loads) == len(stores) == 1 and stores[0].same_as(store)


def _chunked(store: tirx.BufferStore, around: list[tirx.For]) -> list[tuple[tirx.For, tirx.Stmt]]:
    """Return the loop that becomes chunks, with its replacement.

    ``around`` are the loops around an addition, the outermost first.
    """
    summed = [loop for loop in around if not any(uses(i, loop.loop_var) for i in store.indices)]
    if not summed or not all(isinstance(loop.extent, tirx.IntImm) for loop in summed):
        return []
    lengths = [prod(int(loop.extent) for loop in summed[n:]) for n in range(len(summed) + 1)]
    if lengths[0] <= CHUNK:
        return [(summed[0], _sum(store, summed[0], around))]
    place = next(n for n, length in enumerate(lengths[1:]) if length <= CHUNK)
    loop = summed[place]
    outer, body = _split(loop, CHUNK // lengths[place + 1])
    return [(loop, with_fields(outer, body=_sum(store, body, around)))]


def _split(loop: tirx.For, most: int) -> tuple[tirx.For, tirx.Stmt]:
    """Split a loop in two, the inner one of at most ``most`` iterations, unless that is one."""
    extent = int(loop.extent)
    size = max(d for d in range(1, most + 1) if extent % d == 0)
    if size < EVEN * most:
        size = -(-extent // -(-extent // most))
    parts = -(-extent // size)
    if size == 1:
        return loop, loop.body
    dtype = loop.loop_var.ty.dtype
    outer, inner = (tirx.Var(f"{loop.loop_var.name}_{n}", dtype) for n in ("outer", "inner"))
    place = outer * size + inner
    body = substitute_vars(loop.body, {loop.loop_var: loop.min + place})
    length: tirx.Expr = tirx.const(size, dtype)
    if extent % size:
        if loop.kind == tirx.ForKind.SERIAL:
            length = tirx.min(length, extent - outer * size)
        else:
            body = tirx.IfThenElse(place < extent, body, None)
    zero = tirx.const(0, dtype)
    inner_loop = tirx.For(inner, zero, length, loop.kind, body, None, loop.annotations)
    return tirx.For(outer, zero, tirx.const(parts, dtype), loop.kind, inner_loop), inner_loop


def _sum(store: tirx.BufferStore, body: tirx.Stmt, around: list[tirx.For]) -> tirx.Stmt:
    """Return a chunk: set to zero, accumulated by ``body``, and added to the sum in fp32."""
    total = store.buffer
    chunk = tirx.decl_buffer(total.shape, "float16", f"{total.name}_chunk", scope="local")
    # After a split, the loops inside are new nodes with the same variables.
    inside = {loop.loop_var for loop in nodes_in(body, tirx.For)}
    used = set(nodes_in(list(store.indices), tirx.Var))
    elements = [loop for loop in around if loop.loop_var in inside & used]

    def each(buffer: tirx.Buffer, value) -> tirx.Stmt:  # type: ignore[no-untyped-def]
        fresh = [tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype) for loop in elements]
        values = {loop.loop_var: var for loop, var in zip(elements, fresh, strict=True)}
        indices = [substitute_vars(index, values) for index in store.indices]
        statement: tirx.Stmt = tirx.BufferStore(buffer, value(indices), indices)
        for loop, var in zip(reversed(elements), reversed(fresh), strict=True):
            statement = tirx.For(var, loop.min, loop.extent, loop.kind, statement)
        return statement

    def narrow(found: tirx.BufferStore) -> tirx.Stmt:
        if not found.buffer.same_as(total):
            return found
        value = tirx.BufferLoad(chunk, found.indices) + _half_addend(found)
        return tirx.BufferStore(chunk, value, found.indices)

    return tirx.SeqStmt(
        [
            tirx.AllocBuffer(chunk),
            each(chunk, lambda _: tirx.const(0, "float16")),
            tvm_ffi.structural_map(body, (tirx.BufferStore, narrow)),
            each(
                total,
                lambda at: (
                    tirx.BufferLoad(total, at) + tirx.Cast("float32", tirx.BufferLoad(chunk, at))
                ),
            ),
        ]
    )
