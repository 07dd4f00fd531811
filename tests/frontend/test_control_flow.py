"""Branches, unrolled loops and sequences against ONNX Runtime, and those that are refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from reference import assert_right, check, load_and_run, onnxruntime_results, run
from support.onnx_models import model_of as any_model
from support.onnx_models import nodes_of
from support.turns import in_turn

import tvmflow
from tvmflow.errors import ModelError, UnsupportedModelError
from tvmflow.frontend.lift import DEEPEST_GRAPH
from tvmflow.frontend.load import load_model
from tvmflow.frontend.nested import all_nodes
from tvmflow.frontend.prepare import prepare
from tvmflow.frontend.propagate import propagate
from tvmflow.frontend.source import constant_value, external_files, open_model
from tvmflow.verify.tolerance import NETWORK, OPERATOR, assert_close

pytestmark = pytest.mark.onnxruntime

#: Constants that the cases share.
NUMBERS = """
    zero = Constant<value_int=0>() one = Constant<value_int=1>() two = Constant<value_int=2>()
    four = Constant<value_int=4>() last = Constant<value_int=-1>()
    yes = Constant<value = bool {1}>()
"""

#: A loop whose body adds to its state, and has a scan output.
ADDING = """
    y, z = Loop(four, yes, x) <body = b (int64 i, bool c, float[2,3] a)
      => (bool d, float[2,3] t, float[2,3] s)
      { f = Cast<to=1>(i) t = Add(a, f) s = Mul(t, x) d = Identity(c) }>
"""
#: A loop that ends when a sum is large enough, after all, some or none of four iterations.
WHILE = """
    y = Loop(four, flag, x) <body = b (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] t)
      { q = Mul(a, a) t = Add(a, q) s = ReduceSum<keepdims=0>(t) m = Constant<value_float=40.0>()
        d = Less(s, m) }>
