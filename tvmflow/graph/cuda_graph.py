"""The whole network as one CUDA graph: launched once, where each kernel was.

A graph keeps addresses.  Inputs are copied to tensors of the memory plan, and results from
there to tensors of their own; what is between reads and writes nothing but the plan's memory
and the weights, which stay where they are.  Before::

    _    = conv2d(x, w, alloc)
    out  = R.builtin.alloc_tensor(...)
    _    = pool(alloc, out)

After, with `storages` made once and the captured function run twice, then replayed::

    x1   = R.memory.alloc_tensor(storages[0], ...)      _ = copy(x, x1)
    _    = R.call_builtin_with_ctx("vm.builtin.cuda_graph.run_or_capture",
                                   (main_cuda_graph_capture, (..., x1, w), 0))
    out  = R.builtin.alloc_tensor(...)                  _ = copy(y1, out)

Workspaces of functions are tensors of `main` then, too (:mod:`.memory`): TVM would take them
from a pool of the calling thread, which a graph may outlive.
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

#: Copies between tensors of a device, in the order of its launches.
COPY = "runtime.TVMTensorCopyFromTo"


@module_pass("StageBoundary")
def StageBoundary(mod: IRModule) -> IRModule:  # noqa: N802
    """Put all that kernels touch, but the weights, among the tensors that `main` allocates.

    Runs when calls write to such tensors, and workspaces are among them.

    Raises ``CompileError`` if a function allocates memory of the device while it runs.
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
    """Make the calls of a planned `main` a captured function; TVM's pass does it."""

    def renamed(binding: relax.Binding) -> list[relax.Binding]:
        if op_name(binding.value) != "relax.vm.alloc_storage":
            return [binding]
        size, device, dtype, scope = binding.value.args
        storage = relax.op.memory.alloc_storage(size, device, scope, dtype)
        return [relax.VarBinding(binding.var, storage)]

    # TVM's pass knows storage by the memory dialect's operator.
    planned = with_bindings(mod["main"], renamed)
    # New calls get their types before the pass remembers functions by what is in them.
    passes = [relax.transform.Normalize(), relax.transform.RewriteCUDAGraph()]
    instruments = tvm.transform.PassContext.current().instruments
    config = {"relax.backend.use_cuda_graph": True}
    with tvm.transform.PassContext(config=config, instruments=list(instruments or ())):
        return tvm.transform.Sequential(passes)(with_main(mod, planned))


def _with_copies(main: relax.Function) -> relax.Function:
    """`main` with copies of its inputs at its begin, and of its results at its end."""
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
