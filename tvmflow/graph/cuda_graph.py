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

Workspaces of functions are tensors of `main` then, too (:mod:`.workspaces`): TVM would take them
from a pool of the calling thread, which a graph may outlive.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax, tirx

from ..codegen.workspaces import allocates
from ..errors import CompileError
from ..ir.passes import module_pass
from ..ir.rewriter import op_name, substitute
from .workspaces import allocation, with_body

#: Copies between tensors of a device, in the order of its launches.
COPY = "runtime.TVMTensorCopyFromTo"


@module_pass("StageBoundary")
def StageBoundary(mod: IRModule) -> IRModule:  # noqa: N802
    """Put all that kernels touch, but the weights, among the tensors that `main` allocates.

    Runs when calls write to such tensors, and workspaces are among them.

    Raises
    ------
    CompileError
        If a function allocates memory of the device while it runs.
    """
    for gv, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc) and allocates(function):
            raise CompileError(
                f"A CUDA graph was asked for, but the function {gv.name_hint} allocates memory "
                "whenever it runs, which a graph cannot.",
                remedy="Compile without `cuda_graph`.",
            )
    main = _Boundary(mod["main"]).run()
    functions = {gv: main if gv.name_hint == "main" else f for gv, f in mod.functions.items()}
    return IRModule(functions, attrs=mod.attrs)


@module_pass("CaptureGraph")
def CaptureGraph(mod: IRModule) -> IRModule:  # noqa: N802
    """Make the calls of a planned `main` a captured function; TVM's pass does it."""
    main = mod["main"]
    # TVM's pass knows storage by the memory dialect's operator.
    blocks = []
    for block in main.body.blocks:
        bindings = [relax.VarBinding(b.var, _storage(b.value)) for b in block.bindings]
        blocks.append(relax.BindingBlock(bindings))
    planned = with_body(main, relax.SeqExpr(blocks, main.body.body))
    functions = {gv: planned if gv.name_hint == "main" else f for gv, f in mod.functions.items()}
    # New calls get their types before the pass remembers functions by what is in them.
    passes = [relax.transform.Normalize(), relax.transform.RewriteCUDAGraph()]
    instruments = tvm.transform.PassContext.current().instruments
    config = {"relax.backend.use_cuda_graph": True}
    with tvm.transform.PassContext(config=config, instruments=list(instruments or ())):
        return tvm.transform.Sequential(passes)(IRModule(functions, attrs=mod.attrs))


def _storage(value: relax.Expr) -> relax.Expr:
    if op_name(value) != "relax.vm.alloc_storage":
        return value
    size, device, dtype, scope = value.args
    return relax.op.memory.alloc_storage(size, device, scope, dtype)


class _Boundary:
    """Rebuilds `main` with copies at its ends."""

    def __init__(self, main: relax.Function):
        self.main = main
        self.bindings: list[relax.Binding] = []

    def run(self) -> relax.Function:
        main = self.main
        staged = {}
        for param in main.params[: int(main.attrs["num_input"])]:
            staged[param] = self._allocate(f"{param.name}_staged", param.ty)
            self._copy(param, staged[param])
        for block in main.body.blocks:
            for binding in block.bindings:
                value = substitute(binding.value, staged)
                self.bindings.append(relax.VarBinding(binding.var, value))
        body = substitute(main.body.body, staged)
        if isinstance(body.ty, relax.TupleType):
            fields = [
                self._emit(f"result{i}", relax.TupleGetItem(body, i), ty)
                for i, ty in enumerate(body.ty.fields)
            ]
            copies = [self._result(field) for field in fields]
            result = self._emit("results", relax.Tuple(copies), body.ty)
        else:
            result = self._result(body)
        return with_body(main, relax.SeqExpr([relax.BindingBlock(self.bindings)], result))

    def _emit(self, name: str, value: relax.Expr, ty: Any) -> relax.Var:
        var = relax.Var(name, ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def _allocate(self, name: str, ty: Any) -> relax.Var:
        self.bindings.append(allocation(name, ty))
        return self.bindings[-1].var

    def _copy(self, source: relax.Expr, target: relax.Var) -> None:
        nothing = relax.TupleType([])
        call = relax.Call(relax.ExternFunc(COPY), [source, target], None, [nothing])
        self._emit("_", call, nothing)

    def _result(self, value: relax.Expr) -> relax.Var:
        own = self._allocate("copied", value.ty)
        self._copy(value, own)
        return own
