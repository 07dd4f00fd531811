"""OpenCL C that TVM writes wrong or long: passes on kernels, and changes of their source.

*Constants*, all of their bits.  TVM writes seven digits, where fp32 numbers need up to nine:
0.012345679 is 0.01234568 to a kernel, half a unit in the last place off.  Constants that change by
that are written as their bits::

    x[i] * 0.012345679f             x[i] * T.call_pure_extern("as_float", 1011498623)

*Integer promotion.*  C computes with ``int`` what is narrower, so that ``~x`` of a ``uchar`` is
negative and ``x + y`` of two passes 255.  TIR, LLVM and vectors of OpenCL C wrap around.  Where the
result is stored in its own type nothing is lost; where the same kernel converts or compares it, it
is another number.  The pass says what C does, and converts the result back, for CUDA C++, too::

    T.Cast("float32", x + y)        T.Cast("float32", T.Cast("uint8", int32(x) + int32(y)))

*Lanes of vectors in another order*, `tirx.Shuffle`.  TVM writes constructors as in C++,
``float16(a[0], b[0], ...)``, which OpenCL C has not.  Here a shuffle is a call of a function, put
before the kernel, whose name says which lanes it takes::

    T.Shuffle([a, b], [0, 4, 1, 5])         tvmflow_shuffle_float4x2_0_4_1_5(a, b)

*Powers of vectors of doubles*, which PoCL computes wrong in some lanes, mixing them up (8 to the 1
gave 0.875 beside others): such a power is a call of a function that computes lane by lane::

    T.pow(x, y)        tvmflow_pow_double8(x, y)

*Vectors of bytes*, from places that are not one after another, or not aligned.  TVM packs both into
one integer, as in CUDA, which OpenCL C does not take for a vector: `vstore4` repeats it.  Here they
are read by macros::

    x[T.Ramp(0, 9, 4)]        tvmflow_gather_char4(T.Ramp(0, 9, 4), x)       names each one
    x[T.Ramp(10, 1, 4)]       tvmflow_load_char4(10, x)                      vload4

:func:`postprocess` changes the source itself, kernel by kernel and before it is kept.
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
from . import aligned_vectors, error_function, half, nan_propagation, prevent_unrolling, rounding
from .clamp_reads import read_with_sampler
from .dot_products import OPENCL, with_functions

#: Functions that OpenCL C has for every float type, where TVM prints those of C (``acosf``).
_FUNCTIONS = (
    "tan", "acos", "asin", "atan", "sinh", "cosh", "acosh", "asinh", "atanh", "atan2",
    "log1p", "hypot", "copysign", "nextafter", "ldexp",
)  # fmt: skip


for _name in _FUNCTIONS:
    lower_to_function(f"tirx.{_name}", "opencl", _name)


# -- constants, integer promotion, shuffles and gathers ---------------------------------------

#: By dtype: the function of OpenCL C that reads bits, and their integer type.
_FROM_BITS = {"float32": ("as_float", np.int32), "float64": ("as_double", np.int64)}


@node_pass(tirx.FloatImm, targets=("opencl",))
def WriteLiterals(literal: tirx.FloatImm) -> tirx.Expr:
    """Write constants that seven digits do not tell as bits; runs last, on kernels."""
    dtype = str(literal.ty.dtype)
    if dtype not in _FROM_BITS:
        # Half and bfloat16 have fewer digits.
        return literal
    name, integer = _FROM_BITS[dtype]
    value = np.dtype(dtype).type(literal.value)
    if not np.isfinite(value) or np.dtype(dtype).type(f"{value:e}") == value:
        return literal
    bits = tirx.const(int(value.view(integer)), np.dtype(integer).name)
    return tirx.call_pure_extern(literal.ty, name, bits)


_SMALL_INTEGERS = ("int8", "uint8", "int16", "uint16")
#: Operations whose results may leave the type.
_OPERATIONS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.LShift, tirx.BitwiseNot)


@node_pass(*_OPERATIONS, targets=("opencl", "cuda"))
def UndoIntegerPromotion(node: tirx.Expr) -> tirx.Expr:
    """Compute with small integers as TIR does; runs once vectors are made, which do so anyway."""
    dtype = str(node.ty.dtype)
    if dtype not in _SMALL_INTEGERS:
        return node
    operands = [node.a] if isinstance(node, tirx.BitwiseNot) else [node.a, node.b]
    return tirx.Cast(dtype, type(node)(*(tirx.Cast("int32", operand) for operand in operands)))


#: Of the functions' names; type, lanes and number of the vectors and the lanes taken follow.
_SHUFFLE = "tvmflow_shuffle_"
_SHUFFLE_NAME = re.compile(rf"\b{_SHUFFLE}([a-z]+)(\d+)x(\d+)((?:_\d+)+)\b")
#: OpenCL C's names of the element types that schedules shuffle.
_SHUFFLED = {"float32": "float", "float64": "double", "int32": "int"}


@node_pass(tirx.Shuffle, targets=("opencl",))
def NameShuffles(shuffle: tirx.Shuffle) -> tirx.Expr:
    """Call functions for shuffles."""
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


#: Of the functions' names; the number of lanes follows.
_POWER = "tvmflow_pow_double"
_POWER_NAME = re.compile(rf"\b{_POWER}(\d+)\b")


@node_pass(Call, targets=("opencl",))
def NamePowers(call: Call) -> tirx.Expr:
    """Call functions for powers of vectors of doubles."""
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
    """Call macros for vectors of bytes; runs on vectors, over flat buffers."""
    dtype = load.ty.dtype
    kind = _BYTE_TYPES.get(str(dtype.with_lanes(1)))
    # Of an array of vectors, one number is the index of a whole one.
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
    """Ask once for each index of a work-item, where TVM does so wherever one occurs; runs late."""
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
    """TVM's elimination of common subexpressions, behind all that writes names out again."""
    return tirx.transform.CommonSubexprElim()(tvm.IRModule({"main": function}))["main"]


