"""Execution of the whole network as one CUDA graph, with one launch instead of many.

A graph stores addresses.  Inputs are copied to tensors of the memory plan, and results from
there to separate tensors; the calls between them access only the plan's memory and the weights,
whose addresses do not change.  Before::

    _    = conv2d(x, w, alloc)
    out  = R.builtin.alloc_tensor(...)
    _    = pool(alloc, out)

After, with `storages` made once and the captured function run twice, then replayed::

    x1   = R.memory.alloc_tensor(storages[0], ...)      _ = copy(x, x1)
    _    = R.call_builtin_with_ctx("vm.builtin.cuda_graph.run_or_capture",
                                   (main_cuda_graph_capture, (..., x1, w), 0))
    out  = R.builtin.alloc_tensor(...)                  _ = copy(y1, out)

Workspaces of functions are tensors of `main` in that case, too (:mod:`.memory`): TVM would take
them from a pool of the calling thread, which a graph may outlive.
"""

from __future__ import annotations

import tvm
from tvm import IRModule, relax, tirx

from ..errors import CompileError
from ..ir.expressions import substitute_vars
from ..ir.passes import module_pass
from ..ir.rewriter import op_name, with_bindings, with_body, with_main
from ..ir.signatures import bindings_of
from ..ir.workspaces import allocates
from .memory import allocation

#: Function that copies between tensors of a device, in the order of its launches.
COPY = "runtime.TVMTensorCopyFromTo"


@module_pass("StageBoundary")
def StageBoundary(mod: IRModule) -> IRModule:  # noqa: N802
    """Move all memory that kernels access, except the weights, to tensors that `main` allocates.

    Runs after calls have become writes to such tensors, and workspaces are among them.
    Raises ``CompileError`` if a function allocates device memory while it runs.
    """
    for gv, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc) and allocates(function):
            raise CompileError(
                f"A CUDA graph was asked for, but the function {gv.name_hint} allocates memory "
                "whenever it runs, which a graph cannot.",
                remedy="Compile without `cuda_graph`.",
            )
    return with_main(mod, _with_copies(mod["main"]))


@module_pass("CaptureGraph")
def CaptureGraph(mod: IRModule) -> IRModule:  # noqa: N802
    """Turn the calls of a planned `main` into a captured function, with TVM's pass."""

    def renamed(binding: relax.Binding) -> list[relax.Binding]:
        if op_name(binding.value) != "relax.vm.alloc_storage":
            return [binding]
        size, device, dtype, scope = binding.value.args
        storage = relax.op.memory.alloc_storage(size, device, scope, dtype)
        return [relax.VarBinding(binding.var, storage)]

    # TVM's pass recognises storage by the memory dialect's operator.
    planned = with_bindings(mod["main"], renamed)
    # New calls need types before the pass, which keys functions by their contents.
    passes = [relax.transform.Normalize(), relax.transform.RewriteCUDAGraph()]
    instruments = tvm.transform.PassContext.current().instruments
    config = {"relax.backend.use_cuda_graph": True}
    with tvm.transform.PassContext(config=config, instruments=list(instruments or ())):
        return tvm.transform.Sequential(passes)(with_main(mod, planned))


def _with_copies(main: relax.Function) -> relax.Function:
    """Add copies of the inputs at the begin of `main`, and of the results at its end."""
    bindings: list[relax.Binding] = []

    def emit(name: str, value: relax.Expr, ty: relax.Type) -> relax.Var:
        bindings.append(relax.VarBinding(relax.Var(name, ty), value))
        return bindings[-1].var

    def copied(name: str, source: relax.Expr) -> relax.Var:
        bindings.append(allocation(name, source.ty))
        target, nothing = bindings[-1].var, relax.TupleType([])
        emit("_", relax.Call(relax.ExternFunc(COPY), [source, target], None, [nothing]), nothing)
        return target

    inputs = main.params[: int(main.attrs["num_input"])]
    staged = {param: copied(f"{param.name}_staged", param) for param in inputs}
    for binding in bindings_of(main):
        value = substitute_vars(binding.value, staged)
        bindings.append(relax.VarBinding(binding.var, value))
    result = substitute_vars(main.body.body, staged)
    if isinstance(result.ty, relax.TupleType):
        fields = [
            emit(f"result{i}", relax.TupleGetItem(result, i), ty)
            for i, ty in enumerate(result.ty.fields)
        ]
        copies = [copied("copied", field) for field in fields]
        result = emit("results", relax.Tuple(copies), result.ty)
    else:
        result = copied("copied", result)
    return with_body(main, [relax.BindingBlock(bindings)], result)
