"""TVM has as many threads as there are cores, and not half of them."""

from __future__ import annotations

import os

import pytest
from onnx import TensorProto, helper

import tvmflow
from tvmflow.runtime import threads


@pytest.fixture(scope="module")
def module_file(tmp_path_factory):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 8)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path = tmp_path_factory.mktemp("threads") / "relu.so"
    with tvmflow.compile(model, target="llvm") as module:
        module.save(path)
    return path


@pytest.mark.parametrize(
    ("given", "wanted"),
    [({}, threads.physical_cores()), ({"TVM_NUM_THREADS": "1"}, 1), ({"OMP_NUM_THREADS": "1"}, 1)],
    ids=str,
)
def test_a_module_has_a_thread_for_each_core(module_file, run_python, given, wanted):
    told = run_python(
        "import numpy, tvm, tvmflow\n"
        f"module = tvmflow.load({str(module_file)!r})\n"
        "module(numpy.zeros((4, 8), 'f4'))\n"
        "print(tvm.runtime.num_threads())",
        env={"TVM_NUM_THREADS": None, "OMP_NUM_THREADS": None, **given},
    )
    assert told.stdout.strip() == str(wanted), told.stderr


def test_hyper_threads_are_one_core(tmp_path, monkeypatch):
    for processor, siblings in enumerate(["0,2", "1", "0,2"]):
        (tmp_path / f"cpu{processor}").write_text(siblings)
    monkeypatch.setattr(threads, "_SIBLINGS", str(tmp_path / "cpu{}"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert threads.physical_cores() == 3  # nothing is known of the last one
