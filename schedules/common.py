"""What every family needs: finding the anchor of a fused function, binding loops.

A *primary function* after fusion holds one *anchor* block (a convolution, say),
maybe a block that pads its input, and an *epilogue* of elementwise blocks.
Families mark the blocks they compute with an annotation, and find them again by
it, because names do not survive fusion unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, te, tirx

from ..codegen.masks import keeps_booleans
from ..devices.target import TargetSpec
from ..ir.scope import is_half, is_texture
from .blocks import (
    calls_scalar_function,
    gathers_bytes,
    gathers_channels,
    is_injective,
    lane_axis,
)
from .tiles import tile_of

logger = logging.getLogger(__name__)

#: Block annotations that mark a family's anchor and the padding of its input.
FAMILY = "tvmflow.family"
ROLE = "tvmflow.role"
PAD = "pad"

#: Widths that a vector type exists for.
LANES = (2, 4, 8, 16)

Block = Any
Loop = Any
#: What makes a product of two factors.
Multiply = Callable[[Any, Any], Any]


@dataclass
class Workload:
    """A primary function about to be scheduled, with its blocks in program order."""

    sch: s_tir.Schedule
    target: TargetSpec
    blocks: list[Block]
    #: The function when `_marks` were read, and the family that each block is marked by.
    _marks: tuple[tirx.PrimFunc, list[tuple[Block, str | None]]] | None = None

    @classmethod
    def of(cls, function: tirx.PrimFunc, target: TargetSpec) -> Workload:
        """Start scheduling a function."""
        sch = s_tir.Schedule(function)
        root = sch.get_sblock("root", func_name="main")
        return cls(sch, target, list(sch.get_child_blocks(root)))

    @property
    def function(self) -> tirx.PrimFunc:
        """The function as scheduled so far."""
        return self.sch.mod["main"]

    @property
    def is_cpu(self) -> bool:
        """Whether one work-item is a whole thread's worth of work."""
        return self.target.device.is_cpu

    def annotation(self, block: Block, key: str) -> str | None:
        """Value of a block's annotation, ``None`` where it has none."""
        value = self.sch.get(block).annotations.get(key)
        return None if value is None else str(value)

    def anchor(self, family: str) -> Block | None:
        """The one block that ``family`` marked, or ``None``."""
        function = self.function
        # Most families that are asked have none; what all of them read is read once.
        if self._marks is None or not self._marks[0].same_as(function):
            self._marks = (function, [(b, self.annotation(b, FAMILY)) for b in self.blocks])
        found = [block for block, mark in self._marks[1] if mark == family]
        if len(found) > 1:
            logger.debug("%s declines: %d blocks are its anchor", family, len(found))
        return found[0] if len(found) == 1 else None

    def padding(self) -> Block | None:
        """The block that pads the anchor's input, or ``None``."""
        found = [b for b in self.blocks if self.annotation(b, ROLE) == PAD]
        return found[0] if len(found) == 1 else None

    def before(self, anchor: Block) -> list[Block]:
        """Blocks that precede the anchor in program order."""
        return self.blocks[: self._index(anchor)]

    def after(self, anchor: Block) -> list[Block]:
        """Blocks that follow the anchor in program order."""
        return self.blocks[self._index(anchor) + 1 :]

    def _index(self, anchor: Block) -> int:
        block = self.sch.get(anchor)
        return next(i for i, b in enumerate(self.blocks) if self.sch.get(b).same_as(block))

    def lanes_of(self, block: Block) -> int:
        """Vector lanes that the last loop of a block may become; 0 where it may not.

        TVM's OpenCL code is wrong for vectors of booleans: OpenCL's comparisons give
        -1 in each lane, as wide as the operands, where TVM counts on one byte of 1.
        """
        loops = self.sch.get_loops(block)
        found = self.sch.get(block)
        if len(loops) < 2 or keeps_booleans(found) or calls_scalar_function(found):
            return 0
        lane = lane_axis(self.sch, block)
        if lane is None or gathers_channels(found, lane) or gathers_bytes(found, lane):
            return 0
        extent = int(self.sch.get(loops[-1]).extent)
        return extent if extent in LANES else 0

    def reads_texture(self, block: Block, index: int) -> bool:
        """Whether what a block reads at a position of its ``reads`` is a texture."""
        return is_texture(self.sch.get(block).reads[index].source.scope())

    def writes_texture(self, block: Block) -> bool:
        """Whether a block writes a texture: then its last loop stays, for whole texels."""
        return is_texture(self.sch.get(block).writes[0].source.scope())

    def writes_converted(self, block: Block) -> bool:
        """Whether what a block writes is not kept as it is computed, scalar by scalar."""
        scope = self.sch.get(block).writes[0].source.scope()
        return is_texture(scope) or is_half(scope)

    # -- transformations -------------------------------------------------------------------

    def stage_texels(self, block: Block, index: int, staged: Block | None) -> Block | None:
        """Copy what a block reads of a texture to private memory, texel by texel.

        On a GPU also of a blocked tensor in a buffer, vector by vector: a product reads its
        lanes one at a time.  ``staged`` is a block that pads the tensor, which then is the
        copy.  Returns the block to be placed with :meth:`place_staged`, or ``None``.
        """
        reader, read = (block, index) if staged is None else (staged, 0)
        blocked = len(self.sch.get(reader).reads[read].region) == 5
        if not self.reads_texture(reader, read) and (self.is_cpu or not blocked):
            return None
        return self.sch.cache_read(block, index, "local") if staged is None else staged

    def stage_weights(self, block: Block, index: int) -> Block | None:
        """The same for weights, whose vectors are read as they are from buffers."""
        if not self.reads_texture(block, index):
            return None
        return self.sch.cache_read(block, index, "local")

    def place_staged(self, staged: Block, above: Loop) -> None:
        """Compute a staged copy under a loop, without a loop left of its own.

        Private memory that is indexed by a loop is memory indeed on a GPU; unrolled, its
        elements are registers.
        """
        self.sch.compute_at(staged, above)
        self.sch.set_scope(staged, 0, "local")
        loops = self.loops_below(staged, above)
        wide = bool(loops) and int(self.sch.get(loops[-1]).extent) in LANES
        block = self.sch.get(staged)
        if wide and not gathers_bytes(block, block.iter_vars[-1].var):
            self.vectorize_last(loops)
        else:
            self.unroll_all(loops)

    def inline(self, block: Block) -> None:
        """Compute a block where it is read; it is then no longer one of ``blocks``."""
        self.sch.compute_inline(block)
        self.blocks = [b for b in self.blocks if b is not block]

    def merge_epilogue(self, anchor: Block) -> Block:
        """Inline the epilogue into one block that writes the output, and return it.

        So is what only the epilogue reads: fusion puts elementwise blocks before the anchor, too.
        The anchor's own results (an argmax has two) stay in private memory.  Without an
        epilogue the output block copies the first.
        """
        for block in self.before(anchor):
            marked = self.annotation(block, FAMILY) or self.annotation(block, ROLE)
            if not marked and is_injective(self.sch, block):
                self.inline(block)
        epilogue = self.after(anchor)
        for block in epilogue[:-1]:
            self.inline(block)
        if epilogue:
            for index in range(len(self.sch.get(anchor).writes)):
                self.sch.set_scope(anchor, index, "local")
            return epilogue[-1]
        # cache_write leaves the anchor writing the private copy and returns the copying block.
        return self.sch.cache_write(anchor, 0, "local")

    def bind_outer(
        self, loops: Sequence[Loop], group_size: int | None = None, widest: int | None = None
    ) -> Loop:
        """Spread ``loops`` over the device; return the innermost loop that is left.

        Threads on a CPU, work-groups and work-items on OpenCL and CUDA; a group has at
        most ``group_size`` items, default the device's, and of them ``widest`` along the
        innermost loop.
        """
        if not self.target.is_gpu_kernel or self.is_cpu:
            fused = self.sch.fuse(*loops) if len(loops) > 1 else loops[0]
            if self.target.is_gpu_kernel:
                self.sch.bind(fused, "blockIdx.x")
            else:
                self.sch.parallel(fused)
            return fused
        left = group_size or self.target.device.group_size
        return self._bind_groups(loops, left, min(left, widest or left))

    def _bind_groups(self, loops: Sequence[Loop], left: int, widest: int) -> Loop:
        """Bind up to three axes to groups and items, the innermost loop fastest.

        Axes are split one by one and not as one fused index: a predicate on a
        fused index is beyond the affine analysis that later steps rely on.
        """
        axes = list(loops)
        if len(axes) > 3:
            axes = [self.sch.fuse(*axes[:-2]), *axes[-2:]]
        groups: list[Loop] = []
        items: list[Loop] = []
        for axis in reversed(axes):
            size = tile_of(int(self.sch.get(axis).extent), left if items else widest)
            left //= size
            outer, inner = self.sch.split(axis, [None, size])
            groups.insert(0, outer)
            items.insert(0, inner)
        self.sch.reorder(*groups, *items)
        for name, members in (("blockIdx", groups), ("threadIdx", items)):
            for dimension, loop in zip("xyz", reversed(members), strict=False):
                self.sch.bind(loop, f"{name}.{dimension}")
        return items[-1]

    def extents(self, block: Block) -> list[int]:
        """Extents of the loops around a block, outermost first."""
        return [int(self.sch.get(loop).extent) for loop in self.sch.get_loops(block)]

    def loops_below(self, block: Block, above: Loop) -> list[Loop]:
        """Loops of ``block`` that are nested inside the loop ``above``."""
        loops = self.sch.get_loops(block)
        marker = self.sch.get(above)
        depth = next(i for i, loop in enumerate(loops) if self.sch.get(loop).same_as(marker))
        return list(loops[depth + 1 :])

    def unroll_all(self, loops: Sequence[Loop]) -> None:
        """Unroll each of ``loops``."""
        for loop in loops:
            self.sch.unroll(loop)

    def vectorize_last(self, loops: Sequence[Loop]) -> None:
        """Vectorise the last loop and unroll the others."""
        self.unroll_all(loops[:-1])
        self.sch.vectorize(loops[-1])


def narrowed(value: tirx.PrimExpr, dtype: str | None) -> tirx.PrimExpr:
    """A factor or summand in the dtype of its sum; ``None`` leaves it as it is."""
    return value if dtype is None else tirx.Cast(dtype, value)


def widened(result: te.Tensor, dtype: str) -> te.Tensor:
    """Sums in the dtype of the tensors, converted by an elementwise block behind the anchor."""
    if result.dtype == dtype:
        return result
    return te.compute(result.shape, lambda *i: tirx.Cast(dtype, result(*i)), name="widen")
