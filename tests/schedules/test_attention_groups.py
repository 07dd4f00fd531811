"""Attention in work-groups: on presets of GPUs, at odd sizes, with steps, NaN, and on CUDA."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from support.attention_models import Choice, attention, heads
from support.checks import check_any_knobs, check_outputs, of_family
from support.cuda_host import cuda_host
from support.operators import feeds_for, random

import tvmflow
from tvmflow.graph import attention as fusion
from tvmflow.schedules import attention_groups as family
from tvmflow.schedules.attention_groups import Knobs

pytestmark = [pytest.mark.opencl, pytest.mark.onnxruntime]

SIZES = {
    "narrow": heads(7, 5, 8),
    "one key": heads(4, 1, 1),
    "odd": heads(49, 50, 31, 9),
    "swin": heads(49, 49, 32, batch=(4, 3)),
    "vit": heads(197, 197, 64),
    "deep": heads(9, 11, 200, 260),
    "rank 3": heads(31, 17, 7, batch=(2,)),
    "rank 2": heads(5, 33, 16, batch=()),
    "long": heads(5, 700, 8, batch=(1, 1)),
}
#: A mask that hides some keys, all keys of the first block, and all keys of one query.
HIDDEN = np.where(random((7, 150)) > 0.5, -np.inf, random((7, 150))).astype(np.float32)
HIDDEN[3, :130] = HIDDEN[5] = -np.inf
WIDE = heads(7, 150, 9)
STEPS = {
    "by key": attention(**WIDE, masks=[(1, 1, 1, 150)]),
    "by query": attention(**WIDE, masks=[(7, 1)]),
    "by head": attention(**WIDE, masks=[(3, 1, 1), (1,), (1, 3, 7, 150)]),
    "constant": attention(**WIDE, masks=[HIDDEN]),
    "factors": attention(**WIDE, scale=("Mul", (3, 1, 1)), masks=[(150,)], late=[("Div", 3.0)]),
    "capped": attention(**WIDE, scale=("Mul", 3.0), cap=2.0, masks=[HIDDEN]),
    "chosen": attention(
        **WIDE, chosen=[Choice((1, 1, 7, 150)), Choice((3, 1, 150), -1e9, keeps=False)]
    ),
    "shared": attention((2, 3, 7, 9), (2, 1, 50, 9), (1, 50, 4), masks=[(2, 1, 7, 1)]),
    "windows": attention(
        **heads(9, 9, 8, batch=(6, 2)), masks=[(1, 1, 2, 9, 9), (3, 1, 9, 9)], view=(2, 3, 2, 9, 9)
    ),
}
COLUMNS = {
    "adreno": {"device": "adreno", "storage": "buffer"},
    "texture": {"device": "adreno", "storage": "texture"},
    "mali": {"device": "mali"},
    "nvidia": {"device": "nvidia"},
    "half": {"device": "adreno", "dtype": "fp16"},
}


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    """Fuse attention of a few work-groups as well."""
    monkeypatch.setattr(fusion, "is_faster", lambda attention, device, **_: True)


def check(model, feeds=None, **options):
    with tvmflow.compile(model, target="opencl", **options) as module:
        assert of_family(family, module.metadata["schedules"])
        check_outputs(model, module, feeds or feeds_for(model), options.get("dtype", "fp32"))


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("size", SIZES)
def test_sizes(size, column):
    check(attention(**SIZES[size]), **COLUMNS[column])


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("name", STEPS)
def test_steps(name, column):
    check(STEPS[name], **COLUMNS[column])


@pytest.mark.parametrize("device", ["adreno", "mali"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(value, device):
    """Hidden queries and 0 times infinity give NaN, as in products and a softmax."""
    model = attention(**WIDE, masks=[(1, 1, 7, 150)])
    with tvmflow.compile(model, target="opencl", device=device) as module:
        for place in ("q", "k", "v", "mask0"):
            feeds = feeds_for(model)
            # The last key and row of V are NaN, which vectors that extend past them must not read.
            at = (0, 0, 3, 4) if place in ("q", "mask0") else (0, 0, 149, 4)
            feeds[place][at] = value
            feeds["mask0"][0, 0, 1] = -np.inf
            feeds["mask0"][0, 0, 2, :147] = -np.inf
            check_outputs(model, module, feeds)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0])
def test_factors_that_are_not_finite(value):
    """Factors multiply sums: q times the factor may be NaN."""
    model = attention(**WIDE, scale=("Mul", (3, 1, 1)), cap=4.0)
    feeds = feeds_for(model)
    feeds["scale"][1] = value
    feeds["q"][:, :, 2, ::2] = 0
    check(model, feeds, device="adreno")


def test_a_peak_in_a_late_block():
    """Earlier sums are scaled down to almost nothing, and stay finite."""
    model = attention(**heads(5, 700, 9, batch=(1, 1)), scale=None)
    feeds = feeds_for(model)
    feeds["k"] *= np.linspace(0, 60, 700, dtype=np.float32)[:, None]
    check(model, feeds, device="adreno")


def test_any_knobs_are_right():
    model = attention(**heads(31, 100, 20, 41), masks=[(31, 100)])
    for device in ("adreno", "mali"):
        check_any_knobs(model, family, device, (1, 2, 3, 4), feeds_for(model))


def test_the_definition_is_right_by_itself(monkeypatch):
    """The fallback compiles the loops of the definition."""
    monkeypatch.setattr(family, "match", lambda workload: None)
    model = STEPS["by head"]
    with tvmflow.compile(model, target="opencl", device="adreno") as module:
        check_outputs(model, module, feeds_for(model))


def test_scores_are_in_no_memory():
    """No matrix of 300 × 300 scores for each head is in global memory."""
    model = attention(**heads(300, 300, 4, batch=(1, 8)))
    with tvmflow.compile(model, target="opencl", device="adreno") as module:
        assert module.metadata["memory"]["peak_bytes"] < 4 * 8 * 300 * 300


#: Knobs for which rows, keys and columns are whole tiles, and for which they are not.
FORMS = {
    "odd": ("by head", Knobs(rows=2, keys=1, across=3, along=3)),
    "wide": ("constant", Knobs(rows=4, keys=2, across=4, along=2)),
    "one item": ("by key", Knobs(rows=1, keys=2, across=1, along=1)),
    "chosen": ("chosen", Knobs(rows=2, keys=2, across=2, along=4)),
}


@pytest.mark.oclgrind
@pytest.mark.parametrize("storage", ["buffer", "texture"])
@pytest.mark.parametrize("form", FORMS)
def test_clean(form, storage, under_oclgrind):
    name, knobs = FORMS[form]
    model, options = STEPS[name], {"device": "adreno", "storage": storage}
    with tvmflow.compile(model, knobs={"attention": vars(knobs)}, **options) as module:
        (taken,) = of_family(family, module.metadata["schedules"]).values()
        assert taken["source"] == "given"
        check_outputs(model, module, feeds_for(model), run=under_oclgrind())


@pytest.mark.cuda_host
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("form", FORMS)
def test_on_cuda(form, dtype):
    name, knobs = FORMS[form]
    model = STEPS[name]
    options = {"knobs": {"attention": vars(knobs)}, "dtype": dtype}
    with closing(tvmflow.compile(model, target="cuda", **options)) as module:
        assert of_family(family, module.metadata["schedules"])
        check_outputs(model, module, feeds_for(model), dtype, run=cuda_host())
