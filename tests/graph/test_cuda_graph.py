"""CUDA graphs: every kernel is in one, nothing that changes its address is."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import tvm
from support.checks import check_outputs
from support.cuda_host import cuda_host
from support.first_stages import compiled_until
from support.networks import NETWORKS
from support.onnx_models import model_of
from support.operators import feeds_for, random, single
from tvm import relax
from tvm.script import tirx as T

import tvmflow
from tvmflow.errors import CompileError, TargetError
from tvmflow.graph.cuda_graph import StageBoundary
from tvmflow.ir.passes import original_errors


def long_mean():
    """Two kernels in one function, with partial sums in the device's memory between them."""
    return single("ReduceMean", [(300, 301)], opset=11, keepdims=0)


def largest():
    """Loops that TVM wrote itself, with memory of their own."""
    nodes, constants = "values, places = TopK(x, k)", {"k": np.array([5])}
    return model_of(nodes, {"x": (3, 50)}, "values places", constants)


def two_results():
    """One of them is an input in another shape, the other is read by it, too."""
    constants = {"w": random((33, 20)), "shape": np.array([7, 3], np.int64)}
    nodes = "p = MatMul(x, w) q = Softmax<axis = 1>(p) r = Reshape(z, shape) s = Add(p, q)"
    return model_of(nodes, {"x": (5, 33), "z": (3, 7)}, "p r s", constants)


MODELS = {
    "gate": NETWORKS["squeeze_and_excite"],
    "branches": NETWORKS["inception"],
    "long_mean": long_mean,
    "largest": largest,
    "two_results": two_results,
}


def lowered(model):
    return compiled_until("lower", model, target="cuda", cuda_graph=True).mod


def calls(function):
    """Names of what a function calls."""
    found = []
    for block in function.body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call):
                operator = binding.value.op
                name = getattr(operator, "name_hint", None)
                found.append(name or getattr(operator, "global_symbol", None) or operator.name)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_all_kernels_are_captured(name):
    model = MODELS[name]()
    mod = lowered(model)
    kernels = {gv.name_hint for gv, f in mod.functions.items() if not isinstance(f, relax.Function)}
    captured = calls(mod["main_cuda_graph_capture"])
    assert kernels <= set(captured)
    # Memory is made elsewhere: once, or for the results.
    assert not any("alloc_storage" in call for call in captured)
    outside = calls(mod["main"])
    assert not kernels & set(outside)
    copies = len(model.graph.input) + len(model.graph.output)
    assert outside.count("runtime.TVMTensorCopyFromTo") == copies
    assert sum(call == "relax.vm.alloc_storage" for call in outside) == len(model.graph.output)
    assert not any(gv.name_hint == "main_cuda_graph_capture1" for gv in mod.functions)


def test_kernels_are_given_what_they_would_allocate():
    mod = lowered(long_mean())
    (function,) = (f for f in mod.functions.values() if not isinstance(f, relax.Function))
    assert [list(map(int, p.shape)) for p in function.params] == [[300, 301], [], [11]]


@pytest.mark.cuda_host
@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in ("gate", "branches") else ()) for n in MODELS],
)
def test_a_replayed_graph_computes_what_it_is_given(name):
    model = MODELS[name]()
    with closing(tvmflow.compile(model, target="cuda", cuda_graph=True)) as module:
        check_outputs(model, module, feeds_for(model), run=cuda_host())


def test_only_cuda_has_graphs():
    with pytest.raises(TargetError, match="CUDA graph was asked for the target llvm") as caught:
        tvmflow.compile(long_mean(), target="llvm", cuda_graph=True)
    assert '`target="cuda"`' in str(caught.value)


@T.prim_func(s_tir=True)
def allocates(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("outer"):
            T.reads(x[i])
            T.writes(y[i])
            between = T.sblock_alloc_buffer((8,), "float32")
            between[i] = x[i]
            y[i] = between[i]


def test_functions_that_allocate_are_refused():
    refused = pytest.raises(CompileError, match="allocates memory whenever it runs")
    with refused as caught, original_errors():
        StageBoundary(tvm.IRModule({"allocates": allocates}))
    assert "`cuda_graph`" in str(caught.value)
