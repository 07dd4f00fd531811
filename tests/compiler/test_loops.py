"""Loops that run in the virtual machine: their results against ONNX Runtime, and their place."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from support.turns import in_turn
from typer.testing import CliRunner

import tvmflow
from tvmflow.cli.app import app
from tvmflow.compiler.options import CompileOptions
from tvmflow.errors import InputError, UnsupportedModelError
from tvmflow.tuning.session import Network
from tvmflow.verify.tolerance import NETWORK, OPERATOR, assert_close

pytestmark = pytest.mark.onnxruntime

WAYS = [
    pytest.param("llvm", "cpu", "buffer", id="llvm"),
    pytest.param("opencl", "cpu", "buffer", id="cpu", marks=pytest.mark.opencl),
    pytest.param("opencl", "adreno", "texture", id="textures", marks=pytest.mark.opencl),
    pytest.param("opencl", "mali", "auto", id="mali", marks=pytest.mark.opencl),
]

#: Inputs of all networks: x, a flag, a number and a table.
INPUTS = "float[2,3] x, bool flag, int64 n, float[450,3] u"
NUMBERS = """
    one = Constant<value_int=1>() two = Constant<value_int=2>() half = Constant<value_float=0.5>()
    yes = Constant<value = bool {1}>() axis = Constant<value_ints=[1]>()
