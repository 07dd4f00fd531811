"""Memory of values between kernels: workspaces of functions, and the plan of all tensors.

Both run after calls have become writes to tensors that ``main`` allocates.

*Workspaces* (:func:`HoistWorkspaces`).  If kernels of a function pass values through device
memory, that memory becomes another parameter: TVM would take it from a pool of the calling
thread while the function runs.  Before and after::

    def f(x, y):                                   _     = f(x, alloc)
        t = T.sblock_alloc_buffer((4096,))

    def f(x, y, t):                                own   = R.builtin.alloc_tensor((4096,))
                                                   _     = f(x, alloc, own)

*The plan* (:func:`plan_memory`) decides which intermediate tensors share an allocation.  Before::

    alloc  = R.builtin.alloc_tensor(R.shape([1, 4, 16, 16, 4]), "float32", 0, "global")
    _      = conv2d(x, w, alloc)                   # its third parameter is a texture

After::

    image0 = R.memory.alloc_storage(R.shape([1, 64, 16, 4]), 0, "global.texture:1.2", "float32")
    alloc  = R.call_packed("vm.builtin.alloc_tensor", image0, 0, R.shape([1, 4, 16, 16, 4]), ...)
    _      = conv2d(x, w, alloc)

Tensors whose lifetimes do not overlap share a *block*: a buffer as large as the largest of
them, or an image as wide, as high and as deep as the largest.  Larger tensors choose first; each
takes the block that has to grow least, or a new one if that grows less (greedy by size, from
Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).  The
largest sum of tensors that are alive at one time is a lower bound for any plan.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from math import inf, prod

import numpy as np
import tvm
from tvm import IRModule, relax, tirx
from tvm.ir import GenericConst, Op, StringImm

from ..ir.expressions import nodes_in
from ..ir.passes import module_pass
from ..ir.rewriter import op_name, shape_of, with_body, with_main
from ..ir.scope import CHANNELS, HALF, HALF_BUFFER, PREFIX, Extent, Stored, is_half, texel_bytes
from ..ir.signatures import bindings_of
from ..ir.workspaces import with_workspaces
from ..runtime.json_types import JsonObject

# -- workspaces ---------------------------------------------------------------------------


@module_pass("HoistWorkspaces")
def HoistWorkspaces(mod: IRModule) -> IRModule:  # noqa: N802
    """Make workspaces tensors of `main`, after its calls have become writes to its own tensors.

    Functions that are not scheduled blocks keep their allocations: see
    `tvmflow.ir.workspaces.allocates`.
    """
    builder = relax.BlockBuilder()
    callees: dict[str, tuple[relax.GlobalVar, list[tirx.Buffer]]] = {}
    for gv, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc):
            changed, workspaces = with_workspaces(function)
            callees[gv.name_hint] = builder.add_func(changed, gv.name_hint), workspaces
    bindings: list[relax.Binding] = []
    for binding in bindings_of(mod["main"]):
        value = binding.value
        if isinstance(value, relax.Call) and isinstance(value.op, relax.GlobalVar):
            name = value.op.name_hint
            callee, workspaces = callees[name]
            types = [relax.TensorType([int(d) for d in b.shape], str(b.dtype)) for b in workspaces]
            own = [allocation(f"{name}_workspace", ty) for ty in types]
            bindings += own
            arguments = [*value.args, *(b.var for b in own)]
            value = relax.Call(callee, arguments, value.attrs, value.ty_args)
        bindings.append(relax.VarBinding(binding.var, value))
    main = mod["main"]
    main = with_body(main, [relax.BindingBlock(bindings)], main.body.body)
    return with_main(mod, main, builder.get())


def allocation(name: str, ty: relax.TensorType) -> relax.VarBinding:
    """Return a binding that allocates a tensor of a type."""
    shape = relax.ShapeExpr(list(ty.shape))
    value = relax.op.builtin.alloc_tensor(shape, str(ty.dtype), 0)
    return relax.VarBinding(relax.Var(name, ty), value)


# -- the plan -----------------------------------------------------------------------------


#: Channels in a block on the supported devices, see :mod:`tvmflow.devices.target`.
LANES = (4, 8, 16)
#: Smallest alignment of buffers in bytes that drivers use.
ALIGNMENT = 64
#: Number of orders of tensors that are tried after the one by size.
ORDERS = 32


@dataclass
class Tensor(Stored):
    """An intermediate tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    #: Memory scope of the parameter that writes it; ``None`` is a buffer of its dtype.
    scope: str | None = None
    #: Steps (indices of calls of primary functions) of the first write and the last read.
    first: int = 0
    last: int = 0
    producer: str = ""
    readers: list[str] = field(default_factory=list)
    #: Index of its block; ``None`` for a result of the model, which is allocated separately.
    block: int | None = None

    @property
    def bytes(self) -> int:
        """Return the size without any padding."""
        if self.is_image:
            return prod(self.shape) // CHANNELS * texel_bytes(str(self.scope))
        size = 2 if self.scope == HALF_BUFFER else np.dtype(self.dtype).itemsize
        return prod(self.shape) * size

    @property
    def layout(self) -> str:
        """Return ``NCHW4c`` for a texture, else the layout that the shape implies."""
        if len(self.shape) == 5 and (self.is_image or self.shape[-1] in LANES):
            return f"NCHW{self.shape[-1]}c"
        return "NCHW" if len(self.shape) == 4 else "plain"

    @property
    def steps(self) -> int:
        """Return a bit for each step at which the tensor is alive; masks are quick to compare."""
        return (2 << self.last) - (1 << self.first)

    @property
    def kind(self) -> str:
        """Return the memory scope whose allocations this tensor may share."""
        image = f"{HALF if is_half(self.scope or '') else PREFIX}:1.2"
        return image if self.is_image else self.scope or "global"


