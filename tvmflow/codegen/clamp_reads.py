"""Read texels outside of a picture as zeros, without a branch.

A padded convolution tests for each texel whether it is inside the picture.  As a branch, the test
makes every read wait for the one before.  A sampler with ``CLK_ADDRESS_CLAMP`` reads zeros outside
of an image of four channels (OpenCL C, section 6.15.15.1), so :func:`ReadBorders` moves texels that
are outside of the *picture* to coordinates outside of the *image*.  Tests of rows move the row
coordinate, all others the column: texels of one row keep a common row coordinate.  Before::

    T.if_then_else(0 <= y and 0 <= x and x < 56, T.texture2d_load(image, b * 56 + x, y, ...), 0)

After::

    T.texture2d_load(image, tvmflow_inside(0 <= x and x < 56, b * 56 + x, -1),
                     tvmflow_inside(0 <= y, y, -1), ...)

If the border is not zero, as for max-pooling, the value that was read is selected afterwards.

TVM's macro for reads takes no sampler in OpenCL C 1.2, where coordinates outside are undefined;
:func:`read_with_sampler` replaces it.
"""

from __future__ import annotations

import re
from math import prod

from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from ..ir.expressions import CHOICE, conjuncts, nodes_in
from ..ir.passes import map_nodes, prim_func_pass
from ..ir.rewriter import op_name
from .textures import LOAD

_INSIDE = "tvmflow_inside"
_MACRO = f"#define {_INSIDE}(c, i, o) ((c) ? (i) : (o))\n"
_READ_IMAGE = re.compile(rf"\bREAD_IMAGE([FH])(?=\(\w+, image_sampler, \(\(int4\)\({_INSIDE}\()")
#: TVM's definitions of its macros for reads.  :data:`_READS` replaces them by reads without a
#: sampler, because all coordinates except those of :func:`ReadBorders` are inside the image.
_READ_MACROS = re.compile(
    r"#ifdef __OPENCL_VERSION__\n#if [^\n]*\n(?:#[^\n]*\n)*?#endif\n#endif\n\n?"
)
_READS = "".join(f"#define READ_IMAGE{x}(i, s, c) read_image{x.lower()}(i, c)\n" for x in "HF")


#: Largest private arrays, in bytes: 40 of an Adreno's 48 vector registers; texels in flight need
#: the others.
_PRIVATE_BYTES = 40 * 16


@prim_func_pass("opencl")
def ReadBorders(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Read zeros outside of a border without branches; runs late, on kernels."""
    # Without loops, compilers move all reads to the front, and spill what has no register:
    # Winograd's inputs, 36 texels, are better read one after another.
    if not nodes_in(function.body, tirx.For) and _private_bytes(function) > _PRIVATE_BYTES:
        return function
    return map_nodes(function, (Call, _read))


def _private_bytes(function: tirx.PrimFunc) -> int:
    buffers = [node.buffer for node in nodes_in(function.body, tirx.AllocBuffer)]
    return sum(
        prod(int(extent) for extent in buffer.shape) * buffer.dtype.bits * buffer.dtype.lanes // 8
        for buffer in buffers
        if buffer.scope() == "local"
    )


def _read(choice: Call) -> tirx.Expr:
    if op_name(choice) != CHOICE:
        return choice
    test, value, other = choice.args
    load = value.value if isinstance(value, tirx.Cast) else value
    is_texel = op_name(load) == LOAD and test.ty.dtype.lanes == 1 and _constant(other) is not None
    # Coordinates that are read from memory may be outside, too.
    if not is_texel or nodes_in(load.args[1:4], TensorLoad):
        return choice
    image, column, row, *rest = load.args
    of_row = set(nodes_in(row, tirx.Var))
    tests: tuple[list[tirx.Expr], list[tirx.Expr]] = ([], [])
    for part in conjuncts(test):
        tests[of_row.issuperset(nodes_in(part, tirx.Var))].append(part)
    column, row = (_inside(*pair) for pair in zip(tests, (column, row), strict=True))
    read = Call(LOAD, [image, column, row, *rest], ret_ty=load.ty)
    if load is not value:
        read = tirx.Cast(value.ty.dtype, read)
    if _constant(other) == 0:
        return read
    return tirx.call_pure_extern(value.ty, _INSIDE, test, read, other)


def _constant(value: tirx.Expr) -> float | None:
    """Return the number in all lanes of a constant, or ``None``."""
    value = value.value if isinstance(value, tirx.Broadcast) else value
    return float(value.value) if isinstance(value, tirx.FloatImm) else None


def _inside(tests: list[tirx.Expr], place: tirx.Expr) -> tirx.Expr:
    """Return a coordinate that is outside of the image if one of the tests fails."""
    # `read_with_sampler` recognises these reads by this name around the column.
    test = tirx.all(tirx.const(True, "bool"), *tests)
    return tirx.call_pure_extern(place.ty, _INSIDE, test, place, tirx.const(-1, place.ty.dtype))


def read_with_sampler(source: str) -> str:
    """Rewrite a kernel so that its reads beyond borders use the sampler and give zeros."""
    changed, count = _READ_IMAGE.subn(lambda match: f"read_image{match[1].lower()}", source)
    if count:
        changed = f"#ifndef {_INSIDE}\n{_MACRO}#endif\n{changed}"
    return _READ_MACROS.sub(
        _READS if "READ_IMAGE" in _READ_MACROS.sub("", changed) else "", changed
    )
