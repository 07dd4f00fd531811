"""The kernels of a mean over valid boxes: who takes what, and how partial sums meet.

:mod:`.masked_vectors` and :mod:`.masked_groups` say how a part or a group sums up its share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx import ForKind

from .masked_groups import Group
from .masked_terms import Terms, replaced
from .masked_vectors import Part
from .statements import Buffer, Statements, Value, number


@dataclass(frozen=True)
class Outputs:
    """What is computed from the sum and the number.

    Parameters
    ----------
    terms
        Whose scalars the sum and the number are.
    after
        Blocks that compute other scalars from them.
    params
        Of the function.
    """

    terms: Terms
    after: Sequence[s_tir.SBlock]
    params: Sequence[Any]

    def write(self, code: Statements, total: Value, count: Value) -> None:
        """Compute and store them."""
        known = [
            (buffer, code.name(buffer.name, value))
            for buffer, value in ((self.terms.total, total), (self.terms.number, count))
        ]
        for buffer, value in known:
            if self._is_param(buffer):
                code.store(buffer, value)

        def load(found: TensorLoad) -> Any:
            return next((v for buffer, v in known if found.source.same_as(buffer)), found)

        for block in self.after:
            body = tvm_ffi.structural_map(block.body, (TensorLoad, load))
            body = replaced(body, [(axis.var, number(0)) for axis in block.iter_vars])
            target = block.writes[0].source
            if self._is_param(target):
                code.add(body)
            else:
                value = code.name(target.name, body.value)
                known.append((target, value))

    def _is_param(self, buffer: Buffer) -> bool:
        return any(buffer.same_as(param) for param in self.params)


class _Partial:
    """Sums and numbers of parts or groups, in memory where there are several."""

    def __init__(self, outputs: Outputs, count: int):
        self.outputs, self.count = outputs, count
        self.sums, self.numbers = (
            tirx.decl_buffer((count,), dtype, name)
            for dtype, name in (("float32", "partial_sums"), ("int32", "partial_numbers"))
        )

    @property
    def memory(self) -> list[Buffer]:
        """What has to be allocated."""
        return [self.sums, self.numbers] if self.count > 1 else []

    def leave(self, code: Statements, index: Value, total: Value, count: Value) -> None:
        """Store what one part has; the results, where it is the only one."""
        if self.count == 1:
            self.outputs.write(code, total, count)
            return
        code.store(self.sums, total, index)
        code.store(self.numbers, count, index)


def write_parts(terms: Terms, outputs: Outputs, knobs: Any, launches: bool) -> tirx.Stmt:
    """Kernels for a CPU: parts for its threads, one after another the sums of these."""
    code, partial = Statements(), _Partial(outputs, knobs.groups)
    chunks = tirx.truncdiv(terms.boxes + (knobs.boxes - 1), number(knobs.boxes))
    total = terms.samples * chunks
    with code.block("root", partial.memory):
        with _groups(code, knobs.groups, launches) as index, code.block("sums_of_parts", []):
            part = Part(code, terms, knobs.skip)
            begin, end = (
                code.name(name, tirx.truncdiv(total * place, number(knobs.groups)))
                for name, place in (("begin", index), ("end", index + 1))
            )
            with code.loop("place", end - begin) as place:
                chunk = code.name("chunk", begin + place)
                sample = code.name("sample", tirx.truncdiv(chunk, chunks))
                first = code.name("first", tirx.truncmod(chunk, chunks) * knobs.boxes)
                last = code.name("last", tirx.Min(first + knobs.boxes, terms.boxes))
                part.add_chunk(sample, first, last)
            part.finish()
            partial.leave(code, index, part.total(), part.count[0])
        if partial.memory:
            with _groups(code, 1, launches), code.block("sum_of_parts", []):
                sums = [code.alloc(n, (1,), t) for n, t in (("sum", "float32"), ("all", "int32"))]
                for mine, dtype in zip(sums, ("float32", "int32"), strict=True):
                    code.store(mine, tirx.const(0, dtype), number(0))
                with code.loop("part", knobs.groups) as index:
                    for mine, parts in zip(sums, partial.memory, strict=True):
                        code.store(mine, mine[0] + parts[index], number(0))
                outputs.write(code, sums[0][0], sums[1][0])
    return code.finish()


def write_groups(terms: Terms, outputs: Outputs, knobs: Any, launches: bool) -> tirx.Stmt:
    """Kernels for a GPU: work-groups, and one more that adds their sums in a fixed order."""
    code, partial = Statements(), _Partial(outputs, knobs.groups)
    with code.block("root", partial.memory):
        with _group(code, "sums_of_groups", knobs.groups, knobs.group_size) as group:
            group.add_boxes(terms, knobs.skip, knobs.boxes)
            total, count = group.reduce()
            with code.when(group.item == 0):
                partial.leave(code, group.group, total, count)
        if partial.memory:
            items = min(knobs.group_size, 1 << (knobs.groups - 1).bit_length())
            with _group(code, "sum_of_groups", 1, items) as group:
                with code.loop("turn", -(-knobs.groups // items)) as turn:
                    index = code.name("index", turn * items + group.item)
                    with code.when(index < knobs.groups):
                        group.add(partial.sums[index], partial.numbers[index])
                total, count = group.reduce()
                with code.when(group.item == 0):
                    outputs.write(code, total, count)
    return code.finish()


@contextmanager
def _groups(code: Statements, count: int, launches: bool) -> Iterator[tirx.Var]:
    """A loop over work-groups, or over what threads of a CPU take; no loop over one of these."""
    if launches:
        with code.loop("group", count, thread="blockIdx.x") as index:
            yield index
    elif count == 1:
        yield number(0)
    else:
        with code.loop("part", count, ForKind.PARALLEL) as index:
            yield index


@contextmanager
def _group(code: Statements, name: str, count: int, size: int) -> Iterator[Group]:
    """A kernel of so many work-groups of a size."""
    shared: list[Buffer] = []
    with (
        code.loop("group", count, thread="blockIdx.x") as group,
        code.loop("item", size, thread="threadIdx.x") as item,
        code.block(name, shared),
    ):
        yield Group(code, group, item, count, size, shared)