"""

#: Graphs with inputs x : float[2, 3] and flag : bool and a result y, by their special feature.
CASES = {
    "branch by a constant": "y = If(yes) <then_branch = t () => (float[2,3] r) { r = Relu(x) }, "
    "else_branch = e () => (float[3] r) { r = ReduceSum<keepdims=0>(x) }>",
    "branch at run time": "y = If(flag) <then_branch = t () => (float[2,3] r) "
    "{ n = Neg(x) r = Exp(n) }, else_branch = e () => (float[2,3] r) { n = Abs(x) r = Sqrt(n) }>",
    "several results": "y, z = If(flag) <then_branch = t () => (float[2,3] r, int64[2] n) "
    "{ r = Relu(x) n = ArgMax<axis=1, keepdims=0>(x) }, else_branch = e () => "
    "(float[2,3] r, int64[2] n) { r = Neg(x) n = ArgMin<axis=1, keepdims=0>(x) }>",
    # The branch that is not selected is infinite or NaN.
    "not finite": "a = Abs(x) n = Neg(a) y = If(flag) <then_branch = t () => "
    "(float[2,3] r) { r = Log(n) }, else_branch = e () => (float[2,3] r) { r = Exp(x) }>",
    "condition with an axis": "v = Constant<value_ints=[1]>() f = Reshape(flag, v) "
    "y = If(f) <then_branch = t () => "
    "(float r) { r = ReduceMax<keepdims=0>(x) }, else_branch = e () => (float r) "
    "{ r = ReduceMin<keepdims=0>(x) }>",
    "captured": "h = Identity(x) g = Identity(h) y = If(flag) <then_branch = t () => "
    "(float[2,3] r) { r = If(yes) <then_branch = u () => (float[2,3] v) { v = Add(g, h) }, "
    "else_branch = w () => (float[2,3] v) { v = Identity(x) }> }, "
    "else_branch = e () => (float[2,3] r) { r = Mul(g, h) }>",
    "branches within branches": "m = ReduceMax<keepdims=0>(x) h = Constant<value_float=0.7>() "
    "g = Less(m, h) y, z = If(flag) <then_branch = t () => (float[2,3] r, float[2,3] q) "
    "{ r, a = If(g) <then_branch = u () => (float[2,3] v, float[2,3] w) { v = Neg(x) w = Exp(v) }, "
    "else_branch = o () => (float[2,3] v, float[2,3] w) { w = Abs(x) v = Sqrt(w) }> "
    "f = Less(h, m) q = If(f) <then_branch = s () => (float[2,3] k) { k = Add(a, r) }, "
    "else_branch = p () => (float[2,3] k) { k = Identity(a) }> }, "
    "else_branch = e () => (float[2,3] r, float[2,3] q) { q = Mul(x, x) r = Relu(q) }> "
    "v = Add(y, z) w = Mul(v, x)",
    "condition of a branch": "m = ReduceMax<keepdims=0>(x) h = Constant<value_float=0.7>() "
    "g = If(flag) <then_branch = t () => (bool r) { r = Less(m, h) }, else_branch = e () => "
    "(bool r) { r = Less(h, m) }> y = If(g) <then_branch = u () => (float[2,3] v) { v = Neg(x) }, "
    "else_branch = o () => (float[2,3] v) { v = Identity(x) }>",
    "branches of constants": "y = If(flag) <then_branch = t () => (float[2] r) "
    "{ r = Constant<value_floats=[1.0, 2.0]>() }, else_branch = e () => (float[2] r) "
    "{ r = Constant<value_floats=[3.0, 4.0]>() }>",
    "unused result": "u, y = If(flag) <then_branch = t () => (float[2,3] a, float[2,3] r) "
    "{ a = Relu(x) r = Neg(x) }, else_branch = e () => (float[3] a, float[2,3] r) "
    "{ a = ReduceSum<keepdims=0>(x) r = Abs(x) }>",
    "loop": ADDING,
    "loop without iterations": ADDING.replace("four", "zero").replace("y, z", "y, w")
    + " k = Unsqueeze(x, zero) v = Concat<axis=0>(w, k) z = Neg(v)",
    "loop, negative trip count": ADDING.replace("four", "last").replace("y, z", "y, w"),
    "loop without a condition": ADDING.replace("yes, x", ", x"),
    "while": WHILE,
    "while a constant holds": "big = Constant<value_int=9223372036854775807>() "
    "y = Loop(big, yes, x) <body = b (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] t) "
    "{ t = Add(a, x) d = Less(i, two) }>",
    "while without a trip count": "y = Loop(, yes, x) <body = b (int64 i, bool c, float[2,3] a) "
    "=> (bool d, float[2,3] t) { t = Add(a, x) d = Less(i, two) }>",
    "state that grows": "y = Loop(two, yes, x) <body = b (int64 i, bool c, float[N,3] a) => "
    "(bool d, float[M,3] t) { t = Concat<axis=0>(a, x) d = Identity(c) }>",
    "states that change places": "p = Neg(x) y, z = Loop(four, flag, x, p) <body = b (int64 i, "
    "bool c, float[2,3] a, float[2,3] e) => (bool d, float[2,3] s, float[2,3] t) "
    "{ s = Exp(e) t = Identity(a) m = ReduceMax<keepdims=0>(s) k = Constant<value_float=9.0>() "
    "d = Less(m, k) }>",
    "loop in a loop in a branch": "y = If(flag) <then_branch = t () => (float[2,3] r) "
    "{ r = Loop(two, yes, x) <body = b (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] s) "
    "{ f = Less(i, one) q = If(f) <then_branch = t2 () => (float[2,3] n) { n = Neg(a) }, "
    "else_branch = e2 () => (float[2,3] n) { n = Add(a, x) }> "
    "s = Loop(four, c, q) <body = b2 (int64 j, bool c2, float[2,3] a2) => "
    "(bool d2, float[2,3] s2) { k = Add(i, j) g = Cast<to=1>(k) s2 = Add(a2, g) "
    "d2 = Identity(c2) }> d = Identity(c) }> }, "
    "else_branch = e () => (float[2,3] r) { r = Identity(x) }>",
    "scan": "v = Constant<value_ints=[0]>() h = ReduceSum<keepdims=0>(x, v) "
    "y, z = Scan<num_scan_inputs=1, body = b "
    "(float[3] a, float[3] e) => (float[3] t, float[3] s) { t = Add(a, e) s = Tanh(t) }>(h, x)",
    "scan along axes, backwards": "t = Transpose(x) y = Scan<num_scan_inputs=2, "
    "scan_input_axes=[1, 0], scan_input_directions=[1, 0], scan_output_axes=[1], "
    "scan_output_directions=[1], body = b (float[2] a, float[2] e) => (float[2] s) "
    "{ p = Exp(a) s = Mul(p, e) }>(x, t)",
    "chunks": "s = SplitToSequence<axis=1>(x, two) a = SequenceAt(s, zero) b = SequenceAt(s, last) "
    "n = SequenceLength(s) f = Cast<to=1>(n) m = Mul(b, f) y = Concat<axis=1>(m, a)",
    "unbind": "s = SplitToSequence<axis=1, keepdims=0>(x) a = SequenceAt(s, one) b = Neg(a) "
    "t = SequenceInsert(s, b, one) u = SequenceErase(t, last) "
    "y = ConcatFromSequence<axis=-1, new_axis=1>(u)",
    "parts": "l = Constant<value_ints=[2, 1]>() s = SplitToSequence<axis=1>(x, l) "
    "e = SequenceErase(s) a = SequenceAt(e, zero) y = Neg(a)",
    "sequence through a loop": "e = SequenceEmpty() s = Loop(four, yes, e) <body = b (int64 i, "
    "bool c, seq(float[2,3]) a) => (bool d, seq(float[2,3]) t) { f = Cast<to=1>(i) h = Add(x, f) "
    "t = SequenceInsert(a, h) d = Identity(c) }> y = ConcatFromSequence<axis=1>(s)",
    "sequence of a branch": "s = If(flag) <then_branch = t () => (seq(float[2,3]) r) "
    "{ n = Neg(x) r = SequenceConstruct(x, n) }, else_branch = e () => (seq(float[2,3]) r) "
    "{ n = Exp(x) r = SequenceConstruct(n, x) }> i = Identity(s) "
    "y = ConcatFromSequence<axis=0>(i)",
    "map": "s = SequenceConstruct(x, x) e = Exp(x) u = SequenceConstruct(e, x) "
    "m, k = SequenceMap(s, e, u) <body = b (float[2,3] a, float[2,3] g, float[2,3] h) => "
    "(float[2,3] r, float[2,3] q) { p = Add(a, g) r = Mul(p, h) q = Neg(r) }> "
    "y = ConcatFromSequence<axis=0>(m) z = ConcatFromSequence<axis=0>(k)",
    "optional": "o = Optional(x) h = OptionalHasElement(o) y = If(h) <then_branch = t () => "
    "(float[2,3] r) { g = OptionalGetElement(o) r = Neg(g) }, else_branch = e () => (float[3] r) "
    "{ r = ReduceSum<keepdims=0>(x) }>",
}  # fmt: skip

WAYS = [
    pytest.param("llvm", "cpu", "buffer", id="llvm"),
    pytest.param("opencl", "cpu", "buffer", id="cpu", marks=pytest.mark.opencl),
    pytest.param("opencl", "adreno", "texture", id="textures", marks=pytest.mark.opencl),
    pytest.param("opencl", "mali", "auto", id="mali", marks=pytest.mark.opencl),
]


def parsed(text, opset=18):
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}')


def model_of(case, opset=18):
    """Build a graph of `CASES`, with the result y, and z if there is one."""
    nodes = nodes_of(f"{NUMBERS} {case}")
    made = {name for node in nodes for name in node.output}
    results = [name for name in ("y", "z") if name in made]
    return any_model(nodes, {"x": (2, 3), "flag": ((), "bool")}, results, opset=opset)


def feeds_of(flag):
    x = np.random.default_rng(5).standard_normal((2, 3)).astype(np.float32)
    return {"x": x, "flag": np.array(flag)}


def graph_of(model, **options):
    """Return the front end's own graph, before conversion to Relax."""
    graph = prepare(open_model(model, **options), None)
    propagate(graph)
    return graph


