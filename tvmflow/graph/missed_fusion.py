"""Missed fusion: tensors that one function writes only for the next one to read.

A function without sums (an elementwise map) can be computed where its result is read, or where
its operand is computed, so that the tensor between them never reaches memory::

    lv = call_tir(conv2d, (x, w))         lv is written and read: 2 * 4 * H * W * C bytes
    y  = call_tir(add, (lv, lv0))         that one function need not move
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod

import tvm_ffi
from tvm import IRModule, relax, s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx import IterVar

from ..ir.expressions import nodes_in
from ..ir.rewriter import elements_of
from ..ir.signatures import bindings_of, called_function, count_readers
from ..ir.traffic import points_of
from ..runtime.json_types import JsonObject


@dataclass(frozen=True)
class Fusion:
    """A tensor between two functions, and the traffic that fusing them would save."""

    #: Name of the tensor, in the model if it has one.
    tensor: str
    #: Functions that write and read it.
    producer: str
    consumer: str
    #: Bytes of one write and one read of the tensor.
    saved_bytes: int
    #: Bytes of all reads and writes of tensors between functions and of parameters.
    all_bytes: int
    #: Reason why the functions are not fused; empty if none is known.
    prevented_by: str
    #: The consumer's parameter for this tensor.
    parameter: str = ""

    @property
    def share(self) -> float:
        """Return the share of the network's traffic, from 0 to 1."""
        return self.saved_bytes / max(1, self.all_bytes)


def fusion(mod: IRModule) -> list[Fusion]:
    """Find pairs of functions that could be fused, the largest first, before or after scheduling.

    At least one of a pair is an elementwise map, and only a tensor connects them.
    """
    calls: dict[relax.Var, tuple[str, tirx.PrimFunc, Sequence[relax.Expr]]] = {}
    consumers: dict[relax.Expr, relax.Var] = {}
    readers = count_readers(mod["main"])
    total = 0
    for binding in bindings_of(mod["main"]):
        called = called_function(mod, binding.value)
        if called is None:
            continue
        function, arguments = called
        calls[binding.var] = (str(binding.value.args[0].name_hint), function, arguments)
        consumers.update(dict.fromkeys(arguments, binding.var))
        total += sum(_bytes(expr) for expr in (*arguments, binding.var))
    pairs = []
    for var, (producer, function, _) in calls.items():
        consumer = consumers.get(var)
        if consumer is None or readers[var] != 1:
            continue
        name, reader, operands = calls[consumer]
        if not (_is_map(function) or _is_map(reader)):
            continue
        # A function may read a tensor by several of its parameters.
        places = [i for i, argument in enumerate(operands) if argument.same_as(var)]
        reads = [reader.params[place] for place in places]
        why = next(filter(None, (_prevented(function, reader, read) for read in reads)), "")
        saved, parameter = 2 * _bytes(var), str(reads[0].name)
        pairs.append(Fusion(str(var.name), producer, name, saved, total, why, parameter))
    return sorted(pairs, key=lambda pair: -pair.saved_bytes)


def _bytes(expr: relax.Expr) -> int:
    """Return the size of a tensor; 0 for anything else."""
    if not (count := elements_of(expr)):
        return 0
    return count * ((tvm_ffi.dtype(str(expr.ty.dtype)).bits + 7) // 8)


def _blocks(function: tirx.PrimFunc) -> list[s_tir.SBlock]:
    return [block for block in nodes_in(function.body, s_tir.SBlock) if block.iter_vars]


def _is_map(function: tirx.PrimFunc) -> bool:
    kinds = {v.iter_type for block in _blocks(function) for v in block.iter_vars}
    return kinds == {IterVar.DataPar}


def _prevented(producer: tirx.PrimFunc, consumer: tirx.PrimFunc, tensor: tirx.Buffer) -> str:
    """Return why a function cannot be computed where the consumer reads it; empty if it can."""
    loads = [
        (block, load)
        for block in _blocks(consumer)
        for load in nodes_in(block.body, TensorLoad)
        if load.source.same_as(tensor)
    ]
    if not _is_map(producer):
        if all(_is_in_place(block, load) for block, load in loads):
            return ""
        return "its reader takes the elements in another order than they are made in"
    size = prod(int(extent) for extent in tensor.shape)
    reads = sum(points_of(block) for block, _ in loads)
    if _is_map(consumer) or reads <= size:
        return ""
    return f"its reader uses each element {reads / size:.0f} times, and would compute it as often"


def _is_in_place(block: s_tir.SBlock, load: TensorLoad) -> bool:
    """Return whether a block reads the element at the position that it writes."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or len(store.indices) != len(load.indices):
        return False
    pairs = zip(store.indices, load.indices, strict=True)
    return all(tvm_ffi.structural_equal(written, read) for written, read in pairs)


def fusion_left(mod: IRModule) -> list[JsonObject]:
    """Return the pairs without a known obstacle as JSON, as modules contain no graph."""
    return [asdict(pair) for pair in fusion(mod) if not pair.prevented_by]
