"""Primary functions of several kernels: their workspaces, and launches in order."""

from __future__ import annotations

import pytest
from support.networks import Graph
from support.planned import assert_right, parsed, plan_of

pytestmark = [pytest.mark.opencl, pytest.mark.onnxruntime]


def winograd():
    g = Graph(1, 3, 18, 18)
    x = g.relu(g.conv("x", 48, 3))
    return g.model(g.conv(g.relu(g.conv(x, 64, 3)), 5))


#: Networks with such functions, the function, and its number of launches on the device.
NETWORKS = {
    "sum_in_parts": (
        parsed(
            "float[2,100000] x",
            "float[2] y",
            "y = ReduceSum<keepdims = 0>(x, a)",
            "int64[1] a = {1}",
        ),
        ("cpu", "adreno"),
    ),
    "vector_by_matrix": (
        parsed("float[1,2000] x, float[2000,1500] w", "float[1,1500] y", "y = MatMul(x, w)"),
        ("cpu",),
    ),
    # TVM's own sort: a loop on the host over merges of twice the length.
    "largest_of_many": (
        parsed(
            "float[2,5000] x",
            "float[2,40] y, int64[2,40] i",
            "y, i = TopK(x, k)",
            "int64[1] k = {40}",
        ),
        ("cpu", "adreno"),
    ),
    "scatter": (
        parsed(
            "float[4,5] x, int64[2,1] i, float[2,5] u", "float[4,5] y", "y = ScatterND(x, i, u)"
        ),
        ("cpu",),
    ),
    "running_sum": (
        parsed("float[3,700] x", "float[3,700] y", "y = CumSum(x, a)", "int64 a = {1}"),
        ("adreno",),
    ),
    "winograd": (winograd(), ("cpu", "adreno")),
}
CASES = [(name, device) for name, (_, devices) in NETWORKS.items() for device in devices]


@pytest.mark.parametrize(("name", "device"), CASES)
def test_functions_of_several_kernels(name, device, tmp_path):
    model, _ = NETWORKS[name]
    plan = plan_of(model, device)
    assert_right(plan, model, tmp_path)
    assert len(plan.launches) > 1


def test_kernels_of_one_function_share_a_workspace_that_others_use(tmp_path):
    """Two sums in parts: the workspace of the first one's parts holds the second one's."""
    model = parsed(
        "float[2,90000] x",
        "float[2] y, float[2] z",
        "s = Sin(x) y = ReduceSum<keepdims = 0>(x, a) z = ReduceSum<keepdims = 0>(s, a)",
        "int64[1] a = {1}",
    )
    plan = plan_of(model, "adreno")
    assert_right(plan, model, tmp_path)
    outside = {i.tensor.allocation for i in (*plan.inputs, *plan.outputs)}
    parts = []
    for launch in plan.launches:
        (written,) = [a.tensor for a in launch.arguments if a.written]
        if written.allocation not in outside and "workspace" in written.name:
            parts.append(written)
    assert len(parts) == 2
    assert parts[0] is not parts[1]
    assert parts[0].allocation == parts[1].allocation
