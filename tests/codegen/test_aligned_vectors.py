"""Only vectors at multiples of their size are moved through pointers to vectors."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from support.onnx_models import expected, model_of
from tvm import s_tir, te, tirx

import tvmflow
import tvmflow.compiler.generate  # registers the generator of OpenCL C
from tvmflow.codegen.aligned_vectors import vector_place
from tvmflow.codegen.opencl_source import NameGathers
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE
from tvmflow.verify.tolerance import assert_close

ROWS, COLUMNS = 6, 24


def build(extent, lanes, begin, dtype="float32"):
    """Build sums of ``x`` with itself, starting at ``begin`` of its rows of length ``extent``."""
    x = te.placeholder((ROWS, extent), dtype, name="x")
    y = te.compute((ROWS, COLUMNS), lambda r, c: x[r, c] + x[r, c + begin], name="y")
    schedule = s_tir.Schedule(te.create_prim_func([x, y]))
    row, column = schedule.get_loops(schedule.get_sblock("y"))
    outer, inner = schedule.split(column, [None, lanes])
    schedule.bind(row, "blockIdx.x")
    schedule.bind(outer, "threadIdx.x")
    schedule.vectorize(inner)
    return tvm.tirx.build(schedule.mod, tvm.target.Target("opencl"), pipeline=TIR_PIPELINE)


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("extent", "lanes", "begin", "aligned"),
    [
        (32, 4, 4, 2),  # rows, and vectors in them, begin at multiples of four
        (32, 4, 3, 1),
        (33, 4, 0, 0),  # only every fourth row begins at one
        (34, 2, 4, 2),  # pairs
        (36, 8, 8, 0),  # for vectors of eight, only every second row
        (40, 8, 8, 2),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_what_is_proven_is_read_as_a_vector(extent, lanes, begin, aligned, dtype):
    built = build(extent, lanes, begin, dtype)
    (code,) = built.imports
    text = code.inspect_source().split("__kernel void")[-1]
    vector = {"float32": "float", "int32": "int"}[dtype] + str(lanes)
    assert text.count(f"tvmflow_at_{vector}(x_ptr") == aligned
    assert text.count(f"tvmflow_put_{vector}(y_ptr") == 1
    device = tvm.device("opencl")
    x = np.random.default_rng(1).integers(-99, 99, (ROWS, extent)).astype(dtype)
    out = tvm.runtime.empty((ROWS, COLUMNS), dtype, device)
    built["main"](tvm.runtime.tensor(x, device), out)
    np.testing.assert_array_equal(out.numpy(), x[:, :COLUMNS] + x[:, begin : begin + COLUMNS])


def test_a_place_that_stays_a_division_is_a_shift():
    """The pass that lowers floor divisions to instructions has run before."""
    part = tirx.Var("part", "int32")
    place = vector_place(tirx.Ramp(part * 8 + 8 & 15, 1, 8))
    assert ">> 3" in str(place)
    assert "//" not in str(place)


@pytest.mark.opencl
def test_vectors_from_parts_of_a_concatenation():
    """Channels of the second part begin within a block, so its offsets stay divisions."""
    rng = np.random.default_rng(4)
    constants = {
        "a": rng.standard_normal((40, 1, 3, 3), dtype=np.float32),
        "b": rng.standard_normal((24, 1, 3, 3), dtype=np.float32),
        "parts": np.array([40, 24]),
        "heads": np.array([1, 8, 8, 64]),
        "pads": np.array([0, 0, 1, 0, 0, 0, 0, 0]),
    }
    nodes = """
        p, q = Split<axis = 1>(x, parts)
        u = Conv<group = 40, pads = [1, 1, 1, 1]>(p, a)
        v = Conv<group = 24, pads = [1, 1, 1, 1]>(q, b)
        all = Concat<axis = 1>(u, v)
        h = Reshape(all, heads)
        t = Transpose<perm = [0, 1, 3, 2]>(h)
        m = Mul(t, k)
        y = Pad(m, pads)
    """
    shapes = {"x": (1, 64, 8, 8), "k": (1, 8, 64, 8)}
    model = model_of(nodes, shapes, {"y": (1, 8, 65, 8)}, constants)
    feeds = {name: rng.standard_normal(s, dtype=np.float32) for name, s in shapes.items()}
    (right,) = expected(model, feeds)
    with tvmflow.compile(model, target="opencl") as module:
        assert_close(module(feeds)["y"], right)


@pytest.mark.opencl
def test_memory_is_read_again_behind_a_store():
    """A macro that reads memory is not a pure function: its text means another value later."""
    source = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    for item in T.thread_binding(2, thread="threadIdx.x"):
        for k in T.vectorized(4):
            y[item * 4 + k] = x[item * 4 + k] * x[item * 4 + k]
        for k in T.vectorized(4):
            x[item * 4 + k] = y[item * 4 + k] - T.float32(1)
        for k in T.vectorized(4):
            y[item * 4 + k] = x[item * 4 + k] * x[item * 4 + k]
"""
    module = tvm.IRModule({"main": tvm.script.from_source(source)})
    built = tvm.tirx.build(module, tvm.target.Target("opencl"), pipeline=TIR_PIPELINE)
    device = tvm.device("opencl")
    x = np.arange(8, dtype="float32")
    values = [tvm.runtime.tensor(each, device) for each in (x, np.zeros_like(x))]
    built["main"](*values)
    np.testing.assert_array_equal(values[0].numpy(), x**2 - 1)
    np.testing.assert_array_equal(values[1].numpy(), (x**2 - 1) ** 2)


@pytest.mark.parametrize(("dtype", "named"), [("int8x4", False), ("int8", True)])
def test_arrays_of_vectors_of_bytes_are_indexed_by_one_number(dtype, named):
    """Weights in local memory are such an array; its index was taken for one index per lane."""
    array = tirx.decl_buffer((64,), dtype, "array")
    result = tirx.decl_buffer((64,), "int8x4", "result")
    place = tirx.Var("place", "int32")
    index = place if dtype == "int8x4" else tirx.Ramp(place, 4, 4)
    store = tirx.BufferStore(result, tirx.BufferLoad(array, [index]), [place])
    function = tirx.PrimFunc([array, result, place], store)
    function = function.with_attr("target", tvm.target.Target("opencl"))
    module = NameGathers(tvm.IRModule({"main": function}))
    assert ("tvmflow_gather_char4" in module.script()) == named
