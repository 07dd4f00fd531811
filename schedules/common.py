"""Shared parts of the schedules: finding blocks, binding loops, staging, tile sizes.

A *primary function* after fusion holds one *anchor* block (a convolution, for example), possibly a
block that pads its input, and an *epilogue* of elementwise blocks.  Families mark their blocks with
an annotation by which they find them again, because names do not survive fusion unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import prod
from typing import TypeAlias

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Range
from tvm.ir.expr import TensorLoad
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import Analyzer
from tvm.tirx import IterVar

from ..devices.target import TargetSpec
from ..ir.annotations import CONSTANT_SUFFIX
from ..ir.booleans import keeps_booleans
from ..ir.expressions import CHOICE, conjuncts, nodes_in, substitute_vars, uses, with_fields
from ..ir.extremes import never_nan
from ..ir.rewriter import op_name
from ..ir.scope import is_half, is_texture
from ..ir.signatures import with_parameters
from .sizes import LANES, filled_group

logger = logging.getLogger(__name__)

#: Block annotations that mark a family's anchor and the padding of its input.
FAMILY = "tvmflow.family"
ROLE = "tvmflow.role"
PAD = "pad"
#: Most nodes in an expression that results from inlining.
MOST_NODES = 2000
#: Most levels of nested conditions.
MOST_CONDITIONS = 3
#: Most levels of nested expressions: OpenCL's compilers take 256 brackets, and a sigmoid has four.
MOST_LEVELS = 48
#: Most levels of nested maxima and minima of two tensors: TVM's LLVM code generator analyses the
#: first operand of each twice, as it has a name.
MOST_EXTREMES = 8

Block: TypeAlias = SBlockRV
Loop: TypeAlias = LoopRV


# -- questions about blocks ---------------------------------------------------------------


def is_reduction(sch: s_tir.Schedule, block: Block) -> bool:
    """Return whether a block reduces over some axis."""
    return any(v.iter_type == IterVar.CommReduce for v in sch.get(block).iter_vars)


def is_injective(sch: s_tir.Schedule, block: Block) -> bool:
    """Return whether all of a block's axes are data parallel.

    An opaque block (loops that TVM wrote itself) declares neither its axes nor its writes.
    """
    found = sch.get(block)
    return bool(found.writes) and all(v.iter_type == IterVar.DataPar for v in found.iter_vars)


def launches_threads(sch: s_tir.Schedule, block: Block) -> bool:
    """Return whether a block already runs on the device's threads, by its loops or inside.

    An opaque block may launch several kernels, one after the other, which must not be merged into
    one: nothing would order them.
    """
    if any(sch.get(loop).thread_binding is not None for loop in sch.get_loops(block)):
        return True
    statements = nodes_in(sch.get(block).body, tirx.AttrStmt)
    return any(statement.attr_key == "thread_extent" for statement in statements)


def gathers_bytes(block: s_tir.SBlock, lane: tirx.Var) -> bool:
    """Return whether a vector's lanes, counted by an axis, are 8-bit numbers from different places.

    TVM's OpenCL code would assemble them as bytes of one number, and store that as a vector.
    """
    return any(
        str(load.source.dtype) in ("int8", "uint8")
        and any(uses(index, lane) for index in load.indices)
        and not load.indices[-1].same_as(lane)
        for load in nodes_in(block.body, TensorLoad)
    )


def gathers_channels(block: s_tir.SBlock, lane: tirx.Var) -> bool:
    """Return whether a block takes a vector's channels, counted by an axis, from different texels.

    An image read returns a whole texel: lanes of a vector can only be its channels, in order.
    """
    analyzer = Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    for load in nodes_in(block.body, TensorLoad):
        if not (tirx.is_buffer_var(load.source) and is_texture(load.source.scope())):
            continue
        # A channel index made of blocks and lanes counts as such a lane, too.
        *place, channel = (analyzer.simplify(index) for index in load.indices)
        varies = any(uses(index, lane) for index in place)
        if varies or (uses(channel, lane) and not channel.same_as(lane)):
            return True
    return False


def _decline_long(block: s_tir.SBlock, readers: Sequence[s_tir.SBlock]) -> None:
    """Raise TVM's ``ScheduleError`` if inlining a block into its readers would take too long.

    Expressions grow exponentially along a chain of blocks that are read several times.  So does
    the time of TVM's simplifier with nested conditions: it simplifies a condition once for each of
    its branches, and once more with what it implies (7 s for six levels).
    """
    bodies = [reader.body for reader in readers]
    written = [region.source for region in block.writes]
    own, theirs = (len(nodes_in(root, tirx.Expr)) for root in (block.body, bodies))
    if _reads(bodies, written) * own + theirs > MOST_NODES:
        raise s_tir.ScheduleError(f"{block.name_hint} is too long to be inlined into its readers")
    extremes = len(nodes_in([block.body, bodies], tirx.Max, tirx.Min))
    limits = ((own + theirs, MOST_LEVELS, lambda _: True), (extremes, MOST_EXTREMES, _is_extreme))
    for count, most, counts in limits:
        # There are no more levels than nodes, which are counted faster.
        if count > most and most < (_levels(block.body, counts) + _levels(bodies, counts, written)):
            raise s_tir.ScheduleError(f"{block.name_hint} nests too many expressions")
    depth = _conditions(block.body)
    if depth and depth + _conditions(bodies, written) > MOST_CONDITIONS:
        raise s_tir.ScheduleError(f"{block.name_hint} has conditions, and is read inside others")


def _reads(root: object, buffers: Sequence[tirx.Expr]) -> int:
    """Return how often any of the buffers is read."""
    return sum(_reads_one(load, buffers) for load in nodes_in(root, TensorLoad))


def _reads_one(expr: tirx.Expr, buffers: Sequence[tirx.Expr]) -> bool:
    return isinstance(expr, TensorLoad) and any(expr.source.same_as(b) for b in buffers)


def _is_extreme(expr: tirx.Expr) -> bool:
    """Return whether a maximum or minimum has to check its first operand for NaN."""
    return isinstance(expr, (tirx.Max, tirx.Min)) and not (never_nan(expr.a) or never_nan(expr.b))


def _levels(
    root: object,
    counts: Callable[[tirx.Expr], bool],
    buffers: Sequence[tirx.Expr] | None = None,
) -> int:
    """Return how many counted expressions are nested, or enclose a read of a buffer."""
    level = most = 0

    def visit(expr: tirx.Expr, visitor: tvm_ffi.StructuralVisitor) -> None:
        nonlocal level, most
        own = counts(expr)
        level += own
        if buffers is None or _reads_one(expr, buffers):
            most = max(most, level)
        visitor.default_visit(expr)
        level -= own

    tvm_ffi.structural_visit(root, (tirx.Expr, visit))
    return most


def _conditions(root: object, buffers: Sequence[tirx.Expr] | None = None) -> int:
    """Return the depth of nested conditions, or of those around a read of a buffer."""
    found = [
        node.condition if isinstance(node, tirx.Select) else node.args[0]
        for node in nodes_in(root, tirx.Select, Call)
        if isinstance(node, tirx.Select) or op_name(node) == CHOICE
    ]
    around = (x for x in found if buffers is None or _reads(x, buffers))
    return max((1 + _conditions(condition, buffers) for condition in around), default=0)


def is_vector(block: s_tir.SBlock) -> bool:
    """Return whether a block without textures may be computed in vectors.

    TVM's OpenCL code is wrong for vectors of booleans: OpenCL's comparisons give -1 in each lane,
    as wide as the operands, while TVM expects one byte of 1.  Its LLVM code has some functions
    for scalars only.
    """
    calls = {getattr(call.op, "name", None) for call in nodes_in(block.body, Call)}
    return not (keeps_booleans(block) or calls & {"tirx.sinh", "tirx.cosh"})


# -- a function that is being scheduled ---------------------------------------------------


class NoAnchor(Exception):  # noqa: N818 (no error: another family is asked)
    """Raised if a function has no block, or several, of a family that needs exactly one."""


@dataclass
class Workload:
    """A primary function that is being scheduled, with its blocks in program order."""

    sch: s_tir.Schedule
    target: TargetSpec
    blocks: list[Block]
    #: The function for which the marks were read, and the family that marks each block.
    _marks: tuple[tirx.PrimFunc, list[tuple[Block, str | None]]] | None = None

    @classmethod
    def of(cls, function: tirx.PrimFunc, target: TargetSpec) -> Workload:
        """Start scheduling a function."""
        sch = s_tir.Schedule(function)
        root = sch.get_sblock("root", func_name="main")
        return cls(sch, target, list(sch.get_child_blocks(root)))

    @property
    def function(self) -> tirx.PrimFunc:
        """Return the function as scheduled so far."""
        return self.sch.mod["main"]

    @property
    def is_cpu(self) -> bool:
        """Return whether each work-item is as much work as a CPU's thread."""
        return self.target.device.is_cpu

    def annotation(self, block: Block, key: str) -> str | None:
        """Return the value of a block's annotation, ``None`` if it has none."""
        value = self.sch.get(block).annotations.get(key)
        return None if value is None else str(value)

    def anchors(self, family: str) -> list[Block]:
        """Return the blocks that ``family`` marked."""
        function = self.function
        # Most families have no block in a function; the annotations are read once for all of them.
        if self._marks is None or not self._marks[0].same_as(function):
            self._marks = (function, [(b, self.annotation(b, FAMILY)) for b in self.blocks])
        return [block for block, mark in self._marks[1] if mark == family]

    def anchor(self, family: str) -> Block:
        """Return the block that ``family`` marked; raise :class:`NoAnchor` unless there is one."""
        found = self.anchors(family)
        if len(found) > 1:
            logger.debug("%s declines: %d blocks are its anchor", family, len(found))
        if len(found) != 1:
            raise NoAnchor(family)
        return found[0]

    def with_role(self, role: str) -> list[Block]:
        """Return the blocks to which a family gave a role."""
        return [block for block in self.blocks if self.annotation(block, ROLE) == role]

    def padding(self) -> Block | None:
        """Return the block that pads the anchor's input, or ``None``."""
        found = self.with_role(PAD)
        return found[0] if len(found) == 1 else None

    def before(self, anchor: Block) -> list[Block]:
        """Return the blocks that precede the anchor in program order."""
        found = self.sch.get(anchor)
        return list(takewhile(lambda b: not self.sch.get(b).same_as(found), self.blocks))

    def after(self, anchor: Block) -> list[Block]:
        """Return the blocks that follow the anchor in program order."""
        return self.blocks[len(self.before(anchor)) + 1 :]

    def extents(self, block: Block) -> list[int]:
        """Return the extents of the loops around a block, outermost first."""
        return [int(self.sch.get(loop).extent) for loop in self.sch.get_loops(block)]

    @property
    def operations(self) -> int:
        """Return the number of iterations of all blocks."""
        return sum(prod(self.extents(block)) for block in self.blocks)

    def loops_below(self, block: Block, above: Loop) -> list[Loop]:
        """Return the loops of ``block`` that are nested inside the loop ``above``."""
        loops = self.sch.get_loops(block)
        marker = self.sch.get(above)
        depth = next(i for i, loop in enumerate(loops) if self.sch.get(loop).same_as(marker))
        return list(loops[depth + 1 :])

    def by_kind(self, block: Block, loops: Sequence[Loop]) -> tuple[list[Loop], list[Loop]]:
        """Split a block's innermost loops, one for each axis, into spatial and reduced ones."""
        kinds = [v.iter_type for v in self.sch.get(block).iter_vars][-len(loops) :]
        found: tuple[list[Loop], list[Loop]] = ([], [])
        for loop, kind in zip(loops, kinds, strict=True):
            found[kind != IterVar.DataPar].append(loop)
        return found

    def lanes_of(self, block: Block) -> int:
        """Return the lanes of a vector into which a block's last loop may turn; 0 if it may not."""
        loops = self.sch.get_loops(block)
        found = self.sch.get(block)
        if len(loops) < 2 or not is_vector(found):
            return 0
        innermost = self.sch.get(loops[-1])
        realize = innermost.body
        if not isinstance(realize, s_tir.SBlockRealize):
            return 0
        pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        # The block's axis that the innermost loop counts.
        lane = next((axis.var for axis, value in pairs if uses(value, innermost.loop_var)), None)
        if lane is None or gathers_channels(found, lane) or gathers_bytes(found, lane):
            return 0
        extent = int(innermost.extent)
        return extent if extent in LANES else 0

    def reads_texture(self, block: Block, index: int) -> bool:
        """Return whether a block's read number ``index`` is a texture."""
        return is_texture(self.sch.get(block).reads[index].source.scope())

    def writes_texture(self, block: Block) -> bool:
        """Return whether a block writes a texture, whose texels need the last loop unsplit."""
        return is_texture(self.sch.get(block).writes[0].source.scope())

    def writes_converted(self, block: Block) -> bool:
        """Return whether a block's results are not stored as computed, scalar by scalar."""
        scope = self.sch.get(block).writes[0].source.scope()
        return is_texture(scope) or is_half(scope)

    def input_facts(self, anchor: Block) -> tuple[bool, bool]:
        """Return whether an anchor's first input is padded, and whether it is a texture."""
        pad = self.padding()
        return pad is not None, self.reads_texture(anchor if pad is None else pad, 0)

    # -- staging ---------------------------------------------------------------------------

    def stage_texels(self, block: Block, index: int, staged: Block | None) -> Block | None:
        """Copy a block's reads of a texture to private memory, texel by texel.

        On a GPU, a blocked tensor in a buffer is copied, too, vector by vector: a product reads its
        lanes one at a time.  If a block ``staged`` pads the tensor, that block is the copy.
        Returns the block to be placed with :meth:`place_staged`, or ``None``.
        """
        reader, read = (block, index) if staged is None else (staged, 0)
        blocked = len(self.sch.get(reader).reads[read].region) == 5
        if not self.reads_texture(reader, read) and (self.is_cpu or not blocked):
            return None
        return self.sch.cache_read(block, index, "local") if staged is None else staged

    def stage_weights(self, block: Block, index: int) -> Block | None:
        """Copy weights in a texture likewise; vectors in buffers are read without a copy."""
        if not self.reads_texture(block, index):
            return None
        return self.sch.cache_read(block, index, "local")

    def compute_in_registers(self, block: Block, above: Loop) -> list[Loop]:
        """Compute a block under a loop, into private memory; return its loops there."""
        self.sch.compute_at(block, above)
        self.sch.set_scope(block, 0, "local")
        return self.loops_below(block, above)

    def drop_tests(self, block: Block, needless: Callable[[tirx.Expr], bool]) -> None:
        """Remove those of a block's tests that are known to be needless."""
        realize = self._innermost(block)
        if realize is not None:
            self._replace_innermost(block, _without_tests(realize, needless), {})

    def sum_whole_tiles(
        self, anchor: Block, texels: Block | None, weights: Block | None, *, weighted: bool = True
    ) -> None:
        """Let sums of staged texels run past the ends of the map, in a last, partly empty tile.

        Only stores need tests: superfluous sums in registers do no harm.  Sums past the last output
        channel have no weights to read, so they stay untested only if weights are staged, too, or
        there are none.
        """
        realize = self._innermost(anchor)
        if texels is None or realize is None:
            return
        _, channels, row, column, *_ = realize.iter_values
        beyond = [channels, row, column] if weights is not None or not weighted else [row, column]
        self.drop_tests(anchor, _counts_along(beyond))

    def drop_tests_of_texels(self, block: Block, inner: Sequence[Loop]) -> None:
        """Drop the tests along all axes of a block that copies texels in the loops ``inner``.

        Reads outside of an image are undefined, and some drivers fault, so the last texel is read
        instead.  Places that the block tests itself are those of a padded picture
        (:mod:`tvmflow.codegen.clamp_reads`).  Tests stay if a tile may begin before the first place
        or is larger than all of them, because private memory has the size of what is inside.
        """
        realize = self._innermost(block)
        if realize is None:
            return
        analyzer, own = Analyzer(), {}
        for loop in map(self.sch.get, self.sch.get_loops(block)):
            analyzer.bind(loop.loop_var, Range.from_min_extent(loop.min, loop.extent))
        for loop in map(self.sch.get, inner):
            own[loop.loop_var] = loop.min
        copied, last = realize.block, {}
        tests = [call.args[0] for call in nodes_in(copied.body, Call) if op_name(call) == CHOICE]
        for axis, place in zip(copied.iter_vars, realize.iter_values, strict=True):
            extent, first = axis.dom.extent, substitute_vars(place, own)
            if not (analyzer.can_prove(first >= 0) and analyzer.can_prove(place - first < extent)):
                return
            if not analyzer.can_prove(place < extent) and not uses(tests, axis.var):
                last[axis.var] = tirx.min(axis.var, extent - 1)
        body = tvm_ffi.structural_map(
            copied.body, (TensorLoad, lambda load: substitute_vars(load, last))
        )
        block_inside = with_fields(copied, body=body)
        whole = _without_tests(realize, _counts_along(realize.iter_values))
        whole = s_tir.SBlockRealize(whole.iter_values, whole.predicate, block_inside)
        self._replace_innermost(block, whole, {copied: block_inside})

    def _innermost(self, block: Block) -> s_tir.SBlockRealize | None:
        """Return the body of a block's innermost loop if it is the block alone."""
        body = self.sch.get(self.sch.get_loops(block)[-1]).body
        return body if isinstance(body, s_tir.SBlockRealize) else None

    def _replace_innermost(
        self,
        block: Block,
        realize: s_tir.SBlockRealize,
        blocks: Mapping[s_tir.SBlock, s_tir.SBlock],
    ) -> None:
        """Replace the body of a block's innermost loop, and the ``blocks`` in it."""
        loop = self.sch.get_loops(block)[-1]
        changed = with_fields(self.sch.get(loop), body=realize)
        self.sch.state.replace(self.sch.get_sref(loop), changed, dict(blocks))

    def place_staged(self, staged: Block | None, above: Loop) -> None:
        """Compute a staged copy, if there is one, under a loop, and unroll or vectorise its loops.

        Private memory that a loop indexes is in memory on a GPU; unrolled, its elements are
        registers.
        """
        if staged is None:
            return
        loops = self.compute_in_registers(staged, above)
        if self.reads_texture(staged, 0):
            self.drop_tests_of_texels(staged, loops)
        wide = bool(loops) and int(self.sch.get(loops[-1]).extent) in LANES
        block = self.sch.get(staged)
        if wide and not gathers_bytes(block, block.iter_vars[-1].var):
            self.vectorize_last(loops)
        else:
            self.unroll_all(loops)

    def stage_padded(self, pad: Block, above: Loop) -> None:
        """Copy a padded input tile to private memory under a loop, in vectors if it has lanes."""
        loops, block = self.compute_in_registers(pad, above), self.sch.get(pad)
        blocked = len(loops) >= 3 and len(block.writes[0].region) == 5
        if blocked and int(self.sch.get(loops[-1]).extent) in LANES:
            gathered = gathers_bytes(block, block.iter_vars[-1].var)
            (self.sch.unroll if gathered else self.sch.vectorize)(loops[-1])

    def stage_in_local_memory(self, reader: Block, index: int, above: Loop) -> None:
        """Copy a thread-bound block's operand to local memory in each iteration of a loop."""
        copy = self.sch.cache_read(reader, index, "shared")
        self.sch.compute_at(copy, above)
        loops = self.loops_below(copy, above)
        lanes = int(self.sch.get(loops[-1]).extent)
        lanes = lanes if lanes in LANES and len(loops) > 1 else 1
        self.share_among_items(loops, self.group_extents(reader), lanes)

    def share_among_items(
        self, loops: Sequence[Loop], items: Mapping[str, int], lanes: int = 1
    ) -> None:
        """Bind the loops of a copy, in vectors of ``lanes``, to the items of a group."""
        *rest, last = loops
        if lanes > 1:
            last, lane = self.sch.split(last, [None, lanes])
            self.sch.vectorize(lane)
        _, *parts = self.sch.split(self.fuse([*rest, last]), [None, *items.values()])
        self.bind(zip(items, parts, strict=True))

    def group_extents(self, block: Block) -> dict[str, int]:
        """Return the work-items of a block's group along each bound axis, the fastest last."""
        loops = [self.sch.get(loop) for loop in self.sch.get_loops(block)]
        bound = [x for x in loops if x.thread_binding is not None]
        tags = {str(x.thread_binding.thread_tag): int(x.extent) for x in bound}
        return {tag: tags[tag] for tag in sorted(tags, reverse=True) if tag.startswith("thread")}

    # -- transformations -------------------------------------------------------------------

    def inline(self, *blocks: Block) -> None:
        """Inline blocks into their readers, and remove them from ``blocks``.

        Raises TVM's ``ScheduleError`` if that makes an expression that takes too long.
        """
        for block in blocks:
            readers = [self.sch.get(reader) for reader in self.sch.get_consumers(block)]
            _decline_long(self.sch.get(block), readers)
            self.sch.compute_inline(block)
            self.blocks = [b for b in self.blocks if b is not block]

    def bind(self, axes: Iterable[tuple[str, Loop]]) -> None:
        """Bind loops to axes of groups and items, which are named as in CUDA."""
        for name, loop in axes:
            self.sch.bind(loop, name)

    def bind_batch(self, batch: Sequence[Loop]) -> None:
        """Bind the batch of products to separate groups."""
        if batch:
            self.sch.bind(self.fuse(batch), "blockIdx.z")

    def merge_epilogue(self, anchor: Block) -> Block:
        """Inline the epilogue into one block that writes the output, and return it.

        Producers that only the epilogue reads are inlined, too: fusion also puts elementwise blocks
        before the anchor.  The anchor's own results (an argmax has two) stay in private memory.
        Without an epilogue the output block copies the first.
        """
        for block in self.before(anchor):
            marked = self.annotation(block, FAMILY) or self.annotation(block, ROLE)
            if not marked and is_injective(self.sch, block):
                self.inline(block)
        epilogue = self.after(anchor)
        self.inline(*epilogue[:-1])
        if epilogue:
            for index in range(len(self.sch.get(anchor).writes)):
                self.sch.set_scope(anchor, index, "local")
            return epilogue[-1]
        # cache_write leaves the anchor writing the private copy and returns the copying block.
        return self.sch.cache_write(anchor, 0, "local")

    def fuse(self, loops: Sequence[Loop]) -> Loop:
        """Fuse nested loops into one."""
        return self.sch.fuse(*loops) if len(loops) > 1 else loops[0]

    def tile(
        self, block: Block, sizes: Sequence[int], group: int | Sequence[int]
    ) -> tuple[Loop, list[Loop]]:
        """Give each work-item a tile of a block's output.

        ``sizes`` are the tile's extents, 0 for a loop that is not split; later loops, which count
        lanes, belong to the item, too.  ``group`` is passed to :meth:`bind_outer`.  Returns the
        innermost loop over work-items, and the loops over a tile.
        """
        loops = self.sch.get_loops(block)
        outer, inner = [], []
        for loop, size in zip(loops, sizes, strict=False):
            if size:
                loop, part = self.sch.split(loop, [None, size])
                inner.append(part)
            outer.append(loop)
        inner += loops[len(sizes) :]
        self.sch.reorder(*outer, *inner)
        return self.bind_outer(outer, group), inner

    def bind_outer(self, loops: Sequence[Loop], group: int | Sequence[int] | None = None) -> Loop:
        """Distribute ``loops`` over the device; return the innermost loop that is left.

        They become threads on a CPU, work-groups and work-items on OpenCL and CUDA.  ``group`` is a
        work-group's extents along the last three axes, where all loops but the last two are fused
        into one axis; or the most items in it (default: the device's), the last axis first.
        """
        if not self.target.is_gpu_kernel or self.is_cpu:
            fused = self.fuse(loops)
            if self.target.is_gpu_kernel:
                self.sch.bind(fused, "blockIdx.x")
            else:
                self.sch.parallel(fused)
            return fused
        # Up to three axes are split one by one and not as one fused index: a predicate on a fused
        # index is beyond the affine analysis that later steps rely on.
        axes = [self.fuse(loops[:-2]), *loops[-2:]] if len(loops) > 3 else loops
        if group is None or isinstance(group, int):
            extents = [int(self.sch.get(axis).extent) for axis in axes]
            device = self.target.device
            group = filled_group(extents, group or device.group_size, wave=device.wave)
        pairs = zip(axes, group[-len(axes) :], strict=True)
        parts = [self.sch.split(axis, [None, size]) for axis, size in pairs]
        groups, items = [outer for outer, _ in parts], [inner for _, inner in parts]
        self.sch.reorder(*groups, *items)
        for name, members in (("blockIdx", groups), ("threadIdx", items)):
            names = (f"{name}.{dimension}" for dimension in "xyz")
            self.bind(zip(names, reversed(members), strict=False))
        return items[-1]

    def unroll_all(self, loops: Sequence[Loop]) -> None:
        """Unroll each of ``loops``."""
        for loop in loops:
            self.sch.unroll(loop)

    def vectorize_last(self, loops: Sequence[Loop]) -> None:
        """Vectorise the last loop and unroll the others."""
        self.unroll_all(loops[:-1])
        self.sch.vectorize(loops[-1])

    def split_channels(
        self, i: Loop, lanes: int, unroll: int, window: Sequence[Loop], tile: Sequence[Loop]
    ) -> tuple[Loop, Loop, Loop]:
        """Split the sum over input channels into blocks of ``lanes``, and these by ``unroll``.

        The order from the outside to the inside is then: blocks, the window, channels of a block,
        and the tile, whose elements are all multiplied by one channel before the next.
        """
        i_block, i_lane = self.sch.split(i, [None, lanes])
        i_outer, i_inner = self.sch.split(i_lane, [None, unroll])
        self.sch.reorder(i_block, *window, i_outer, i_inner, *tile)
        return i_block, i_outer, i_inner

    def split_init(self, block: Block, loop: Loop, above: Loop) -> None:
        """Initialise sums to zero before a loop, in vectors, under the loop ``above``."""
        init = self.sch.decompose_reduction(block, loop)
        self.vectorize_last(self.loops_below(init, above))


