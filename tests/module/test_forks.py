"""Processes that use modules and fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

import tvmflow

SCRIPT = Path(__file__).parent / "scripts" / "fork_children.py"
#: What a child may do with each form: without OpenCL everything.
FORMS = {
    "llvm": {"target": "llvm"},
    "opencl": {"target": "opencl"},
    "alone_opencl": {"target": "opencl", "format": "standalone"},
    "alone_llvm": {"target": "llvm", "format": "standalone"},
    "both": {"target": "opencl", "format": "standalone", "fallback": "cpu"},
}


def tanh():
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (257, 1023)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "tanh", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.fixture(scope="module")
def modules(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("forks")
    paths = {name: folder / f"{name}.so" for name in FORMS}
    for name, options in FORMS.items():
        with tvmflow.compile(tanh(), **options) as module:
            module.save(paths[name])
    return paths


@pytest.mark.quick
@pytest.mark.opencl
def test_children_run_what_they_can_and_hang_nowhere(modules):
    """Every form, while threads run all of them and while none does."""
    command = [sys.executable, str(SCRIPT), *map(str, modules.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    for name in FORMS:
        for state, actions in results[name].items():
            assert actions.pop("close" if state == "busy" else "collect") == "done", (name, state)
            assert set(actions) == {"run", "new"}, (name, state, actions)
            for what, said in actions.items():
                if "opencl" not in name:
                    assert said == "done", (name, state, what)
                else:
                    assert "OpenCL device was used in a process forked from one" in said, name
                    assert "spawn" in said


def test_a_child_that_is_forked_before_opencl_is_used_may_use_it(modules, run_python):
    code = (
        "import os, sys, numpy as np, tvmflow\n"
        "module = tvmflow.load(sys.argv[1])\n"
        "x = np.ones((257, 1023), 'f4')\n"
        "if not (child := os.fork()):\n"
        "    os._exit(0 if np.allclose(module(x)[0], np.tanh(x)) else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), np.allclose(module(x)[0], "
        "np.tanh(x)))\n"
    )
    told = run_python(code, modules["alone_opencl"])
    assert told.stdout.split() == ["0", "True"], told.stderr


def test_a_child_leaves_its_parents_temporary_file():
    with tvmflow.compile(tanh(), target="llvm") as module:
        child = os.fork()
        if not child:
            module.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert module.path.exists()
    assert not module.path.exists()
