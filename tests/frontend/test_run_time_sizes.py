"""Operators on values whose size is known only at run time, against ONNX Runtime."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import onnx
import pytest
from support.onnx_models import expected, model_of, nodes_of

import tvmflow
from tvmflow.errors import CompileError, InputError, ShapeError, UnsupportedModelError
from tvmflow.module.metadata import check_counts
from tvmflow.module.schema import SchemaError
from tvmflow.verify.tolerance import OPERATOR, assert_close, table_for

pytestmark = [pytest.mark.opencl, pytest.mark.onnxruntime]

COLUMNS = {
    "llvm": {"target": "llvm"},
    "auto": {"target": "opencl"},
    "fp16": {"target": "opencl", "dtype": "fp16"},
    "adreno": {"target": "opencl", "device": "adreno", "storage": "texture"},
    "nvidia": {"target": "opencl", "device": "nvidia", "storage": "buffer"},
    "standalone": {"target": "opencl", "format": "standalone"},
}

#: Inputs of the operators below: selected rows of a table, their count, and their indices.
PRELUDE = """
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    three = Constant <value_ints = [3]> ()
    five = Constant <value_ints = [5]> ()
    minus = Constant <value_ints = [-1]> ()
    much = Constant <value_ints = [9223372036854775807]> ()
    scalar = Constant <value_int = 0> ()
    step = Constant <value_int = 1> ()
    stride = Constant <value_int = 2> ()
    half = Constant <value_float = 0.5> ()
    found = NonZero (mask)
    at = Squeeze (found, zero)
    rows = Gather (data, at)
    left, right = Split <axis = 1> (rows, widths)
    widths = Constant <value_ints = [3, 1]> ()
    right1 = Squeeze (right, one)
    table = Unsqueeze (rows, zero)
    n = Shape (at)
    other = NonZero (right)
    some = Compress <axis = 0> (data, choice)
