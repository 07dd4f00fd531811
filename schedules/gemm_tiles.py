"""What schedules of the products of :mod:`.gemm` share: shapes, copies of tiles, the way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from math import gcd, prod
from typing import Any, TypeVar

from ..devices.target import Device
from .access import Axis, regroup
from .common import ROLE, Block, Loop, Workload
from .family import Constraint
from .gemm import LEFT, NAME, OUTPUT, RIGHT

T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """What the knobs depend on: extents after padding."""

    batch: int
    rows: int
    columns: int
    depth: int
    #: Elements that are read at once of each factor.
    left_lanes: int
    right_lanes: int
    _: KW_ONLY
    #: Whether factors have 16 bits.
    half: bool


#: Of every family of these products.
STAGES = Constraint(
    "stages is at most 4, and at most the steps along the depth.",
    lambda k, s, d: k.stages <= 4 and k.stages <= s.depth // k.tile_k,
)


def shared_limit(device: Device) -> int:
    """Shared memory of a work-group on CUDA; 0 on other targets."""
    return 0 if device.multiprocessors is None else device.multiprocessors.shared_bytes


def stage_counts(device: Device) -> range:
    """Stages to try, the best first: three where copies are asynchronous, else two.

    Three hide some 600 cycles of memory behind two steps of products (an assumption).
    """
    gpu = device.multiprocessors
    return range(3 if gpu is not None and gpu.async_copies else 2, 0, -1)


def groups(shape: Shape, rows: int, columns: int) -> int:
    """Work-groups of a launch, of so many rows and columns each."""
    return shape.batch * (shape.rows // rows) * (shape.columns // columns)


def copies_evenly(shape: Shape, rows: int, columns: int, depth: int, items: int) -> bool:
    """Whether every item of a group copies as many vectors of a tile as the others."""
    left = rows * depth % (items * shape.left_lanes)
    return not left and not depth * columns % (items * shape.right_lanes)


def first_that_fills(
    fitting: Sequence[T], groups: Callable[[T, Shape], int], shape: Shape, device: Device
) -> T:
    """The first knobs with a work-group for each multiprocessor, else those with most groups."""
    assert device.multiprocessors is not None
    wanted = device.multiprocessors.count
    enough = (k for k in fitting if groups(k, shape) >= wanted)
    return next(enough, max(fitting, key=lambda k: groups(k, shape)))


def shape_of(workload: Workload) -> Shape | None:
    """The shape of a function whose anchor is a product, else ``None``."""
    anchor = workload.anchor(NAME)
    if anchor is None:
        return None
    *batch, rows, columns, depth = workload.extents(anchor)
    half = str(workload.sch.get(anchor).reads[-1].source.dtype) == "float16"
    lanes = [_lanes(workload, factor, half) for factor in (LEFT, RIGHT)]
    return Shape(prod(batch), rows, columns, depth, *lanes, half=half)


def _lanes(workload: Workload, factor: str, half: bool) -> int:
    """Elements of a factor in 16 bytes, or fewer where rows in memory are no multiple of these."""
    source = workload.sch.get(role(workload, factor)).reads[0].source
    return gcd(int(source.shape[-1]), 8 if half else 4)


def role(workload: Workload, name: str) -> Block:
    """The block with a role; there is one."""
    return next(b for b in workload.blocks if workload.annotation(b, ROLE) == name)


def flatten_output(workload: Workload) -> tuple[Block, Block]:
    """Make what follows the product one block with an axis for its rows and one for its columns.

    Returns
    -------
    anchor, output
        The block of products, and the one that writes the function's result.
    """
    sch: Any = workload.sch
    anchor = workload.anchor(NAME)
    for block in workload.before(anchor):
        if workload.annotation(block, ROLE) not in (LEFT, RIGHT):
            workload.inline(block)
    pixels = is_convolution(workload)
    *inlined, output = workload.after(anchor)
    for block in inlined:
        workload.inline(block)
    if pixels:
        axes = [Axis(v.var, int(v.dom.extent), i) for i, v in enumerate(sch.get(output).iter_vars)]
        regroup(sch, output, axes, [[0, 2, 3], [1, 4]])
    return anchor, output


def is_convolution(workload: Workload) -> bool:
    """Whether rows are pixels, and the result is in blocks of channels."""
    return (
        len(workload.sch.get(role(workload, OUTPUT)).iter_vars)
        == 5
        == 2 + len(workload.extents(workload.anchor(NAME)))
    )


def copy_tile(
    workload: Workload, block: Block, above: Loop, threads: dict[str, int], lanes: int
) -> None:
    """Have all items of a group copy a tile together, a vector each, side by side."""
    sch: Any = workload.sch
    # Before it is placed: only then does it cover what the items of the group read together.
    sch.set_scope(block, 0, "shared.dyn")
    sch.compute_at(block, above)
    fused = sch.fuse(*workload.loops_below(block, above)[-2:])
    _, *parts, vector = sch.split(fused, [None, *threads.values(), lanes])
    for name, part in zip(threads, parts, strict=True):
        sch.bind(part, name)
    sch.vectorize(vector)


def store_output(
    workload: Workload,
    output: Block,
    above: Loop,
    threads: dict[str, int],
    lanes: int,
    pixels: bool,
) -> None:
    """Have all items of a group write a tile of results, in the order in which they are in memory.

    ``pixels`` says that those of a block of channels are: else columns.
    """
    sch: Any = workload.sch
    m, n = workload.loops_below(output, above)[-2:]
    n, vector = sch.split(n, [None, lanes])
    if pixels:
        sch.reorder(n, m, vector)
    _, *parts = sch.split(sch.fuse(n, m) if pixels else sch.fuse(m, n), [None, *threads.values()])
    for name, part in zip(threads, parts, strict=True):
        sch.bind(part, name)
    sch.vectorize(vector)


def ahead(workload: Workload, loop: Loop, stages: int) -> None:
    """Copy the tiles of ``stages - 1`` later steps while one is multiplied."""
    if stages == 1:
        return
    sch: Any = workload.sch
    gpu = workload.target.device.multiprocessors
    sch.annotate(loop, "software_pipeline_stage", [0, 0, stages - 1])
    sch.annotate(loop, "software_pipeline_order", [0, 1, 2])
    if gpu is not None and gpu.async_copies:
        sch.annotate(loop, "software_pipeline_async_stages", [0])


def bind_batch(workload: Workload, batch: Sequence[Loop]) -> None:
    """Give each product of a batch groups of its own."""
    if batch:
        loop = workload.sch.fuse(*batch) if len(batch) > 1 else batch[0]
        workload.sch.bind(loop, "blockIdx.z")