def operators(graph):
    return [node.op_type for node in graph.nodes]


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_as_onnx_runtime(case, flag):
    model = model_of(CASES[case])
    check(model, feeds_of(flag))
    graph = graph_of(model)
    assert not any(a.type == a.GRAPH for node in graph.nodes for a in node.attribute)


@pytest.mark.parametrize("opset", [9, 11, 13])
@pytest.mark.parametrize(
    "case", ["branch at run time", "loop", "while", "scan", "chunks", "loop in a loop in a branch"]
)
def test_in_older_operator_sets(case, opset):
    if case == "chunks" and opset < 11:
        pytest.skip("operator set 11 is the first with sequences")
    text = CASES[case]
    if opset < 13:
        text = text.replace("ReduceSum<keepdims=0>(x, v)", "ReduceSum<keepdims=0, axes=[0]>(x)")
    model = model_of(text, opset)
    if opset < 12:
        for node in all_nodes(model.graph.node):
            if node.op_type == "Constant" and node.attribute[0].name != "value":
                value = numpy_helper.from_array(constant_value(node))
                node.attribute[0].CopyFrom(helper.make_attribute("value", value))
    check(model, feeds_of(True))


@pytest.mark.parametrize("batch", [1, 2])
def test_batched_scan(batch, rng):
    """In operator set 8 the first axis is the batch, and there is no choice of axes."""
    model = parsed(
        "g (float[2,3] h, float[2,4,3] x) => (float[2,3] y, float[2,4,3] z) { y, z = "
        "Scan<num_scan_inputs=1, directions=[1], body = b (float[3] a, float[3] e) => "
        "(float[3] t, float[3] s) { t = Add(a, e) s = Tanh(t) }>(, h, x) }".replace(
            "[2,", f"[{batch},"
        ),
        opset=8,
    )
    feeds = {
        "h": rng.standard_normal((batch, 3)).astype(np.float32),
        "x": rng.standard_normal((batch, 4, 3)).astype(np.float32),
    }
    check(model, feeds)


def test_squeeze_as_pytorch_exports_it(rng):
    """The branches have different shapes, but the condition is constant if the shape is static."""
    model = parsed(
        "g (float[N,3] x) => (float y) { zero = Constant<value_ints=[0]>() s = Shape(x) "
        "n = Gather(s, zero) one = Constant<value_ints=[1]>() c = Equal(n, one) y = If(c) "
        "<then_branch = t () => (float[3] r) { r = Squeeze(x, zero) }, "
        "else_branch = e () => (float[N,3] r) { r = Identity(x) }> }"
    )
    model.graph.output[0].ClearField("type")
    for extent, shape in ((1, (3,)), (4, (4, 3))):
        x = rng.standard_normal((extent, 3)).astype(np.float32)
        imported = load_model(model, {"x": x.shape})
        assert imported.outputs[0].shape == shape
        assert_right(run(imported, {"x": x}), onnxruntime_results(model, {"x": x}))


def test_a_condition_that_is_not_given_does_not_count(rng):
    """ONNX specifies this, although ONNX Runtime and ONNX's evaluator end the loop."""
    model = model_of(
        "y = Loop(four, , x) <body = b (int64 i, bool c, float[2,3] a) => "
        "(bool d, float[2,3] t) { t = Add(a, a) d = Less(i, one) }>"
    )
    assert_right(load_and_run(model, feeds_of(True)), [feeds_of(True)["x"] * 16])


def test_a_loop_that_ended_does_not_go_on():
    """The condition is true, false, and true again."""
    model = model_of(
        "y = Loop(four, flag, x) <body = b (int64 i, bool c, float[2,3] a) => "
        "(bool d, float[2,3] t) { v = Constant<value_int=1>() n = Equal(i, v) m = Not(n) "
        "q = Abs(x) s = ReduceMin<keepdims=0>(q) z = Constant<value_float=0.0>() "
        "g = GreaterOrEqual(s, z) d = And(m, g) t = Add(a, x) }>"
    )
    x = feeds_of(True)["x"]
    assert_right(load_and_run(model, feeds_of(True)), [x + x + x])
    assert_right(load_and_run(model, feeds_of(False)), [x])


# The graph ---------------------------------------------------------------------------------


