"""Minify kernels' source for a library, with names that compress well.

Parameters and variables are named by their kind and position, so that kernels with the same code
have the same text, which DEFLATE stores once; before and after::

    __kernel void relu_kernel(__global float* restrict T_relu_ptr, __read_only image2d_t x_ptr) {
      float4 conv2d_local_ptr[6];
      int cse_v3 = (group_x * 12);

    __kernel void relu_kernel(__global float* restrict p0, __read_only image2d_t p1) {
    float4 a0[6];
    int c0 = (group_x * 12);

Neither the kernel's results nor the code that a driver's compiler generates change.
"""

from __future__ import annotations

import re
from collections import Counter

#: Pattern of names, except for members of structures and suffixes of numbers.
_NAME = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")
_KERNEL = re.compile(
    r"^__kernel void [^;{]*?(\w+)\(([^)]*)\) ?\{.*?^\}\n", re.MULTILINE | re.DOTALL
)
_TYPE = r"(?:image2d_array_t|bool|(?:u?char|u?short|u?int|u?long|half|float|double)\d*)"
_DECLARED = re.compile(rf"(?<!\w){_TYPE}(?:\s*\*\s*(?:restrict\s+)?|\s+)([A-Za-z_]\w*)")
#: Prefixes of new names, by a pattern of the old ones: arrays, terms of indices, loaded values.
_KINDS = (
    (re.compile(r"\w*_ptr(_\d+)?"), "a"),
    (re.compile(r"cse_v\d+"), "c"),
    (re.compile(r"v_+\d*"), "v"),
)
_GUARDED = re.compile(r"^#ifndef (\w+)\n(?:(?!#if|#endif).*\n)*#endif\n", re.MULTILINE)
_INDENTED = re.compile(r"^ +", re.MULTILINE)


def minify(source: str, defined: set[str]) -> str:
    """Return the source with shorter names, and without indentation and repeated definitions.

    ``defined`` holds the definitions, each under ``#ifndef``, that precede ``source`` in its
    program; the function adds those of ``source``.
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
        return text  # a new name already has another meaning
    return _NAME.sub(lambda match: names.get(match[0], match[0]), text)
