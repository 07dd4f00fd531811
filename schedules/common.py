"""What every family needs: finding the anchor of a fused function, binding loops.

A *primary function* after fusion holds one *anchor* block (a convolution, say),
maybe a block that pads its input, and an *epilogue* of elementwise blocks.
Families mark the blocks they compute with an annotation, and find them again by
it, because names do not survive fusion unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad

from ..target import TargetSpec
from ..texture.scope import is_texture

#: Block annotations that mark a family's anchor and the padding of its input.
FAMILY = "tvmflow.family"
ROLE = "tvmflow.role"
PAD = "pad"

#: Widths that a vector type exists for.
LANES = (2, 4, 8, 16)

Block = Any
Loop = Any


@dataclass
class Workload:
    """A primary function about to be scheduled, with its blocks in program order."""

    sch: s_tir.Schedule
    target: TargetSpec
    blocks: list[Block]

    @classmethod
    def of(cls, function: tirx.PrimFunc, target: TargetSpec) -> Workload:
        """Start scheduling a function."""
        sch = s_tir.Schedule(function)
        root = sch.get_sblock("root", func_name="main")
        return cls(sch, target, list(sch.get_child_blocks(root)))

    @property
    def is_cpu(self) -> bool:
        """Whether one work-item is a whole thread's worth of work."""
        return self.target.device.group_size == 1

    def annotation(self, block: Block, key: str) -> str | None:
        """Value of a block's annotation, ``None`` where it has none."""
        value = self.sch.get(block).annotations.get(key)
        return None if value is None else str(value)

    def anchor(self, family: str) -> Block | None:
        """The one block that ``family`` marked, or ``None``."""
        found = [b for b in self.blocks if self.annotation(b, FAMILY) == family]
        return found[0] if len(found) == 1 else None

    def padding(self) -> Block | None:
        """The block that pads the anchor's input, or ``None``."""
        found = [b for b in self.blocks if self.annotation(b, ROLE) == PAD]
        return found[0] if len(found) == 1 else None

    def after(self, anchor: Block) -> list[Block]:
        """Blocks that follow the anchor in program order."""
        return self.blocks[self._position(anchor) + 1 :]

    def _position(self, block: Block) -> int:
        wanted = self.sch.get(block)
        return next(i for i, b in enumerate(self.blocks) if self.sch.get(b).same_as(wanted))

    def lanes_of(self, block: Block) -> int:
        """Vector lanes that the last loop of a block may become; 0 where it may not.

        TVM's OpenCL code is wrong for vectors of booleans: OpenCL's comparisons give
        -1 in each lane, as wide as the operands, where TVM counts on one byte of 1.
        """
        loops = self.sch.get_loops(block)
        if len(loops) < 2 or _decides_by_data(self.sch.get(block)):
            return 0
        if _gathers_channels(self.sch.get(block)):
            return 0
        extent = int(self.sch.get(loops[-1]).extent)
        return extent if extent in LANES else 0

    def reads_texture(self, block: Block, index: int) -> bool:
        """Whether what a block reads at a position of its ``reads`` is a texture."""
        return is_texture(self.sch.get(block).reads[index].source.scope())

    def writes_texture(self, block: Block) -> bool:
        """Whether a block writes a texture: then its last loop stays, for whole texels."""
        return is_texture(self.sch.get(block).writes[0].source.scope())

    # -- transformations -------------------------------------------------------------------

    def inline(self, block: Block) -> None:
        """Compute a block where it is read; it is then no longer one of ``blocks``."""
        self.sch.compute_inline(block)
        self.blocks = [b for b in self.blocks if b is not block]

    def merge_epilogue(self, anchor: Block) -> Block:
        """Inline the epilogue into one block that writes the output, and return it.

        The anchor's own result stays in private memory.  Without an epilogue the
        output block copies that result.  Elementwise blocks before the anchor are what
        the epilogue reads besides it.
        """
        for block in self.blocks[: self._position(anchor)]:
            if self.annotation(block, ROLE) is None:
                self.inline(block)
        epilogue = self.after(anchor)
        for block in epilogue[:-1]:
            self.inline(block)
        if epilogue:
            # An arg-max has two results: the place, and the value that it compares with.
            for index in range(len(self.sch.get(anchor).writes)):
                self.sch.set_scope(anchor, index, "local")
            return epilogue[-1]
        # cache_write leaves the anchor writing the private copy and returns the copying block.
        return self.sch.cache_write(anchor, 0, "local")

    def bind_outer(self, loops: Sequence[Loop]) -> Loop:
        """Spread ``loops`` over the device; return the innermost loop that is left.

        Threads on a CPU, work-groups and work-items on OpenCL and CUDA.
        """
        if not self.target.is_gpu_kernel or self.is_cpu:
            fused = self.sch.fuse(*loops) if len(loops) > 1 else loops[0]
            if self.target.is_gpu_kernel:
                self.sch.bind(fused, "blockIdx.x")
            else:
                self.sch.parallel(fused)
            return fused
        return self._bind_groups(loops)

    def _bind_groups(self, loops: Sequence[Loop]) -> Loop:
        """Bind up to three axes to groups and items, the innermost loop fastest.

        Axes are split one by one and not as one fused index: a predicate on a
        fused index is beyond the affine analysis that later steps rely on.
        """
        axes = list(loops)
        if len(axes) > 3:
            axes = [self.sch.fuse(*axes[:-2]), *axes[-2:]]
        left = self.target.device.group_size
        groups: list[Loop] = []
        items: list[Loop] = []
        for axis in reversed(axes):
            size = tile_of(int(self.sch.get(axis).extent), left)
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


