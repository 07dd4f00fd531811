"""Minify kernels' text for a library: the same program in fewer and more predictable words.

Parameters and variables are named by their kind and place, so that kernels that do the same have
the same text, which DEFLATE stores once; before and after::

    __kernel void relu_kernel(__global float* restrict T_relu_ptr, __read_only image2d_t x_ptr) {
      float4 conv2d_local_ptr[6];
      int cse_v3 = (group_x * 12);

    __kernel void relu_kernel(__global float* restrict p0, __read_only image2d_t p1) {
    float4 a0[6];
    int c0 = (group_x * 12);

What a kernel computes, and what a driver's compiler makes of it, stays.
"""

from __future__ import annotations

import re
from collections import Counter

#: Names, but not those of members, nor what a number ends with.
_NAME = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")
_KERNEL = re.compile(
    r"^__kernel void [^;{]*?(\w+)\(([^)]*)\) ?\{.*?^\}\n", re.MULTILINE | re.DOTALL
)
_TYPE = r"(?:image2d_array_t|bool|(?:u?char|u?short|u?int|u?long|half|float|double)\d*)"
_DECLARED = re.compile(rf"(?<!\w){_TYPE}(?:\s*\*\s*(?:restrict\s+)?|\s+)([A-Za-z_]\w*)")
#: What a name becomes by how it ends or begins: arrays, terms of indices, what was read.
_KINDS = (
    (re.compile(r"\w*_ptr(_\d+)?"), "a"),
    (re.compile(r"cse_v\d+"), "c"),
    (re.compile(r"v_+\d*"), "v"),
)
_GUARDED = re.compile(r"^#ifndef (\w+)\n(?:(?!#if|#endif).*\n)*#endif\n", re.MULTILINE)
_INDENTED = re.compile(r"^ +", re.MULTILINE)


def minify(source: str, defined: set[str]) -> str:
    """Return the same kernels in fewer words.

    ``defined`` holds the definitions, each under ``#ifndef``, that precede ``source`` in its
    program; those that ``source`` adds are added to it.
    """

    def once(match: re.Match[str]) -> str:
        known = match[0] in defined
        defined.add(match[0])
        return "" if known else match[0]

    return _INDENTED.sub("", _KERNEL.sub(_renamed, _GUARDED.sub(once, source)))


def _renamed(kernel: re.Match[str]) -> str:
    text = kernel[0]
    words = set(_NAME.findall(text))
    parameters = [_NAME.findall(p)[-1] for p in kernel[2].split(",") if p.strip()]
    names = {name: f"p{i}" for i, name in enumerate(parameters)}
    numbers: Counter[str] = Counter()
    for name in dict.fromkeys(_DECLARED.findall(text)):
        kind = next((kind for pattern, kind in _KINDS if pattern.fullmatch(name)), None)
        if kind is not None and name not in names:
            names[name] = f"{kind}{numbers[kind]}"
            numbers[kind] += 1
    if set(names.values()) & (words - set(names)):
        return text  # a word of another meaning has a name of ours
    return _NAME.sub(lambda match: names.get(match[0], match[0]), text)
