"""A 3 by 3 convolution, from scalar loops to register tiles and textures.

    x[1, C, N, N]       w[O, C, 3, 3]         y[1, O, N, N]         naive, parallel
    x[1, C', N, N, c]   w[O', C, 3, 3, c]     y[1, O', N, N, c]     starting at `blocked`

The second layout has channels in blocks of ``c``, the lanes of a vector: 16 on a CPU, 4 on a GPU
and in textures, where a block is a texel.  The last block is padded with zeros, which no sum
reads.  A network keeps tensors in this layout between its layers (:mod:`..conv2d` has the
schedules); the lab converts them before and after the timed part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from tvm import te

from ...devices.presets import Device
from ...errors import InputError
from ...ir.scope import CHANNELS, constant_scope, interface_scope
from ...ir.tensors import TensorInfo
from ...module.blocked_layout import to_blocked, to_logical
from .. import conv2d
from ..common import Workload
from ..definitions import pad_spatial
from ..work_groups import group_of
from .steps import LONE_ITEMS, Lab, Layout, Step, as_written, bind_loops, normal_operands

#: Rows and columns of the window, and of the zeros around the picture.
KERNEL, PADDING = 3, (1, 1, 1, 1)
#: Lanes of a vector on a CPU: fp32 in 512 bits.
CPU_LANES = 16


# -- what it computes ---------------------------------------------------------------------


def compute(inputs: int, outputs: int, size: int) -> list[te.Tensor]:
    """Return the picture, the weights and the result in the plain layout."""
    x = te.placeholder((1, inputs, size, size), "float32", name="x")
    w = te.placeholder((outputs, inputs, KERNEL, KERNEL), "float32", name="w")
    padded = pad_spatial(x, PADDING)
    extents = {"i": inputs, "p": KERNEL, "q": KERNEL}
    i, p, q = (te.reduce_axis((0, extent), name=name) for name, extent in extents.items())
    y = te.compute(
        (1, outputs, size, size),
        lambda n, o, h, v: te.sum(padded[n, i, h + p, v + q] * w[o, i, p, q], axis=[i, p, q]),
        name="y",
    )
    return [x, w, y]


def compute_blocked(inputs: int, outputs: int, lanes: int, size: int) -> list[te.Tensor]:
    """Return the picture, the weights and the result in blocks of channels."""
    x = te.placeholder(_info(inputs, size, lanes).shape, "float32", name="x")
    blocks = -(-outputs // lanes)
    w = te.placeholder((blocks, inputs, KERNEL, KERNEL, lanes), "float32", name="w")
    y = conv2d.compute(x, w, strides=(1, 1), padding=PADDING, dilation=(1, 1), groups=1)
    return [x, w, y]


def _info(channels: int, size: int, lanes: int) -> TensorInfo:
    """Return the description of a picture in blocks of channels."""
    shape, logical = (1, -(-channels // lanes), size, size, lanes), (1, channels, size, size)
    return TensorInfo("", shape, "float32", logical_shape=logical)


def blocked_arguments(lanes: int, x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    """Convert the arguments to blocks of channels."""
    outputs, inputs, *_ = w.shape
    whole = np.pad(w, [(0, -outputs % lanes), (0, 0), (0, 0), (0, 0)])
    blocks = whole.reshape(-1, lanes, inputs, KERNEL, KERNEL).transpose(0, 2, 3, 4, 1)
    picture = to_blocked(_info(inputs, x.shape[2], lanes), x)
    return [picture, np.ascontiguousarray(blocks)]


def plain_result(outputs: int, y: np.ndarray) -> np.ndarray:
    """Convert the result to the plain layout."""
    return to_logical(_info(outputs, y.shape[2], y.shape[-1]), y)


def texture_scopes(tensors: Sequence[te.Tensor], device: Device) -> list[str | None]:
    """Return texture scopes of the arguments and the result; raise `InputError` if too large."""
    x, w, y = ([int(d) for d in tensor.shape] for tensor in tensors)
    scopes = [interface_scope(x, device), constant_scope(w, device), interface_scope(y, device)]
    if None in scopes:
        raise InputError(
            f"The lab's picture of {x[2]} by {x[3]} was to be an image; images of {device.name} "
            f"have at most {device.image_extent:,} rows and columns.",
            remedy="Give a smaller `size`, or `steps` without texture.",
        )
    return scopes


def reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the convolution, summed in double precision."""
    return product_of_windows(x.astype(np.float64), w.astype(np.float64)).astype(np.float32)


