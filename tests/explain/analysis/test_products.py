"""Sums of products of different types, orders and sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import s_tir, te

from tvmflow.devices.presets import Multiprocessors
from tvmflow.devices.target import resolve
from tvmflow.explain.analysis import findings, products
from tvmflow.ir.dot_products import dot

ADRENO = resolve("opencl", "adreno")
CUDA = resolve("cuda")
A100 = replace(
    CUDA,
    device=replace(
        CUDA.device,
        multiprocessors=Multiprocessors(108, 99 << 10, tensor_cores=True, async_copies=True),
    ),
)


def scheduled(*tensors):
    """Return a function whose rows are bound to work-groups and columns to work-items."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)))
    block = sch.get_sblock(tensors[-1].op.name)
    row, column, *_ = sch.get_loops(block)
    sch.bind(row, "blockIdx.x")
    sch.bind(column, "threadIdx.x")
    return sch.mod["main"]


def matmul(dtype, *, rows=32, columns=32, depth=32, turned=True):
    """Return a matrix product; ``turned`` says that the second matrix is transposed."""
    total = "int32" if "int" in dtype else "float32"
    shape = (columns, depth) if turned else (depth, columns)
    a = te.placeholder((rows, depth), dtype, name="a")
    b = te.placeholder(shape, dtype, name="b")
    k = te.reduce_axis((0, depth), name="k")

    def product(i, j):
        other = b[j, k] if turned else b[k, j]
        return te.sum(a[i, k].astype(total) * other.astype(total), axis=k)

    return scheduled(a, b, te.compute((rows, columns), product, name="c"))


def dots():
    a = te.placeholder((32, 8), "int32", name="a")
    b = te.placeholder((32, 8), "int32", name="b")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((32, 32), lambda i, j: te.sum(dot(0, a[i, k], b[j, k]), axis=k), name="c")
    return scheduled(a, b, c)


def depthwise():
    """Each channel has weights of its own."""
    a = te.placeholder((32, 64 + 15), "float16", name="a")
    b = te.placeholder((32, 16), "float16", name="b")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((32, 64), lambda i, j: te.sum(a[i, j + k] * b[i, k], axis=k), name="c")
    return scheduled(a, b, c)


def plain_sum():
    a = te.placeholder((32, 32, 16), "float32", name="a")
    k = te.reduce_axis((0, 16), name="k")
    return scheduled(a, te.compute((32, 32), lambda i, j: te.sum(a[i, j, k], axis=k), name="c"))


def only(function, target=ADRENO):
    (found,) = products(function, target)
    return found


def test_what_is_found():
    found = only(matmul("float32", rows=32, columns=16, depth=8))
    assert (found.rows, found.columns, found.depth) == (32, 16, 8)
    assert (found.multiply_adds, found.dtypes) == (4096, ("float32", "float32"))
    assert (found.text, found.unit) == ("c += a * b", "arithmetic")
    assert products(plain_sum(), ADRENO) == []


@pytest.mark.parametrize(
    ("function", "reasons"),
    [
        (matmul("int8"), []),
        (matmul("uint8"), []),
        (matmul("int8", turned=False), ["contiguous"]),
        (matmul("int8", depth=30), ["not a multiple of 4"]),
        (matmul("float32"), ["float32"]),
        (matmul("float16", turned=False), ["float16", "contiguous"]),
    ],
)
def test_what_prevents_dot_products(function, reasons):
    found = only(function)
    assert len(found.no_dot_product) == len(reasons)
    assert all(r in said for r, said in zip(reasons, found.no_dot_product, strict=True))


def test_dot_products_are_known():
    found = only(dots())
    assert (found.unit, found.no_dot_product) == ("dot-product", ())
    assert (found.multiply_adds, found.depth) == (32 * 32 * 32, 32)


@pytest.mark.parametrize(
    ("function", "reasons"),
    [
        (matmul("float16"), []),
        (matmul("float32"), ["float32"]),
        (matmul("float16", rows=4), ["4 rows"]),
        (matmul("float16", rows=4, depth=8), ["4 rows and 8 depth"]),
        (depthwise(), ["1 columns"]),
    ],
)
def test_what_prevents_tensor_cores(function, reasons):
    found = only(function, A100)
    assert len(found.no_tensor_core) == len(reasons)
    assert all(r in said for r, said in zip(reasons, found.no_tensor_core, strict=True))


def test_targets_without_tensor_cores():
    (reason,) = only(matmul("float16")).no_tensor_core
    assert "no tensor cores" in reason


def test_findings():
    def found(function, target=ADRENO):
        kinds = ("dot-product", "tensor-core")
        return [f for f in findings(function, target) if f.kind in kinds]

    (finding,) = found(matmul("int8", turned=False))
    assert (finding.kind, finding.share) == ("dot-product", 0.75)
    assert finding.cost == {"cycles": 0.75 * 32**3 / 64}
    assert "contiguous" in finding.sentence
    text = matmul("int8", turned=False).script().splitlines()
    assert "c[" in text[finding.line - 1]
    (finding,) = found(matmul("float32"), A100)
    assert finding.kind == "tensor-core"
    assert "float32" in finding.sentence
    assert found(dots()) == []
    assert found(matmul("float32")) == []
    assert found(matmul("float32", rows=4), A100) == []
