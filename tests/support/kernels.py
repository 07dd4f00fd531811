"""Hand-written primary functions, compiled by tvmflow's own TIR pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te, tirx

from tvmflow.codegen.tir_pipeline import TIR_PIPELINE
from tvmflow.devices.target import resolve, with_storage
from tvmflow.ir.passes import original_errors
from tvmflow.ir.scope import is_texture
from tvmflow.ir.signatures import with_scopes

#: Function that schedules the block ``y``, given its loops.
How = Callable[[s_tir.Schedule, list[Any]], None]


def opencl_target(**attributes: int) -> tvm.target.Target:
    """Return the target of the preset for Adreno, with other limits."""
    target = with_storage(resolve("opencl", "adreno"), "texture").tvm_target
    spec = {**dict(target.attrs), "kind": "opencl", **attributes}
    return tvm.target.Target(spec, host=target.host)


def pointwise(
    shape: Sequence[int],
    value: Callable[..., Any],
    scopes: Sequence[str | None],
    name: str = "scaled",
) -> tirx.PrimFunc:
    """Build ``y[i] = value(x, i)`` with both tensors of ``shape`` in these scopes."""
    x = te.placeholder(shape, "float32", name="x")
    y = te.compute(shape, lambda *i: value(x, i), name="y")
    function = te.create_prim_func([x, y]).with_attr("global_symbol", name)
    return with_scopes(function, list(scopes))


def by_texel(sch: s_tir.Schedule, loops: list[Any]) -> None:
    """Bind a work-group to each texel."""
    sch.bind(sch.fuse(*loops[:-1]), "blockIdx.x")
    sch.vectorize(loops[-1])


def by_row(sch: s_tir.Schedule, loops: list[Any]) -> None:
    """Bind a work-group to each row, unrolled."""
    sch.bind(sch.fuse(*loops[:-2]), "blockIdx.x")
    sch.unroll(loops[-2])
    sch.vectorize(loops[-1])


def by_channel(sch: s_tir.Schedule, loops: list[Any]) -> None:
    """Bind a work-group to each channel, which an image does not allow."""
    sch.bind(sch.fuse(*loops), "blockIdx.x")


def scheduled(function: tirx.PrimFunc, how: How) -> tirx.PrimFunc:
    sch = s_tir.Schedule(function)
    block = sch.get_sblock("y")
    how(sch, list(sch.get_loops(block)))
    return sch.mod["main"]


def build(function: tirx.PrimFunc, target: tvm.target.Target | None = None) -> Any:
    """Lower and generate code, as ``tvmflow compile`` does."""
    target = target or opencl_target()
    name = str(function.attrs["global_symbol"])
    with original_errors(), target:
        return tvm.compile(tvm.IRModule({name: function}), target=target, tir_pipeline=TIR_PIPELINE)


def source(function: tirx.PrimFunc) -> str:
    """Return the OpenCL C of a function."""
    return str(build(function).mod.imports[0].inspect_source())


def call(function: tirx.PrimFunc, *arguments: tvm.runtime.Tensor) -> None:
    """Run a function on the OpenCL device."""
    build(function)[str(function.attrs["global_symbol"])](*arguments)


def empty(shape: Sequence[int], scope: str | None = None) -> tvm.runtime.Tensor:
    return tvm.runtime.empty(tuple(shape), "float32", tvm.opencl(), mem_scope=scope)


def through(function: tirx.PrimFunc, x: np.ndarray, scopes: Sequence[str | None]) -> np.ndarray:
    """Run a function on an array; separate kernels fill and read textures."""

    def copy(source: tvm.runtime.Tensor, frm: str | None, to: str | None) -> tvm.runtime.Tensor:
        target = empty(x.shape, to)
        identity = pointwise(x.shape, lambda s, i: s(*i), [frm, to], "copy")
        call(scheduled(identity, by_texel), source, target)
        return target

    source = tvm.runtime.tensor(x, tvm.opencl())
    if scopes[0] and is_texture(scopes[0]):
        source = copy(source, None, scopes[0])
    result = empty(x.shape, scopes[1])
    call(function, source, result)
    if scopes[1] and is_texture(scopes[1]):
        result = copy(result, scopes[1], None)
    return result.numpy()
