"""Registers of a work-item on a GPU: estimates by which schedules bound what they unroll.

A GPU's compiler moves the reads of straight-line code to its front, to hide their latency, so that
all that the code reads is in registers at once.  What does not fit is spilled to memory, and the
more registers an item has, the fewer waves run.  Estimates count vectors of a block's lanes: sums,
texels and weights; addresses and the epilogue take the rest.
"""

from __future__ import annotations

from tvm.ir.expr import TensorLoad
from tvm.sym import detect_linear_equation

from ..devices.target import Device
from ..ir.annotations import MOST_TEXELS
from ..ir.expressions import nodes_in, uses
from .common import Block, Workload

#: Vectors of fp32 in the registers of a shader core, of an Adreno 660 as of most Malis
#: (:mod:`tvmflow.devices.gpus`).
CORE_VECTORS = 8192


def most_vectors(device: Device, items: int = 1) -> int:
    """Return how many vectors may be live in a work-item of a GPU.

    ``items`` are those of its work-group if it has barriers: such a group runs only if the
    registers of all its items fit.  Mesa's compiler for Adreno 660 has 48 vectors for an item of
    one wave, 32 for those of up to four waves, and 16 for those of up to eight.
    """
    most, step = 3 * device.accumulators, 4 * device.wave
    if items > device.wave:
        most = min(most, CORE_VECTORS // (-(-items // step) * step))
    # A quarter of the registers is left to addresses and the epilogue (an assumption).
    return most * 3 // 4


def fits_ahead(texels: int) -> bool:
    """Return whether straight-line code may read this many texels ahead."""
    return texels <= MOST_TEXELS


def columns_read(tile_w: int, kernel_w: int, stride: int, dilation: int) -> int:
    """Return how many columns of the input a tile reads for a row of the window."""
    return len({v * stride + q * dilation for v in range(tile_w) for q in range(kernel_w)})


def window_steps(workload: Workload, anchor: Block) -> tuple[int, int]:
    """Return stride and dilation along the columns of a convolution.

    Its last five axes are column, lane, input channel, and row and column of the window.
    """
    block = workload.sch.get(anchor)
    column, *_, tap = (axis.var for axis in block.iter_vars[-5:])
    indices = (index for load in nodes_in(block.body, TensorLoad) for index in load.indices)
    index = next(index for index in indices if uses(index, column) and uses(index, tap))
    stride, dilation, _ = detect_linear_equation(index, [column, tap])
    return int(stride), int(dilation)
