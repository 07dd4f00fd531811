"""Corrections of OpenCL C that TVM writes wrong or long: passes on kernels, and source rewrites.

*Exact constants.*  TVM writes seven digits, but fp32 numbers need up to nine: 0.012345679 becomes
0.01234568, half a unit in the last place off.  Constants that seven digits change are written as
their bits::

    x[i] * 0.012345679f             x[i] * T.call_pure_extern("as_float", 1011498623)

*Integer promotion.*  C computes with ``int`` on narrower types, so that ``~x`` of a ``uchar`` is
negative and ``x + y`` of two exceeds 255.  TIR, LLVM and vectors of OpenCL C wrap around.  If the
result is stored in its own type nothing is lost; but if the same kernel converts or compares it, it
is another number.  The pass converts the result back to its type, also for CUDA C++::

    T.Cast("float32", x + y)        T.Cast("float32", T.Cast("uint8", int32(x) + int32(y)))

*Shuffles* of vector lanes, `tirx.Shuffle`.  TVM writes constructors as in C++,
``float16(a[0], b[0], ...)``, which OpenCL C does not have.  A shuffle becomes a call of a function
that is defined before the kernel, and whose name lists the lanes::

    T.Shuffle([a, b], [0, 4, 1, 5])         tvmflow_shuffle_float4x2_0_4_1_5(a, b)

*Powers of vectors of doubles.*  PoCL computes some lanes wrong and mixes them up (8 to the 1 gave
0.875 next to others): such a power becomes a call of a function that computes lane by lane::

    T.pow(x, y)        tvmflow_pow_double8(x, y)

*Vectors of bytes*, from places that are not consecutive or not aligned.  TVM packs both into
one integer, as in CUDA, which OpenCL C does not accept as a vector: `vstore4` replicates it.  They
are read by macros instead::

    x[T.Ramp(0, 9, 4)]        tvmflow_gather_char4(T.Ramp(0, 9, 4), x)       names each one
    x[T.Ramp(10, 1, 4)]       tvmflow_load_char4(10, x)                      vload4

:func:`postprocess` rewrites the source itself, kernel by kernel, before it is stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad

from ..ir.annotations import CONSTANT_SUFFIX
from ..ir.expressions import lower_to_function, nodes_in, substitute_vars, uses
from ..ir.passes import node_pass, prim_func_pass
from ..ir.rewriter import op_name
from ..ir.rounding import FUNCTION as EXACT
from . import aligned_vectors, error_function, half, nan_propagation, prevent_unrolling, rounding
from .clamp_reads import read_with_sampler
from .dot_products import OPENCL, with_functions

#: Functions that OpenCL C has for every float type, but TVM prints C's names (``acosf``).
_FUNCTIONS = (
    "tan", "acos", "asin", "atan", "sinh", "cosh", "acosh", "asinh", "atanh", "atan2",
    "log1p", "hypot", "copysign", "nextafter", "ldexp",
)  # fmt: skip


for _name in _FUNCTIONS:
    lower_to_function(f"tirx.{_name}", "opencl", _name)


# -- constants, integer promotion, shuffles and gathers ---------------------------------------

#: OpenCL C's function that reinterprets bits, and the integer type of the bits, by dtype.
_FROM_BITS = {"float32": ("as_float", np.int32), "float64": ("as_double", np.int64)}


@node_pass(tirx.FloatImm, targets=("opencl",))
def WriteLiterals(literal: tirx.FloatImm) -> tirx.Expr:
    """Write constants that need more than seven digits as bits; runs last, on kernels."""
    dtype = str(literal.ty.dtype)
    if dtype not in _FROM_BITS:
        # Half and bfloat16 need fewer digits.
        return literal
    name, integer = _FROM_BITS[dtype]
    value = np.dtype(dtype).type(literal.value)
    if not np.isfinite(value) or np.dtype(dtype).type(f"{value:e}") == value:
        return literal
    bits = tirx.const(int(value.view(integer)), np.dtype(integer).name)
    return tirx.call_pure_extern(literal.ty, name, bits)


_SMALL_INTEGERS = ("int8", "uint8", "int16", "uint16")
#: Operations whose results may exceed the type.
_OPERATIONS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.LShift, tirx.BitwiseNot)


@node_pass(*_OPERATIONS, targets=("opencl", "cuda"))
def UndoIntegerPromotion(node: tirx.Expr) -> tirx.Expr:
    """Wrap small integers around as TIR does; runs on vectors, which wrap around anyway."""
    dtype = str(node.ty.dtype)
    if dtype not in _SMALL_INTEGERS:
        return node
    operands = [node.a] if isinstance(node, tirx.BitwiseNot) else [node.a, node.b]
    return tirx.Cast(dtype, type(node)(*(tirx.Cast("int32", operand) for operand in operands)))


#: Prefix of the functions' names; type, lanes and number of the vectors and the lanes follow.
_SHUFFLE = "tvmflow_shuffle_"
_SHUFFLE_NAME = re.compile(rf"\b{_SHUFFLE}([a-z]+)(\d+)x(\d+)((?:_\d+)+)\b")
#: OpenCL C's names of the element types that schedules shuffle.
_SHUFFLED = {"float32": "float", "float64": "double", "int32": "int"}


@node_pass(tirx.Shuffle, targets=("opencl",))
def NameShuffles(shuffle: tirx.Shuffle) -> tirx.Expr:
    """Replace shuffles by calls of functions."""
    if len(shuffle.indices) == 1:
        return shuffle
    dtype = shuffle.vectors[0].ty.dtype
    lanes = "".join(f"_{int(index)}" for index in shuffle.indices)
    kind = f"{_SHUFFLED[str(dtype.with_lanes(1))]}{dtype.lanes}"
    name = f"{_SHUFFLE}{kind}x{len(shuffle.vectors)}{lanes}"
    return tirx.call_pure_extern(shuffle.ty, name, *shuffle.vectors)


def _shuffle(match: re.Match[str]) -> str:
    kind, width, count = match[1], int(match[2]), int(match[3])
    taken = [int(lane) for lane in match[4].split("_")[1:]]
    vectors = "abcdefghijklmnop"[:count]
    parameters = ", ".join(f"{kind}{width} {vector}" for vector in vectors)
    lanes = ", ".join(f"{vectors[lane // width]}.s{lane % width:x}" for lane in taken)
    result = f"{kind}{len(taken)}"
    return (
        f"static inline {result} {match.group()}({parameters}) {{ return ({result})({lanes}); }}\n"
    )


#: Prefix of the functions' names; the number of lanes follows.
_POWER = "tvmflow_pow_double"
_POWER_NAME = re.compile(rf"\b{_POWER}(\d+)\b")


@node_pass(Call, targets=("opencl",))
def NamePowers(call: Call) -> tirx.Expr:
    """Replace powers of vectors of doubles by calls of functions."""
    if op_name(call) != "tirx.pow":
        return call
    dtype = call.ty.dtype
    if dtype.bits != 64 or dtype.lanes == 1:
        return call
    return tirx.call_pure_extern(call.ty, f"{_POWER}{dtype.lanes}", *call.args)


def _power(match: re.Match[str]) -> str:
    kind = f"double{match[1]}"
    lanes = ", ".join(f"pow(x.s{lane:x}, y.s{lane:x})" for lane in range(int(match[1])))
    return f"static inline {kind} {match[0]}({kind} x, {kind} y) {{ return ({kind})({lanes}); }}\n"


_GATHER, _LOAD = "tvmflow_gather_", "tvmflow_load_"
_BYTE_TYPES = {"int8": "char", "uint8": "uchar"}
_ONE = tirx.const(1, "int32")


@node_pass(TensorLoad, targets=("opencl",))
def NameGathers(load: TensorLoad) -> tirx.Expr:
    """Replace loads of byte vectors by macros; runs on vectors, over flat buffers."""
    dtype = load.ty.dtype
    kind = _BYTE_TYPES.get(str(dtype.with_lanes(1)))
    # In an array of vectors, a scalar index selects a whole vector.
    if kind is None or dtype.lanes == 1 or load.source.dtype.lanes > 1:
        return load
    (index,) = load.indices
    name, place = _GATHER, index
    if isinstance(index, tirx.Ramp) and tvm_ffi.structural_equal(index.stride, _ONE):
        name, place = _LOAD, index.base
    return tirx.call_pure_extern(load.ty, f"{name}{kind}{dtype.lanes}", place, load.source.data)


def _gather_macros() -> str:
    lines = []
    for kind in _BYTE_TYPES.values():
        for lanes in (2, 4, 8, 16):
            each = ", ".join(f"(p)[(i).s{lane:x}]" for lane in range(lanes))
            lines.append(f"#define {_GATHER}{kind}{lanes}(i, p) (({kind}{lanes})({each}))\n")
            lines.append(f"#define {_LOAD}{kind}{lanes}(i, p) vload{lanes}(0, (p) + (i))\n")
    return "".join(lines)


# -- work-groups ------------------------------------------------------------------------------

#: Names of a work-item's indices, by the beginnings of TVM's names for them.
_INDICES = {"blockIdx": "group", "threadIdx": "item"}


@node_pass(tirx.AttrStmt, targets=("opencl",))
def NameIndices(statement: tirx.AttrStmt) -> tirx.Stmt:
    """Bind each index of a work-item once, as TVM queries it at every use; runs late."""
    kind, _, axis = str(getattr(statement.node, "thread_tag", "")).partition(".")
    if statement.attr_key != "thread_extent" or kind not in _INDICES:
        return statement
    index = statement.node.var
    if not uses(statement.body, index):
        return statement
    name = tirx.Var(f"{_INDICES[kind]}_{axis}", index.ty)
    body = substitute_vars(statement.body, {index: name})
    bound = tirx.SeqStmt([tirx.Bind(name, index), body])
    return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, bound)


@prim_func_pass("opencl")
def NameIndexTerms(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Eliminate common subexpressions with TVM's pass, after the passes that duplicate them."""
    return tirx.transform.CommonSubexprElim()(tvm.IRModule({"main": function}))["main"]


