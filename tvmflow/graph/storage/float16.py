"""Tensors stored in 16 bits as tensors of ``float16``, for CUDA.

OpenCL reads and writes 16-bit memory by functions (:mod:`tvmflow.codegen.half`); CUDA has a type
for it, which its copies and tensor cores require.  Before::

    y = R.call_tir(relu, (x,), R.Tensor((8,), "float32"))
    relu(x: T.Buffer((8,), scope="global.half"), y: ...):    y[i] = T.max(x[i], 0.0)

After::

    y = R.call_tir(relu, (x,), R.Tensor((8,), "float16"))
    relu(x: T.Buffer((8,), "float16"), y: ...):
        y[i] = T.Cast("float16", T.max(T.Cast("float32", x[i]), 0.0))

Arithmetic stays fp32.  A value that is rounded to 16 bits when it is read (an operand of a
tensor core) is read without conversion.
"""

from __future__ import annotations

from tvm import IRModule, relax, s_tir, te, tirx
from tvm.ir.expr import TensorLoad, TensorRegion

from ...ir.expressions import nodes_in, substitute_vars
from ...ir.passes import map_nodes, module_pass
from ...ir.rewriter import constant, constant_array, with_bindings, with_main
from ...ir.scope import is_half_buffer
from ...ir.signatures import called_function, with_parameters

HALF_DTYPE = "float16"


@module_pass("UseFloat16")
def UseFloat16(mod: IRModule) -> IRModule:  # noqa: N802
    """Change the type of all tensors in ``global.half``, in ``main`` and its functions."""
    # Functions get new variables: the old ones have types with the parameters' old dtypes.
    builder = relax.BlockBuilder(IRModule({}, attrs=mod.attrs))
    callees = {
        gv: builder.add_func(with_types(function), gv.name_hint)
        for gv, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    typed: dict[relax.Var, relax.Var] = {}

    def retyped(binding: relax.Binding) -> list[relax.Binding]:
        call = called_function(mod, binding.value)
        if call is None:
            # A view or a tuple; such tensors are never stored in 16 bits.
            return [binding]
        function, arguments = call
        halves = [is_half_buffer(param) for param in function.params]
        arguments = [
            typed.get(a, _in_half(a) if half else a)
            for a, half in zip(arguments, halves, strict=False)
        ]
        old, var, types = binding.value, binding.var, binding.value.ty_args
        if halves[-1]:
            types = [relax.TensorType(var.ty.shape, HALF_DTYPE)]
            var = type(var)(var.name, types[0])
            typed[binding.var] = var
        new = relax.Call(old.op, [callees[old.args[0]], relax.Tuple(arguments)], old.attrs, types)
        return [relax.VarBinding(var, new)]

    return with_main(mod, with_bindings(mod["main"], retyped), builder.get())


def _in_half(expr: relax.Expr) -> relax.Expr:
    """Return a constant in 16 bits; return anything else unchanged."""
    array = constant_array(expr)
    return expr if array is None else constant(array.astype(HALF_DTYPE))


def with_types(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a primary function whose parameters in ``global.half`` have a 16-bit type."""
    if not any(is_half_buffer(param) for param in function.params):
        return function
    function = _with_whole_sums(function)
    halves = {
        param: tirx.decl_buffer(param.shape, HALF_DTYPE, param.name)
        for param in function.params
        if is_half_buffer(param)
    }

    def load(load: TensorLoad) -> tirx.Expr:
        half = halves.get(load.source)
        return load if half is None else tirx.Cast("float32", tirx.BufferLoad(half, load.indices))

    def store(store: tirx.BufferStore) -> tirx.Stmt:
        half, value = halves.get(store.buffer), store.value
        return store if half is None else tirx.BufferStore(half, _rounded(value), store.indices)

    def region(region: TensorRegion) -> TensorRegion:
        half = halves.get(region.source)
        return region if half is None else tirx.BufferRegion(half, region.region)

    def cast(cast: tirx.Cast) -> tirx.Expr:
        return _rounded(cast.value) if str(cast.ty.dtype) == HALF_DTYPE else cast

    function = map_nodes(
        function,
        (TensorLoad, load), (tirx.BufferStore, store), (TensorRegion, region), (tirx.Cast, cast),
    )  # fmt: skip
    params = [halves.get(param, param) for param in function.params]
    return tirx.PrimFunc(params, function.body, function.ret_type, function.attrs)


def _with_whole_sums(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute results that are sums (or extremes) in fp32, and copy them when complete."""
    blocks = [b for b in nodes_in(function.body, s_tir.SBlock) if b.init is not None]
    sums = [region.source for block in blocks for region in block.writes]
    results = [p for p in function.params if is_half_buffer(p) and any(p.same_as(x) for x in sums)]
    for result in results:
        whole = tirx.decl_buffer(result.shape, "float32", f"{result.name}_sums")
        root = substitute_vars(function.body, {result: whole}).block
        body = tirx.SeqStmt([root.body, _copy(whole, result)])
        buffers = [*root.alloc_buffers, whole]
        block = s_tir.SBlock([], [], [], "root", body, alloc_buffers=buffers)
        function = function.with_body(s_tir.SBlockRealize([], True, block))
    return function


def _copy(source: tirx.Buffer, target: tirx.Buffer) -> tirx.Stmt:
    x = te.placeholder(source.shape, source.dtype)
    function = te.create_prim_func([x, te.compute(x.shape, lambda *at: x[at], name="whole")])
    buffers = dict(zip(function.params, (source, target), strict=True))
    return with_parameters(function, buffers).body.block.body


def _rounded(value: tirx.Expr) -> tirx.Expr:
    """Round a value to 16 bits; if it was only widened from 16 bits, return the original."""
    if isinstance(value, tirx.Cast) and str(value.value.ty.dtype) == HALF_DTYPE:
        return value.value
    return tirx.Cast(HALF_DTYPE, value)
