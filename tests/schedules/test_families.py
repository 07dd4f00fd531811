"""The families found in `schedules/`, and the order in which they are tried."""

from __future__ import annotations

from tvmflow.schedules import FAMILIES

#: Names of the families, from the most specific to the fallback.
ASKED = [
    "boxes",
    "open_extents",
    "gemm_tensor",
    "gemm_simt",
    "conv2d_1x1",
    "conv2d",
    "depthwise",
    "grouped",
    "conv2d_transpose",
    "winograd_input",
    "winograd_product",
    "winograd_output",
    "pooling",
    "gemv",
    "dense",
    "matmul",
    "attention",
    "attention_groups",
    "recurrent",
    "masked_mean",
    "compaction",
    "nms",
    "softmax",
    "normalization",
    "reduction",
    "resize",
    "grid_sample",
    "transpose",
    "moving",
    "fallback",
]


def test_families_are_tried_in_this_order():
    assert [family.NAME for family in FAMILIES] == ASKED


def test_orders_of_families_are_unique():
    assert len({family.ORDER for family in FAMILIES}) == len(FAMILIES)


NAMES = ("Shape", "Knobs", "CONSTRAINTS", "match", "heuristic", "space", "apply", "__doc__")


def test_families_define_the_protocol():
    for family in FAMILIES:
        for name in NAMES:
            assert hasattr(family, name), (family.NAME, name)
