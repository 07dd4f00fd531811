"""Indices in 32 bits for families that write loops themselves."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvmflow.schedules.indices import in_32_bits


def function(counts: str, result: str = "float32") -> tirx.PrimFunc:
    """``y[i, j] = j < count[i] ? x[i, j] : 0`` with extents of 64 bits."""
    rows, columns = (tirx.IntImm("int64", extent) for extent in (3, 5))
    x = te.placeholder((rows, columns), result, name="x")
    count = te.placeholder((rows,), counts, name="count")
    zero = tirx.const(0, result)
    y = te.compute(
        (rows, columns),
        lambda i, j: tirx.if_then_else(j.astype(counts) < count[i], x[i, j], zero),
        name="y",
    )
    return te.create_prim_func([x, count, y], index_dtype_override="int64")


@pytest.mark.parametrize("counts", ["int64", "int32", "uint8", "float32"])
def test_what_it_computes_stays(counts: str, rng: np.random.Generator):
    before = function(counts)
    after = in_32_bits(before)
    assert [str(p.dtype) for p in after.params] == ["float32", counts, "float32"]
    assert {str(e.ty.dtype) for p in after.params for e in p.shape} == {"int32"}
    text = after.script()
    assert "uint64" not in text
    assert "T.int64(5)" in before.script()
    x = rng.standard_normal((3, 5)).astype(np.float32)
    count = np.array([-(2**40), 2**40 + 2, 2] if counts == "int64" else [0, 5, 2], counts)
    y = tvm.runtime.tensor(np.zeros((3, 5), np.float32))
    tvm.compile(after, "llvm")(tvm.runtime.tensor(x), tvm.runtime.tensor(count), y)
    expected = np.where(np.arange(5) < count[:, None], x, 0)
    np.testing.assert_array_equal(y.numpy(), expected)


def test_a_function_that_writes_64_bit_integers_stays_as_it_is():
    before = function("int64", "int64")
    assert in_32_bits(before).same_as(before)
