"""The mean of a function of boxes over those that are valid, in one pass.

Two kernels: one in which each work-group sums up its share, and one that adds these sums in a fixed
order.  One group alone needs no second kernel, nor do the threads of a CPU.

What it computes::

    sum    = Σ over b < B, j < M with valid(b, j) of term(b, j)
    number = Σ over b < B, j < M with valid(b, j) of 1
    mean   = sum / max(number, 1)

A term of a box that is not valid is not computed: what it would read may not even exist, as
in packed tensors, and what it would be, a NaN say, reaches nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from tvm import s_tir, te, tirx

from ..devices.target import Device
from .common import FAMILY, Workload, is_injective, power_of_2
from .family import GROUP_FITS, Constraint, Value, knob
from .masked_groups import WARP
from .masked_kernels import Outputs, write_groups, write_parts
from .masked_terms import read_terms

logger = logging.getLogger(__name__)

NAME = "masked_mean"
ORDER = 500


def compute(
    term: Callable[[Any, Any], Any],
    valid: Callable[[Any, Any], Any],
    boxes: Sequence[Any],
    dtype: str,
) -> tuple[te.Tensor, te.Tensor]:
    """State the mean.

    Parameters
    ----------
    term
        From the position of a sample and of a box in it to an fp32 expression.
    valid
        From the same to a condition.  One of the form ``j < limit(b)`` is recognised: boxes from
        ``limit(b)`` on are not even looked at.
    boxes
        Samples and boxes of each, ``B`` and ``M``; numbers or variables.
    dtype
        Of the mean, which is computed in fp32.

    Returns
    -------
    mean, number
        Scalars, the second one int32.
    """
    b, j = (te.reduce_axis((0, extent), name) for extent, name in zip(boxes, "bj", strict=True))
    both = te.comm_reducer(
        lambda some, more: (some[0] + more[0], some[1] + more[1]),
        lambda *dtypes: tuple(tirx.const(0, dtype) for dtype in dtypes),
        name="sum_and_number",
    )

    def chosen() -> Any:
        value = tirx.if_then_else(valid(b, j), term(b, j), tirx.const(0, "float32"))
        return both((value, tirx.Cast("int32", valid(b, j))), axis=[b, j])

    total, number = te.compute((), chosen, name="masked_sum", attrs={FAMILY: NAME})
    divisor = tirx.Cast("float32", tirx.max(number(), tirx.const(1, "int32")))
    mean = te.compute((), lambda: tirx.Cast(dtype, total() / divisor), name="masked_mean")
    return mean, number


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Extents, 0 where they are known at run time only, and the form of validity."""

    samples: int
    boxes: int
    _: KW_ONLY
    #: Whether boxes are valid up to a limit.
    limited: bool
    #: Whether boxes that are not valid may not be read.
    packed: bool


@dataclass(frozen=True)
class Knobs:
    """Who sums up what."""

    groups: int = knob("Work-groups that share the sum, or parts of it for threads of a CPU.")
    group_size: int = knob("Work-items of a group, a power of 2.")
    boxes: int = knob("Boxes that an item takes in a step; on a CPU, at most, of one sample.")
    skip: str = knob("What skips boxes that are not valid: none, element, warp or list.")


SKIPS = ("none", "element", "warp", "list")

#: Boxes worth a thread or a group of their own, and what keeps a CPU's threads busy.
CPU_CHUNK, CPU_PARTS = 4096, 16
GPU_GROUPS = 512
#: Of which a sample is cut into chunks.
CPU_BOXES = 1024