def test_only_the_branch_that_is_chosen_is_left():
    """An untaken branch, or an unused result, may contain unsupported operators."""
    graph = graph_of(model_of(
        "y, u = If(yes) <then_branch = t () => (float[2,3] r, float[N] q) "
        "{ r = Relu(x) n = NonZero(x) q = Foo(n) }, "
        "else_branch = e () => (float[2,3] r, float[N] q) { r = Bar(x) q = Foo(r) }>"
    ))  # fmt: skip
    assert operators(graph) == ["Relu"]
    assert not graph.problems


def test_a_loop_is_its_iterations():
    graph = graph_of(model_of(ADDING.replace("four", "two")))
    assert operators(graph) == ["Add", "Mul", "Add", "Mul", "Reshape", "Reshape", "Concat"]
    assert graph.nodes[0].input[0] == "x"
    assert graph.nodes[2].input[0] == graph.nodes[0].output[0]
    (number,) = {graph.nodes[2].input[1]} & graph.constants.keys()
    assert graph.constants[number] == 1


def test_a_loop_at_run_time_selects_its_state():
    graph = graph_of(model_of(WHILE.replace("four", "two")))
    step = ["Mul", "Add"]
    assert operators(graph) == [*step, "ReduceSum", "Less", "Where", "And", *step, "Where"]


def test_shapes_are_computed_from_the_number_of_the_iteration():
    """PyTorch exports loops over slices so."""
    model = model_of(
        "y = Loop(two, yes, x) <body = b (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] t) "
        "{ v = Constant<value_ints=[1]>() j = Add(i, v) s = Reshape(i, v) "
        "q = Slice(a, s, j, v) m = ReduceMax(q, v) t = Mul(a, m) d = Identity(c) }>"
    )
    check(model, feeds_of(True))


def test_names_say_where_a_node_came_from():
    model = model_of(CASES["loop in a loop in a branch"])
    for node in all_nodes(model.graph.node):
        node.name = node.op_type.lower()
    names = {node.name for node in graph_of(model).nodes}
    assert {"if/then/loop/0/loop/1/add_1", "if/then/loop/0/if/then/neg"} & names


# Contents of nested graphs ------------------------------------------------------------------


def weighted(array):
    """Build two branches that each have a weight of the same name."""
    model = parsed(
        "g (float[1,3] x, bool flag) => (float[1,31] y) { y = If(flag) "
        "<then_branch = t () => (float[1,31] r) { r = MatMul(x, w) }, "
        "else_branch = e () => (float[1,31] r) { p = MatMul(x, w) r = Neg(p) }> }"
    )
    for index, graph in enumerate(a.g for a in model.graph.node[0].attribute):
        graph.initializer.append(numpy_helper.from_array(array + index, "w"))
    return model


@pytest.fixture
def weights(rng):
    return rng.standard_normal((3, 31)).astype(np.float32)


@pytest.mark.parametrize("flag", [True, False])
def test_weights_within_branches(weights, flag, rng):
    model = weighted(weights)
    before = model.SerializeToString()
    feeds = {"x": rng.standard_normal((1, 3)).astype(np.float32), "flag": np.array(flag)}
    expected = onnxruntime_results(model, feeds)
    assert_right(load_and_run(model, feeds), expected)
    imported = load_model(model, large_weight_bytes=256)
    assert len(imported.weights) == 2
    assert_right(run(imported, feeds), expected)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("external", [True, False])
def test_large_weights_within_branches_stay_in_the_file(tmp_path, weights, external, rng):
    model, file = weighted(weights), tmp_path / "net.onnx"
    if external:
        content = b""
        for attribute in model.graph.node[0].attribute:
            (tensor,) = attribute.g.initializer
            for key, value in (("location", "data"), ("offset", len(content)), ("length", 372)):
                tensor.external_data.add(key=key, value=str(value))
            content += tensor.raw_data
            tensor.data_location = TensorProto.EXTERNAL
            tensor.ClearField("raw_data")
        (tmp_path / "data").write_bytes(content)
    file.write_bytes(model.SerializeToString())
    imported = load_model(file, large_weight_bytes=256)
    assert all(isinstance(array, np.memmap) for array in imported.weights.values())
    feeds = {"x": rng.standard_normal((1, 3)).astype(np.float32), "flag": np.array(False)}
    assert_right(run(imported, feeds), [-(feeds["x"] @ (weights + 1))])


def test_external_data_of_a_branch_does_not_leave_the_folder(tmp_path, weights):
    model, file = weighted(weights), tmp_path / "net.onnx"
    (tensor,) = model.graph.node[0].attribute[1].g.initializer
    tensor.external_data.add(key="location", value="../data")
    tensor.data_location = TensorProto.EXTERNAL
    file.write_bytes(model.SerializeToString())
    for read in (load_model, lambda path: external_files(open_model(path))):
        with pytest.raises(ModelError, match="not a file in the model's folder"):
            read(file)