"""
#: A loop that ends when a sum is large enough; {} is the trip count.
WHILE = """y = Loop({}, flag, x) <body = b (int64 i, bool c, float[2,3] a) =>
    (bool d, float[2,3] t) {{ q = Mul(a, a) t = Add(a, q) s = ReduceSum<keepdims=0>(t)
      m = Constant<value_float=4000.0>() d = Less(s, m) }}>"""
#: The same loop, which also collects a row per iteration.
ROWS = """y, z = Loop({}, flag, x) <body = b (int64 i, bool c, float[2,3] a) =>
    (bool d, float[2,3] t, float[2] r) {{ q = Mul(a, a) t = Add(a, q)
      s = ReduceSum<keepdims=0>(t) m = Constant<value_float=4000.0>() d = Less(s, m)
      r = ReduceMax<keepdims=0>(t, axis) }}> v = ReduceSum<keepdims=0>(z) w = Abs(z)"""

#: Nodes by case; their results are y, z, v and w, those that they compute.
CASES = {
    "trip count": "y = Loop(n, yes, x) <body = b (int64 i, bool c, float[2,3] a) => "
    "(bool d, float[2,3] t) { f = Cast<to=1>(i) t = Add(a, f) d = Identity(c) }>",
    "no condition": "y = Loop(n, , x) <body = b (int64 i, bool c, float[2,3] a) => "
    "(bool d, float[2,3] t) { t = Add(a, x) d = Identity(c) }>",
    "condition": WHILE.format(""),
    "condition and trip count": WHILE.format("n"),
    "largest trip count": "most = Constant<value_int=1000>() " + WHILE.format("most"),
    "as long as": "most = Constant<value_int=9223372036854775807>() " + WHILE.format("most"),
    "rows, up to a constant": "most = Constant<value_int=20>() " + ROWS.format("most"),
    "rows, up to a bound": ROWS.format("n"),
    "loops within each other": "y = Loop(n, yes, x) <body = b (int64 i, bool c, float[2,3] a) => "
    "(bool d, float[2,3] s) { k = Add(i, one) s = Loop(k, c, a) <body = b2 (int64 j, bool c2, "
    "float[2,3] a2) => (bool d2, float[2,3] s2) { l = Add(i, j) g = Cast<to=1>(l) "
    "h = Mul(g, x) s2 = Add(a2, h) d2 = Identity(c2) }> d = Identity(c) }>",
    "within a branch": "y = If(flag) <then_branch = t () => (float[2,3] r) { r = Loop(n, yes, x) "
    "<body = b (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] s) "
    "{ s = Add(a, x) d = Identity(c)}> }, else_branch = e () => (float[2,3] r) { r = Neg(x) }>",
    "branch within": "y = Loop(n, yes, x) <body = b (int64 i, bool c, float[2,3] a) => "
    "(bool d, float[2,3] s) { f = Less(i, two) s = If(f) <then_branch = t () => (float[2,3] r) "
    "{ r = Neg(a) }, else_branch = e () => (float[2,3] r) { r = Add(a, x) }> d = Identity(c) }>",
    "states that change places": "p = Neg(x) y, z = Loop(n, flag, x, p) <body = b (int64 i, "
    "bool c, float[2,3] a, float[2,3] e) => (bool d, float[2,3] s, float[2,3] t) "
    "{ s = Identity(e) t = Identity(a) d = Identity(c) }>",
    "constants": "y, z = Loop(n, flag, half, x) <body = b (int64 i, bool c, float a, "
    "float[2,3] e) => (bool d, float s, float[2,3] t) { s = Constant<value_float=7.0>() "
    "t = Identity(e) d = Identity(c) }>",
    "no further iteration": "y = Loop(n, flag, x) <body = b (int64 i, bool c, float[2,3] a) => "
    "(bool d, float[2,3] t) { t = Neg(a) d = Constant<value = bool {0}>() }>",
    "numbers with an axis": "k = Reshape(n, axis) f = Reshape(flag, axis) y = Loop(k, f, x) "
    "<body = b (int64[1] i, bool[1] c, float[2,3] a) => (bool[1] d, float[2,3] s) "
    "{ g = Cast<to=1>(i) s = Add(a, g) d = Identity(c) }>",
    "other types": "y = Loop(n, yes, one) <body = b (int64 i, bool c, int64 a) => "
    "(bool d, int64 s) { s = Add(a, i) d = Identity(c) }> z = Loop(n, yes, flag) <body = b "
    "(int64 i, bool c, bool a) => (bool d, bool s) { s = Not(a) d = Identity(c) }>",
    "one of two states": "k, y = Loop(n, yes, x, x) <body = b (int64 i, bool c, float[2,3] a, "
    "float[2,3] e) => (bool d, float[2,3] s, float[2,3] t) { s = Add(a, x) t = Add(e, e) "
    "d = Identity(c) }>",
    "found within": "y = Loop(n, yes, x) <body = b (int64 i, bool c, float[2,3] a) => "
    "(bool d, float[2,3] s) { p = NonZero(a) f = Cast<to=1>(p) m = ReduceSum<keepdims=0>(f) "
    "s = Add(a, m) d = Identity(c) }>",
    "rows of a long loop": "most = Constant<value_int=150>() y, z = Loop(most, yes, x) <body = b "
    "(int64 i, bool c, float[2,3] a) => (bool d, float[2,3] t, float[2,3] r) "
    "{ q = Mul(a, half) f = Cast<to=1>(i) t = Add(q, f) r = Neg(t) d = Identity(c) }> "
    "g = Transpose<perm=[1,0,2]>(z) v = Flatten(g) w = Softmax<axis=0>(z)",
    "without elements": "e = Slice(x, zero0, zero0, zero0) y, w, z = Loop(n, flag, x, e) <body = b "
    "(int64 i, bool c, float[2,3] a, float[0,3] f) => (bool d, float[2,3] s, float[0,3] t, "
    "float[0,3] r) { s = Add(a, x) t = Neg(f) r = Slice(a, zero0, zero0, zero0) d = Identity(c) }>",
    "rows within": "most = Constant<value_int=6>() y = Loop(n, yes, x) <body = b (int64 i, bool c, "
    "float[2,3] a) => (bool d, float[2,3] s) { u1, z1 = Loop(most, c, a) <body = b2 (int64 j, "
    "bool e, float[2,3] o) => (bool f, float[2,3] p, float[2,3] r) { k = Add(i, j) "
    "g = Cast<to=1>(k) p = Add(o, g) r = Mul(p, x) h = ReduceMax<keepdims=0>(p) "
    "l = Constant<value_float=9.0>() f = Less(h, l) }> q = ReduceSum<keepdims=0>(z1, zero0) "
    "s = Add(q, u1) d = Identity(c) }>",
    "scan": "h = ReduceSum<keepdims=0>(x, zero0) y, z = Scan<num_scan_inputs=1, "
    "scan_input_directions=[1], scan_output_directions=[1], scan_output_axes=[1], body = b "
    "(float[3] a, float[3] e) => (float[3] t, float[3] s) { q = Add(a, e) t = Mul(q, half) "
    "s = Tanh(t) }>(h, u)",
}  # fmt: skip
#: Cases whose trip count is not constant, and which collect rows.
BOUNDED = ("rows, up to a bound", "without elements")
#: Values of the flag and the number: the trip count, or how long conditions hold.
NUMBERS_OF = ((True, 0), (True, 1), (False, 5), (True, 6), (True, -2))


def model_of(nodes: str, inputs: str = INPUTS, opset: int = 18) -> onnx.ModelProto:
    """Return a network of these nodes."""
    zero = "zero0 = Constant<value_ints=[0]>()"
    text = f'<ir_version: 9, opset_import: ["": {opset}]> g ({inputs}) => () '
    graph = onnx.parser.parse_model(f"{text} {{ {NUMBERS} {zero} {nodes} }}").graph
    made = {name for node in graph.node for name in node.output}
    results = [onnx.ValueInfoProto(name=name) for name in "yzvw" if name in made]
    graph = helper.make_graph(list(graph.node), "graph", list(graph.input), results)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def session_of(model):
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def feeds_of(rng, flag=True, n=3):
    x = rng.standard_normal((2, 3)).astype(np.float32)
    u = rng.standard_normal((450, 3)).astype(np.float32)
    return {"x": x, "flag": np.array(flag), "n": np.array(n), "u": u}


def is_run(module) -> bool:
    """Return whether the module has a loop that the virtual machine runs."""
    return bool(module.metadata.get("loops"))


@pytest.mark.parametrize(
    ("case", "target", "device", "storage"),
    in_turn([(case,) for case in CASES], WAYS, ("llvm", "cpu", "textures", "mali")),
)
def test_as_onnx_runtime(case, target, device, storage, rng):
    model = model_of(CASES[case])
    session = session_of(model)
    options = {"bounds": {"y": 6}} if case in BOUNDED else {}
    if target == "opencl":
        options["storage"] = storage
    with tvmflow.compile(model, target=target, device=device, **options) as module:
        assert is_run(module)
        for flag, n in NUMBERS_OF:
            feeds = feeds_of(rng, flag, n)
            expected = session.run(None, feeds)
            for found, right in zip(module(feeds), expected, strict=True):
                assert found.shape == right.shape
                assert found.dtype == right.dtype
                if right.dtype.kind == "f":
                    assert_close(found, right, OPERATOR, case)
                else:
                    np.testing.assert_array_equal(found, right)


def test_a_loop_in_a_branch_that_is_not_run(rng):
    """Iterations of that loop would take time, and their results would be discarded."""
    with tvmflow.compile(model_of(CASES["within a branch"]), target="llvm") as module:
        few, many = (module.profile(feeds_of(rng, False, n), 1) for n in (0, 9))
        assert len(few) == len(many)


@pytest.mark.parametrize(
    "nodes",
    [
        "t = Trilu(q, i)",
        "j = Mod(i, two) f = Reshape(j, axis) g = Add(f, axis) s = Slice(q, f, g) t = Mul(q, s)",
    ],
)
def test_what_needs_the_number_as_a_constant_is_unrolled(nodes, rng):
    """The loop's body would be refused; it has enough nodes to be run as a loop."""
    more = " ".join(f"u{number} = Neg(q)" for number in range(60))
    model = model_of(
        "most = Constant<value_int=8>() y = Loop(most, yes, x) <body = b (int64 i, bool c, "
        "float[2,3] a) => (bool d, float[2,3] t) "
        f"{{ q = Add(a, x) {nodes} {more} d = Identity(c) }}>"
    )
    with tvmflow.compile(model, target="llvm") as module:
        assert not is_run(module)
        feeds = feeds_of(rng)
        assert_close(module(feeds)["y"], session_of(model).run(None, feeds)[0], OPERATOR, "y")