def _counts_along(places: Iterable[tirx.Expr]) -> Callable[[tirx.Expr], bool]:
    """Return a predicate for tests whose variables all occur in ``places``, a block's indices."""
    counters = {var for place in places for var in nodes_in(place, tirx.Var)}
    return lambda test: counters.issuperset(nodes_in(test, tirx.Var))


def _without_tests(
    realize: s_tir.SBlockRealize, needless: Callable[[tirx.Expr], bool]
) -> s_tir.SBlockRealize:
    kept = [test for test in conjuncts(realize.predicate) if not needless(test)]
    return s_tir.SBlockRealize(
        realize.iter_values, tirx.all(*kept) if kept else True, realize.block
    )


# -- local and constant memory of a schedule ----------------------------------------------


def local_bytes(schedule: s_tir.Schedule) -> int:
    """Return the local memory of a scheduled function, in bytes."""
    if not _local_buffers(schedule.mod["main"]):
        return 0
    # Buffers that are copied under a loop have their final size only after compaction.
    transform = s_tir.transform
    passes = tvm.transform.Sequential(
        [
            transform.CanonicalizeLoop(),
            transform.LowerCrossThreadReduction(),
            transform.LowerInitBlock(),
            transform.PlanAndUpdateBufferAllocationLocation(),
            transform.ConvertBlocksToOpaque(),
            transform.CompactBufferAllocation(),
        ]
    )
    return sum(
        prod(int(d) for d in buffer.shape) * tvm_ffi.dtype(buffer.dtype).itemsize
        for buffer in _local_buffers(passes(schedule.mod)["main"])
    )


def _local_buffers(function: tirx.PrimFunc) -> list[tirx.Var]:
    blocks = nodes_in(function.body, s_tir.SBlock)
    return [b for block in blocks for b in block.alloc_buffers if b.scope() == "shared"]


def to_constant_memory(schedule: s_tir.Schedule, source: tirx.Var) -> s_tir.Schedule | None:
    """Declare the parameter ``source`` as a tensor that kernels read from constant memory.

    Returns ``None`` if the tensor is no parameter, but computed in the function.
    """
    function = schedule.mod["main"]
    old = next((param for param in function.params if param.name == source.name), None)
    if old is None:
        return None
    new = tirx.decl_buffer(old.shape, old.dtype, old.name + CONSTANT_SUFFIX, scope=old.scope())
    return s_tir.Schedule(with_parameters(function, {old: new}))