def test_quantized_nodes_within_a_branch(rng):
    """ONNX Runtime's operators are expanded in branches, too, and data is moved as integers."""
    model = parsed(
        "g (uint8[2,6] x, bool flag) => (float[12] y) { "
        "s = Constant<value_float=0.25>() z = Constant<value = uint8 {3}>() y = If(flag) "
        "<then_branch = t () => (float[12] r) { "
        "q = com.microsoft.QLinearAdd(x, s, z, x, s, z, s, z) d = DequantizeLinear(q, s, z) "
        "v = Constant<value_ints=[-1]>() r = Reshape(d, v) }, "
        "else_branch = e () => (float[12] r) { d = DequantizeLinear(x, s, z) "
        "w = Constant<value_ints=[-1]>() r = Reshape(d, w) }> }"
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    graph = graph_of(model)
    assert not graph.problems
    moves = [node for node in graph.nodes if node.op_type == "Reshape"]
    assert {graph.type_of(node.output[0]).dtype for node in moves} == {"uint8"}
    for flag in (True, False):
        x = rng.integers(0, 100, (2, 6)).astype(np.uint8)
        feeds = {"x": x, "flag": np.array(flag)}
        assert_right(load_and_run(model, feeds), onnxruntime_results(model, feeds))


def test_functions_with_branches(rng):
    """A model's own function has an If, and a branch calls another one."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18, "own": 1]>
        g (float[2,3] x, bool flag) => (float[2,3] y) { y = own.choose <slope = 0.5> (x, flag) }
        <domain: "own", opset_import: ["": 18, "own": 1]>
        choose <slope> (a, c) => (b) {
            b = If(c) <
                then_branch = t () => (float[2,3] r) { r = LeakyRelu<alpha: float = @slope>(a) },
                else_branch = e () => (float[2,3] r) { r = own.twice(a) }
            >
        }
        <domain: "own", opset_import: ["": 18]>
        twice (a) => (b) { k = Constant<value_float=2.0>() b = Mul(a, k) }
    """)
    for flag in (True, False):
        feeds = feeds_of(flag)
        expected = np.where(feeds["x"] > 0, feeds["x"], feeds["x"] / 2) if flag else feeds["x"] * 2
        assert_right(load_and_run(model, feeds), [expected])


def test_operands_of_what_is_not_run_are_replaced():
    """An operand is replaced once for each condition around its node."""
    graph = graph_of(model_of(
        "n = Cast<to=6>(x) c = Not(flag) y = If(flag) <then_branch = t () => (int32 r) "
        "{ r = If(c) <then_branch = u () => (int32 q) { q = Div(n, n) }, "
        "else_branch = v () => (int32 q) { q = Neg(n) }> }, "
        "else_branch = e () => (int32 r) { r = Abs(n) }>"
    ))  # fmt: skip
    makers = {name: node for node in graph.nodes for name in node.output}
    divisor = next(node for node in graph.nodes if node.op_type == "Div").input[1]
    for _ in range(2):
        assert makers[divisor].op_type == "Where"
        assert graph.constants[makers[divisor].input[2]] == 1
        divisor = makers[divisor].input[1]
    assert makers[divisor].op_type == "Cast"


@pytest.mark.parametrize("divisor", [0, 3])
@pytest.mark.parametrize(("target", "device", "storage"), WAYS)
def test_what_is_not_run_does_no_harm(target, device, storage, divisor, rng):
    """Integer division by zero would crash, and wild indices would read out of bounds."""
    model = parsed(
        "g (int32[2,7] x, int32 d, int64[2,7] i, float[2,7] f) => (int32[2,7] y, float[2,7] z) "
        "{ zero = Constant<value=int32 {0}>() c = Equal(d, zero) y, z = If(c) "
        "<then_branch = t () => (int32[2,7] r, float[2,7] q) { r = Neg(x) q = Neg(f) }, "
        "else_branch = e () => (int32[2,7] r, float[2,7] q) { "
        "k = Div(x, d) m = Mod(x, d) r = Add(k, m) q = GatherElements<axis=1>(f, i) }> }"
    )
    x, f = np.arange(14, dtype=np.int32).reshape(2, 7), rng.standard_normal((2, 7)).astype("f4")
    index = np.full((2, 7), 2 if divisor else 2**40)
    expected = (x // 3 + x % 3, f[:, 2:3].repeat(7, 1)) if divisor else (-x, -f)
    options = {"storage": storage} if target == "opencl" else {}
    with tvmflow.compile(model, target=target, device=device, **options) as module:
        outputs = module(x=x, d=np.array(divisor, np.int32), i=index, f=f)
        for name, array in zip("yz", expected, strict=True):
            np.testing.assert_array_equal(np.asarray(outputs[name]), array)


@pytest.mark.parametrize("condition", ["flag", "yes"])
def test_custom_operators_in_a_branch(condition):
    """Operators that check their inputs at each call are refused, as they would run in any case."""
    model = model_of(
        "k = Constant<value_ints=[0]>() l = Constant<value_ints=[4]>() "
        "a = Constant<value_ints=[1]>() b = Concat<axis=1>(x, x) p = Slice(b, k, l, a) "
        f"y = If({condition}) "
        "<then_branch = t () => (float r) { r, v = ai.tvmflow.GIoULoss(p, p) }, "
        "else_branch = e () => (float r) { r = ReduceMax<keepdims=0>(x) }>"
    )
    model.opset_import.append(helper.make_opsetid("ai.tvmflow", 1))
    if condition == "yes":
        assert load_model(model).outputs[0].shape == ()
    else:
        with pytest.raises(UnsupportedModelError, match="GIoULoss") as caught:
            load_model(model)
        assert "each call checks its inputs" in str(caught.value)


# Networks ----------------------------------------------------------------------------------

#: Control flow around convolutions in blocked layouts, with the input x : [1, C, 9, 7].
NETWORKS = {
    "branch": "h = Conv<pads=[1,1,1,1]>(x, w) y = If(flag) <then_branch = t () => (float[N] r) "
    "{ a = Relu(h) r = Conv<pads=[1,1,1,1]>(a, w) }, else_branch = e () => (float[N] r) "
    "{ r = Sigmoid(h) }>",
    "branch in a branch": "h = Conv<pads=[1,1,1,1]>(x, w) m = ReduceMean<keepdims=0>(h) "
    "zero = Constant<value_float=0.0>() f = Less(m, zero) p, k = If(flag) <then_branch = t () => "
    "(float[N] r, float[N] q) { a = Relu(h) q = Conv<pads=[1,1,1,1]>(a, w) r = If(f) "
    "<then_branch = u () => (float[N] v) { v = Conv<pads=[1,1,1,1]>(q, w) }, "
    "else_branch = o () => (float[N] v) { v = Add(q, h) }> }, else_branch = e () => "
    "(float[N] r, float[N] q) { r = Sigmoid(h) q = Conv<pads=[1,1,1,1]>(r, w) }> "
    "l = Conv<pads=[1,1,1,1]>(k, w) n = Add(l, p) y = Mul(n, k)",
    "loop": "four = Constant<value_int=3>() y = Loop(four, flag, x) <body = b (int64 i, bool c, "
    "float[N] a) => (bool d, float[N] t) { h = Conv<pads=[1,1,1,1]>(a, w) t = Tanh(h) "
    "m = ReduceMean<keepdims=0>(t) z = Constant<value_float=0.0>() d = Less(m, z) }>",
    "sequence": "h = Conv<pads=[1,1,1,1]>(x, w) s = SplitToSequence<axis=2>(h) "
    "k = Constant<value_int=3>() a = SequenceAt(s, k) v = SequenceErase(s, k) "
    "t = SequenceInsert(v, a) c = ConcatFromSequence<axis=2>(t) "
    "y = Conv<pads=[1,1,1,1]>(c, w)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("network", "channels", "target", "device", "storage"),
    in_turn(
        [(n, c) for n in NETWORKS for c in (7, 31, 1)], WAYS, ("llvm", "cpu", "textures", "mali")
    ),
)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_networks(network, channels, target, device, storage, dtype, rng):
    if dtype == "fp16" and target == "llvm":
        pytest.skip("llvm has no storage in 16 bits")
    shape = (1, channels, 9, 7)
    text = NETWORKS[network].replace("float[N]", f"float[1,{channels},9,7]")
    graph = parsed(
        f"g (float[1,{channels},9,7] x, bool flag) => (float[1,{channels},9,7] y) {{ {text} }}"
    )
    weight = rng.standard_normal((channels, channels, 3, 3)) * (9 * channels) ** -0.5
    graph.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), "w"))
    options = {"storage": storage, "dtype": dtype} if target == "opencl" else {}
    if dtype == "fp16":
        options["accumulate"] = "fp32"  # every device supports it
    with tvmflow.compile(graph, target=target, device=device, **options) as module:
        for flag in (True, False):
            x = rng.standard_normal(shape).astype(np.float32)
            feeds = {"x": x, "flag": np.array(flag)}
            (expected,) = onnxruntime_results(graph, feeds)
            table = OPERATOR if dtype == "fp32" else {"float32": NETWORK["float16"]}
            assert_close(np.asarray(module(**feeds)["y"]), expected, table, "y")


