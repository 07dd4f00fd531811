"""PoCL with the declarations that a program needs instead of all: the same results, sooner."""

from __future__ import annotations

import numpy as np

FEW = {"TVMFLOW_FEW_DECLARATIONS": "1"}


def test_programs_compute_the_same_with_few_declarations(pocl, script, tmp_path):
    env = {**pocl.env, "TVMFLOW_CACHE": "0", "POCL_CACHE_DIR": str(tmp_path)}
    every = script("declarations.py", env=env)
    few = script("declarations.py", env=env | FEW)
    x = np.linspace(-3, 4, 32, dtype="float32")
    assert np.allclose(every["undeclared"], np.hypot(x, 3), rtol=1e-6)
    assert len(set(every["declared"])) > 8
    for name in ("declared", "undeclared"):
        assert few[name] == every[name]
    assert few["wrong"] == every["wrong"] == "failed"
    # That the others were not declared shows where a kernel has a function of such a name.
    assert every["own"] == "failed"
    assert np.array_equal(few["own"], np.trunc(x * 4))
