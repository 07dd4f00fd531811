"""Local functions whose operator set differs from the graph's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from reference import judge, onnxruntime_results
from reference import node_model as model_of_node
from support.onnx_models import model_of, nodes_of
from test_random_cases import FAMILIES, REASONS, draw

from tvmflow.errors import UnsupportedModelError
from tvmflow.frontend.load import load_model

#: Operator set of the graph that calls functions.
NEWEST = 22


def in_function(model: onnx.ModelProto, opset: int, functions: int = 1) -> onnx.ModelProto:
    """Wrap a model's node in a function, which a graph of another operator set calls."""
    (node,) = model.graph.node
    names = list(dict.fromkeys(filter(None, node.input)))
    own = model.opset_import[0].version
    outputs, call, made = list(node.output), node, []
    for number in range(functions):
        imports = [helper.make_opsetid("", own), helper.make_opsetid("pkg", 1)]
        made.append(helper.make_function("pkg", f"F{number}", names, outputs, [call], imports))
        call = helper.make_node(f"F{number}", names, outputs, domain="pkg")
    graph = helper.make_graph(
        [call], "graph", model.graph.input, model.graph.output, model.graph.initializer
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("pkg", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=made, ir_version=10)


def check(family: str, seed: int, opset: int = NEWEST) -> bool:
    """Compare a case with ONNX Runtime's result without functions; return whether it compiles."""
    model, feeds, expected, described = draw(family, seed)
    wrapped = in_function(model, opset)
    try:
        with np.errstate(all="ignore"):
            refusal = judge(wrapped, feeds, expected)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {described}") from error
    if refusal is not None and expected is not None:
        known = (*REASONS, "ONNX's version converter does not bring it")
        assert any(reason in refusal for reason in known), (seed, described, refusal)
    return refusal is None


@pytest.mark.onnxruntime
@pytest.mark.parametrize("family", FAMILIES)
def test_some(family):
    for seed in range(2):
        check(family, seed)


@pytest.mark.slow
@pytest.mark.onnxruntime
@pytest.mark.parametrize("family", FAMILIES)
def test_many(family):
    # Many cases of the family "sampling" have an operator set that is refused.
    assert sum(check(family, seed) for seed in range(100, 140)) > 10


def simple(op_type, opset, *values, **attributes):
    return model_of_node(op_type, [(value, False) for value in values], opset, **attributes)


X = np.random.default_rng(1).standard_normal((2, 4, 3)).astype(np.float32)


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    ("op_type", "function", "graph", "attributes"),
    [
        ("Softmax", 11, 17, {}),
        ("Softmax", 17, 11, {}),
        ("LogSoftmax", 9, 22, {"axis": 2}),
        ("ReduceSum", 11, 17, {"axes": [1]}),
        ("ReduceMean", 13, 18, {"axes": [1, -1]}),
        ("Unsqueeze", 11, 13, {"axes": [0]}),
        ("Clip", 6, 17, {"min": -0.5, "max": 0.25}),
        ("Relu", 1, 17, {}),
    ],
)
@pytest.mark.parametrize("functions", [1, 3])
def test_meanings_stay(op_type, function, graph, attributes, functions):
    model, feeds = simple(op_type, function, X, **attributes)
    expected = onnxruntime_results(model, feeds)
    assert judge(in_function(model, graph, functions), feeds, expected) is None


def test_nodes_around_an_older_function_keep_theirs():
    """Nodes of the graph itself have the older set here, and keep their meaning."""
    model, feeds = simple("Softmax", 17, X)
    wrapped = in_function(model, 11)
    wrapped.graph.node.append(helper.make_node("Softmax", ["y0"], ["z"]))
    wrapped.graph.output[0].name = "z"
    exponentials = np.exp(X - X.max(-1, keepdims=True))
    rows = (exponentials / exponentials.sum(-1, keepdims=True)).reshape(2, 12)
    expected = np.exp(rows) / np.exp(rows).sum(-1, keepdims=True)
    assert judge(wrapped, feeds, [expected.reshape(X.shape).astype(np.float32)]) is None


def test_what_the_converter_gets_wrong_is_refused():
    model, _ = simple("Hardmax", 11, X)
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(in_function(model, 13))
    assert "from operator set 11 of its function to 13: its meaning would change" in str(
        caught.value
    )


def test_a_function_with_an_attribute_and_a_branch():
    """Converted nodes get attributes of the call, and nested graphs are converted, too."""
    inner = nodes_of("s = Softmax(x) n = Neg(x)")
    inner[0].attribute.append(onnx.AttributeProto(name="axis", type=2, ref_attr_name="a"))
    infos = [onnx.ValueInfoProto(name=name) for name in ("s", "n")]
    branches = {
        f"{label}_branch": helper.make_graph([node], label, [], [info])
        for label, node, info in zip(("then", "else"), inner, infos, strict=True)
    }
    function = helper.make_function(
        "pkg", "F", ["x", "c"], ["y"], [helper.make_node("If", ["c"], ["y"], **branches)],
        [helper.make_opsetid("", 11)], ["a"],
    )  # fmt: skip
    call = helper.make_node("F", ["x", "c"], ["y"], domain="pkg", a=1)
    model = model_of([call], {"x": X.shape, "c": ((), "bool")})
    model.functions.append(function)
    flat = np.exp(X.reshape(2, -1))
    expected = (flat / flat.sum(-1, keepdims=True)).reshape(X.shape)
    for condition, result in ((True, expected), (False, -X)):
        assert judge(model, {"x": X, "c": np.array(condition)}, [result]) is None