def product_of_windows(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return NumPy's product, by its BLAS, of the weights and a copy of all windows."""
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), axis=(2, 3))
    product: np.ndarray = np.tensordot(w, windows, axes=([1, 2, 3], [1, 4, 5]))
    return product.transpose(1, 0, 2, 3)


# -- how it is scheduled ------------------------------------------------------------------


def on_cores(workload: Workload) -> None:
    """Bind the loops of the definition, with maps spread over all cores."""
    for block in workload.blocks:
        bind_loops(workload, workload.sch.get_loops(block)[:2], parallel=True)


def in_items(workload: Workload, *, groups: bool = False) -> None:
    """Give each item of a GPU one result."""
    pad, block = workload.blocks
    workload.inline(pad)
    results = workload.sch.fuse(*workload.sch.get_loops(block)[:4])
    workload.bind_outer([results], workload.target.device.group_size if groups else 1)


def in_blocks(workload: Workload, *, tiles: bool) -> None:
    """Schedule blocks of channels, a vector an item or a tile of them as networks use."""
    shape, device = conv2d.match(workload), workload.target.device
    knobs = conv2d.heuristic(shape, device)
    if not tiles:
        vectors = (shape.batch * shape.outputs, shape.height, shape.width)
        group_o, group_h, group_w = group_of(vectors, device, device.convolution)
        knobs = replace(
            knobs, tile_o=1, tile_h=1, tile_w=1, unroll_i=1, split_i=1,
            split_borders=False, group_o=group_o, group_h=group_h, group_w=group_w,
        )  # fmt: skip
    conv2d.apply(workload, knobs)


def lab(inputs: int, outputs: int) -> Lab:
    """Return the lab for these numbers of channels of the picture and of the result."""

    def layout(
        lanes: int,
        scopes: Callable[[Sequence[te.Tensor], Device], list[str | None]] | None = None,
    ) -> Layout:
        return Layout(
            compute=partial(compute_blocked, inputs, outputs, lanes),
            arguments=partial(blocked_arguments, lanes),
            result=partial(plain_result, outputs),
            scopes=scopes,
        )

    on_cpu, on_gpu = layout(CPU_LANES), layout(CHANNELS)
    texture = Step(
        "texture",
        "All tensors are images: a texel is a block of 4 channels.",
        "Buffers go through the cache of all memory; the units and caches of textures are idle. A "
        "CPU has none, and computes what they would do.",
        partial(in_blocks, tiles=True),
        layout(CHANNELS, texture_scopes),
    )
    return Lab(
        name="conv3x3",
        summary=f"Convolution of 3 by 3, {inputs} channels to {outputs}.",
        counts="rows and columns",
        size=56,
        compute=partial(compute, inputs, outputs),
        operands=normal_operands(partial(compute, inputs, outputs)),
        reference=reference,
        baseline=lambda x, w: lambda: product_of_windows(x, w),
        operations=lambda size: 2 * outputs * inputs * (KERNEL * size) ** 2,
        on_cpu=(
            Step("naive", "Seven loops over single numbers, as written.", "", as_written),
            Step("parallel", "Maps are spread over all cores.", "One core works.", on_cores),
            Step(
                "blocked",
                "Channels in blocks of 16: the sums of a vector of channels stay in a register.",
                "One product at a time.",
                partial(in_blocks, tiles=False),
                on_cpu,
            ),
            Step(
                "registers",
                "The sums of a tile of vectors, some blocks by some columns, stay in registers.",
                "Each vector of weights serves one product, and each addition waits for the one "
                "before it.",
                partial(in_blocks, tiles=True),
                on_cpu,
            ),
            texture,
        ),
        on_gpu=(
            Step("naive", "An item computes one result, in a work-group of its own.", "", in_items),
            Step(
                "parallel",
                "32 or 64 items are a work-group: neighbours read neighbouring numbers.",
                LONE_ITEMS,
                partial(in_items, groups=True),
            ),
            Step(
                "blocked",
                "Channels in blocks of 4: an item computes a vector of channels.",
                "Each number of the picture is read for a single product.",
                partial(in_blocks, tiles=False),
                on_gpu,
            ),
            Step(
                "registers",
                "An item keeps a tile of vectors in registers; where items are few, some share "
                "their sums.",
                "Each vector of weights serves one product.",
                partial(in_blocks, tiles=True),
                on_gpu,
            ),
            texture,
        ),
        # Besides other layouts, the reference copies all windows: nine fp64 pictures.
        copies=30,
    )


CONV3X3 = lab(64, 64)
