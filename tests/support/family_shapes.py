"""Random shapes that each family might meet."""

from __future__ import annotations

from dataclasses import replace

from tvmflow.schedules.attention import Shape as AttentionShape
from tvmflow.schedules.boxes.masked_mean import Shape as MeanShape
from tvmflow.schedules.boxes.per_box import Shape as BoxShape
from tvmflow.schedules.compaction import Shape as CompactionShape
from tvmflow.schedules.conv2d import Shape as ConvShape
from tvmflow.schedules.dense import COLUMNS, PACKED, ROWS
from tvmflow.schedules.dense import Shape as DenseShape
from tvmflow.schedules.depthwise import Shape as WindowShape
from tvmflow.schedules.fallback import Shape as FallbackShape
from tvmflow.schedules.gemv import Shape as GemvShape
from tvmflow.schedules.grouped import Shape as GroupedShape
from tvmflow.schedules.injective import Shape as MovingShape
from tvmflow.schedules.matmul import Shape as MatmulShape
from tvmflow.schedules.matmul import padded
from tvmflow.schedules.nms import Shape as NmsShape
from tvmflow.schedules.recurrent import Shape as RecurrentShape
from tvmflow.schedules.reduction import Shape as ReductionShape
from tvmflow.schedules.resize import Shape as ResizeShape
from tvmflow.schedules.row_reduction import Shape as RowShape
from tvmflow.schedules.transpose import Shape as TransposeShape
from tvmflow.schedules.winograd import InputShape as InputShape
from tvmflow.schedules.winograd import OutputShape as OutputShape
from tvmflow.schedules.winograd import ProductShape as ProductShape


def conv_shapes(rng, lanes):
    return conv_shape(rng, lanes, rng.choice([1, 3, 5, 7]))


def pointwise_shapes(rng, lanes):
    return replace(conv_shape(rng, lanes, 1), padded=False)


