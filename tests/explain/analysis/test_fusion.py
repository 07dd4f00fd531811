"""Graphs of small functions, of which some could be one."""

from __future__ import annotations

import pytest
from onnx import helper
from support.operators import build, random
from support.scheduled_networks import fused
from tvm import relax, te, topi

from tvmflow.devices.target import resolve
from tvmflow.explain.analysis import fusion
from tvmflow.explain.analysis.report import fusion_finding

SHAPE = (16, 32)
BYTES = 16 * 32 * 4


def relu(x):
    return te.compute(x.shape, lambda i, j: te.max(x[i, j], 0.0), name="relu")


def turned(x):
    return te.compute((x.shape[1], x.shape[0]), lambda i, j: x[j, i], name="turned")


def matmul(x):
    """With its own transpose."""
    k = te.reduce_axis((0, int(x.shape[1])), name="k")
    size = int(x.shape[0])
    return te.compute((size, size), lambda i, j: te.sum(x[i, k] * x[j, k], axis=k), name="product")


def row_sums(x):
    k = te.reduce_axis((0, int(x.shape[1])), name="k")
    return te.compute((x.shape[0],), lambda i: te.sum(x[i, k], axis=k), name="sums")


def chain(*steps, also=None):
    """Return a chain of functions; ``also`` is the index of a further value that it returns."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            values = [x]
            for step in steps:
                values.append(builder.emit_te(step, values[-1], primfunc_name_hint=step.__name__))
            results = [values[-1], *([values[also]] if also else [])]
            result = builder.emit_output(results if also else results[0])
        builder.emit_func_output(result)
    return builder.get()


def test_a_function_after_a_sum():
    (pair,) = fusion(chain(row_sums, lambda x: te.compute(x.shape, lambda i: x[i] + 1.0)))
    assert (pair.producer, pair.saved_bytes, pair.prevented_by) == ("row_sums", 2 * 16 * 4, "")
    # x is read; sums are written, and read; the result is written.
    assert pair.all_bytes == BYTES + 3 * 16 * 4


def test_maps_are_one_in_any_order():
    for steps in ((relu, turned), (turned, relu)):
        (pair,) = fusion(chain(*steps))
        assert (pair.saved_bytes, pair.all_bytes) == (2 * BYTES, 4 * BYTES)
        assert (pair.prevented_by, pair.share) == ("", 0.5)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        # Both factors are read 16 times.
        ((relu, matmul), "32 times"),
        ((relu, row_sums), ""),
        ((matmul, relu), ""),
        ((matmul, turned), "another order"),
    ],
)
def test_what_prevents_it(steps, reason):
    (pair,) = fusion(chain(*steps))
    assert reason in pair.prevented_by
    assert bool(reason) == bool(pair.prevented_by)


def test_a_tensor_that_one_function_reads_twice():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit_te(relu, x)
            b = builder.emit_output(builder.call_te(topi.add, a, a))
        builder.emit_func_output(b)
    assert [pair.saved_bytes for pair in fusion(builder.get())] in ([], [2 * BYTES])


def test_sums_of_sums_stay_apart():
    assert fusion(chain(matmul, row_sums)) == []


def test_results_are_written_whoever_reads_them():
    assert fusion(chain(relu, turned, also=1)) == []
    assert len(fusion(chain(relu, turned, relu, also=1))) == 1


def findings_of(mod):
    return [fusion_finding(pair) for pair in fusion(mod) if not pair.prevented_by]


def test_findings():
    mod = chain(relu, turned, matmul)
    assert [pair.prevented_by == "" for pair in fusion(mod)] == [True, False]
    (finding,) = findings_of(mod)
    assert (finding.kind, finding.kernel, finding.cost) == ("fusion", "turned", {"bytes": 4096.0})
    assert "relu writes" in finding.sentence


def test_the_parameter_that_reads_the_tensor():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit_te(relu, x)
            b = builder.emit_output(builder.call_te(topi.add, x, a))
        builder.emit_func_output(b)
    mod = builder.get()
    (pair,) = fusion(mod)
    assert pair.parameter == mod[pair.consumer].params[1].name


def test_tensors_without_elements_cost_nothing():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((0, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.call_te(relu, builder.emit_te(relu, x)))
        builder.emit_func_output(y)
    assert all(finding.share == 0 for finding in findings_of(builder.get()))


def test_the_pipeline_leaves_nothing():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["d"], pads=[1] * 4),
        helper.make_node("Add", ["d", "x"], ["y"]),
    ]
    model = build(nodes, {"x": (1, 8, 9, 9)}, ["y"], {"w": random((8, 8, 3, 3))})
    assert findings_of(fused(model, resolve("opencl", "adreno"), "buffer")) == []
