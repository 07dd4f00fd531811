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

Kernels of a function that pass values through the device's memory get it as another parameter:
TVM would take it from a pool of the calling thread, which a graph may outlive.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, relax, s_tir, tirx

from ..errors import CompileError
from .rewriter import op_name, substitute

#: Copies between tensors of a device, in the order of its launches.
COPY = "runtime.TVMTensorCopyFromTo"


def stage_boundary(mod: IRModule) -> IRModule:
    """Put all that kernels touch, but the weights, among the tensors that `main` allocates.

    Runs when calls write to such tensors.

    Raises
    ------
    CompileError
        If a function allocates memory of the device while it runs.
    """
    builder = relax.BlockBuilder()
    calls: dict[str, tuple[tvm.ir.GlobalVar, list[Any]]] = {}
    for gv, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc):
            changed, workspaces = _with_workspaces(function, gv.name_hint)
            calls[gv.name_hint] = builder.add_func(changed, gv.name_hint), workspaces
    functions = dict(builder.get().functions.items())
    for gv, function in mod.functions.items():
        if gv.name_hint == "main":
            functions[gv] = _Boundary(function, calls).run()
        elif not isinstance(function, tirx.PrimFunc):
            functions[gv] = function
    return IRModule(functions, attrs=mod.attrs)


def capture(mod: IRModule) -> IRModule:
    """Make the calls of a planned `main` a captured function; TVM's pass does it."""
    main = mod["main"]
    # TVM's pass knows storage by the memory dialect's operator.
    blocks = []
    for block in main.body.blocks:
        bindings = [relax.VarBinding(b.var, _storage(b.value)) for b in block.bindings]
        blocks.append(relax.BindingBlock(bindings))
    planned = _with_body(main, relax.SeqExpr(blocks, main.body.body))
    functions = {gv: planned if gv.name_hint == "main" else f for gv, f in mod.functions.items()}
    # New calls get their types before the pass remembers functions by what is in them.
    passes = [relax.transform.Normalize(), relax.transform.RewriteCUDAGraph()]
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        return tvm.transform.Sequential(passes)(IRModule(functions, attrs=mod.attrs))


def _storage(value: relax.Expr) -> relax.Expr:
    if op_name(value) != "relax.vm.alloc_storage":
        return value
    size, device, dtype, scope = value.args
    return relax.op.memory.alloc_storage(size, device, scope, dtype)


def _with_body(main: relax.Function, body: relax.SeqExpr) -> relax.Function:
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs, main.span)


class _Boundary:
    """Rebuilds `main` with copies at its ends, and with workspaces."""

    def __init__(self, main: relax.Function, calls: dict[str, tuple[tvm.ir.GlobalVar, list[Any]]]):
        self.main = main
        #: What stands for each primary function, and its workspaces.
        self.calls = calls
        self.bindings: list[relax.Binding] = []

    def run(self) -> relax.Function:
        main = self.main
        staged = {}
        for param in main.params[: int(main.attrs["num_input"])]:
            staged[param] = self._allocate(f"{param.name}_staged", param.ty)
            self._copy(param, staged[param])
        for block in main.body.blocks:
            for binding in block.bindings:
                self._bind(binding.var, substitute(binding.value, staged))
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
        return _with_body(main, relax.SeqExpr([relax.BindingBlock(self.bindings)], result))

    def _bind(self, var: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            name = value.op.name_hint
            function, workspaces = self.calls[name]
            own = [self._allocate(f"{name}_workspace", _tensor(buffer)) for buffer in workspaces]
            value = relax.Call(function, [*value.args, *own], value.attrs, value.ty_args)
        self.bindings.append(relax.VarBinding(var, value))

    def _emit(self, name: str, value: relax.Expr, ty: Any) -> relax.Var:
        var = relax.Var(name, ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def _allocate(self, name: str, ty: Any) -> relax.Var:
        shape = relax.ShapeExpr(list(ty.shape))
        return self._emit(name, relax.op.builtin.alloc_tensor(shape, str(ty.dtype), 0), ty)

    def _copy(self, source: relax.Expr, target: relax.Var) -> None:
        nothing = relax.TupleType([])
        call = relax.Call(relax.ExternFunc(COPY), [source, target], None, [nothing])
        self._emit("_", call, nothing)

    def _result(self, value: relax.Expr) -> relax.Var:
        own = self._allocate("copied", value.ty)
        self._copy(value, own)
        return own


def _tensor(buffer: Any) -> Any:
    return relax.TensorType([int(d) for d in buffer.shape], str(buffer.dtype))


def _with_workspaces(function: tirx.PrimFunc, name: str) -> tuple[tirx.PrimFunc, list[Any]]:
    """A function with the device's memory that it allocates as parameters, and these."""
    body, found = function.body, []
    if isinstance(body, s_tir.SBlockRealize) and body.block.name_hint == "root":
        root = body.block
        found = [b for b in root.alloc_buffers if _is_global(b)]
        kept = [b for b in root.alloc_buffers if not _is_global(b)]
        block = s_tir.SBlock(
            root.iter_vars, root.reads, root.writes, root.name_hint, root.body, root.init, kept,
            root.match_buffers, root.annotations,
        )  # fmt: skip
        body = s_tir.SBlockRealize(body.iter_values, body.predicate, block)
    if _allocates(body):
        raise CompileError(
            f"A CUDA graph was asked for, but the function {name} allocates memory whenever it "
            "runs, which a graph cannot.",
            remedy="Compile without --cuda-graph.",
        )
    if not found:
        return function, found
    params = [*function.params, *found]
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs), found


def _is_global(buffer: Any) -> bool:
    return buffer.scope() in ("", "global")


def _allocates(body: Any) -> bool:
    """Whether memory of the device is allocated anywhere in a statement."""
    found: list[Any] = []
    tvm_ffi.structural_walk(body, (s_tir.SBlock, lambda b: found.extend(b.alloc_buffers)))
    tvm_ffi.structural_walk(body, (tirx.AllocBuffer, lambda a: found.append(a.buffer)))
    return any(_is_global(buffer) for buffer in found)
