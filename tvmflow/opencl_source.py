"""What is done to the OpenCL C that TVM generates, kernel by kernel, before it is kept."""

from __future__ import annotations

import re

import tvm
import tvm_ffi
from tvm import tirx

from .dot_products import OPENCL, with_functions
from .schedules.sharing import CONSTANT_SUFFIX
from .texture.half import PREFIX as HALF_PREFIX
from .texture.half import macros

#: Functions that OpenCL C has for every float type, where TVM prints those of C (``acosf``).
_FUNCTIONS = (
    "tan", "acos", "asin", "atan", "sinh", "cosh", "acosh", "asinh", "atanh", "atan2",
    "log1p", "hypot", "copysign", "nextafter", "ldexp",
)  # fmt: skip


def _call_by_name(call: tvm.ir.Call) -> tirx.PrimExpr:
    return tirx.call_pure_extern(call.ty, call.op.name.removeprefix("tirx."), *call.args)


for _name in _FUNCTIONS:
    tirx.op.register_intrin_lowering(f"tirx.{_name}", target="opencl", f=_call_by_name, level=99)

#: A parameter that a schedule wants in constant memory.
_CONSTANT = re.compile(rf"__global (?:const )?(\w+)\* (?:restrict )?(\w*{CONSTANT_SUFFIX}\w*)")
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
        lanes, arguments = int(match.group(1)), _arguments(source, match.end())
        parts.append(source[position : match.end()])
        position = match.end()
        if arguments and len(arguments) == lanes and len(set(arguments)) == 1:
            # A splat inside the argument is folded too.
            parts.append(fold_splats(arguments[0]))
            position += _span(source, match.end())
    parts.append(source[position:])
    return "".join(parts)


def _span(source: str, start: int) -> int:
    """Characters from ``start`` to the parenthesis that closes the open one."""
    depth = 0
    for position in range(start, len(source)):
        char = source[position]
        if char in "([":
            depth += 1
        elif char in ")]":
            if depth == 0:
                return position - start
            depth -= 1
    return len(source) - start


def _arguments(source: str, start: int) -> list[str]:
    """Arguments of the call whose parenthesis opened just before ``start``."""
    text = source[start : start + _span(source, start)]
    arguments, depth, begin = [], 0, 0
    for position, char in enumerate(text):
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "," and depth == 0:
            arguments.append(text[begin:position].strip())
            begin = position + 1
    arguments.append(text[begin:].strip())
    return arguments


@tvm_ffi.register_global_func("tvm_callback_opencl_postproc", override=True)
def postprocess(source: str, _target: tvm.target.Target) -> str:
    """TVM calls this with the source of each kernel."""
    source = _CONSTANT.sub(r"__constant \1* restrict \2", fold_splats(source))
    source = with_functions(source, OPENCL)
    return macros() + source if HALF_PREFIX in source else source
