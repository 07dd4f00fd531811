"""What is done to the OpenCL C that TVM generates, kernel by kernel, before it is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator

import tvm
import tvm_ffi
from tvm import tirx

from . import exact, gathers
from .dot_products import OPENCL, with_functions
from .extremes import with_opencl_functions
from .half import PREFIX as HALF_PREFIX
from .half import macros
from .shuffles import with_shuffles

#: Functions that OpenCL C has for every float type, where TVM prints those of C (``acosf``).
_FUNCTIONS = (
    "tan", "acos", "asin", "atan", "sinh", "cosh", "acosh", "asinh", "atanh", "atan2",
    "log1p", "hypot", "copysign", "nextafter", "ldexp",
)  # fmt: skip


def _call_by_name(call: tvm.ir.Call) -> tirx.PrimExpr:
    return tirx.call_pure_extern(call.ty, call.op.name.removeprefix("tirx."), *call.args)


for _name in _FUNCTIONS:
    tirx.op.register_intrin_lowering(f"tirx.{_name}", target="opencl", f=_call_by_name, level=99)

#: What the name of a parameter ends in that kernels read from constant memory.
CONSTANT_SUFFIX = "_in_constant_memory"
#: A parameter that a schedule wants in constant memory.
_CONSTANT = re.compile(rf"__global (?:const )?(\w+)\* (?:restrict )?(\w*{CONSTANT_SUFFIX}\w*)")
#: A vector of bytes that goes to memory, its pointer last.
_STORED = re.compile(r"\bvstore(2|4|8|16)\(")
_BYTES = re.compile(r"__global u?char\* (?:restrict )?(\w+)")
#: The begin of a kernel.  TVM declares all others before it, with their own types for its names.
_DEFINITION = re.compile(r"__kernel void [^;{]*\{")
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


#: PoCL stores a vector of bytes byte by byte, as pointers say nothing of its alignment.  A packed
#: structure says that there is none, which x86 is indifferent to.
_STORES = """\
#ifndef TVMFLOW_STORE
#define TVMFLOW_STORE
#if defined(__SSE2__)
#define TVMFLOW_PACKED __attribute__((packed, may_alias))
{structures}\
#define TVMFLOW_STORE_BYTES(n, v, p) \\
  (((__global struct tvmflow_bytes##n*)(p))->value = as_uchar##n(v))
#else
#define TVMFLOW_STORE_BYTES(n, v, p) vstore##n(as_uchar##n(v), 0, (__global uchar*)(p))
#endif
#endif
""".format(
    structures="".join(
        f"struct TVMFLOW_PACKED tvmflow_bytes{n} {{ uchar{n} value; }};\n" for n in (2, 4, 8, 16)
    )
)


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


#: What TVM puts before kernels that have halves, and types and conversions of halves themselves.
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
    """Where each argument ends of the call whose parenthesis opened just before ``start``."""
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
    source = without_need_of_half(source)
    source = _CONSTANT.sub(r"__constant \1* restrict \2", fold_splats(source))
    source = with_shuffles(with_functions(store_bytes(source), OPENCL))
    source = with_opencl_functions(source)
    source = gathers.with_macros(exact.with_functions(source))
    return macros() + source if HALF_PREFIX in source else source
