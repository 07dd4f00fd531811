"""Einstein sums are right, and matrix products wherever they can be."""

from __future__ import annotations

import string
from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest
from onnx import helper
from support.onnx_models import model_of

import tvmflow
from tvmflow.verify.tolerance import OPERATOR, assert_close

PRODUCTS = {
    "bij,bjk->bik": ((2, 3, 5), (2, 5, 4)),
    "b g h i d, b g h j d -> b g h i j": ((1, 2, 2, 3, 5), (1, 2, 2, 4, 5)),
    "ij,jk": ((3, 4), (4, 5)),
    "ji,kj": ((4, 3), (5, 4)),
    "nchw,oc->nohw": ((1, 3, 4, 5), (6, 3)),
    "bhij,bhjd->bihd": ((1, 2, 3, 4), (1, 2, 4, 5)),
    "abc,cd->bad": ((2, 3, 4), (4, 5)),
    "abcd,decb->ae": ((2, 3, 4, 5), (5, 6, 4, 3)),
    "ij,jk,kl->il": ((3, 4), (4, 5), (5, 2)),
    # The last two are multiplied first, as the product of the first two would be larger.
    "ab,cd,bc->ad": ((3, 4), (5, 6), (4, 5)),
    "dc,ca,ab,be": ((4, 5), (5, 2), (2, 3), (3, 6)),
}
OTHERS = {
    "ij,ij->i": ((3, 4), (3, 4)),
    "i,j->ij": ((3,), (4,)),
    "ij,jk->i": ((3, 4), (4, 5)),
    "ij,kl->jl": ((3, 4), (2, 5)),
    "ii,ij->ij": ((3, 3), (3, 4)),
    "...ij,...jk->...ik": ((2, 3, 4), (2, 4, 5)),
    "iij->ij": ((3, 3, 4),),
    "i,j,k->kij": ((3,), (4,), (5,)),
    "...ij,...jk,...kl->...il": ((2, 1, 3, 4), (1, 3, 4, 5), (2, 3, 5, 2)),
    "ij...,jk,...k": ((3, 4, 2), (4, 5), (2, 5)),
    "ij,ij,k->k": ((3, 4), (3, 4), (5,)),
    "ii,ij,jj->i": ((3, 3), (3, 4), (4, 4)),
}


@pytest.mark.parametrize("equation", [*PRODUCTS, *OTHERS])
def test_einsum(equation, rng):
    values = [rng.standard_normal(s).astype(np.float32) for s in {**PRODUCTS, **OTHERS}[equation]]
    families = check(equation, values)
    assert ("dense" in families) == (equation in PRODUCTS)


def test_many_operands(rng):
    """A chain of 20 matrices is 19 products, instead of sums of 2 ** 19 terms."""
    letters = string.ascii_letters[:21]
    terms = ",".join(map("".join, pairwise(letters)))
    values = [rng.uniform(0.5, 1.5, (2, 2)).astype(np.float32) for _ in range(20)]
    equation = f"{terms}->{letters[0]}{letters[-1]}"
    families = check(equation, values)
    assert "dense" in families
    assert "transpose" not in families  # neighbours are multiplied in their order


def check(equation, values):
    """Compare an Einstein sum with NumPy's in fp64; return the families of its functions."""
    wanted = np.einsum(
        equation.replace(" ", ""), *(v.astype(np.float64) for v in values), optimize=True
    )
    names = [f"x{number}" for number in range(len(values))]
    inputs = {name: value.shape for name, value in zip(names, values, strict=True)}
    node = helper.make_node("Einsum", names, ["y"], equation=equation)
    model = model_of([node], inputs, {"y": wanted.shape})
    with closing(tvmflow.compile(model)) as module:
        (got,) = module(dict(zip(names, values, strict=True)))
        families = {schedule["family"] for schedule in module.metadata["schedules"].values()}
    assert_close(got, wanted.astype(np.float32), OPERATOR)
    return families
