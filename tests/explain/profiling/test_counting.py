"""Operations and bytes of functions whose counts are known."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.operators import build
from tvm import s_tir, te, tirx

import tvmflow
from tvmflow.devices.target import resolve
from tvmflow.explain.profiling.counting import count_kernels, operations
from tvmflow.ir.dot_products import dot
from tvmflow.module.functions import unpack_functions
from tvmflow.schedules import schedule_function
from tvmflow.schedules.boxes.builder import Statements, number


def tensor(name, *shape, dtype="float32"):
    return te.placeholder(shape, dtype, name)


def counted(*tensors, target="llvm", device="cpu"):
    """The kernels of the function that computes the last tensor, scheduled for a target."""
    function = te.create_prim_func(list(tensors))
    spec = resolve(target, device)
    with spec.tvm_target:
        scheduled = schedule_function(function, spec).schedule.mod["main"]
    return count_kernels(scheduled, on_gpu=spec.is_gpu_kernel)


def added(*tensors, **where):
    """The same, summed up over the kernels."""
    kernels = counted(*tensors, **where)
    flops = sum(sum(kernel.flops.values()) for kernel in kernels)
    return flops, sum(k.bytes_read for k in kernels), sum(k.bytes_written for k in kernels)


def compiled(nodes, inputs, weights=None, **where):
    """The kernels of a network of one function."""
    model = build(nodes, inputs, ["y"], weights or {}, opset=13)
    with tvmflow.compile(model, **where) as module:
        (name,) = module.metadata["memory"]["steps"]
        function = unpack_functions(module.read_functions())[name]
    return count_kernels(function, on_gpu=where["target"] != "llvm")


WHERE = [{"target": "llvm"}, {"target": "opencl"}, {"target": "opencl", "device": "adreno"}]


@pytest.mark.parametrize("where", WHERE, ids=str)
def test_elements_that_a_stride_leaves_out_are_not_touched(where):
    a = tensor("a", 7, 31, 30)
    b = te.compute((7, 16, 15), lambda c, y, x: a[c, 2 * y, 2 * x] * 3.0 + 1.0)
    n = 7 * 16 * 15
    assert added(a, b, **where) == (2 * n, 4 * n, 4 * n)


@pytest.mark.parametrize("where", WHERE, ids=str)
def test_an_element_that_is_read_often_counts_once(where):
    a, row = tensor("a", 33, 70), tensor("row", 70)
    b = te.compute((33, 70), lambda y, x: te.max(a[y, x] + row[x], 0.0))
    n = 33 * 70
    assert added(a, row, b, **where) == (2 * n, 4 * (n + 70), 4 * n)


@pytest.mark.parametrize("where", WHERE, ids=str)
def test_a_product_of_matrices(where):
    m, n, k = 37, 29, 53
    a, b = tensor("a", m, k), tensor("b", k, n)
    r = te.reduce_axis((0, k))
    c = te.compute((m, n), lambda y, x: te.sum(a[y, r] * b[r, x], axis=r))
    assert added(a, b, c, **where) == (2 * m * n * k, 4 * (m * k + k * n), 4 * m * n)


@pytest.mark.parametrize("where", WHERE, ids=str)
@pytest.mark.parametrize("n", [5, 33, 1001])
def test_loops_that_a_schedule_cuts_are_no_more_work(where, n):
    """Rows that vectors do not fill: loops are cut where their condition changes."""
    nodes = [helper.make_node("Softmax", ["x"], ["y"])]
    (count,) = compiled(nodes, {"x": (3, n)}, **where)
    assert (count.bytes_read, count.bytes_written) == (4 * 3 * n, 4 * 3 * n)
    # A maximum, a difference, its exponent, a sum and a quotient; long rows are not kept, and have
    # the exponents twice.  Then there are sums of partial sums.
    assert 5 * 3 * n <= sum(count.flops.values()) <= 7 * 3 * n + 3 * 400
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)]
    (count,) = compiled(nodes, {"x": (3, n)}, **where)
    assert (count.bytes_read, count.bytes_written) == (4 * 3 * n, 4 * 3)
    assert 3 * n <= sum(count.flops.values()) <= 3 * n + 3 * 200


@pytest.mark.parametrize("where", WHERE, ids=str)
def test_pieces_of_a_copy_are_one(where):
    pads = {"p": np.array([1, 2, 3, 4])}
    (count,) = compiled([helper.make_node("Pad", ["x", "p"], ["y"])], {"x": (5, 9)}, pads, **where)
    assert (count.bytes_read, count.bytes_written) == (4 * 5 * 9, 4 * 9 * 15)
    both = {"x": (5, 9), "z": (5, 4)}
    (count,) = compiled([helper.make_node("Concat", ["x", "z"], ["y"], axis=1)], both, **where)
    assert (count.bytes_read, count.bytes_written) == (4 * 5 * 13, 4 * 5 * 13)


def test_axes_of_a_piece_begin_where_it_does():
    a = tensor("a", 100)
    b = te.compute((10,), lambda x: a[5 * x] + 1.0, "b")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    (loop,) = sch.get_loops(sch.get_sblock("b"))
    sch.loop_partition(loop, [7, None])
    (count,) = count_kernels(sch.mod["main"], on_gpu=False)
    assert (dict(count.flops), count.bytes_read, count.bytes_written) == ({"fp32": 10}, 40, 40)


def test_what_a_condition_leaves_out_is_not_computed():
    a = tensor("a", 13)
    b = te.compute((13,), lambda x: a[x] + 1.0, "b")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    (loop,) = sch.get_loops(sch.get_sblock("b"))
    outer, _ = sch.split(loop, [None, 4])
    # Each piece has its own part of the condition: 8 of 8 and 5 of 8 elements.
    sch.loop_partition(outer, [2, None])
    (count,) = count_kernels(sch.mod["main"], on_gpu=False)
    assert (dict(count.flops), count.bytes_read) == ({"fp32": 13}, 4 * 13)


def test_a_loop_may_be_shorter_in_the_last_round():
    a, b = (tirx.decl_buffer((9,), "float32", name) for name in "ab")
    code = Statements()
    with (
        code.block("root"),
        code.block("rounds"),
        code.loop("round", 3) as index,
        code.loop("k", tirx.Select(index < 2, number(4), number(1))) as k,
    ):
        code.store(b, a[index * 4 + k] + 1.0, index * 4 + k)
    (count,) = count_kernels(tirx.PrimFunc([a, b], code.finish()), on_gpu=False)
    assert dict(count.flops) == {"fp32": 9}


@pytest.mark.parametrize("where", WHERE[:2], ids=str)
def test_statements_without_blocks_name_what_they_touch(where):
    places = {"i": np.array([[1], [4]])}
    nodes = [helper.make_node("ScatterND", ["x", "i", "u"], ["y"])]
    kernels = compiled(nodes, {"x": (9, 7), "u": (2, 7)}, places, **where)
    if where["target"] == "llvm":
        (count,) = kernels
        assert (count.bytes_read, count.bytes_written) == (4 * 9 * 7 + 4 * 2 * 7 + 8 * 2, 4 * 9 * 7)
    else:
        # Places, then a copy, then the rows, in kernels of their own.
        assert [count.bytes_written for count in kernels] == [8 * 2, 4 * 9 * 7, 4 * 9 * 7]
        assert kernels[1].bytes_read == 4 * 9 * 7


def test_a_library_that_is_called_has_no_count():
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "at"])]
    model = build(nodes, {"x": (3, 50)}, ["y"], {"k": np.array([7])}, opset=13)
    with tvmflow.compile(model, target="llvm") as module:
        functions = unpack_functions(module.read_functions())
        (sort,) = [name for name in module.metadata["memory"]["steps"] if "topk" in name]
    assert count_kernels(functions[sort], on_gpu=False) is None


def test_neighbours_of_a_window_overlap():
    a = tensor("a", 100)
    b = te.compute((40,), lambda x: a[2 * x] + a[2 * x + 1] + a[2 * x + 2])
    # 0 to 80: the last element of a window is the first of the next.
    assert added(a, b) == (2 * 40, 4 * 81, 4 * 40)


def test_the_border_is_not_memory():
    a = tensor("a", 10)
    b = te.compute(
        (14,), lambda x: te.if_then_else(te.all(x >= 2, x < 12), a[x - 2], tirx.const(0.0))
    )
    assert added(a, b) == (0, 4 * 10, 4 * 14)


def test_a_diagonal_is_no_square():
    a = tensor("a", 50, 50)
    b = te.compute((50,), lambda x: a[x, 49 - x])
    assert added(a, b) == (0, 4 * 50, 4 * 50)


def test_two_reads_of_one_tensor_are_united():
    a = tensor("a", 60)
    b = te.compute((20,), lambda x: a[x] + a[x + 10])
    assert added(a, b) == (20, 4 * 30, 4 * 20)


def test_what_indices_choose_is_at_most_what_is_read():
    table, rows = tensor("table", 1000, 8), tensor("rows", 5, dtype="int32")
    b = te.compute((5, 8), lambda y, x: table[rows[y], x])
    flops, read, written = added(table, rows, b)
    assert (flops, read, written) == (0, 4 * 5 * 8 + 4 * 5, 4 * 5 * 8)


def test_narrow_tensors_have_narrow_elements():
    a = tensor("a", 64, dtype="int8")
    b = te.compute((64,), lambda x: a[x].astype("float32") * 0.5)
    assert added(a, b) == (64, 64, 4 * 64)


def test_every_kernel_of_a_function_is_counted_by_itself():
    a = tensor("a", 3, 100_000)
    r = te.reduce_axis((0, 100_000))
    b = te.compute((3,), lambda y: te.sum(a[y, r], axis=r))
    kernels = counted(a, b, target="opencl", device="adreno")
    assert len(kernels) > 1
    assert kernels[0].bytes_read == 4 * 300_000
    # Results between kernels count as memory traffic, and so do partial sums.
    assert kernels[0].bytes_written == kernels[1].bytes_read > 0
    total = sum(kernel.flops["fp32"] for kernel in kernels)
    assert 300_000 <= total <= 1.05 * 300_000


def test_kinds_of_arithmetic():
    half, whole = tirx.Var("h", "float16"), tirx.Var("i", "int32")
    assert operations(half * half + half) == {"fp16": 2}
    assert operations(tirx.exp(tirx.Cast("float32", half))) == {"fp32": 1}
    assert operations(tirx.exp(tirx.exp(tirx.Cast("float32", half)) + 1.0)) == {"fp32": 3}
    # Four products and four sums; arithmetic on indices is no work.
    assert operations(dot(whole, whole, whole)) == {"int8": 8}
    assert operations(whole * 3 + 1) == {}


def test_a_choice_is_its_dearest_branch():
    x = tirx.Var("x", "float32")
    chosen = tirx.if_then_else(x > 0.0, x * x * x, x + 1.0)
    assert operations(chosen) == {"fp32": 2}


def test_a_loop_of_unknown_length_has_no_count():
    n = te.var("n", "int32")
    a = te.placeholder((n,), "float32", "a")
    b = te.compute((n,), lambda x: a[x] + 1.0)
    assert count_kernels(te.create_prim_func([a, b]), on_gpu=False) is None


@pytest.mark.parametrize("seed", range(8))
def test_counts_are_those_of_numpy_for_random_affine_indices(seed):
    rng = np.random.default_rng(seed)
    steps, base = [int(step) for step in rng.integers(0, 5, 3)], int(rng.integers(0, 4))

    def index(i, j, k):
        return base + steps[0] * i + steps[1] * j + steps[2] * k

    a = tensor("a", index(4, 5, 6) + 1)
    b = te.compute((5, 6, 7), lambda i, j, k: a[index(i, j, k)])
    touched = {index(i, j, k) for i in range(5) for j in range(6) for k in range(7)}
    (count,) = count_kernels(te.create_prim_func([a, b]), on_gpu=False)
    assert count.bytes_read == 4 * len(touched)
