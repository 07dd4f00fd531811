"""The runtime of a standalone library: small plans on real drivers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support import drivers
from support import standalone_api as api
from support.commands import run
from support.small_plans import Plan, add_plan, image_plan, uniform, values
from support.threads import in_threads

from tvmflow.module.standalone.format import Section

pytestmark = pytest.mark.opencl


@pytest.fixture(scope="module", params=["pocl", "intel"])
def driver(request):
    """Return options that choose a driver."""
    chosen = {"pocl": drivers.POCL, "intel": drivers.INTEL}[request.param]
    if not chosen.path:
        pytest.skip(f"{chosen.name} is not installed")
    return {"opencl_library": chosen.path}


def test_a_plan_runs_with_its_weights(link, driver):
    plan, w = add_plan()
    with api.Model(link(plan), **driver) as model:
        for factor in (1, 3):
            x = factor * values(64)
            (y,) = model(x)
            np.testing.assert_allclose(y, 2 * x + w, rtol=1e-6)
        described = model.describe()
    assert described["network"]["model"] == "small"
    assert described["memory"] == {
        "buffer_bytes": 3 * 256,
        "image_bytes": 0,
        "weight_bytes": 128 + 256,
        "weights_shared": True,
    }
    assert (described["kernels"], described["device"]["type"]) == (1, "cpu")


def test_regions_of_images_are_where_the_plan_says(link, driver):
    x = values(3, 4, 5, 4)
    with api.Model(link(image_plan()), **driver) as model:
        (y,) = model(x)
        assert tuple(model.tensor("input", 0).image_size) == (5, 4, 3)
    np.testing.assert_array_equal(y, 2 * x)


REVERSE = """
__constant sampler_t at = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_NONE | CLK_FILTER_NEAREST;
__kernel void first_layer(read_only image2d_array_t x, __global float* y) {
  int i = get_global_id(0);
  y[i] = read_imagef(x, at, (int4)(i % 5, i / 5, LAYER, 0)).x;
}
"""


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_kernel_sees_the_layers_in_the_order_of_the_regions(link, layer):
    plan = Plan(REVERSE, f"-DLAYER={layer}")
    x, y = plan.image(5, 4, 3), plan.buffer(4 * 20)
    plan.launch("first_layer", [x, y], (20,), (5,))
    regions = [(80 * i, (0, 0, 2 - i), (5, 4, 1)) for i in range(3)]
    plan.input("x", (3, 4, 5, 4), x, regions=regions)
    plan.output("y", (4, 5), y)
    data = values(3, 4, 5, 4)
    with api.Model(link(plan)) as model:
        (y,) = model(data)
    np.testing.assert_array_equal(y, data[2 - layer, :, :, 0])


HALVES = np.float32([0, -0.0, 1, 1 + 2**-11, 1 + 3 * 2**-11, 65504, 65519.99, 65520, -1e9])
SMALL_HALVES = np.float32([2**-24, 2**-25, 1.0000001 * 2**-25, 6.1e-5, 3.14159, np.inf, np.nan])


def test_floats_are_rounded_to_the_halves_that_the_device_keeps(link, driver):
    x_values = np.concatenate([HALVES, SMALL_HALVES, -SMALL_HALVES])
    size = len(x_values)
    plan = Plan(
        "__kernel void copy(__global short* x, __global short* y) {"
        " y[get_global_id(0)] = x[get_global_id(0)]; }"
    )
    x, y = plan.buffer(2 * size), plan.buffer(2 * size)
    plan.launch("copy", [x, y], (size,))
    plan.input("x", (size,), x, half=True)
    plan.output("y", (size,), y, half=True)
    with api.Model(link(plan), **driver) as model:
        (y,) = model(x_values)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, x_values.astype(np.float16).astype(np.float32))


def test_images_of_halves(link):
    x = values(3, 4, 5, 4)
    with api.Model(link(image_plan("float16", half=True))) as model:
        (y,) = model(x)
        assert model.tensor("input", 0).bytes == x.nbytes
    np.testing.assert_array_equal(y, 2 * x.astype(np.float16).astype(np.float32))


#: Trap for reads and writes of floats at misaligned addresses.
ODD_ADDRESSES = f"""
import ctypes, sys
sys.path.insert(0, {str(Path(api.__file__).parents[1])!r})
import numpy as np
from support import standalone_api as api
x, y = (np.frombuffer(bytearray(961), np.float32, 240, offset=1) for _ in range(2))
x[:] = np.arange(240)
with api.Model(sys.argv[1]) as model:
    model.set_input(0, x)
    model.call("run")
    model.call("get_output", 0, 0, y.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(y.nbytes))
