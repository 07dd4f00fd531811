"""From operators to primary functions: legalisation and fusion.

Before::

    lv  = R.call_tir(conv2d, (x, W))        lv1 = R.add(lv, b)      lv2 = R.clip(lv1, 0, 6)

After::

    lv2 = R.call_tir(fused_conv2d_add_clip, (x, W, b))
"""

from __future__ import annotations

from tvm import IRModule, tirx

from ..ir.operator import FUNCTION_ATTRIBUTE
from ..ir.passes import module_pass

#: TVM's numbers for how a function's results depend on its operands, which decide what is fused.
_ELEMENTWISE, _BROADCAST, _INJECTIVE, _REDUCTION, _PRODUCT = range(5)


@module_pass("AnnotateCustomOperators")
def AnnotateCustomOperators(mod: IRModule) -> IRModule:  # noqa: N802
    """Fuse custom operators with what is around them.

    TVM fuses nothing into what it does not understand, such as a sum with two results, and no
    function that reads several elements into a sum.  An operator whose elements are independent
    is computed where it is read, also by a sum; others compute their operands where they read them.
    """
    known = {kind: kind for kind in (_ELEMENTWISE, _BROADCAST, _PRODUCT)} | {_INJECTIVE: _BROADCAST}
    result = mod.clone()
    for name, function in mod.functions_items():
        if isinstance(function, tirx.PrimFunc) and FUNCTION_ATTRIBUTE in function.attrs:
            single = function.attrs[FUNCTION_ATTRIBUTE] == 1
            kind = int(function.attrs["op_pattern"])
            pattern = known.get(kind, _REDUCTION) if single else _REDUCTION
            result[name] = function.with_attr("op_pattern", pattern)
    return result