# Refusals ----------------------------------------------------------------------------------


def loop_of(trips, condition="yes", more=""):
    return (
        f"{more} y = Loop({trips}, {condition}, x) <body = b (int64 i, bool c, float[2,3] a) => "
        "(bool d, float[2,3] t) { t = Add(a, x) m = ReduceMax<keepdims=0>(t) k = Neg(m) "
        "d = Less(m, k) }>"
    )


#: Refused nodes, and words of the reason.
REFUSED = {
    "endless": (loop_of("", ""), "neither a trip count nor a condition"),
    "endless while": (
        ("y = Loop(, yes, x) <body = b (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] t) "
        "{ t = Add(a, x) d = Identity(c) }>"),
        "its condition is never false, and no trip count bounds it",
    ),
    "rows without a bound": (
        ("n = Cast<to=7>(flag) u, y = Loop(n, yes, x) <body = b (int64 i, bool c, float a) => "
        "(bool d, float t, float s) { d = Identity(c) t = Add(a, x) s = Neg(a) }>"),
        'row of each: give the largest number that can be (`bounds={"u": 1000}`)',
    ),
    "state that grows": (
        ("n = Cast<to=7>(flag) y = Loop(n, yes, x) <body = b (int64 i, bool c, float a) => "
        "(bool d, float t) { d = Identity(c) t = Concat<axis=0>(a, x) }>"),
        "its state 'x' is float32[2, 3] before an iteration and float32[4, 3] after it",
    ),
    "long, with a state that grows": (
        ("n = Constant<value_int=90000>() y = Loop(n, yes, x) <body = b (int64 i, bool c, float a) "
        "=> (bool d, float t) { d = Identity(c) t = Concat<axis=0>(a, x) }>"),
        "exceed the 4000 nodes that the loops of a model are unrolled to, and its state",
    ),
    "state of another type": (
        ("n = Cast<to=7>(flag) y = Loop(n, yes, x) <body = b (int64 i, bool c, float a) => "
        "(bool d, int32 t) { d = Identity(c) t = Cast<to=6>(a) }>"),
        "its state 'x' is float32[2, 3] before an iteration and int32[2, 3] after it",
    ),
    "sequence as a state": (
        ("n = Cast<to=7>(flag) e = SequenceEmpty() s = Loop(n, yes, e) <body = b (int64 i, bool c, "
        "seq(float) a) => (bool d, seq(float) t) { d = Identity(c) t = SequenceInsert(a, x) }> "
        "y = ConcatFromSequence<axis=0>(s)"),
        "its state 'e' is a sequence, and its iterations are not unrolled",
    ),
    "what it reads has a size of its own": (
        ("n = Cast<to=7>(flag) p = NonZero(x) y = Loop(n, yes, x) <body = b (int64 i, bool c, "
        "float a) => (bool d, float t) { d = Identity(c) f = Cast<to=1>(p) "
        "m = ReduceSum<keepdims=0>(f) t = Add(a, m) }>"),
        "the captured value 'p' has a number of elements, from node 'p' (NonZero), that is known",
    ),
    "what it leaves has a size of its own": (
        ("n = Cast<to=7>(flag) p = Constant<value = int64[2,6] {0,0,0,0,0,0,0,0,0,0,0,0}>() "
        "y = Loop(n, yes, p) <body = b (int64 i, bool c, int64 a) => (bool d, int64 t) "
        "{ d = Identity(c) f = Cast<to=1>(a) q = Transpose(x) g = MatMul(q, f) t = NonZero(x) }>"),
        "its state after an iteration has a number of elements that is known only",
    ),
    "branches of other shapes": (
        ("y = If(flag) <then_branch = t () => (float r) { r = Relu(x) }, "
        "else_branch = e () => (float r) { r = ReduceMax<keepdims=0>(x) }>"),
        "its branches' results differ: float32[2, 3] and float32[]",
    ),
    "branches of other types": (
        ("y = If(flag) <then_branch = t () => (float r) { r = Relu(x) }, "
        "else_branch = e () => (int32 r) { r = Cast<to=6>(x) }>"),
        "its branches' results differ: float32[2, 3] and int32[2, 3]",
    ),
    "branches of other lengths": (
        ("s = If(flag) <then_branch = t () => (seq(float) r) { r = SequenceConstruct(x) }, "
        "else_branch = e () => (seq(float) r) { r = SequenceConstruct(x, x) }> "
        "y = ConcatFromSequence<axis=0>(s)"),
        "its branches' results differ: 1 tensor and 2 tensors",
    ),
    "within a branch": (
        ("y = If(flag) <then_branch = t () => (float r) { n = Unique(x) r = Relu(n) }, "
        "else_branch = e () => (float r) { r = Relu(x) }>"),
        "y/then/n",
    ),
    "unknown within a branch": (
        ("y = If(flag) <then_branch = t () => (float r) { r = Foo(x) }, "
        "else_branch = e () => (float r) { r = Relu(x) }>"),
        "y/then/r",
    ),
    "within a loop": (
        ("y = Loop(two, yes, x) <body = b (int64 i, bool c, float a) => (bool d, float t) "
        "{ d = Identity(c) n = Unique(a) t = Relu(n) }>"),
        "y/0/n",
    ),
    "within a loop that is run": (
        ("n = Cast<to=7>(flag) y = Loop(n, yes, x) <body = b (int64 i, bool c, float a) => "
        "(bool d, float t) { d = Identity(c) u = Unique(a) t = Relu(u) }>"),
        "y/body/u",
    ),
    "conversion within a loop that is run": (
        ("n = Cast<to=7>(flag) y = Loop(n, yes, x) <body = b (int64 i, bool c, float a) => "
        "(bool d, float t) { d = Identity(c) t = Trilu(a, i) }>"),
        "its diagonal are computed at run time; only constant ones are supported\n    y/body/t",
    ),
    "position at run time": (
        "s = SequenceConstruct(x, x) i = Cast<to=7>(flag) y = SequenceAt(s, i)",
        "its position is computed at run time",
    ),
    "lengths at run time": (
        "i = Cast<to=7>(flag) s = SplitToSequence(x, i) y = SequenceAt(s, zero)",
        "the lengths of its parts are computed at run time",
    ),
}  # fmt: skip