@pytest.mark.parametrize(("target", "device", "storage"), WAYS)
def test_ten_thousand_iterations(target, device, storage, rng):
    """Loops do not recurse in TVM's VM: so many calls would overflow the stack."""
    model = model_of(CASES["trip count"].replace("Cast<to=1>(i)", "Constant<value_float=1.0>()"))
    with tvmflow.compile(model, target=target, device=device, storage=storage) as module:
        feeds = {**feeds_of(rng, n=10_000), "x": np.zeros((2, 3), np.float32)}
        (y,) = module(feeds).values()
        np.testing.assert_array_equal(y, np.full((2, 3), 10_000, np.float32))


def test_more_rows_than_the_bound(rng):
    with tvmflow.compile(model_of(ROWS.format("n")), target="llvm", bounds={"z": 3}) as module:
        feeds = feeds_of(rng, True, 3)
        feeds["x"] *= 0.1
        assert module(feeds)["z"].shape == (3, 2)
        feeds["n"] = np.array(5)
        with pytest.raises(InputError, match=r"'y' has 5 elements .*, more than its bound of 3"):
            module(feeds)


# Networks ----------------------------------------------------------------------------------

#: A loop of convolutions between convolutions; its body reads tensors from outside.
NETWORK_OF_LOOPS = """
    h = Conv<pads=[1,1,1,1]>(p, w) r = Relu(h)
    g, o = Loop(n, yes, r, r) <body = b (int64 i, bool c, float[N] a, float[N] e) =>
      (bool d, float[N] s, float[N] t) {
        q = Conv<pads=[1,1,1,1]>(a, k) f = Relu(q) l = Conv<pads=[1,1,1,1]>(f, w)
        s = Add(l, r) t = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(a) d = Identity(c) }>
    m = Add(g, o) y = Conv<pads=[1,1,1,1]>(m, w)
"""


