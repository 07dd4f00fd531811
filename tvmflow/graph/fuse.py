"""From operators to primary functions: legalisation and fusion.

Before::

    lv  = R.call_tir(conv2d, (x, W))        lv1 = R.add(lv, b)      lv2 = R.clip(lv1, 0, 6)

After::

    lv2 = R.call_tir(fused_conv2d_add_clip, (x, W, b))
"""

from __future__ import annotations

from collections.abc import Collection

import tvm
from tvm import IRModule
from tvm.relax import backend, transform

from ..target import TargetSpec
from .names import restore_names
from .scans import replace_scans


def legalize_and_fuse(
    mod: IRModule, target: TargetSpec, model_names: Collection[str] = ()
) -> IRModule:
    """Turn every operator into TIR and fuse what belongs together.

    ``model_names`` are those of the model's tensors, which variables keep or get back.
    """
    legalize = [
        backend.DispatchSampling(),
        backend.DispatchSortScan(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
    ]
    finish = [
        transform.FuseTIR(),
        # A reshape is a view in the virtual machine, not a kernel.
        transform.RewriteDataflowReshape(),
        transform.DeadCodeElimination(["main"]),
    ]
    if target.is_gpu_kernel:
        mod = replace_scans(mod)
    with target.tvm_target:
        mod = tvm.transform.Sequential(legalize)(mod)
        mod = restore_names(mod, transform.FuseOps()(mod), model_names)
        return tvm.transform.Sequential(finish)(mod)