_GROUP = "tvmflow_group"
_GROUP_CALL = re.compile(rf"^\s*{_GROUP}\((\d+), (\d+), (\d+)\);\n", re.MULTILINE)


@prim_func_pass("opencl")
def NameGroup(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Call a function that is none with the extents of a work-group, for the source; runs last."""
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
    """Say at the head of a kernel which work-group it is launched with.

    A compiler that does not know reckons with the largest: with fewer registers for each item,
    and barriers among more of them (OpenCL C, section 6.7.2).
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

#: A parameter that a schedule wants in constant memory.
_CONSTANT = re.compile(rf"__global (?:const )?(\w+)\* (?:restrict )?(\w*{CONSTANT_SUFFIX}\w*)")
#: A vector of bytes that goes to memory, its pointer last.
_STORED = re.compile(r"\bvstore(2|4|8|16)\(")
_BYTES = re.compile(r"__global u?char\* (?:restrict )?(\w+)")
#: The begin of a kernel, and the declarations of all kernels, of no use, that TVM has before it.
_DEFINITION = re.compile(r"__kernel void [^;{]*\{")
_DECLARATION = re.compile(r"^__kernel [^{;]*;[ \t]*\n", re.MULTILINE)
_SPLAT = re.compile(r"\(\((?:half|float|double|u?char|u?short|u?int|u?long)(2|3|4|8|16)\)\(")


def fold_splats(source: str) -> str:
    """Write ``((float4)(v))`` for ``((float4)(v, v, v, v))``.

    TVM prints a broadcast scalar once for every lane, index arithmetic and all:
    four fifths of a convolution's source.  OpenCL C (section 6.4.5, vector
    literals) replicates a single scalar to all lanes.
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
            # A splat inside the argument is folded too.
            parts.append(fold_splats(argument))
            position += len(argument) + len(rest) - 1
    parts.append(source[position:])
    return "".join(parts)


#: An assignment of a sum whose first term is what is assigned to.
_SUM = re.compile(r"^( *)(\w+(?:\[\w+\])?) = \(\2 \+ (?=.*\);$)", re.MULTILINE)
#: A number of an array in all lanes of a factor, which OpenCL C does by itself (section 6.4).
_FACTOR = re.compile(r"\(\((?:half|float)(?:2|4|8|16)\)\((\w+\[\d+\])\)\) \* ")
#: A private array, by what TVM names the results of fused functions.
_PRIVATE = re.compile(r"\b(\w+?)_intermediate(_local\w*_ptr\w*)\b")
#: A texel that is gathered, and read back at once.
_GATHERED = re.compile(
    r"vstore4\((.*), 0, (texel\d+_ptr) \+ 0\);\n *(\w+ texel_\d+) = vload4\(0, \2 \+ 0\);"
)


def shorten(source: str) -> str:
    """Write ``x += y`` for ``x = (x + y)``, and private arrays without ``_intermediate``.

    Nine tenths of an unrolled convolution are such lines.  Texels are named without an array, and
    factors written once.
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


#: One channel of a texel, as TVM reads it; one that is not known takes the texel to memory.
_CHANNEL = re.compile(r"\(\((?:float|half)\*\)&(\w+)\)\[([^][]*[a-z_][^][]*)\]")
_CHANNEL_MACRO = """\
#ifndef tvmflow_channel
#define tvmflow_channel(t, i) ((i) & 2 ? ((i) & 1 ? t.w : t.z) : ((i) & 1 ? t.y : t.x))
#endif
"""


def choose_channels(source: str) -> str:
    """Choose between the channels of a texel that is in registers, in place of indexing it."""
    source, count = _CHANNEL.subn(r"tvmflow_channel(\1, \2)", source)
    return _CHANNEL_MACRO + source if count else source


_STRUCTURES = "".join(
    f"struct TVMFLOW_PACKED tvmflow_bytes{n} {{ uchar{n} value; }};\n" for n in (2, 4, 8, 16)
)
#: PoCL stores a vector of bytes byte by byte, as pointers say nothing of its alignment.  A packed
#: structure says that there is none, which x86 is indifferent to.
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
    """Write vectors of bytes by ``TVMFLOW_STORE_BYTES``."""
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


#: TVM puts this before kernels that have halves, and types and conversions of halves themselves.
_ASKS_FOR_HALF = re.compile(r"#ifdef cl_khr_fp16\n.*?#endif\n", re.DOTALL)
_HALF = re.compile(r"\bhalf(?:2|3|4|8|16)?\b|\bconvert_half")


def without_need_of_half(source: str) -> str:
    """A kernel that has halves in memory only, without the extension for arithmetic of them.

    OpenCL C has pointers to them, and conversions, on every device.
    """
    asked = _ASKS_FOR_HALF.search(source)
    if asked is None:
        return source
    rest = source[: asked.start()] + source[asked.end() :]
    return source if _HALF.search(rest.replace("__global half*", "")) else rest


_PUNCTUATION = re.compile(r"[()\[\],]")


def _ends(source: str, start: int) -> Iterator[int]:
    """Ends of the arguments of the call whose parenthesis opened just before ``start``."""
    depth = 0
    # Compilation time of large kernels: nothing else is looked at.
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
    """TVM calls this with the source of each kernel."""
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
    if rounding.FUNCTION in source:
        source = rounding.OPENCL + source
    if _GATHER in source or _LOAD in source:
        source = _gather_macros() + source
    return half.macros() + source if half.PREFIX in source else source


def _with_definitions(
    source: str, name: re.Pattern[str], definition: Callable[[re.Match[str]], str]
) -> str:
    """A kernel's source behind the functions of such names that it calls.

    Kernels are built together, and each has its functions.
    """
    found = sorted({match.group(): match for match in name.finditer(source)}.items())
    texts = ((called.upper(), definition(match)) for called, match in found)
    return "".join(f"#ifndef {g}\n#define {g}\n{text}#endif\n" for g, text in texts) + source