#: Nodes that break ONNX's rules.
INVALID = {
    "position": ("s = SequenceConstruct(x, x) y = SequenceAt(s, two)", "position 2 is not within"),
    "position to insert": (
        "s = SequenceEmpty() t = SequenceInsert(s, x, one) y = SequenceAt(t, zero)",
        "position 1 is not within a sequence of length 0",
    ),
    "nothing to erase": (
        "s = SequenceEmpty() t = SequenceErase(s) y = ConcatFromSequence<axis=0>(t)",
        "removes a tensor from an empty sequence",
    ),
    "nothing to join": (
        "s = SequenceEmpty() y = ConcatFromSequence<axis=0>(s)", "an empty sequence",
    ),
    "lengths": (
        ("l = Constant<value_ints=[2, 2]>() s = SplitToSequence<axis=1>(x, l) "
        "y = SequenceAt(s, zero)"),
        "its parts have the lengths [2, 2], which do not add up to 3",
    ),
    "sequence for a tensor": ("s = SequenceConstruct(x) y = Relu(s)", "is a sequence"),
    "tensor for a sequence": ("y = SequenceAt(x, zero)", "is given for a sequence"),
    "condition": (
        ("y = If(x) <then_branch = t () => (float r) { r = Relu(x) }, "
        "else_branch = e () => (float r) { r = Neg(x) }>"),
        "its condition is float32[2, 3], expected one bool",
    ),
    "number of results": (
        ("y = If(flag) <then_branch = t () => (float r, float q) { r = Relu(x) q = Abs(x) }, "
        "else_branch = e () => (float r) { r = Neg(x) }>"),
        "it has 1 result, but a branch of it 2",
    ),
    "states": (
        ("y = Loop(two, yes, x, x) <body = b (int64 i, bool c, float a) => (bool d, float t) "
        "{ d = Identity(c) t = Neg(a) }>"),
        "expected 4 and at least 3",
    ),
    "none": (
        "o = Optional<type = float[2,3]>() g = OptionalGetElement(o) y = Relu(g)",
        "an empty optional",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    nodes, reason = REFUSED[case]
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(model_of(nodes))
    assert reason in str(caught.value)
    assert caught.value.remedy


#: Loops that only the virtual machine runs.
OF_THE_MACHINE = {
    "condition at run time": loop_of("", "flag"),
    "computed condition": loop_of(""),
    "computed trip count": loop_of("n", more="n = Cast<to=7>(flag)"),
    "rows of a while": WHILE.replace("y = L", "u, y = L")
    .replace("float[2,3] t)", "float[2,3] t, float[2,3] a2)")
    .replace("{ q", "{ a2 = Neg(a) q"),
    "too long": loop_of("n", more="n = Constant<value_int=90000>()"),
}


@pytest.mark.parametrize("case", OF_THE_MACHINE)
def test_without_a_virtual_machine(case):
    model = model_of(OF_THE_MACHINE[case])
    assert load_model(model).loops
    with pytest.raises(UnsupportedModelError, match="standalone libraries and CUDA graphs") as told:
        load_model(model, has_machine=False)
    assert "y" in str(told.value)
    assert told.value.remedy


@pytest.mark.parametrize("case", INVALID)
def test_invalid(case):
    nodes, reason = INVALID[case]
    with pytest.raises(ModelError, match="node") as caught:
        load_model(model_of(nodes))
    assert not isinstance(caught.value, UnsupportedModelError)
    assert reason in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("case", ["s = SequenceConstruct(x, x)", "s = Optional<type = float[2]>()"])
def test_a_sequence_is_no_output(case):
    model = model_of(f"{case} y = Identity(s)")
    with pytest.raises(UnsupportedModelError, match="output 'y' is a sequence"):
        load_model(model)


def test_a_sequence_is_no_input():
    model = parsed("g (seq(float[2]) s) => (float[2] y) { y = ConcatFromSequence<axis=0>(s) }")
    with pytest.raises(UnsupportedModelError, match="input 's' is a sequence"):
        load_model(model)


def nested(depth):
    """Build nested Ifs in place, as deep ones cannot be copied."""
    model = parsed("g (float[2,3] x, bool flag) => (float[2,3] y) { y = Relu(x) }")
    node, result = model.graph.node[0], "y"
    for level in range(depth):
        node.CopyFrom(helper.make_node("If", ["flag"], [result]))
        result = f"r{level}"
        for branch in ("then_branch", "else_branch"):
            graph = node.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH).g
            graph.name = f"{branch}{level}"
            name = result if branch == "then_branch" else f"e{level}"
            graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]))
            graph.node.append(helper.make_node("Neg", ["x"], [name]))
        node = node.attribute[0].g.node[0]
    return model