_GROUP = "tvmflow_group"
_GROUP_CALL = re.compile(rf"^\s*{_GROUP}\((\d+), (\d+), (\d+)\);\n", re.MULTILINE)


@prim_func_pass("opencl")
def NameGroup(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Mark a kernel's work-group extents with a pseudo call, for `require_group`; runs last."""
    extents = {
        str(node.node.thread_tag): node.value
        for node in nodes_in(function.body, tirx.AttrStmt)
        if node.attr_key == "thread_extent"
    }
    group = [extents.get(f"threadIdx.{axis}", tirx.const(1, "int32")) for axis in "xyz"]
    if not extents or not all(isinstance(extent, tirx.IntImm) for extent in group):
        return function
    call = tirx.call_extern("int32", _GROUP, *(int(extent) for extent in group))
    return function.with_body(tirx.SeqStmt([tirx.Evaluate(call), function.body]))


def require_group(source: str) -> str:
    """Add an attribute with the work-group's extents to a kernel's head.

    Without it, a compiler assumes the largest work-group: fewer registers for each item, and
    barriers among more items (OpenCL C, section 6.7.2).
    """
    found = _GROUP_CALL.search(source)
    if found is None:
        return source
    rest = source[: found.start()] + source[found.end() :]
    head = _DEFINITION.search(rest)
    assert head is not None
    attribute = f"__attribute__((reqd_work_group_size({found[1]}, {found[2]}, {found[3]})))\n"
    return rest[: head.start()] + attribute + rest[head.start() :]


# -- source -----------------------------------------------------------------------------------

#: A parameter that a schedule places in constant memory.
_CONSTANT = re.compile(rf"__global (?:const )?(\w+)\* (?:restrict )?(\w*{CONSTANT_SUFFIX}\w*)")
#: A store of a byte vector, whose pointer is the last argument.
_STORED = re.compile(r"\bvstore(2|4|8|16)\(")
_BYTES = re.compile(r"__global u?char\* (?:restrict )?(\w+)")
#: The head of a kernel, and TVM's useless declarations of all kernels before it.
_DEFINITION = re.compile(r"__kernel void [^;{]*\{")
_DECLARATION = re.compile(r"^__kernel [^{;]*;[ \t]*\n", re.MULTILINE)
_SPLAT = re.compile(r"\(\((?:half|float|double|u?char|u?short|u?int|u?long)(2|3|4|8|16)\)\(")


def fold_splats(source: str) -> str:
    """Write ``((float4)(v))`` for ``((float4)(v, v, v, v))``.

    TVM prints a broadcast scalar once for every lane, including its index arithmetic, which is
    four fifths of a convolution's source.  OpenCL C replicates a single scalar to all lanes
    (section 6.4.5, vector literals).
    """
    parts: list[str] = []
    position = 0
    while match := _SPLAT.search(source, position):
        lanes, start = int(match.group(1)), match.end()
        parts.append(source[position:start])
        position = start
        argument = source[start : next(_ends(source, start))]
        rest = f", {argument}" * (lanes - 1) + ")"
        if source.startswith(rest, start + len(argument)):
            # Fold splats inside the argument, too.
            parts.append(fold_splats(argument))
            position += len(argument) + len(rest) - 1
    parts.append(source[position:])
    return "".join(parts)


#: An assignment of a sum whose first term is the assigned variable.
_SUM = re.compile(r"^( *)(\w+(?:\[\w+\])?) = \(\2 \+ (?=.*\);$)", re.MULTILINE)
#: A splat of an array element as a factor, which OpenCL C widens by itself (section 6.4).
_FACTOR = re.compile(r"\(\((?:half|float)(?:2|4|8|16)\)\((\w+\[\d+\])\)\) \* ")
#: A private array, as TVM names the results of fused functions.
_PRIVATE = re.compile(r"\b(\w+?)_intermediate(_local\w*_ptr\w*)\b")
#: A texel that is gathered in an array, and read back at once.
_GATHERED = re.compile(
    r"vstore4\((.*), 0, (texel\d+_ptr) \+ 0\);\n *(\w+ texel_\d+) = vload4\(0, \2 \+ 0\);"
)


def shorten(source: str) -> str:
    """Write ``x += y`` for ``x = (x + y)``, and shorten names of private arrays.

    Nine tenths of an unrolled convolution are such lines.  Texels are bound without an array, and
    splatted factors written as scalars.
    """
    source = _FACTOR.sub(r"\1 * ", _GATHERED.sub(r"\3 = \1;", source))
    parts: list[str] = []
    position = 0
    for match in _SUM.finditer(source):
        end = next(_ends(source, match.end()))
        if source.startswith(");\n", end):
            parts += [source[position : match.start()], f"{match[1]}{match[2]} += "]
            parts += [source[match.end() : end], ";\n"]
            position = end + 3
    source = "".join((*parts, source[position:]))
    known = set(re.findall(r"\w+_local\w*_ptr\w*", source))
    return _PRIVATE.sub(lambda m: m[0] if m[1] + m[2] in known else m[1] + m[2], source)


#: A channel of a texel by index, as TVM reads it; an unknown index moves the texel to memory.
_CHANNEL = re.compile(r"\(\((?:float|half)\*\)&(\w+)\)\[([^][]*[a-z_][^][]*)\]")
_CHANNEL_MACRO = """\
#ifndef tvmflow_channel
#define tvmflow_channel(t, i) ((i) & 2 ? ((i) & 1 ? t.w : t.z) : ((i) & 1 ? t.y : t.x))
#endif
"""


def choose_channels(source: str) -> str:
    """Select a channel of a texel in registers by a macro instead of indexing it."""
    source, count = _CHANNEL.subn(r"tvmflow_channel(\1, \2)", source)
    return _CHANNEL_MACRO + source if count else source


_STRUCTURES = "".join(
    f"struct TVMFLOW_PACKED tvmflow_bytes{n} {{ uchar{n} value; }};\n" for n in (2, 4, 8, 16)
)
#: PoCL stores a vector of bytes byte by byte, as the pointer's alignment is unknown.  A packed
#: structure declares that there is none, which costs nothing on x86.
_STORES = f"""\
#ifndef TVMFLOW_STORE
#define TVMFLOW_STORE
#if defined(__SSE2__)
#define TVMFLOW_PACKED __attribute__((packed, may_alias))
{_STRUCTURES}\
#define TVMFLOW_STORE_BYTES(n, v, p) \\
  (((__global struct tvmflow_bytes##n*)(p))->value = as_uchar##n(v))
#else
#define TVMFLOW_STORE_BYTES(n, v, p) vstore##n(as_uchar##n(v), 0, (__global uchar*)(p))
#endif
#endif
"""


def store_bytes(source: str) -> str:
    """Store vectors of bytes by ``TVMFLOW_STORE_BYTES``."""
    names = {name for begin in _DEFINITION.findall(source) for name in _BYTES.findall(begin)}
    parts: list[str] = []
    position = 0
    for match in _STORED.finditer(source):
        ends = list(_ends(source, match.end()))
        starts = [match.end(), *(end + 1 for end in ends[:-1])]
        value, offset, pointer = (source[a:b].strip() for a, b in zip(starts, ends, strict=True))
        if offset != "0" or re.match(r"\w*", pointer)[0] not in names:  # type: ignore[index]
            continue
        parts.append(source[position : match.start()])
        parts.append(f"TVMFLOW_STORE_BYTES({match[1]}, ({value}), ({pointer}))")
        position = ends[-1] + 1
    return "".join((_STORES, *parts, source[position:])) if parts else source


#: TVM's request for the extension, written before kernels with halves, and uses of the type half.
_ASKS_FOR_HALF = re.compile(r"#ifdef cl_khr_fp16\n.*?#endif\n", re.DOTALL)
_HALF = re.compile(r"\bhalf(?:2|3|4|8|16)?\b|\bconvert_half")


def without_need_of_half(source: str) -> str:
    """Remove the request for cl_khr_fp16 from a kernel that has halves in memory only.

    OpenCL C has pointers to halves, and conversions, on every device.
    """
    asked = _ASKS_FOR_HALF.search(source)
    if asked is None:
        return source
    rest = source[: asked.start()] + source[asked.end() :]
    return source if _HALF.search(rest.replace("__global half*", "")) else rest


_PUNCTUATION = re.compile(r"[()\[\],]")


def _ends(source: str, start: int) -> Iterator[int]:
    """Yield the ends of the arguments of a call whose parenthesis opens before ``start``."""
    depth = 0
    # Only punctuation is examined, as this takes much of the compilation time of large kernels.
    for match in _PUNCTUATION.finditer(source, start):
        char = match.group()
        if depth == 0 and char in ",)]":
            yield match.start()
            if char != ",":
                return
        depth += (char in "([") - (char in ")]")
    yield len(source)


@tvm_ffi.register_global_func("tvm_callback_opencl_postproc", override=True)
def postprocess(source: str, _target: tvm.target.Target) -> str:
    """Rewrite the source of a kernel; TVM calls this for each one."""
    source = require_group(without_need_of_half(_DECLARATION.sub("", source)))
    source = _CONSTANT.sub(r"__constant \1* restrict \2", shorten(fold_splats(source)))
    source = with_functions(store_bytes(source), OPENCL)
    source = _with_definitions(source, _SHUFFLE_NAME, _shuffle)
    source = _with_definitions(source, _POWER_NAME, _power)
    source = _with_definitions(source, nan_propagation.NAME, nan_propagation.definition)
    source = _with_definitions(source, aligned_vectors.NAME, aligned_vectors.definition)
    source = _with_definitions(source, error_function.NAME, error_function.definition)
    source = choose_channels(read_with_sampler(source))
    if prevent_unrolling.NAME in source:
        source = prevent_unrolling.DEFINITION + source
    if EXACT in source:
        source = rounding.OPENCL + source
    if _GATHER in source or _LOAD in source:
        source = _gather_macros() + source
    return half.macros() + source if half.PREFIX in source else source


def _with_definitions(
    source: str, name: re.Pattern[str], definition: Callable[[re.Match[str]], str]
) -> str:
    """Prepend the definitions of the functions with such names that a kernel calls.

    Kernels are built as one program, and each has its own definitions, with guards.
    """
    found = sorted({match.group(): match for match in name.finditer(source)}.items())
    texts = ((called.upper(), definition(match)) for called, match in found)
    return "".join(f"#ifndef {g}\n#define {g}\n{text}#endif\n" for g, text in texts) + source