assert x.ctypes.data % 4
assert y.ctypes.data % 4
np.testing.assert_array_equal(y, 2 * x)
"""


def test_data_that_is_converted_lies_anywhere(link):
    checks = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
    library = link(image_plan("float16", half=True), *checks)
    run(sys.executable, "-c", ODD_ADDRESSES, library)


def test_arguments_of_each_size_and_several_programs(link, driver):
    plan = Plan(
        "__kernel void a(__global double* y, char c, short s, int i, long l, float f) {"
        " y[0] = c; y[1] = s; y[2] = i; y[3] = l; y[4] = f; }"
    )
    other = plan.program(
        "__kernel void a(__global double* y, int i) { y[5] = i * FACTOR; }", "-DFACTOR=3"
    )
    y = plan.buffer(48)
    passed = [np.int8(-5), np.int16(-300), np.int32(1 << 30), np.int64(1 << 40), np.float32(0.25)]
    plan.launch("a", [y, *passed], (1,))
    plan.launch("a", [y, np.int32(14)], (1,), program=other)
    plan.output("y", (6,), y, dtype="float64")
    with api.Model(link(plan), **driver) as model:
        (found,) = model()
        assert model.library.tvmflow_input_count(model.handle) == 0
    np.testing.assert_array_equal(found, [-5, -300, 1 << 30, 1 << 40, 0.25, 42])


def test_the_environment_has_more_options_for_the_compiler(link, driver, monkeypatch):
    plan = Plan("__kernel void fill(__global int* y) { y[get_global_id(0)] = NUMBER; }")
    y = plan.buffer(8)
    plan.launch("fill", [y], (2,))
    plan.output("y", (2,), y, dtype="int32")
    library = link(plan)
    for number in (3, 4):
        monkeypatch.setenv("TVMFLOW_OPENCL_OPTIONS", f"-cl-opt-disable -DNUMBER={number}")
        with api.Model(library, **driver) as model:
            np.testing.assert_array_equal(model()[0], [number] * 2)
    monkeypatch.setenv("TVMFLOW_OPENCL_OPTIONS", "-D" + "N" * 2000)
    with pytest.raises(api.CallError, match="shorten TVMFLOW_OPENCL_OPTIONS"):
        api.Model(library, **driver)


def test_the_result_of_what_was_started_is_waited_for(link):
    plan, w = add_plan()
    x = values(64)
    with api.Model(link(plan)) as model:
        model.call("wait")
        model.set_input(0, x)
        model.call("start")
        for call in (
            lambda: model.call("run"),
            lambda: model.call("start"),
            lambda: model.set_input(0, x),
            lambda: model.call("use_input", 0, None),
            model.self_test,
        ):
            with pytest.raises(api.CallError, match="tvmflow_wait") as caught:
                call()
            assert caught.value.status == api.BUSY
        np.testing.assert_allclose(model.get_output(0), 2 * x + w, rtol=1e-6)
        model.call("run")
        model.call("start")
        model.call("wait")
        model.call("start")


def test_instances_run_at_the_same_time(link):
    plans = [add_plan(scale=scale, seed=seed) for scale, seed in ((2.0, 1), (-3.0, 2))]
    libraries = [link(plan) for plan, _ in plans]

    def work(index):
        library, (_, w), scale = libraries[index % 2], plans[index % 2], (2, -3)[index % 2]
        random = np.random.default_rng(index)
        with api.Model(library) as model:
            for _ in range(50):
                x = random.normal(size=64).astype(np.float32)
                (y,) = model(x)
                np.testing.assert_allclose(y, scale * x + w, rtol=1e-5, atol=1e-6)

    in_threads(4, work)


def test_profile_tells_all_kernels_in_order(link, driver):
    plan, _ = add_plan()
    plan.launch("add", [0, 1, 2, np.float32(1)], (64,), (64,))
    library = link(plan)
    with api.Model(library, flags=api.PROFILE, **driver) as model:
        model.set_input(0, values(64))
        for _ in range(3):
            first, second = model.profile()
    assert (first.name, first.function) == (b"add", b"fused_add")
    assert 0 < first.start_ns <= first.end_ns <= second.start_ns <= second.end_ns
    with (
        api.Model(library, **driver) as model,
        pytest.raises(api.CallError, match="TVMFLOW_PROFILE"),
    ):
        model.profile()


def test_the_self_test_finds_what_is_wrong(link, driver):
    for error, status in ((0, None), (1e-3, api.WRONG)):
        plan, w = add_plan()
        x = uniform(2**63 + 5, 64, -1, 3).astype(np.float32)
        expected = 2 * x + w
        expected[63] += error
        plan.test([(2**63 + 5, -1, 3)], {0: expected}, stride=3, atol=1e-4)
        with api.Model(link(plan), **driver) as model:
            if status:
                with pytest.raises(api.CallError, match="Self-test") as caught:
                    model.self_test()
                assert caught.value.status == status
                continue
            result = model.self_test()
            assert (result.compared, result.tolerance_used < 0.1) == (22, True)
    plan, _ = add_plan()
    with api.Model(link(plan), **driver) as model:
        with pytest.raises(api.CallError, match="carries none") as caught:
            model.self_test()
        assert caught.value.status == api.UNSUPPORTED


@pytest.mark.parametrize(
    "dtype",
    [
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
        "float16",
        "float64",
    ],
)
def test_self_tests_of_each_dtype(link, dtype):
    size = np.dtype(dtype).itemsize
    plan = Plan(
        "__kernel void copy(__global char* x, __global char* y) {"
        " y[get_global_id(0)] = x[get_global_id(0)]; }"
    )
    x, y = plan.buffer(40 * size), plan.buffer(40 * size)
    plan.launch("copy", [x, y], (40 * size,))
    plan.input("x", (40,), x, dtype=dtype)
    plan.output("y", (40,), y, dtype=dtype)
    signed = dtype.startswith(("int", "float"))
    low, high = (0, 2) if dtype == "bool" else (-100, 100) if signed else (3, 200)
    made = uniform(11, 40, low, high)
    made = made if "float" in dtype else np.floor(made)
    expected = made.astype(np.float32).astype(dtype) if dtype == "float16" else made.astype(dtype)
    plan.test([(11, low, high)], {0: expected}, rtol=0, atol=0)
    with api.Model(link(plan)) as model:
        assert model.self_test().compared == 40


def test_many_instances_one_after_the_other(link):
    plan, w = add_plan()
    library = link(plan)
    x = values(64)
    for _ in range(10):
        with api.Model(library) as model:
            np.testing.assert_allclose(model(x)[0], 2 * x + w, rtol=1e-6)


def test_a_network_without_inputs_or_weights(link):
    plan = Plan("__kernel void count(__global int* y) { y[get_global_id(0)] = get_global_id(0); }")
    y = plan.buffer(40)
    plan.launch("count", [y], (10,), (2,))
    plan.output("y", (10,), y, dtype="int32")
    assert not plan.rows[Section.INPUTS]
    with api.Model(link(plan)) as model:
        np.testing.assert_array_equal(model()[0], np.arange(10))