def test_how_deep_graphs_may_be():
    assert load_model(nested(DEEPEST_GRAPH)).outputs
    for depth in (DEEPEST_GRAPH + 1, 300):
        with pytest.raises(UnsupportedModelError, match="nested more than"):
            load_model(nested(depth))


def test_old_operator_sets_have_no_graphs():
    """ONNX's version converter leaves them as they are."""
    with pytest.raises(UnsupportedModelError, match=r"the graphs within node 'y' \(If\)"):
        load_model(model_of(CASES["branch at run time"], opset=6))


# Extents that differ ---------------------------------------------------------------------------

#: Nodes whose results have an extent that the condition chooses.
OF_OTHER_EXTENT = {
    "none or some": (
        "y, a = If(flag) <then_branch = t () => (float[n,3] r, float[n,3] q) "
        "{ r = Slice(x, zero1, zero1) q = Abs(r) }, "
        "else_branch = e () => (float[n,3] r, float[n,3] q) { r = Relu(x) q = Neg(x) }> "
        "z = Add(y, a)"
    ),
    "more or less": (
        "a = If(flag) <then_branch = t () => (float r) { r = Concat<axis=1>(x, x) }, "
        "else_branch = e () => (float r) { r = Neg(x) }> y = Abs(a) z = ReduceSum<keepdims=0>(a)"
    ),
    "found or not": (
        "y = If(flag) <then_branch = t () => (int64 r) { n = NonZero(x) r = Neg(n) }, "
        "else_branch = e () => (int64 r) { p = Relu(x) r = NonZero(p) }> z = Cast<to=1>(y)"
    ),
    "state that grows": (
        "y = Loop(four, flag, x) <body = b (int64 i, bool c, float[N,3] a) => (bool d, float t) "
        "{ t = Concat<axis=0>(a, a) m = ReduceMax<keepdims=0>(t) n = Neg(m) d = Less(n, m) }> "
        "z = Neg(y)"
    ),
}


@pytest.mark.onnxruntime
@pytest.mark.parametrize("case", OF_OTHER_EXTENT)
@pytest.mark.parametrize(("target", "device", "storage"), WAYS)
def test_the_condition_chooses_the_extent(case, target, device, storage):
    """Results have exactly ONNX's sizes, which are known only at run time."""
    model = model_of("zero1 = Constant<value_ints=[0]>() " + OF_OTHER_EXTENT[case])
    with tvmflow.compile(model, target=target, device=device, storage=storage) as module:
        for flag in (True, False):
            feeds = feeds_of(flag)
            expected = onnxruntime_results(model, feeds)
            assert expected is not None
            for found, right in zip(module(feeds), expected, strict=True):
                assert found.shape == right.shape
                np.testing.assert_allclose(found, right, rtol=1e-5)
