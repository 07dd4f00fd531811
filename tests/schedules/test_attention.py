"""Attention as one function: results at odd sizes, with masks, NaN, blocks of keys."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.attention_models import Choice, attention, heads
from support.checks import check_any_knobs, check_outputs, of_family
from support.first_stages import chosen_schedules
from support.operators import build, feeds_for, random

import tvmflow
from tvmflow.models import build as build_network
from tvmflow.schedules import attention as family
from tvmflow.schedules.attention import Knobs

pytestmark = [pytest.mark.opencl, pytest.mark.onnxruntime]

SIZES = {
    "one": heads(1, 1, 1),
    "a query": heads(1, 50, 64),
    "few": heads(4, 1, 1),
    "narrow": heads(7, 5, 8),
    "odd": heads(49, 50, 31, 9),
    "swin": heads(49, 49, 32, batch=(4, 3)),
    "vit": heads(197, 197, 64),
    "rank 3": heads(31, 17, 7, batch=(2,)),
    "rank 2": heads(5, 33, 16, batch=()),
    "long": heads(5, 3000, 8, batch=(1, 1)),
}
#: A mask that hides some keys from all queries, and all keys from one query.
HIDDEN = np.where(random((7, 50)) > 0.5, -np.inf, random((7, 50))).astype(np.float32)
WIDE = heads(7, 50, 9)
MASKED = {
    "by key": attention(**WIDE, masks=[(1, 1, 1, 50)]),
    "by query": attention(**WIDE, masks=[(7, 1)]),
    "by head": attention(**WIDE, masks=[(3, 1, 1), (1,), (1, 3, 7, 50)]),
    "constant": attention(**WIDE, masks=[HIDDEN]),
    "factors": attention(**WIDE, scale=("Mul", random((3, 1, 1))), masks=[(50,)]),
    "factors by key": attention(**WIDE, scale=("Mul", (7, 50)), masks=[(50,)]),
    "late": attention(**WIDE, masks=[(50,)], late=[("Mul", 0.4), ("Div", 3.0)]),
    "capped": attention(**WIDE, scale=("Mul", 3.0), cap=2.0, masks=[HIDDEN]),
    "chosen": attention(
        **WIDE,
        masks=[(7, 1)],
        chosen=[Choice((1, 1, 7, 50)), Choice((3, 1, 50), -1e9, keeps=False)],
    ),
    "divided": attention(**WIDE, scale=("Div", 3.0)),
    "shared": attention((2, 3, 7, 9), (2, 1, 50, 9), (1, 50, 4), masks=[(2, 1, 7, 1)]),
    "windows": attention(
        **heads(9, 9, 8, batch=(6, 2)),
        masks=[(1, 1, 2, 9, 9), np.where(random((3, 1, 9, 9)) > 0, -100, 0).astype(np.float32)],
        view=(2, 3, 2, 9, 9),
    ),
}
COLUMNS = {
    "llvm": {"target": "llvm"},
    "buffer": {"target": "opencl", "storage": "buffer"},
    "texture": {"target": "opencl", "storage": "texture"},
    "half": {"target": "opencl", "dtype": "fp16"},
    "half-texture": {"target": "opencl", "dtype": "fp16", "storage": "texture"},
}


def check(model, feeds=None, *, fused=True, **options):
    with tvmflow.compile(model, **options) as module:
        check_outputs(model, module, feeds or feeds_for(model), options.get("dtype", "fp32"))
        assert bool(of_family(family, module.metadata["schedules"])) == fused


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("size", SIZES)
def test_sizes(size, column):
    fused = size not in ("one", "a query")
    check(attention(**SIZES[size]), fused=fused, **COLUMNS[column])


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("name", MASKED)
def test_masks(name, column):
    check(MASKED[name], **COLUMNS[column])


@pytest.mark.parametrize("target", ["llvm", "opencl"])
@pytest.mark.parametrize("keys", [50, 3000])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(value, keys, target):
    """Hidden queries and 0 times infinity give NaN, as in products and a softmax."""
    model = attention(**heads(7, keys, 9), masks=[(1, 1, 7, keys)])
    for place in ("q", "k", "v", "mask0"):
        feeds = feeds_for(model)
        feeds[place][0, 0, 3, 4] = value
        feeds["mask0"][0, 0, 1] = -np.inf
        # All keys of the first block are hidden, and some of the last one.
        feeds["mask0"][0, 0, 2, : keys - 3] = -np.inf
        check(model, feeds, target=target)


@pytest.mark.parametrize("target", ["llvm", "opencl"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0])
def test_factors_that_are_not_finite(value, target):
    """A factor of whole matrices multiplies their sums: q times the factor may be NaN."""
    model = attention(**WIDE, scale=("Mul", (3, 1, 1)), late=[("Mul", 0.5)], cap=4.0)
    feeds = feeds_for(model)
    feeds["scale"][1] = value
    # Some products are zero: infinity times such a product is NaN.
    feeds["q"][:, :, 2, ::2] = 0
    check(model, feeds, target=target)


def test_a_peak_in_a_late_block():
    """Earlier sums are scaled down to almost nothing, and stay finite."""
    model = attention(**heads(5, 3000, 9, batch=(1, 1)), scale=None)
    feeds = feeds_for(model)
    feeds["k"] *= np.linspace(0, 60, 3000, dtype=np.float32)[:, None]
    for target in ("llvm", "opencl"):
        check(model, feeds, target=target)


@pytest.mark.parametrize("keys", [50, 3000])
@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_masks_leave_no_subnormal_numbers(target, keys):
    """Masks of -100 would leave 4e-44 of the other values, a subnormal number."""
    hidden = np.where(np.arange(keys) % 5 == 1, 0, -100).astype(np.float32)
    model = attention(**heads(7, keys, 9), masks=[hidden])
    feeds = feeds_for(model)
    feeds["v"][:, :, hidden == 0] = 0
    # ONNX Runtime's kernels give the subnormal numbers on some processors and zeros on others.
    assert 0 < np.exp(np.float32(-100)) < np.finfo(np.float32).tiny
    with tvmflow.compile(model, target=target) as module:
        (got,) = module(feeds).values()
    assert not got.any()


@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_the_definition_is_right_by_itself(target, monkeypatch):
    """The fallback compiles the loops of the definition."""
    monkeypatch.setattr(family, "match", lambda workload: None)
    check(MASKED["by head"], fused=False, target=target)


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(rows=1, keys=50, vectors=1),
        Knobs(rows=4, keys=16, vectors=2),
        Knobs(rows=7, keys=48, vectors=3),
        Knobs(rows=3, keys=32, vectors=8),
    ],
)
@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_tiles_and_blocks(knobs, target):
    model = MASKED["by head"]
    with tvmflow.compile(model, target=target, knobs={"attention": vars(knobs)}) as module:
        check_outputs(model, module, feeds_for(model))
        (taken,) = of_family(family, module.metadata["schedules"]).values()
        assert taken["source"] == "given"


def test_any_knobs_are_right():
    model = attention(**heads(31, 100, 20, 40), masks=[(31, 100)])
    check_any_knobs(model, family, "cpu", (1, 2, 3), feeds_for(model))


def test_scores_stay_private():
    """No matrix of 300 × 300 scores for each head is in memory."""
    model = attention(**heads(300, 300, 4, batch=(1, 8)))
    with tvmflow.compile(model, target="llvm") as module:
        assert module.metadata["memory"]["peak_bytes"] < 4 * 8 * 300 * 300


def test_scores_are_read_in_vectors():
    """Private memory at computed indices is read in vectors, not number by number."""
    with tvmflow.compile(attention(**heads(197, 197, 64)), target="opencl") as module:
        source = "".join(module.device_sources())
    assert "vload16(" in source
    assert "scores_ptr[v_" not in source


def test_onnx_attention():
    """The operator's own products are fused, too, if nothing else reads them."""
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
    model = build([node], heads(7, 9, 8, 5), ["y"], opset=23)
    check(model, target="llvm")


@pytest.mark.oclgrind
@pytest.mark.parametrize("keys", [21, 64])
def test_clean(keys, under_oclgrind):
    model = attention(**heads(7, keys, 9, 20), masks=[(1, 3, 7, keys)])
    knobs = {"attention": vars(Knobs(rows=5, keys=16, vectors=2))}
    with tvmflow.compile(model, target="opencl", device="cpu", knobs=knobs) as module:
        check_outputs(model, module, feeds_for(model), run=under_oclgrind())


@pytest.mark.parametrize("name", ["deit_tiny", "mobilevit"])
def test_networks_use_the_family(name, tmp_path):
    model = build_network(name, tmp_path / "network.onnx", width=0.25, size=64, classes=10)
    found = chosen_schedules(model, target="llvm")
    assert of_family(family, found)