@dataclass
class Block:
    """An allocation that several tensors share."""

    #: Memory scope of its tensors' allocations, see `Tensor.kind`.
    kind: str
    bytes: int = 0
    extent: Extent | None = None
    tensors: list[Tensor] = field(default_factory=list)
    #: A bit for each step at which one of the tensors is alive.
    steps: int = 0

    def size_with(self, tensor: Tensor) -> tuple[int, Extent | None]:
        """Return the size and extent that the block would have with one more tensor."""
        if tensor.extent is None:
            return max(self.bytes, -(-tensor.bytes // ALIGNMENT) * ALIGNMENT), None
        own, new = self.extent or Extent(0, 0), tensor.extent
        extent = Extent(
            max(own.width, new.width), max(own.height, new.height), max(own.layers, new.layers)
        )
        assert tensor.scope is not None
        return extent.texels * texel_bytes(tensor.scope), extent

    def add(self, tensor: Tensor) -> None:
        """Add a tensor that is not alive together with others in the block, and grow the block."""
        self.bytes, self.extent = self.size_with(tensor)
        self.tensors.append(tensor)
        self.steps |= tensor.steps


@dataclass(frozen=True)
class AllocationSize:
    """The size of an allocation, which may be larger than one plan needs."""

    bytes: int
    extent: Extent | None = None

    def union(self, other: AllocationSize) -> AllocationSize:
        """Return the smallest size that fits both allocations."""
        if self.extent is None or other.extent is None:
            return AllocationSize(max(self.bytes, other.bytes))
        a, b = self.extent, other.extent
        extent = Extent(max(a.width, b.width), max(a.height, b.height), max(a.layers, b.layers))
        return AllocationSize(self.bytes // a.texels * extent.texels, extent)


@dataclass
class MemoryPlan:
    """A plan: blocks, and the tensors in and outside of them."""

    tensors: list[Tensor]
    blocks: list[Block]
    #: Names of the called functions, in order.
    steps: list[str] = field(default_factory=list)

    @property
    def allocations(self) -> list[Block]:
        """Return the blocks, and a separate block for each result."""
        results = [t for t in self.tensors if t.block is None]
        own = [Block(t.kind, t.bytes, t.extent, [t]) for t in results]
        return [*self.blocks, *own]

    @property
    def peak_bytes(self) -> int:
        """Return the memory of all blocks: the size of intermediate tensors during a run."""
        return sum(block.bytes for block in self.blocks)

    @property
    def lower_bound_bytes(self) -> int:
        """Return the largest sum of tensors in blocks that are alive at one time."""
        planned = [t for t in self.tensors if t.block is not None]
        return _most_at_one_time(planned, [t.bytes for t in planned])

    def report(self) -> JsonObject:
        """Return the plan as JSON, for ``tvmflow inspect --memory``."""
        return {
            "peak_bytes": self.peak_bytes,
            "lower_bound_bytes": self.lower_bound_bytes,
            "steps": self.steps,
            "blocks": [
                {"bytes": b.bytes, "image": None if b.extent is None else str(b.extent)}
                for b in self.blocks
            ],
            "tensors": [
                asdict(t) | t.place() | {"layout": t.layout, "bytes": t.bytes} for t in self.tensors
            ],
        }


def merged_plan(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """Return the plan of a function and its callees, which share no blocks."""
    whole = MemoryPlan([], [])
    for plan in plans:
        step, block = len(whole.steps), len(whole.blocks)
        tensors = [
            replace(
                t, first=t.first + step, last=t.last + step,
                block=None if t.block is None else t.block + block,
            )
            for t in plan.tensors
        ]  # fmt: skip
        whole.tensors += tensors
        for number, each in enumerate(plan.blocks, block):
            own = [t for t in tensors if t.block == number]
            whole.blocks.append(replace(each, tensors=own))
        whole.steps += plan.steps
    return whole


def _most_at_one_time(tensors: Sequence[Tensor], sizes: Sequence[int]) -> int:
    """Return the largest sum of the sizes of tensors that are alive at one time."""
    changes: Counter[int] = Counter()
    for tensor, size in zip(tensors, sizes, strict=True):
        changes[tensor.first] += size
        changes[tensor.last + 1] -= size
    return max(accumulate(changes[step] for step in sorted(changes)), default=0)


def assign_blocks(tensors: Iterable[Tensor]) -> list[Block]:
    """Assign every tensor to a block; see the module's docstring."""
    by_size = sorted(tensors, key=lambda t: (-t.bytes, t.first))
    # Every plan needs at least the memory of the tensors that are alive at one time.
    least = _most_at_one_time(by_size, [Block(t.kind).size_with(t)[0] for t in by_size])
    best: list[Block] = []
    total = inf
    for order in _orders(by_size):
        blocks = _greedy(order)
        size = sum(block.bytes for block in blocks)
        if size < total:
            best, total = blocks, size
        if total == least:
            break
    best.sort(key=lambda b: min(t.first for t in b.tensors))
    for number, block in enumerate(best):
        for tensor in block.tensors:
            tensor.block = number
    return best


def _orders(by_size: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the order by size, then random orders near it, as that is not always the best."""
    yield by_size
    shuffle = random.Random(0)
    for _ in range(ORDERS):
        yield sorted(by_size, key=lambda t: -t.bytes * shuffle.uniform(0.3, 1))


def _greedy(tensors: Iterable[Tensor]) -> list[Block]:
    """Return blocks for tensors that choose in this order."""
    blocks: list[Block] = []
    for tensor in tensors:
        kind, steps = tensor.kind, tensor.steps
        fresh = Block(kind)
        options = [b for b in blocks if not b.steps & steps and b.kind == kind] + [fresh]
        # Take the smallest block that need not grow, and leave larger ones to larger tensors.
        best = min(options, key=lambda b: (b.size_with(tensor)[0] - b.bytes, b.bytes))
        best.add(tensor)
        if best is fresh:
            blocks.append(fresh)
    return blocks


def share_allocations(
    wanted: Sequence[Sequence[tuple[Hashable, AllocationSize]]],
) -> tuple[list[AllocationSize], list[list[int]]]:
    """Let lists of allocations share memory of the same kind, if one list is used at a time.

    Returns the shared allocations' sizes, and for each list the indices of its allocations.  The
    largest list and allocation choose first; each takes the shared allocation that has to grow
    least, or a new one if that grows less, as tensors do within a plan.
    """
    sizes: list[AllocationSize] = []
    kinds: list[Hashable] = []
    places: list[list[int]] = [[0] * len(each) for each in wanted]
    totals = [sum(size.bytes for _, size in each) for each in wanted]
    for number in sorted(range(len(wanted)), key=lambda n: -totals[n]):
        taken: set[int] = set()
        for index, (kind, size) in sorted(
            enumerate(wanted[number]), key=lambda item: -item[1][1].bytes
        ):
            free = [n for n, known in enumerate(kinds) if known == kind and n not in taken]
            growths = [(sizes[n].union(size).bytes - sizes[n].bytes, n) for n in free]
            growth, place = min(growths, default=(size.bytes, 0))
            if growth >= size.bytes:
                place = len(sizes)
                sizes.append(size)
                kinds.append(kind)
            sizes[place] = sizes[place].union(size)
            places[number][index] = place
            taken.add(place)
    return sizes, places


def shared_sizes(plans: Sequence[MemoryPlan]) -> tuple[list[list[AllocationSize]], int]:
    """Return shared sizes of the allocations of plans used one at a time, and the blocks' total.

    Allocators cache memory by its size: with equal sizes they hold the memory of the largest plan
    instead of the memory of all plans.  The sizes are in the order of
    :attr:`MemoryPlan.allocations`.
    """
    # Results outlive a run, so they do not share memory with blocks.
    wanted: list[list[tuple[Hashable, AllocationSize]]] = [
        [
            ((block.kind, index < len(plan.blocks)), AllocationSize(block.bytes, block.extent))
            for index, block in enumerate(plan.allocations)
        ]
        for plan in plans
    ]
    sizes, places = share_allocations(wanted)
    of_blocks = {
        place for plan, own in zip(plans, places, strict=True) for place in own[: len(plan.blocks)]
    }
    return [[sizes[n] for n in own] for own in places], sum(sizes[n].bytes for n in of_blocks)


class _Planner:
    """Tracks tensors of ``main`` under all their names, and plans their memory."""

    def __init__(self, mod: IRModule, sizes: Sequence[AllocationSize] | None = None):
        self.mod = mod
        self.sizes = sizes
        self.main = mod["main"]
        self.bindings = bindings_of(self.main)
        #: Allocated tensors that a variable may refer to.
        self.origins: dict[relax.Var, set[relax.Var]] = {}
        self.tensors: dict[relax.Var, Tensor] = {}
        #: Fields of the variables that are tuples.
        self.fields: dict[relax.Var, list[relax.Expr]] = {}
        #: Names of the functions called so far.
        self.steps: list[str] = []

    def run(self) -> tuple[IRModule, MemoryPlan]:
        """Return the module with the plan applied, and the plan."""
        for binding in self.bindings:
            self._follow(binding)
        results = self._origins(self.main.body.body)
        shared = [t for var, t in self.tensors.items() if var not in results]
        plan = MemoryPlan(list(self.tensors.values()), assign_blocks(shared), self.steps)
        return self._apply(plan), plan

    def _origins(self, expr: relax.Expr) -> set[relax.Var]:
        return {var for used in nodes_in(expr, relax.Var) for var in self.origins.get(used, ())}

    def _follow(self, binding: relax.Binding) -> None:
        value, step = binding.value, len(self.steps)
        if op_name(value) == "relax.builtin.alloc_tensor":
            var = binding.var
            dtype = str(var.ty.dtype)
            self.tensors[var] = Tensor(var.name, shape_of(var), dtype, first=step, last=step)
            self.origins[var] = {var}
            return
        used = self._origins(value)
        # A view, a tuple or an alias reads nothing; the calls that use it do.
        if isinstance(value, relax.Call) and op_name(value) != "relax.reshape":
            for var in used:
                self.tensors[var].last = step
            self.steps.append(_name_of(value.op))
        if isinstance(value, relax.Call) and isinstance(value.op, relax.GlobalVar):
            self._call(value)
        else:
            # A view, a tuple or one of its fields, or any result of a packed function.
            self.origins[binding.var] = used
            if isinstance(value, relax.Call) and isinstance(value.op, relax.ExternFunc):
                for var in used:
                    self.tensors[var].producer = self.tensors[var].producer or _name_of(value.op)
        if isinstance(value, relax.Tuple):
            self.fields[binding.var] = list(value.fields)
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self.fields:
            value = self.fields[value.tuple_value][value.index]
        if isinstance(value, relax.Var):
            for var in self._origins(value):
                self.tensors[var].name = binding.var.name

    def _call(self, call: relax.Call) -> None:
        """Record a primary function's call, which reads its first operands and writes the rest."""
        function = self.mod[call.op]
        for index, argument in enumerate(call.args):
            for var in self._origins(argument):
                tensor = self.tensors[var]
                if tensor.producer:
                    tensor.readers.append(call.op.name_hint)
                    continue
                tensor.producer = call.op.name_hint
                param = function.params[index]
                if tirx.is_buffer_var(param) and param.scope() not in ("", "global"):
                    tensor.scope = param.scope()

    def _apply(self, plan: MemoryPlan) -> IRModule:
        storages: dict[relax.Var | int, relax.Var] = {}
        bindings: list[relax.Binding] = []
        allocations = plan.allocations
        sizes = self.sizes or [AllocationSize(block.bytes, block.extent) for block in allocations]
        results = {id(b.tensors[0]): n for n, b in enumerate(allocations) if n >= len(plan.blocks)}
        for binding in self.bindings:
            tensor = self.tensors.get(binding.var)
            plain = tensor is not None and tensor.block is None and tensor.scope is None
            if tensor is None or (plain and self.sizes is None):
                bindings.append(binding)
                continue
            key = binding.var if tensor.block is None else tensor.block
            if tensor.block is None:
                # A result in its own image, or in a buffer as large as other plans need.
                name = f"{tensor.name}_{'buffer' if plain else 'image'}"
                number = results[id(tensor)]
            else:
                name = f"{'image' if tensor.is_image else 'buffer'}{tensor.block}"
                number = tensor.block
            if key not in storages:
                storages[key] = relax.Var(name, relax.ObjectType())
                value = _allocate(allocations[number].kind, sizes[number])
                bindings.append(relax.VarBinding(storages[key], value))
            value = _tensor_in(storages[key], tensor, binding.var.ty)
            bindings.append(relax.VarBinding(binding.var, value))
        body = [relax.BindingBlock(bindings)]
        return with_main(self.mod, with_body(self.main, body, self.main.body.body))


def _name_of(operator: relax.Expr) -> str:
    names = ("name_hint", "global_symbol", "name")
    return str(next((getattr(operator, n) for n in names if hasattr(operator, n)), operator))


def _allocate(kind: str, size: AllocationSize) -> relax.Expr:
    extent, dtype = size.extent, "float32"
    if extent is not None:
        shape = [extent.layers, extent.height, extent.width, CHANNELS]
    elif is_half(kind):
        shape = [size.bytes // 2]
    else:
        shape, dtype = [size.bytes], "uint8"
    # The virtual machine's operator: the memory dialect's one does not keep the dtype.
    operator, scope = Op.get("relax.vm.alloc_storage"), StringImm(kind)
    return relax.Call(operator, [relax.ShapeExpr(shape), relax.prim_value(0), _dtype(dtype), scope])


def _tensor_in(storage: relax.Var, tensor: Tensor, ty: relax.Type) -> relax.Expr:
    shape = relax.ShapeExpr(tensor.shape)
    if tensor.scope is None:
        return relax.op.memory.alloc_tensor(storage, 0, shape, tensor.dtype)
    place = [storage, relax.prim_value(0), shape]
    arguments = [*place, _dtype(tensor.dtype), StringImm(tensor.scope)]
    return relax.Call(relax.ExternFunc("vm.builtin.alloc_tensor"), arguments, None, [ty])


def _dtype(name: str) -> relax.Expr:
    return GenericConst(tvm.DataType(name), relax.AnyType())


def plan_memory(
    mod: IRModule, sizes: Sequence[AllocationSize] | None = None
) -> tuple[IRModule, MemoryPlan]:
    """Plan the memory of ``main`` and apply the plan.

    ``sizes`` are shared sizes of the plan's allocations, as `shared_sizes` returns them for the
    plan of ``mod`` made without ``sizes``.
    """
    return _Planner(mod, sizes).run()