"""
PRELUDE = "\n".join(sorted(PRELUDE.strip().splitlines(), key=lambda line: "Constant" not in line))

#: Operators by name; each defines the result ``y``.
CASES = {
    "nonzero": "y = Identity (found)",
    "compress": "y = Identity (some)",
    "rows": "y = Identity (rows)",
    "found again": (
        "again = NonZero (mask)\n p = Squeeze (again, zero)\n r = Gather (data, p)\n"
        " y = Add (rows, r)"
    ),
    "padded": "w = Constant <value_ints = [2, 0, 1, 3]> ()\n y = Pad (rows, w, half)",
    "filled": (
        "nine = Constant <value_ints = [9]> ()\n m = Sub (nine, n)\n"
        " w = Concat <axis = 0> (zero, one, m, zero)\n y = Pad (rows, w)"
    ),
    "more rows": "w = Concat <axis = 0> (one, zero, n, zero)\n y = Pad (data, w)",
    "add": "y = Add (rows, half)",
    "two": "a = Mul (rows, rows)\n y = Add (a, right)",
    "where": "c = Greater (rows, half)\n y = Where (c, rows, half)",
    "divide": "a = Add (at, step)\n b = Mod (at, stride)\n c = Add (b, step)\n y = Div (a, c)",
    "divide by places": "a = Greater (at, scalar)\n b = Cast <to = 7> (a)\n c = Sub (b, step)\n"
    " d = Mul (c, stride)\n e = Add (d, step)\n y = Div (at, e)",
    "transpose": "y = Transpose <perm = [1, 0]> (rows)",
    "squeeze": "y = Squeeze (table, zero)",
    "reshape": "s = Constant <value_ints = [1, -1, 2, 2]> ()\n y = Reshape (rows, s)",
    "flatten all": "y = Reshape (rows, minus)",
    "flatten and back": "a = Reshape (rows, minus)\n s = Constant <value_ints = [-1, 4]> ()\n"
    " y = Reshape (a, s)",
    "flatten": "y = Flatten (rows)",
    "reshape by shape": "m = Concat <axis = 0> (n, two, two)\n y = Reshape (rows, m)",
    "expand": "m = Concat <axis = 0> (two, n, five)\n a = Unsqueeze (right, zero)\n"
    " y = Expand (a, m)",
    "expand a row": "m = Concat <axis = 0> (n, five)\n y = Expand (half, m)",
    "tile": "m = Concat <axis = 0> (two, one)\n t = Transpose <perm = [1, 0]> (rows)\n"
    " y = Tile (t, m)",
    "range": "k = Squeeze (n)\n y = Range (scalar, k, step)",
    "range by two": "k = Squeeze (n)\n y = Range (step, k, stride)",
    "constants": "m = Concat <axis = 0> (n, two)\n y = ConstantOfShape (m)",
    "shape": "y = Shape (rows)",
    "size": "y = Size (rows)",
    "arithmetic": "a = Mul (n, three)\n b = Div (a, two)\n c = Min (b, five)\n y = Sub (c, one)",
    "slice": "y = Slice (rows, zero, three, zero)",
    "slice of another axis": "y = Slice (rows, one, three, one)",
    "slice from one": "y = Slice (rows, one, much, zero)",
    "slice of last": "y = Slice (rows, minus, much, zero)",
    "slice but last": "y = Slice (rows, zero, minus, zero)",
    "slice by two": "y = Slice (rows, zero, much, zero, two)",
    "slice backwards": "e = Constant <value_ints = [-9223372036854775807]> ()\n"
    " y = Slice (rows, minus, e, zero, minus)",
    "slice by size": "m = Min (n, three)\n y = Slice (data, zero, m, zero)",
    "slice two axes": "b = Constant <value_ints = [0, 1]> ()\n"
    " e = Constant <value_ints = [3, 3]> ()\n y = Slice (rows, b, e)",
    "concat": "y = Concat <axis = 0> (rows, data, rows)",
    "concat behind": "y = Concat <axis = 0> (data, rows)",
    "concat of others": "b = Gather (data, at)\n c = Compress <axis = 0> (data, choice)\n"
    " y = Concat <axis = 0> (b, c, b)",
    "concat columns": "y = Concat <axis = 1> (rows, right, rows)",
    "roll": "a = Slice (data, n, much, zero)\n b = Slice (data, zero, n, zero)\n"
    " y = Concat <axis = 0> (a, b)",
    "gather columns": "i = Constant <value_ints = [2, -1, 0]> ()\n y = Gather <axis = 1> (rows, i)",
    "gather column": "y = Gather <axis = 1> (rows, stride)",
    "gather among": "p = NonZero (right1)\n i = Squeeze (p, zero)\n y = Gather (rows, i)",
    "gather along": "y = Gather <axis = 0> (data, at)",
    "gather nd": "i = Transpose <perm = [1, 0]> (found)\n y = GatherND (data, i)",
    "gather nd within": "i = Transpose <perm = [1, 0]> (other)\n y = GatherND (right, i)",
    "gather elements": "i = Cast <to = 7> (right)\n z = Mul (i, scalar)\n"
    " y = GatherElements <axis = 1> (rows, z)",
    "scatter elements": "u = Unsqueeze (at, one)\n y = ScatterElements <axis = 0> (data, u, right)",
    "scatter nd": "u = Unsqueeze (at, one)\n y = ScatterND (data, u, rows)",
    "scatter add": 'u = Unsqueeze (at, one)\n y = ScatterND <reduction = "add"> (data, u, rows)',
    "scatter below": "u = Unsqueeze (at, one)\n w = Constant <value_int = 9> ()\n v = Sub (u, w)\n"
    " y = ScatterND (data, v, rows)",
    "sum": "y = ReduceSum <keepdims = 0> (rows, zero)",
    "sum of all": "y = ReduceSum <keepdims = 0> (rows)",
    "sum of columns": "y = ReduceSum <keepdims = 0> (table, two)",
    "product": "y = ReduceProd <axes = [0]> (rows)",
    "square": "y = ReduceSumSquare <axes = [0]> (rows)",
    "log of sum": "y = ReduceLogSumExp <axes = [0]> (rows)",
    "softmax": "y = Softmax <axis = 0> (rows)",
    "softmax of rows": "y = Softmax <axis = 1> (rows)",
    "cumulative": "y = CumSum (rows, scalar)",
    "cumulative backwards": "y = CumSum <reverse = 1> (rows, scalar)",
    "top of all": "y, i = TopK <axis = 0> (rows, n)",
    "top": "c = Concat <axis = 0> (n, three)\n k = ReduceMin <axes = [0], keepdims = 0> (c)\n"
    " l = Unsqueeze (k, zero)\n v, y = TopK <axis = 0> (rows, l)",
    "bottom": "l = Min (n, three)\n y, i = TopK <axis = 0, largest = 0> (rows, l)",
    "top columns": "y, i = TopK <axis = 1> (rows, two)",
    "matmul": "y = MatMul (rows, weight)",
    "matmul of columns": "t = Transpose <perm = [1, 0]> (rows)\n y = MatMul (weightt, t)",
    "gram": "t = Transpose <perm = [1, 0]> (rows)\n y = MatMul (t, rows)",
    "gemm": "y = Gemm <transB = 1> (rows, weightt, bias)",
    "onehot": "d = Constant <value_int = 9> ()\n v = Constant <value_floats = [0.0, 1.0]> ()\n"
    " y = OneHot (at, d, v)",
    "isnan": "a = Sqrt (rows)\n y = IsNaN (a)",
    "not": "a = Greater (rows, half)\n y = Not (a)",
    "clip": "y = Clip (rows, half)",
    "roi": "b = Mul (at, scalar)\n m = Mul (rows, rows)\n"
    " y = RoiAlign <sampling_ratio = 2, output_height = 2, output_width = 3> (image, m, b)",
    "conv": "b = Mul (at, scalar)\n m = Mul (rows, rows)\n"
    " r = RoiAlign <sampling_ratio = 2, output_height = 3, output_width = 3> (image, m, b)\n"
    " c = Conv (r, kernel)\n y = Relu (c)",
    "nonzero of rows": "y = Identity (other)",
    "compress flat": "c = Greater (right1, half)\n y = Compress (right, c)",
    "compress rows": "c = Greater (right1, half)\n y = Compress <axis = 0> (rows, c)",
    "nms": "a = Unsqueeze (right1, zero)\n s = Unsqueeze (a, zero)\n"
    " y = NonMaxSuppression (table, s, five, half)",
}
#: Results that are undefined without any row.
OF_SOME = {
    "reshape by rest": "m = Concat <axis = 0> (n, two, minus)\n y = Reshape (rows, m)",
    "max": "y = ReduceMax <axes = [0]> (rows)",
    "min": "y = ReduceMin <keepdims = 0> (rows)",
    "mean": "y = ReduceMean <axes = [0]> (rows)",
    "largest": "y = ArgMax <axis = 0> (rows)",
    "smallest": "y = ArgMin <axis = 0, keepdims = 0> (rows)",
    "largest of columns": "y = ArgMax <axis = 1, keepdims = 0> (rows)",
    "gather last": "y = Gather (rows, m)\n m = Constant <value_int = -1> ()",
}


def network(cases: dict[str, str]) -> onnx.ModelProto:
    """Build one network of all cases, with one output for each."""
    names, nodes = [], nodes_of(PRELUDE)
    for number, text in enumerate(cases.values()):
        part = sorted(nodes_of(text), key=lambda node: node.op_type != "Constant")
        made = {name for node in part for name in node.output if name}
        for node in part:
            for side in (node.input, node.output):
                side[:] = [f"c{number}_{n}" if n in made else n for n in side]
            node.name = node.output[0]
            nodes.append(node)
        names.append(f"c{number}_y")
    rng = np.random.default_rng(3)
    shapes = {"weight": (4, 7), "weightt": (5, 4), "bias": (5,), "kernel": (3, 2, 3, 3)}
    weights = {
        name: np.round(rng.standard_normal(shape) * 4).astype(np.float32) / 4
        for name, shape in shapes.items()
    }
    inputs = {"mask": [9], "data": [9, 4], "choice": ([8], "bool"), "image": [1, 2, 8, 8]}
    return onnx.shape_inference.infer_shapes(model_of(nodes, inputs, names, weights))


def feeds(number: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw inputs for this number of selected rows, exact in fp16 and some of them equal."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(9, np.float32)
    mask[rng.permutation(9)[:number]] = np.nan
    data = np.round(rng.standard_normal((9, 4)) * 8).astype(np.float32) / 8
    choice = rng.permutation(9)[:8] < number
    image = np.round(rng.standard_normal((1, 2, 8, 8)) * 8).astype(np.float32) / 8
    return {"mask": mask, "data": data, "choice": choice, "image": image}


def compare(model, columns, all_feeds, names=None, **options):
    """Compare a module with ONNX Runtime, including shapes."""
    wrong = []
    half = "dtype" in COLUMNS[columns]
    with closing(tvmflow.compile(model, **COLUMNS[columns], **options)) as module:
        for values in all_feeds:
            right = expected(model, values)
            got = module(values)
            assert got.names == tuple(output.name for output in model.graph.output)
            for name, a, b in zip(names or got.names, got, right, strict=True):
                if a.shape != b.shape or a.dtype != b.dtype:
                    wrong.append(f"{name}: {a.dtype}{a.shape} for {b.dtype}{b.shape}")
                    continue
                try:
                    if b.size:
                        assert_close(a, b, table_for(module.metadata) if half else OPERATOR, name)
                except AssertionError as error:
                    wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


#: Targets, all but one with the slow tests, as OpenCL compilers take most of a minute.
EVERY = [c if c == "llvm" else pytest.param(c, marks=pytest.mark.slow) for c in COLUMNS]


@pytest.mark.parametrize("column", EVERY)
def test_operators(column):
    numbers = (0, 1, 4, 9)
    compare(network(CASES), column, [feeds(n, n) for n in numbers], list(CASES))


@pytest.mark.parametrize("column", ["llvm", "adreno"])
def test_operators_of_at_least_one_row(column):
    compare(network(OF_SOME), column, [feeds(n, n) for n in (1, 4, 9)], list(OF_SOME))


#: Refused nodes, with words of the reason.
REFUSED = {
    "two numbers": (
        "c = Greater (rows, half)\n y = Where (c, rows, some)",
        "need not have the same",
    ),
    "whole and some": ("y = Add (rows, data)", "along the same axis"),
    "mixed": ("t = Transpose <perm = [1, 0]> (rows)\n y = Reshape (t, minus)", "mix that axis"),
    "no rule": ('y = Einsum <equation = "ij,ij->i"> (rows, rows)', "there is no rule for it"),
    "reflected": (
        'w = Constant <value_ints = [0, 0, 1, 0]> ()\n y = Pad <mode = "reflect"> (rows, w)',
        "elements of its input",
    ),
    "before": ("w = Concat <axis = 0> (n, zero, zero, zero)\n y = Pad (rows, w)", "or move"),
    "too few": ("v, y = TopK <axis = 0> (rows, three)", "fewer elements than it takes"),
    "split": ("y, z = Split <axis = 0> (rows)", "it splits that axis"),
    "any axis": ("y = Squeeze (right)", "may drop an axis"),
    "pairs": ("t = Transpose <perm = [1, 0]> (rows)\n y = MatMul (rows, t)", "several axes"),
    "times": ("m = Concat <axis = 0> (two, one)\n y = Tile (rows, m)", "it repeats that axis"),
    "expanded": ("m = Concat <axis = 0> (five, two)\n y = Expand (rows, m)", "need not fit"),
    "training": (
        (
            "s = Constant <value_floats = [1.0, 1.0, 1.0, 1.0]> ()\n y, m, v ="
            " BatchNormalization <training_mode = 1> (rows, s, s, s, s)"
        ),
        "statistics of the whole batch",
    ),
    "unrecognised": ("m = Abs (n)\n y = Slice (data, zero, m, zero)", "computed at run time"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused(name):
    text, reason = REFUSED[name]
    with pytest.raises(UnsupportedModelError) as caught:
        tvmflow.compile(network({name: text}), target="llvm")
    said = str(caught.value)
    assert reason in said
    assert "c0_" in said
    assert name == "unrecognised" or ("NonZero" in said and "cut the model before it" in said)


def test_places_up_to_a_number():
    """The bound of the Range exceeds the number of columns."""
    text = (
        "o = Constant <value_int = 0> ()\n l = Constant <value_int = 1> ()\n"
        " k = Squeeze (n, zero)\n i = Range (o, k, l)\n y = Gather <axis = 1> (data, i)"
    )
    compare(network({"range": text}), "llvm", [feeds(number) for number in range(5)])


def test_zeros_follow_what_counts():
    """Programs in C get the whole extent, with the count as a separate output."""
    model = network({name: CASES[name] for name in ("rows", "softmax", "transpose")})
    with closing(tvmflow.compile(model, target="llvm")) as module:
        assert [str(info) for info in module.outputs] == [
            "c0_y: float32[≤9, 4]", "c1_y: float32[≤9, 4]", "c2_y: float32[4, ≤9]"
        ]  # fmt: skip
        whole = module.run_network(feeds(4))
        assert whole.names == ("c0_y", "c1_y", "c2_y", "c0_y.count", "c1_y.count", "c2_y.count")
        assert whole["c2_y.count"] == 4
        assert whole["c2_y.count"].dtype == np.int64
        assert not whole["c0_y"][4:].any()
        assert not whole["c1_y"][4:].any()
        assert not whole["c2_y"][:, 4:].any()
        np.testing.assert_array_equal(module(feeds(4))["c2_y"], whole["c2_y"][:, :4])
        shared = module.run(feeds(4), output="dlpack")
        assert tuple(shared["c0_y"].shape) == (9, 4)
        assert int(np.from_dlpack(shared["c0_y.count"])) == 4


@pytest.mark.parametrize("column", ["llvm", "standalone"])
@pytest.mark.parametrize("name", ["found", "at"])
def test_a_bound_of_the_user(name, column):
    """A run that needs more raises an error, also for outputs that depend on the value."""
    model = network({"rows": CASES["rows"], "sum": CASES["sum"]})
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    with closing(tvmflow.compile(model, **COLUMNS[column], bounds={name: 4})) as module:
        assert module.outputs[0].shape == (4, 4)
        assert module.network_outputs[-1].name == f"{name}.count"
        for number in (0, 3, 4):
            expected = feeds(number)["data"][np.isnan(feeds(number)["mask"])]
            np.testing.assert_array_equal(module(feeds(number))["c0_y"], expected)
        with pytest.raises(InputError) as caught:
            module(feeds(5))
        for part in (f"node_{name}", "5 elements", "bound of 4", "larger bound"):
            assert part in str(caught.value)
        assert module.run_network(feeds(5))[f"{name}.count"] == 5


def test_a_bound_for_an_output_of_its_own_name():
    model = network({"rows": CASES["rows"]})
    with closing(tvmflow.compile(model, target="llvm", bounds={"c0_y": 2})) as module:
        assert [info.name for info in module.network_outputs] == ["c0_y", "c0_y.count"]
        assert module(feeds(2))["c0_y"].shape == (2, 4)
        with pytest.raises(InputError, match="3 elements"):
            module(feeds(3))
        assert module.run_network(feeds(3))["c0_y.count"] == 3


@pytest.mark.parametrize("bounds", [{"c0_y": 0}, {"c0_y": True}, {"c0_y": 2.5}])
def test_a_bound_is_a_positive_number(bounds):
    with pytest.raises(CompileError, match="positive whole number"):
        tvmflow.compile(network({"rows": CASES["rows"]}), target="llvm", bounds=bounds)


def test_a_bound_is_for_something():
    with pytest.raises(ShapeError, match=r"'data'.*NonZero"):
        tvmflow.compile(network({"rows": CASES["rows"]}), target="llvm", bounds={"data": 3})


def test_an_output_with_the_name_of_a_number():
    model = network({"rows": CASES["rows"], "shape": CASES["shape"]})
    for node in model.graph.node:
        node.output[:] = ["c0_y.count" if name == "c1_y" else name for name in node.output]
    model.graph.output[1].name = "c0_y.count"
    with pytest.raises(UnsupportedModelError, match="Rename the output"):
        tvmflow.compile(model, target="llvm")


def test_a_number_that_is_missing_is_damage():
    outputs = [{"name": "y", "dtype": "float32", "shape": [9], "bounded_axis": 0}]
    with pytest.raises(SchemaError, match=r"y\.count"):
        check_counts(outputs, [])
    count = {"name": "y.count", "dtype": "int64", "shape": []}
    check_counts([*outputs, count], [])
    with pytest.raises(SchemaError, match="no axis 1"):
        check_counts([{**outputs[0], "bounded_axis": 1}, count], [])


@pytest.mark.parametrize("opset", [10, 11, 12, 13, 18, 21])
def test_operator_sets(opset):
    """Rules emit nodes of the model's own operator set."""
    axes = "<axes = [1]>" if opset < 13 else ""
    extra = ", one" if opset >= 13 else ""
    lowest = "ReduceMin <axes = [0], keepdims = 1> (both)" if opset < 18 else "ReduceMin (both)"
    largest = "ReduceMax <axes = [0]> (few)" if opset < 18 else "ReduceMax (few, zero)"
    nodes = nodes_of(f"""
        column = Gather <axis = 1> (data, column_index)
        above = Greater (column, half)
        found = NonZero (above)
        tuples = Transpose <perm = [1, 0]> (found)
        at = Squeeze {axes} (tuples{extra})
        some = Gather (column, at)
        rows = Gather (data, at)
        n = Shape (some)
        both = Concat <axis = 0> (n, three)
        k = {lowest}
        best, places = TopK <axis = 0> (some, k)
        y = Gather (rows, places)
        all = Concat <axis = 0> (rows, data, rows)
        few = Slice (all, two, much, zero)
        z = {largest}
    """)
    arrays = {
        "column_index": np.array(1), "half": np.float32(0.25), "one": np.array([1]),
        "three": np.array([3]), "two": np.array([2]), "zero": np.array([0]),
        "much": np.array([2**63 - 1]),
    }  # fmt: skip
    model = model_of(nodes, {"data": [9, 4]}, "y z", arrays, opset)
    given = [{"data": feeds(0, seed)["data"]} for seed in range(3)]
    compare(onnx.shape_inference.infer_shapes(model), "llvm", given)


def test_a_model_in_halves():
    """The model is computed in fp32, but its outputs are halves."""
    nodes = """
        column = Gather <axis = 1> (data, first)
        mask = Cast <to = 9> (column)
        y = Compress <axis = 0> (data, mask)
    """
    inputs, outputs = {"data": ([9, 4], "float16")}, {"y": (["n", 4], "float16")}
    model = model_of(nodes, inputs, outputs, {"first": 0})
    data = feeds(0)["data"].astype(np.float16)
    data[::2, 0] = 0
    for column in ("llvm", "fp16"):
        with closing(tvmflow.compile(model, **COLUMNS[column])) as module:
            (got,) = module(data=data)
            assert got.dtype == np.float16
            np.testing.assert_array_equal(got, data[data[:, 0] != 0])