def _decides_by_data(block: s_tir.SBlock) -> bool:
    """Whether a block reads, writes or computes booleans that depend on tensors' values."""
    regions = [*block.reads, *block.writes]
    if any(str(region.source.dtype) == "bool" for region in regions):
        return True
    found: list[Any] = []

    def compare(node: Any) -> None:
        tvm_ffi.structural_walk([node.a, node.b], (TensorLoad, found.append))

    tvm_ffi.structural_walk(block.body, (_COMPARISONS, compare))
    return bool(found)


def _gathers_channels(block: s_tir.SBlock) -> bool:
    """Whether a block takes the channels of a vector from different texels.

    An image read is a whole texel: lanes of a vector can be its channels, in order, and
    nothing else.
    """
    lane = block.iter_vars[-1].var if block.iter_vars else None
    loads: list[Any] = []
    tvm_ffi.structural_walk(block.body, (TensorLoad, loads.append))
    for load in loads:
        if not (tirx.is_buffer_var(load.source) and is_texture(load.source.scope())):
            continue
        *place, channel = load.indices
        varies = any(_uses(index, lane) for index in place)
        if varies or (_uses(channel, lane) and not channel.same_as(lane)):
            return True
    return False


def _uses(expr: Any, var: Any) -> bool:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if var is not None and node.same_as(var):
            found.append(node)

    tvm_ffi.structural_walk(expr, (tirx.Var, visit))
    return bool(found)


_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def largest_divisor(extent: int, limit: int) -> int:
    """Largest divisor of ``extent`` that is at most ``limit``."""
    return max(d for d in range(1, max(1, min(extent, limit)) + 1) if extent % d == 0)


def tile_of(extent: int, limit: int) -> int:
    """A tile of at most ``limit`` that wastes little of ``extent``.

    A divisor where a good one exists; else the tile whose last, partly empty
    tile leaves the fewest lanes idle (ties go to the larger tile).
    """
    limit = max(1, min(extent, limit))
    divisor = largest_divisor(extent, limit)
    if 2 * divisor >= limit:
        return divisor
    return min(range(limit, 0, -1), key=lambda t: -(-extent // t) * t - extent + limit // t)
