"""Processes that use modules and fork."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.forks import run_forked
from support.operators import single

import tvmflow

SCRIPT = Path(__file__).parent / "scripts" / "fork_children.py"
_BOTH = {"target": "opencl", "format": "standalone", "fallback": "cpu"}
#: Options of each form; the form's name selects the backend in the script.
FORMS = {
    "llvm": {"target": "llvm"},
    "alone_llvm": {"target": "llvm", "format": "standalone"},
    "alone_cpu": _BOTH,
    "alone_opencl": _BOTH,
    "opencl": {"target": "opencl"},
    # OpenCL in the parent, and the CPU in its children.
    "auto": _BOTH,
}
ON_OPENCL = ("alone_opencl", "opencl")


def tanh():
    return single("Tanh", [(257, 1023)])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Callable[[str], Path]:
    """Return a function that compiles a form, once for those with the same options."""
    folder = tmp_path_factory.mktemp("forks")

    def get(name: str) -> Path:
        first = folder / f"{next(n for n, options in FORMS.items() if options == FORMS[name])}.so"
        if not first.exists():
            with tvmflow.compile(tanh(), **FORMS[name]) as module:
                module.save(first)
        path = folder / f"{name}.so"
        return path if path == first else Path(shutil.copy(first, path))

    return get


@pytest.mark.parametrize(
    "form",
    [pytest.param(name, marks=[pytest.mark.opencl] * ("opencl" in name)) for name in FORMS],
)
def test_children_run_what_they_can_and_hang_nowhere(compiled, form):
    """A child runs an old and a new module and closes one, with and without a run in a thread."""
    done = run_forked([str(SCRIPT), str(compiled(form))], os.environ, timeout=300)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    for state, end in (("idle", "collect"), ("busy", "close")):
        said = results[state]
        assert said.pop(end) == "done", state
        assert set(said) == {"run", "new"}, said
        for what, text in said.items():
            if form not in ON_OPENCL:
                assert text == "done", (state, what)
            else:
                assert "OpenCL device was used in a process forked from one" in text
                assert "spawn" in text


@pytest.mark.opencl
def test_a_child_that_is_forked_before_opencl_is_used_may_use_it(compiled, run_python):
    code = (
        "import os, sys, numpy as np, tvmflow\n"
        "module = tvmflow.load(sys.argv[1])\n"
        "x = np.ones((257, 1023), 'f4')\n"
        "if not (child := os.fork()):\n"
        "    os._exit(0 if np.allclose(module(x)[0], np.tanh(x)) else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), np.allclose(module(x)[0], "
        "np.tanh(x)))\n"
    )
    told = run_python(code, compiled("alone_opencl"))
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