CONSTRAINTS = (
    GROUP_FITS,
    Constraint(
        "group_size is a power of 2, and 1 on a CPU.",
        lambda k, s, d: k.group_size & (k.group_size - 1) == 0 and (k.group_size == 1) == d.is_cpu,
    ),
    Constraint("skip is none, element, warp or list.", lambda k, s, d: k.skip in SKIPS),
    Constraint(
        "Lanes of a vector cannot part ways: on a CPU, skip is not element.",
        lambda k, s, d: not (d.is_cpu and k.skip == "element"),
    ),
    Constraint(
        "Packed boxes that are not valid may not be read: skip is not none.",
        lambda k, s, d: not s.packed or k.skip != "none",
    ),
    Constraint(
        "On a GPU, warps skip boxes behind a limit, by 32 items of a group.",
        lambda k, s, d: d.is_cpu or k.skip != "warp" or (s.limited and k.group_size >= WARP),
    ),
    Constraint(
        "A list of group_size * boxes and its prefix sums must fit local memory.",
        lambda k, s, d: d.is_cpu or k.skip != "list" or k.group_size * (k.boxes + 4) <= 8192,
    ),
)


def heuristic(shape: Shape, device: Device) -> Knobs:
    """What keeps the device busy.

    CPUs skip vectors behind a limit, and compute all where there is none: memory is read ahead
    then.  GPUs are given two boxes an item, so that enough reads are under way, and let each item
    ask for its box, unless samples are long: then a warp asks once.  For GPUs that is assumed.
    """
    total = shape.samples * shape.boxes
    if device.is_cpu:
        parts = max(1, min(total // CPU_CHUNK, CPU_PARTS)) if total else CPU_PARTS
        skip = "warp" if shape.limited or shape.packed else "none"
        return Knobs(parts, 1, CPU_BOXES, skip)
    size = power_of_2(min(4 * device.group_size, device.max_group_size))
    gpu = device.multiprocessors
    most = GPU_GROUPS if gpu is None else 8 * gpu.count
    boxes = 2
    groups = min(most, -(-total // (size * boxes))) if total else most
    long = shape.limited and shape.boxes >= 4 * WARP and size >= WARP
    return Knobs(max(1, groups), size, boxes, "warp" if long else "element")


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Numbers of groups and items in powers of 2, and everything else."""
    if device.is_cpu:
        return {
            "groups": (1, 2, 4, 8, 16, 32, 64),
            "group_size": (1,),
            "boxes": (256, 1024, 4096),
            "skip": SKIPS,
        }
    return {
        "groups": (1, 8, 32, 64, 128, 256, 512, 1024, 2048),
        "group_size": (32, 64, 128, 256, 512, 1024),
        "boxes": (1, 2, 4, 8),
        "skip": SKIPS,
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape | None:
    """The shape of a function around the mean; what is computed for it first is inlined."""
    sch, anchor = workload.sch, workload.anchor(NAME)
    if anchor is None:
        return None
    if not all(is_injective(sch, block) for block in workload.before(anchor)):
        logger.debug("masked_mean declines: what it reads is computed by sums")
        return None
    if any(axis.dom.extent != 1 for b in workload.after(anchor) for axis in sch.get(b).iter_vars):
        logger.debug("masked_mean declines: more than numbers follow it")
        return None
    for block in workload.before(anchor):
        workload.inline(block)
    terms = read_terms(workload, anchor)
    if terms is None:
        logger.debug("masked_mean declines: its block is not what it stated")
        return None
    samples, boxes = (
        int(extent) if isinstance(extent, tirx.IntImm) else 0
        for extent in (terms.samples, terms.boxes)
    )
    return Shape(samples, boxes, limited=terms.limit is not None, packed=terms.is_packed())


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule | None:
    """Write the kernels."""
    anchor = workload.anchor(NAME)
    terms = None if anchor is None else read_terms(workload, anchor)
    if anchor is None or terms is None:
        return None
    function = workload.sch.mod["main"]
    after = [workload.sch.get(block) for block in workload.after(anchor)]
    outputs = Outputs(terms, after, list(function.params))
    write = write_parts if workload.is_cpu else write_groups
    body = write(terms, outputs, knobs, workload.target.is_gpu_kernel)
    return s_tir.Schedule(tirx.PrimFunc(function.params, body, function.ret_type, function.attrs))