def conv_shape(rng, lanes, kernel):
    pick = rng.choice
    return ConvShape(
        pick([1, 2]), pick([1, 3, 8, 40]), pick([1, 7, 13, 112]), pick([1, 5, 14, 112]), lanes,
        pick([1, 3, 16, 30, 512]), kernel, kernel,
        padded=kernel > 1, texture=rng.random() < 0.5,
        weights=pick(["texture", "buffer", "half"]), input_block=pick([lanes, lanes // 4]),
    )  # fmt: skip


def window_shapes(rng, lanes):
    pick = rng.choice
    extents = (pick([1, 2]), pick([1, 5, 60]), pick([1, 7, 30, 112]), pick([1, 7, 31, 112]))
    kernel, dilation = pick([2, 3, 5]), pick([1, 1, 2])
    return WindowShape(
        *extents, lanes, kernel, 3, stride_h=pick([1, 2]), stride_w=pick([1, 2]),
        span_h=dilation * (kernel - 1) + 1, span_w=2 * dilation + 1,
        padded=rng.random() < 0.5, texture=rng.random() < 0.5,
    )  # fmt: skip


def grouped_shapes(rng, lanes):
    pick = rng.choice
    extents = (pick([1, 2]), pick([1, 5]), pick([1, 7, 30]), pick([1, 7, 31]))
    taps, strides = pick([1, 2, 3, 5]), pick([1, 2, 3])
    inputs = pick([1, 2, 6, 16])
    shared = pick([1, 2, lanes])
    return GroupedShape(
        *extents, lanes, inputs, taps, taps, shared=shared, stride_h=strides, stride_w=strides
    )


def dense_shapes(rng, lanes):
    pick = rng.choice
    return DenseShape(pick([PACKED, COLUMNS, ROWS]), pick([1, 3, 64]), pick([1, 10, 63]))


def reduction_shapes(rng, lanes):
    pick = rng.choice
    reduced, positions = pick([1, 2, 49, 1000, 100003]), rng.random() < 0.3
    along = pick([1, 1, reduced])
    across = 1 if along > 1 else pick([1, 7, 56])
    return ReductionShape(
        across * pick([1, 3, 1280]), reduced, along=along, across=across,
        broadcast=not positions and rng.random() < 0.3, positions=positions,
    )  # fmt: skip


def mean_shapes(rng, lanes):
    pick = rng.choice
    limited = rng.random() < 0.5
    packed = limited and rng.random() < 0.5
    return MeanShape(pick([0, 1, 1024]), pick([0, 5, 256]), limited=limited, packed=packed)


def row_shapes(rng, lanes):
    pick = rng.choice
    blocked = rng.random() < 0.3
    across = 1 if blocked else pick([1, 7, 56])
    length = pick([1, 2, 49, 1000, 100003])
    return RowShape(across * pick([1, 3, 64]), length, across=across, blocked=blocked)


def tile_shapes(rng, lanes):
    pick = rng.choice
    extents = (pick([16, 36]), pick([1, 3, 16]), pick([1, 4, 7, 56]), pick([1, 4, 13]), lanes)
    padded, texture = rng.random() < 0.5, rng.random() < 0.5
    return InputShape(*extents, padded=padded, texture=texture)


def product_shapes(rng, lanes):
    pick = rng.choice
    extents = (pick([16, 36]), pick([1, 3, 16]), pick([1, 4, 7, 56]), pick([1, 4, 13]), lanes)
    return ProductShape(*extents, pick([3, 18, 64]), texture=rng.random() < 0.5)


def output_shapes(rng, lanes):
    pick, outputs = rng.choice, rng.choice([2, 4])
    height, width = pick([1, 4, 13]) * outputs, pick([1, 4, 13]) * outputs
    return OutputShape(pick([1, 2]), pick([1, 3, 16]), height, width, lanes, outputs=outputs)


def moving_shapes(rng, lanes):
    inner, texels = rng.choice([1, 4, 7, 97, 196, 4096]), rng.random() < 0.3
    wide = [v for v in (1, 2, 4, 8, 16) if v <= lanes and inner % v == 0]
    inner, widest = (4, rng.choice([1, 4])) if texels else (inner, max(wide))
    return MovingShape(rng.choice([1, 3, 64, 5000]), inner, widest, texels=texels)


def resize_shapes(rng, lanes):
    pick = rng.choice
    return ResizeShape(pick([1, 14, 448]), pick([1, 7, 97, 224]), pick([1, lanes]), texels=False)


def transpose_shapes(rng, lanes):
    pick = rng.choice
    reads, writes = pick([(False, False), (True, False), (False, True)])
    rows, columns = pick([4, 7, 64, 97, 1001]), pick([4, 30, 128, 1000])
    return TransposeShape(
        pick([1, 2, 12]), 4 if reads else rows, 4 if writes else columns,
        reads_texels=reads, writes_texels=writes,
    )  # fmt: skip


def matmul_shapes(rng, lanes):
    pick = rng.choice
    extents = [padded(pick([1, 7, 40, 197, 512, 1001])) for _ in range(2)]
    return MatmulShape(pick([1, 12]), *extents, pick([8, 16, 64, 200, 3072]))


def gemv_shapes(rng, lanes):
    pick = rng.choice
    form = pick([PACKED, COLUMNS, ROWS])
    return GemvShape(form, pick([1, 4]), pick([1, 10, 63, 256]), pick([16, 96, 1024]))


def box_shapes(rng, lanes):
    pick = rng.choice
    return BoxShape(
        pick([0, 1, 64]), pick([0, 1, 37, 5000]), pick([1, 2]), whole=pick([True, False])
    )


def recurrent_shapes(rng, lanes):
    pick = rng.choice
    cell, sums = pick([("LSTM", 4), ("GRU", 2), ("GRU", 3), ("RNN", 1)])
    units = pick([1, 7, 130, 512])
    return RecurrentShape(
        cell, pick([1, 2]), pick([1, 64]), pick([1, 3, 8]), units, sums=sums, state_bytes=16 * units
    )


def attention_shapes(rng, lanes):
    pick = rng.choice
    extents = (pick([1, 12]), pick([1, 7, 197]), pick([1, 50, 197, 5000]), pick([1, 31, 64]))
    return AttentionShape(*extents, pick([1, 31, 64]), lanes=lanes, operands=pick([0, 2]))


def compaction_shapes(rng, lanes):
    elements = rng.choice([1, 7, 256, 5000, 10**6])
    return CompactionShape(elements, rng.choice([1, elements]))


def nms_shapes(rng, lanes):
    pick, boxes = rng.choice, rng.choice([1, 7, 100, 25200])
    return NmsShape(pick([1, 2, 80]), boxes, pick([1, boxes]))


SHAPES = {
    "attention": attention_shapes,
    "attention_groups": attention_shapes,
    "recurrent": recurrent_shapes,
    "compaction": compaction_shapes,
    "nms": nms_shapes,
    "boxes": box_shapes,
    "moving": moving_shapes,
    "transpose": transpose_shapes,
    "resize": resize_shapes,
    "fallback": lambda rng, lanes: FallbackShape(rng.choice([1, 2, 9])),
    "winograd_input": tile_shapes,
    "winograd_product": product_shapes,
    "winograd_output": output_shapes,
    "conv2d": conv_shapes,
    "conv2d_1x1": pointwise_shapes,
    "depthwise": window_shapes,
    "pooling": window_shapes,
    "grouped": grouped_shapes,
    "conv2d_transpose": grouped_shapes,
    "dense": dense_shapes,
    "reduction": reduction_shapes,
    "masked_mean": mean_shapes,
    "softmax": row_shapes,
    "normalization": row_shapes,
    "gemv": gemv_shapes,
    "matmul": matmul_shapes,
}
