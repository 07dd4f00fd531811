"""Chains whose intermediate results leave 16 bits, or cancel in them, with ``dtype="fp16"``."""

from __future__ import annotations

import onnxruntime
import pytest
from support import norm_chains
from support.operators import random
from support.turns import in_turn

import tvmflow
from tvmflow.verify.tolerance import STORED_AS_HALF, assert_close

pytestmark = [pytest.mark.opencl, pytest.mark.onnxruntime]

COLUMNS = {
    "texture": {"device": "adreno", "storage": "texture", "accumulate": "fp32"},
    "buffer": {"device": "adreno", "storage": "buffer", "accumulate": "fp32"},
    "mali": {"device": "mali", "accumulate": "fp32"},
    "auto": {},
}
CASES = {
    "rows": ((2, 5, 256), (2,), False),
    "pictures": ((1, 17, 12, 20), (2, 3), True),
    "channels": ((1, 64, 3, 5), (1,), True),
}


@pytest.mark.parametrize(
    ("form", "case", "column"),
    in_turn(
        [(form, case) for form in norm_chains.FORMS for case in CASES],
        [pytest.param(column, id=column) for column in COLUMNS],
        list(COLUMNS),
    ),
)
def test_numbers(form, case, column):
    """The mean is ten deviations: a sum of squares is 2.3e5, and E[x²] - E[x]² loses two digits."""
    shape, axes, conv = CASES[case]
    model = norm_chains.network(form, shape, axes, conv=conv)
    x = random(shape, 3) + 30
    (reference,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    with tvmflow.compile(model, target="opencl", dtype="fp16", **COLUMNS[column]) as module:
        assert_close(module(x=x)["y"], reference, STORED_AS_HALF)
