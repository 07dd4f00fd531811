"""The runtime that a standalone library carries: small plans on real drivers."""

from __future__ import annotations

import numpy as np
import pytest
import runtime_build
import standalone_api as api
from small_plans import add_plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("libraries")


@pytest.mark.opencl
def test_a_plan_runs_with_its_weights(folder):
    plan, w = add_plan()
    library = runtime_build.link(folder / "add.so", plan.encode(), plan.weights())
    x = np.random.default_rng(2).normal(size=64).astype(np.float32)
    with api.Model(library) as model:
        for factor in (1, 3):
            (y,) = model(factor * x)
            np.testing.assert_allclose(y, 2 * factor * x + w, rtol=1e-6)
