"""Inputs and outputs of plans: layouts, dtypes, and results without a computation."""

from __future__ import annotations

import numpy as np
import pytest
from support.networks import Graph
from support.planned import assert_right, parsed, plan_of

from tvmflow.errors import CompileError

pytestmark = [pytest.mark.opencl, pytest.mark.onnxruntime]


@pytest.mark.parametrize("device", ["cpu", "adreno"])
def test_results_that_are_inputs_constants_views_and_the_same_tensor(device, tmp_path):
    model = parsed(
        "float[2,6] x, int64[3] i",
        "float[2,6] y, float[3,4] view, float[2,6] again, float[2,6] whole, int64[3] j, float[5] c",
        "y = Relu(x) view = Reshape(y, shape) again = Identity(y) whole = Identity(x) "
        "j = Identity(i) c = Identity(constant)",
        "int64[2] shape = {3, 4}, float[5] constant = {1.5, -2, 3, 4, 5.25}",
    )
    plan = plan_of(model, device)
    got = assert_right(plan, model, tmp_path)
    np.testing.assert_array_equal(got["view"].ravel(), got["again"].ravel())
    memory = [i.tensor.allocation for i in (*plan.inputs, *plan.outputs)]
    assert len(set(memory)) == len(memory) == 8


def test_a_network_that_computes_nothing(tmp_path):
    model = parsed("float[3,5] x", "float[3,5] y", "y = Identity(x)")
    plan = plan_of(model)
    assert_right(plan, model, tmp_path)
    (launch,) = plan.launches
    # Its 60 bytes are in a buffer of 64.
    assert (launch.kernel, launch.global_size) == ("tvmflow_copy16_kernel", (4,))


@pytest.mark.parametrize(
    ("dtype", "body"),
    [
        ("int64", "y = Mul(x, x)"),
        ("int32", "w = Neg(x) y = Sub(x, w)"),
        ("uint8", "f = Cast<to = 1>(x) g = Sqrt(f) y = Cast<to = 2>(g)"),
        ("int8", "y = Abs(x)"),
        ("bool", "y = Not(x)"),
        ("double", "y = Mul(x, x)"),
    ],
)
def test_dtypes_of_inputs_and_outputs(dtype, body, tmp_path):
    model = parsed(f"{dtype}[4,7] x", f"{dtype}[4,7] y", body)
    plan = plan_of(model)
    got = assert_right(plan, model, tmp_path)
    assert got["y"].dtype.name == {"double": "float64"}.get(dtype, dtype)
    assert len(np.unique(got["y"])) > 1
    assert plan.extensions == (["cl_khr_fp64"] if dtype == "double" else [])


def test_scalars_go_in_and_out(tmp_path):
    model = parsed(
        "float x, int64 n",
        "float y, int64 m, float same, float c",
        "y = Exp(x) m = Mul(n, n) same = Identity(x) c = Identity(constant)",
        "float constant = {2.5}",
    )
    got = assert_right(plan_of(model), model, tmp_path)
    assert {array.shape for array in got.values()} == {()}


def test_more_dimensions_than_the_c_interface_has():
    model = parsed(
        "float[2,1,1,2,1,2,1,1,3] many", "float[24] y", "y = Reshape(many, s)", "int64[1] s = {24}"
    )
    with pytest.raises(CompileError, match="'many' has 9 dimensions") as caught:
        plan_of(model)
    assert "`format=tvm`" in caught.value.remedy


def test_models_in_half_precision_need_no_device_that_computes_in_it():
    plan = plan_of(parsed("float16[4,7] x", "float16[4,7] y", "y = Mul(x, x)"))
    assert plan.extensions == []


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("form", ["nchw4c", "texture"])
@pytest.mark.parametrize("channels", [(3, 7), (8, 16)])
def test_kept_layouts(channels, form, dtype, tmp_path):
    g = Graph(2, channels[0], 9, 5)
    x = g.conv("x", 12, 3)
    model = g.model(g.conv(g.relu(x), channels[1], 3))
    output = model.graph.output[0].name
    plan = plan_of(model, "adreno", dtype=dtype, keep_layout={"x": form, output: form})
    assert_right(plan, model, tmp_path)
    for interface in (*plan.inputs, *plan.outputs):
        assert interface.info.shape[-1] == 4
        assert interface.tensor.is_image == (form == "texture")
    assert plan.metadata["logical_shapes"] == {
        "x": (2, channels[0], 9, 5),
        output: (2, channels[1], 9, 5),
    }


def test_an_image_of_several_panels(tmp_path, monkeypatch):
    """Images that would be higher than the device's limit have several panels."""
    from tvmflow.devices.target import PRESETS

    small = {
        "adreno": PRESETS["adreno"].__class__(**{**vars(PRESETS["adreno"]), "image_extent": 64})
    }
    monkeypatch.setattr("tvmflow.devices.target.PRESETS", {**PRESETS, **small})
    g = Graph(1, 16, 20, 6)
    model = g.model(g.conv(g.relu(g.conv("x", 32, 3)), 16))
    output = model.graph.output[0].name
    plan = plan_of(model, "adreno", keep_layout={"x": "texture", output: "texture"})
    assert [i.info.scope for i in plan.inputs] == ["global.texture:p2"]
    assert_right(plan, model, tmp_path)


def test_several_outputs_and_inputs(tmp_path):
    model = parsed(
        "float[1,6,5,5] a, float[1,6,5,5] b, int64[2] i",
        "float[1,6,5,5] sum, float[1,6,1,1] mean, float[2,6,5,5] taken",
        "sum = Add(a, b) mean = GlobalAveragePool(sum) both = Concat<axis = 0>(a, sum, b) "
        "j = Mod(i, three) taken = Gather<axis = 0>(both, j)",
        "int64[1] three = {3}",
    )
    plan = plan_of(model, "adreno")
    assert_right(plan, model, tmp_path)