def network(channels, rng):
    shape = f"float[1,{channels},9,7]"
    model = model_of(NETWORK_OF_LOOPS.replace("float[N]", shape), f"{shape} p, int64 n")
    for name in "wk":
        weight = rng.standard_normal((channels, channels, 3, 3)) * (9 * channels) ** -0.5
        model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), name))
    return model


@pytest.mark.parametrize(
    ("channels", "target", "device", "storage"),
    in_turn([(c,) for c in (7, 31, 8, 1)], WAYS, ("llvm", "cpu", "textures", "mali")),
)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_networks(channels, target, device, storage, dtype, rng):
    if dtype == "fp16" and target == "llvm":
        pytest.skip("llvm has no storage in 16 bits")
    model = network(channels, rng)
    session = session_of(model)
    options = {"storage": storage, "dtype": dtype} if target == "opencl" else {}
    if dtype == "fp16":
        options["accumulate"] = "fp32"  # which every device supports
    with tvmflow.compile(model, target=target, device=device, **options) as module:
        names = module.metadata["weight_names"]
        assert len(set(names)) < len(names)  # w is stored once
        for n in (0, 1, 4):
            p = rng.standard_normal((1, channels, 9, 7)).astype(np.float32)
            feeds = {"p": p, "n": np.array(n)}
            table = OPERATOR if dtype == "fp32" else {"float32": NETWORK["float16"]}
            assert_close(module(feeds)["y"], session.run(None, feeds)[0], table, "y")


def test_two_loops_have_their_own_weights(rng):
    """Both have one shape; the second contains a loop that reads the outer weight and its own."""
    inner = (
        "l = Loop(n, c, a) <body = b2 (int64 j, bool e, float[2,3] o) => (bool f, float[2,3] p) "
        "{ p = MatMul(o, w2) f = Identity(e) }>"
    )
    model = model_of(
        "k = Loop(n, yes, x) <body = b0 (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] s) "
        "{ s = MatMul(a, w0) d = Identity(c) }> "
        "y = Loop(n, yes, k) <body = b1 (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] s) "
        f"{{ {inner} s = MatMul(l, w1) d = Identity(c) }}>"
    )
    for number in range(3):
        array = rng.standard_normal((3, 3)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, f"w{number}"))
    session = session_of(model)
    with tvmflow.compile(model, target="llvm") as module:
        for n in (1, 2):
            feeds = feeds_of(rng, n=n)
            assert_close(module(feeds)["y"], session.run(None, feeds)[0], OPERATOR, "y")


