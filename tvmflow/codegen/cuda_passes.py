"""Passes that are only needed for CUDA; other targets are unchanged.

*Vectors.*  CUDA has registers for vectors of 16 bytes.  TVM's code for eight lanes of fp32 does
not compile if one of them is a constant, and there is none for sixteen: such loops become
steps of four lanes.  Before and after::

    for i in T.vectorized(8):                  for s in T.unroll(2):
        y[i] = T.max(x[i], 0.0)                    for i in T.vectorized(4):
                                                       y[s * 4 + i] = T.max(x[s * 4 + i], 0.0)

Booleans are bytes in memory, but TVM's vectors of them have 16 bits: they become steps of one.

Copies of eight halves stay whole: they are one access of 16 bytes.  Halves that any other code
loads or stores also stay whole, as the code works on a copy in registers (:func:`_move_halves`)::

    for i in T.vectorized(8):                  for i in T.vectorized(8):
        y[i] = T.float16(T.float32(x[i]) * 2)      a[i] = x[i]
                                               for s in T.unroll(2):
                                                   for i in T.vectorized(4): ...   # b, of a
                                               for i in T.vectorized(8):
                                                   y[i] = b[i]

*Indices.*  If a vector begins at a multiple of its lanes, all of its elements have the same
quotient by another such multiple.  TVM can prove that for few sums, and otherwise copies element by
element.  Before and after::

    (g * 384 + k * 64 + lane) // 1536          (g * 48 + k * 8) // 192
    (g * 384 + k * 64 + lane) % 1536           (g * 48 + k * 8) % 192 * 8 + lane

*Storage.*  TVM has two passes that let buffers in shared memory share their bytes: as typed
buffers, which gives pointers to tiles of a tensor core the wrong type and makes vectors of elements
that ``cp.async`` copies, and as bytes.  Functions with ``shared.dyn`` only use the second pass.

*Loads.*  TVM's code generator binds the operands of vector casts, functions and choices to
variables, caches these by the operand's text, and reuses them for the same text in the same scope,
even if memory has been written in between: the second of two maxima would use the sum before the
first one.  Loads of memory that a kernel writes are bound to variables with unique names.  Before
and after::

    s[0:4] = T.max(s[0:4], a)                  load = s[0:4]
    s[0:4] = T.max(s[0:4], b)                  s[0:4] = T.max(load, a)
                                               load_1 = s[0:4]
                                               s[0:4] = T.max(load_1, b)

*Barriers.*  In a loop whose copies to shared memory run ahead of their readers, TVM has one
barrier before the copies, which overwrite data that the previous step read, and one after the wait
for this step's copies.  With the wait first, one barrier is enough::

    for k in range(steps):                     for k in range(steps):
        barrier                                    wait for all but n - 1 groups of copies
        copy(k + n, into=(k + n) % (n + 1))        barrier
        wait for all but n groups of copies        copy(k + n, into=(k + n) % (n + 1))
        barrier                                    multiply(k % (n + 1))
        multiply(k % (n + 1))

*Predicated copies.*  TVM copies if a test holds, and otherwise stores zeros, in two instructions.
The copy instruction itself can fill the bytes that it does not read with zeros
(:func:`fill_with_zeros`)::

    @p cp.async [to], [from], 16;              cp.async [to], [from], 16, p ? 16 : 0;
    @!p st.shared.v4 [to], {0, 0, 0, 0};
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from ..ir.expressions import CHOICE, nodes_in, substitute_vars, uses, with_fields
from ..ir.passes import map_nodes, node_pass, prim_func_pass
from ..ir.rewriter import op_name

#: Lanes of fp32 in a vector register.
LANES = 4
#: Halves in 16 bytes.
HALVES = 8
_ADDRESS = "tirx.address_of"
_COMMIT, _WAIT = "async_commit_queue_scope", "async_wait_queue_scope"
_BARRIER = "tirx.tvm_storage_sync"


@node_pass(tirx.For, targets=("cuda",))
def SplitVectors(loop: tirx.For) -> tirx.Stmt:
    """Split vectorised loops of more than four lanes; runs after blocks are lowered.

    Loops that load or store booleans become steps of one lane.
    """
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    if _moves_booleans(loop.body):
        return with_fields(loop, kind=tirx.ForKind.UNROLLED)
    extent = int(loop.extent)
    if extent <= LANES or extent % LANES or _copies_halves(loop.body, extent):
        return loop
    if extent != HALVES or not isinstance(loop.body, tirx.BufferStore):
        return _in_steps(loop, loop.body)
    before, body, after = _move_halves(loop.body, loop.loop_var)
    steps = _in_steps(loop, body)
    return tirx.SeqStmt([*before, steps, *after]) if before or after else steps


def _moves_booleans(body: tirx.Stmt) -> bool:
    loaded = [load.source for load in nodes_in(body, TensorLoad)]
    stored = [store.buffer for store in nodes_in(body, tirx.BufferStore)]
    return any(str(buffer.dtype) == "bool" for buffer in loaded + stored)


def _in_steps(loop: tirx.For, body: tirx.Stmt) -> tirx.Stmt:
    dtype = str(loop.loop_var.ty.dtype)
    step, lane = tirx.Var(f"{loop.loop_var.name}_step", dtype), tirx.Var("lane", dtype)
    zero, lanes, steps = (tirx.const(i, dtype) for i in (0, LANES, int(loop.extent) // LANES))
    body = substitute_vars(body, {loop.loop_var: step * lanes + lane})
    inner = tirx.For(lane, zero, lanes, tirx.ForKind.VECTORIZED, body)
    return tirx.For(step, zero, steps, tirx.ForKind.UNROLLED, inner)


def _copies_halves(body: tirx.Stmt, extent: int) -> bool:
    """Return whether a loop only copies eight halves, or zeros in their place."""
    if extent != HALVES or not isinstance(body, tirx.BufferStore):
        return False
    value = body.value
    if op_name(value) == CHOICE:
        value = value.args[1]
    return isinstance(value, TensorLoad) and str(value.ty.dtype) == "float16"


def _move_halves(
    store: tirx.BufferStore, lane: tirx.Var
) -> tuple[list[tirx.Stmt], tirx.Stmt, list[tirx.Stmt]]:
    """Return copies of whole vectors of halves before and after a store, and the store between.

    Among conditional loads, only those under a condition of the whole value are moved, with the
    test.
    """
    before: list[tirx.Stmt] = []
    after: list[tirx.Stmt] = []
    value, test = store.value, None
    if op_name(value) == CHOICE and not uses(value.args[0], lane):
        test, value, other = value.args
    if op_name(value) == CHOICE or any(op_name(c) == CHOICE for c in nodes_in(value, Call)):
        return [], store, []
    zero = tirx.const(0, "float16")

    def copy(name: str) -> tirx.Var:
        return tirx.decl_buffer((HALVES,), "float16", name, scope="local")

    def moved(target: tirx.Var, indices: list[tirx.Expr], value: tirx.Expr) -> tirx.Stmt:
        number = tirx.Var("half", lane.ty.dtype)
        ends = tirx.const(0, lane.ty.dtype), tirx.const(HALVES, lane.ty.dtype)
        body = substitute_vars(tirx.BufferStore(target, value, indices), {lane: number})
        return tirx.For(number, *ends, tirx.ForKind.VECTORIZED, body)

    def load(found: TensorLoad) -> tirx.Expr:
        if not _is_whole(found.source, found.indices, lane):
            return found
        own = copy("loaded")
        whole = found if test is None else tirx.if_then_else(test, found, zero)
        before.extend([tirx.AllocBuffer(own), moved(own, [lane], whole)])
        return tirx.BufferLoad(own, [lane])

    value = tvm_ffi.structural_map(value, (TensorLoad, load))
    # If the value is a moved vector, its zeros were already selected by the copy.
    if test is not None and not (before and _is_zero(other) and _is_load(value)):
        value = tirx.if_then_else(test, value, other)
    if not _is_whole(store.buffer, store.indices, lane):
        return before, tirx.BufferStore(store.buffer, value, store.indices), after
    own = copy("stored")
    before.append(tirx.AllocBuffer(own))
    after.append(moved(store.buffer, list(store.indices), tirx.BufferLoad(own, [lane])))
    return before, tirx.BufferStore(own, value, [lane]), after


def _is_zero(value: tirx.Expr) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value.value) == 0


def _is_load(value: tirx.Expr) -> bool:
    """Return whether a value is zero if its load is zero."""
    return isinstance(value.value if isinstance(value, tirx.Cast) else value, TensorLoad)


def _is_whole(buffer: tirx.Var, indices: Sequence[tirx.Expr], lane: tirx.Var) -> bool:
    """Return whether eight lanes are 16 bytes of a tensor, at a multiple of 16 bytes."""
    *outer, last = indices
    length = buffer.shape[-1]
    if str(buffer.dtype) != "float16" or buffer.scope() not in ("", "global"):
        return False
    if any(uses(index, lane) for index in outer) or not isinstance(length, tirx.IntImm):
        return False
    parts = _parts(last, lane, HALVES)
    return parts is not None and parts[1] == 1 and int(length) % HALVES == 0


@node_pass(tirx.For, targets=("cuda",))
def DivideVectors(loop: tirx.For) -> tirx.Stmt:
    """Divide whole vectors' indices in vectorised loops; runs before these become vectors."""
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    lanes, lane = int(loop.extent), loop.loop_var

    def divide(node: tirx.FloorDiv | tirx.FloorMod) -> tirx.Expr:
        if not isinstance(node.b, tirx.IntImm) or int(node.b) % lanes:
            return node
        begin = _parts(node.a, lane, lanes)
        if begin is None or begin[1] != 1:
            return node
        divisor = tirx.IntImm(node.b.ty, int(node.b) // lanes)
        if isinstance(node, tirx.FloorDiv):
            return tirx.floordiv(begin[0], divisor)
        return tirx.floormod(begin[0], divisor) * tirx.IntImm(node.b.ty, lanes) + lane

    body = tvm_ffi.structural_map(loop.body, ((tirx.FloorDiv, tirx.FloorMod), divide))
    return with_fields(loop, body=body)


def _parts(index: tirx.Expr, lane: tirx.Var, lanes: int) -> tuple[tirx.Expr, int] | None:
    """Return ``(q, n)`` of an index ``q * lanes + n * lane``; ``None`` if it has another form."""
    if isinstance(index, tirx.Var) and index.same_as(lane):
        return tirx.const(0, index.ty.dtype), 1
    if isinstance(index, tirx.IntImm) and int(index) % lanes == 0:
        return tirx.IntImm(index.ty, int(index) // lanes), 0
    if isinstance(index, tirx.Mul) and isinstance(index.b, tirx.IntImm):
        whole = int(index.b) % lanes == 0 and not uses(index.a, lane)
        return (index.a * tirx.IntImm(index.b.ty, int(index.b) // lanes), 0) if whole else None
    if isinstance(index, (tirx.Add, tirx.Sub)):
        a, b = (_parts(part, lane, lanes) for part in (index.a, index.b))
        if a is not None and b is not None:
            sign = 1 if isinstance(index, tirx.Add) else -1
            return (a[0] + b[0] if sign > 0 else a[0] - b[0]), a[1] + sign * b[1]
    return None


@prim_func_pass()
def RewriteStorage(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let buffers share memory with TVM's pass, except in functions with ``shared.dyn``."""
    allocated = nodes_in(function.body, tirx.AllocBuffer)
    if any(statement.buffer.scope() == "shared.dyn" for statement in allocated):
        return function
    return tirx.transform.StorageRewrite()(IRModule({"main": function}))["main"]


@node_pass(tirx.For, targets=("cuda",))
def JoinBarriers(loop: tirx.For) -> tirx.Stmt:
    """Use one barrier in each step of a loop with asynchronous copies; runs after TVM's barriers.

    Before the step's own group of copies is committed, a wait for all but ``n - 1`` groups
    completes the same groups as a wait for all but ``n`` after it.  The step's own group is not
    among them: its data is read after the barrier of a later step.  The data that it overwrites was
    read in an earlier step, by items that have since reached this step's barrier.
    """
    *first, last = _statements(loop.body)
    if not isinstance(last, tirx.AttrStmt) or last.attr_key != _WAIT:
        return loop
    (count,) = (last.body.value,) if isinstance(last.body, tirx.AttrStmt) else (None,)
    *bound, copies = first or [None]
    commits = isinstance(copies, tirx.AttrStmt) and copies.attr_key == _COMMIT
    if not commits or not isinstance(count, tirx.IntImm) or int(count) < 1:
        return loop
    barrier, *reads = _statements(last.body.body)
    copied = _statements(copies.body)
    others = [statement for statement in copied if not _is_barrier(statement)]
    alone = all(isinstance(statement, tirx.Bind) for statement in bound)
    if not alone or not _is_barrier(barrier) or len(copied) != len(others) + 1:
        return loop
    left = tirx.AttrStmt(
        last.body.node, last.body.attr_key, tirx.IntImm(count.ty, int(count) - 1), barrier
    )
    body = [
        *bound,
        tirx.AttrStmt(last.node, last.attr_key, last.value, left),
        tirx.AttrStmt(copies.node, copies.attr_key, copies.value, tirx.SeqStmt(others)),
        *reads,
    ]
    return with_fields(loop, body=tirx.SeqStmt(body))


def _statements(body: tirx.Stmt) -> list[tirx.Stmt]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _is_barrier(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.Evaluate) and op_name(statement.value) == _BARRIER


@prim_func_pass("cuda")
def BindLoads(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind loads that TVM's code generator may confuse with earlier ones; runs last, on kernels."""
    names = (f"load_{number}" for number in itertools.count())

    def bind(statement: tirx.BufferStore | tirx.Evaluate | tirx.Bind) -> tirx.Stmt:
        bindings: list[tirx.Stmt] = []

        def load(found: TensorLoad) -> tirx.Var:
            variable = tirx.Var(next(names), found.ty)
            bindings.append(tirx.Bind(variable, found))
            return variable

        def operand(found: tirx.Cast | tirx.Select | Call) -> tirx.Expr:
            lanes = tvm_ffi.dtype(str(getattr(found.ty, "dtype", "void"))).lanes
            return found if lanes == 1 else tvm_ffi.structural_map(found, (TensorLoad, load))

        value, held = _hold(statement.value)
        value = tvm_ffi.structural_map(value, ((tirx.Cast, tirx.Select, Call), operand))
        # Substitute the outer ones first.
        for variable, found in reversed(held.items()):
            value = substitute_vars(value, {variable: found})
        if isinstance(statement, tirx.BufferStore):
            last: tirx.Stmt = tirx.BufferStore(statement.buffer, value, statement.indices)
        elif isinstance(statement, tirx.Bind):
            last = tirx.Bind(statement.var, value)
        else:
            last = tirx.Evaluate(value)
        return tirx.SeqStmt([*bindings, last]) if bindings else statement

    return map_nodes(function, ((tirx.BufferStore, tirx.Evaluate, tirx.Bind), bind))


def _hold(value: tirx.Expr) -> tuple[tirx.Expr, dict[tirx.Var, tirx.Expr]]:
    """Replace subexpressions that loads must not leave, such as ``if_then_else``, by variables."""
    held: dict[tirx.Var, tirx.Expr] = {}

    def hold(found: tirx.Expr) -> tirx.Expr:
        if isinstance(found, Call) and op_name(found) not in (CHOICE, _ADDRESS):
            return found
        variable = tirx.Var("held", found.ty)
        held[variable] = found
        return variable

    return tvm_ffi.structural_map(value, ((Call, tirx.Let), hold)), held


# -- source rewrites ----------------------------------------------------------------------

#: TVM's code for a predicated asynchronous copy.
_TESTED_COPY = re.compile(
    r'"\{\\n"\s*" \.reg \.pred p;\\n"\s*" setp\.eq\.u32 p, %3, 1;\\n"\s*'
    r'" @p (cp\.async\.c[ag]\.shared\.global \[%0\], \[%1\], %2);\\n"\s*'
    r'" @!p st\.shared[^"]*"\s*"\}\\n"\s*'
    r':: "r"\(dst_addr\), "l"\(src_p\), "n"\((\d+)\), "r"\(predicate\), "r"\(0\)'
)


def fill_with_zeros(source: str) -> str:
    """Rewrite predicated asynchronous copies in CUDA C++, so that they write zeros themselves."""
    filled = r'"\1, %3;" :: "r"(dst_addr), "l"(src_p), "n"(\2), "r"(predicate ? \2 : 0)'
    return _TESTED_COPY.sub(filled, source)
