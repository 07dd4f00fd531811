"""Running sums over more elements than the threads of any device that run in step."""

from __future__ import annotations

import numpy as np
import pytest
from support.operators import check, single


@pytest.mark.opencl
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("attributes", [{}, {"exclusive": 1}, {"reverse": 1}])
def test_running_sums(axis, attributes):
    """The sums have more elements than threads that run in step."""
    constants = {"axis": np.array(axis, np.int64)}
    check(single("CumSum", [(70, 37)], constants, **attributes), "opencl", "adreno")