def test_a_network_in_halves(rng):
    """A model in float16 is computed in fp32, and so are the bodies of its loops."""
    model = model_of(
        "h = Cast<to=10>(x) g = Loop(n, yes, h) <body = b (int64 i, bool c, float16[2,3] a) => "
        "(bool d, float16[2,3] t) { t = Mul(a, k) d = Identity(c) }> y = Cast<to=1>(g)"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.full(3, 0.75, np.float16), "k"))
    with tvmflow.compile(model, target="llvm") as module:
        feeds = feeds_of(rng)
        half = feeds["x"].astype(np.float16).astype(np.float32)
        np.testing.assert_allclose(module(feeds)["y"], half * 0.75**3, rtol=1e-3)


@pytest.mark.opencl
def test_numbers_made_of_integers_leave_a_loop_as_they_are():
    """They may exceed the range of 16 bits, and are stored in 32, as everywhere."""
    model = model_of(
        "g = Loop(n, yes, x) <body = b (int64 i, bool c, float[2,3] a) => "
        "(bool d, float[2,3] t) { q = Cast<to=7>(x) f = Cast<to=1>(q) "
        "m = Constant<value_float=100000.0>() t = Mul(f, m) d = Identity(c) }> "
        "p = Transpose<perm=[1,0]>(g) w = Softmax<axis=0>(p)"
    )
    x = np.array([[1, 4, -2], [3, 3.5, 9]], np.float32)
    feeds = {"x": x, "flag": np.array(True), "n": np.array(2), "u": np.zeros((450, 3), np.float32)}
    with tvmflow.compile(model, target="opencl", dtype="fp16") as module:
        np.testing.assert_array_equal(module(feeds)["w"], [[0, 0], [1, 0], [0, 1]])


def test_several_shapes(rng):
    model = model_of(CASES["loops within each other"].replace("[2,3]", "[B,3]"),
                     INPUTS.replace("[2,3]", "[B,3]"))  # fmt: skip
    with tvmflow.compile(model, target="llvm", shapes={"x": ("1..2", 3)}) as module:
        session = session_of(model)
        for batch in (1, 2):
            feeds = feeds_of(rng)
            feeds["x"] = feeds["x"][:batch]
            expected = session.run(None, feeds)[0]
            assert_close(module(feeds)["y"], expected, OPERATOR, "y")


# Loops in reports of commands ------------------------------------------------------------------


@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_profiles_have_the_kernels_of_all_iterations(target, rng):
    with tvmflow.compile(network(7, rng), target=target) as module:
        launches = {}
        for n in (1, 3):
            feeds = {"p": np.zeros((1, 7, 9, 7), np.float32), "n": np.array(n)}
            launches[n] = [each.kernel for each in module.profile(feeds, 2)]
        known = {kernel["name"] for kernel in module.metadata["kernels"]}
    assert set(launches[3]) <= known
    assert not (len(launches[3]) - len(launches[1])) % 2
    assert len(launches[3]) > len(launches[1])


def test_tasks_are_those_of_bodies_too(rng):
    model = network(7, rng)
    tasks = Network(model, CompileOptions(target="llvm")).tasks()
    with tvmflow.compile(model, target="llvm") as module:
        schedules = module.metadata["schedules"]
        families = {schedule["family"] for schedule in schedules.values()}
    assert {task.family.NAME for task in tasks} == families
    # Before the loop, within it, and after it; k is read only within it.
    assert sum(task.calls for task in tasks if task.family.NAME == "conv2d") == 4


def test_verify_and_inspect(tmp_path, rng):
    model, path = tmp_path / "net.onnx", tmp_path / "net.so"
    onnx.save(network(7, rng), model)
    with tvmflow.compile(model, target="llvm") as module:
        module.save(path)
    for command in (["verify", str(model), str(path)], ["inspect", str(path), "--json"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["weight_names"]


@pytest.mark.parametrize(
    "options", [{"format": "standalone"}, {"cuda_graph": True, "target": "cuda"}]
)
def test_only_the_virtual_machine_has_loops(options, rng):
    options = {"target": "opencl", **options}
    with pytest.raises(UnsupportedModelError, match="which standalone libraries and CUDA graphs"):
        tvmflow.compile(network(7, rng), **options)
