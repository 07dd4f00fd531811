"""Limits of devices and mistakes of applications: each gives a code and a sentence."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import runtime_build
import standalone_api as api
from drivers import for_programs
from small_plans import Plan, add_plan

from tvmflow.module.standalone.format import Section

pytestmark = pytest.mark.opencl


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    plan, _ = add_plan()
    path = tmp_path_factory.mktemp("errors") / "libadd.so"
    return runtime_build.link(path, plan.encode(), plan.weights())


@pytest.fixture(scope="module")
def model(library):
    with api.Model(library) as model:
        yield model


def refused(status, *texts, call):
    with pytest.raises(api.CallError) as caught:
        call()
    for text in texts:
        assert text in caught.value.message
    assert caught.value.status == status
    assert "\ufffd" not in caught.value.message
    return caught.value.message


X = np.arange(64, dtype=np.float32)
DATA = X.ctypes.data_as(ctypes.c_void_p)


@pytest.mark.parametrize(
    ("name", "arguments", "texts"),
    [
        ("set_input", (1, 0, DATA, 256), ["no input 1", "has 1"]),
        ("set_input", (0, 1, DATA, 256), ["'x'", "float32", "float16"]),
        ("set_input", (0, 13, DATA, 256), ["float32", "unknown"]),
        ("set_input", (0, 2**32 - 1, DATA, 256), ["float32", "unknown"]),
        ("set_input", (0, 0, DATA, 255), ["expected 256 bytes", "got 255"]),
        ("set_input", (0, 0, None, 256), ["NULL"]),
        ("get_output", (2**32 - 1, 0, DATA, 256), ["no output 4294967295"]),
        ("get_output", (0, 6, DATA, 256), ["'y'", "int32"]),
        ("get_output", (0, 0, DATA, 2**63), ["expected 256 bytes"]),
        ("get_output", (0, 0, None, 256), ["NULL"]),
        ("input", (0, None), ["NULL"]),
        ("output", (1, None), ["no output 1"]),
        ("profile", (None, None), ["NULL"]),
    ],
)
def test_arguments(model, name, arguments, texts):
    *first, last = arguments
    last = ctypes.c_size_t(last) if isinstance(last, int) else last
    refused(api.ARGUMENT, *texts, call=lambda: model.call(name, *first, last))
    # The instance is still usable.
    model(X)


def test_options(library, monkeypatch):
    def create(**options):
        return lambda: api.Model(library, **options)

    refused(api.ARGUMENT, "struct_size", call=create(struct_size=0))
    refused(api.ARGUMENT, "flags", "0x80000000", call=create(flags=1 << 31))
    refused(api.ARGUMENT, "cl_device", call=create(cl_context=8))
    message = refused(
        api.ARGUMENT, "device_index is 77, expected less than", call=create(device_index=77)
    )
    assert "is usable" in message
    # Options of an older header, which has no library, and of a newer one.
    for name, value in for_programs().items():
        monkeypatch.setenv(name, value)
    with api.Model(library, struct_size=16, opencl_library="/none") as model:
        assert model(X)
    with api.Model(library, struct_size=4096) as model:
        assert model(X)


def test_without_an_instance(library):
    functions = ctypes.CDLL(str(library))
    functions.tvmflow_message.restype = functions.tvmflow_describe.restype = ctypes.c_char_p
    for name in ("run", "start", "wait"):
        assert getattr(functions, f"tvmflow_{name}")(None) == api.ARGUMENT
    assert functions.tvmflow_set_input(None, 0, 0, DATA, ctypes.c_size_t(256)) == api.ARGUMENT
    assert functions.tvmflow_get_output(None, 0, 0, DATA, ctypes.c_size_t(256)) == api.ARGUMENT
    assert functions.tvmflow_use_input(None, 0, None) == api.ARGUMENT
    assert functions.tvmflow_use_output(None, 0, None) == api.ARGUMENT
    assert functions.tvmflow_profile(None, None, None) == api.ARGUMENT
    assert functions.tvmflow_self_test(None, None) == api.ARGUMENT
    assert functions.tvmflow_input(None, 0, None) == api.ARGUMENT
    assert functions.tvmflow_output(None, 0, None) == api.ARGUMENT
    assert functions.tvmflow_input_count(None) == functions.tvmflow_output_count(None) == 0
    assert functions.tvmflow_create(None, None) == api.ARGUMENT
    assert b"no instance" in functions.tvmflow_message(None).lower()
    assert functions.tvmflow_describe(None) == b"{}"
    assert functions.tvmflow_shape_count(None) == functions.tvmflow_shape(None) == 0
    assert functions.tvmflow_choose_shape(None, 0) == api.ARGUMENT
    assert functions.tvmflow_set_shape(None, 0, None, 0) == api.ARGUMENT
    assert functions.tvmflow_api_version() == 1
    functions.tvmflow_destroy(None)


def test_an_instance_that_failed_tells_why_whatever_is_called(library):
    functions = ctypes.CDLL(str(library))
    functions.tvmflow_message.restype = functions.tvmflow_describe.restype = ctypes.c_char_p
    options = api.Options(ctypes.sizeof(api.Options), 0, 0, b"/none/libOpenCL.so")
    handle = ctypes.c_void_p()
    create = functions.tvmflow_create
    assert create(ctypes.byref(options), ctypes.byref(handle)) == api.NO_OPENCL
    message = functions.tvmflow_message(handle)
    assert b"/none/libOpenCL.so: " in message
    assert b"uses-native-library" in message
    for name in ("run", "start", "wait"):
        assert getattr(functions, f"tvmflow_{name}")(handle) == api.NO_OPENCL
    data = (handle, 0, 0, DATA, ctypes.c_size_t(256))
    assert functions.tvmflow_set_input(*data) == api.NO_OPENCL
    assert functions.tvmflow_get_output(*data) == api.NO_OPENCL
    assert functions.tvmflow_use_input(handle, 0, None) == api.NO_OPENCL
    assert functions.tvmflow_profile(handle, None, None) == api.NO_OPENCL
    assert functions.tvmflow_self_test(handle, None) == api.NO_OPENCL
    assert functions.tvmflow_input(handle, 0, None) == api.NO_OPENCL
    assert functions.tvmflow_input_count(handle) == 0
    assert functions.tvmflow_describe(handle) == b"{}"
    assert functions.tvmflow_message(handle) == message
    functions.tvmflow_destroy(handle)


def test_a_library_that_is_not_opencl(library):
    message = refused(api.NO_OPENCL, call=lambda: api.Model(library, opencl_library="libm.so.6"))
    assert "libm.so.6: it is not an OpenCL library" in message


def test_environment_variables_choose_where_no_option_does(library):
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]; import standalone_api as api\n"
        "try:\n"
        "    with api.Model(sys.argv[1]) as m: print(m.describe()['device']['platform'])\n"
        "except api.CallError as error: print(error.status, error.message)\n"
    )
    support = Path(api.__file__).parent

    def chosen(**variables):
        environment = {"PATH": "", "PYTHONPATH": str(support.parents[1])}
        environment |= {**for_programs(), **variables}
        command = [sys.executable, "-c", code, library, support]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert "is 'no such device', which names none" in chosen(TVMFLOW_OPENCL_DEVICE="no such device")
    assert chosen(TVMFLOW_OPENCL_LIBRARY="/none.so").startswith(str(api.NO_OPENCL))
    platform = chosen().strip()
    for wanted in (platform, platform.upper()[2:], f"{platform}:", f"{platform}:cpu", "cpu"):
        assert chosen(TVMFLOW_OPENCL_DEVICE=wanted).strip() == platform
    assert "names none of the devices" in chosen(TVMFLOW_OPENCL_DEVICE=f"{platform}:gpu")
    assert "names none of the devices" in chosen(TVMFLOW_OPENCL_DEVICE=f"{platform}:5")


def create(tmp_path, plan):
    return lambda: api.Model(runtime_build.link(tmp_path / "lib.so", plan.encode()))


def tiny_plan(source="__kernel void k(__global float* y) { y[get_global_id(0)] = 1; }"):
    plan = Plan(source)
    y = plan.buffer(4 * 64)
    plan.output("y", (64,), y)
    return plan


def test_a_kernel_that_does_not_build_gives_the_log(tmp_path):
    plan = tiny_plan("__kernel void k(__global float* y) {\n y[0] = no_such_thing; }")
    plan.launch("k", [0], (64,))
    message = refused(api.BUILD, "Remedy: update", "Build log:", call=create(tmp_path, plan))
    assert "no_such_thing" in message.split("Build log:")[1]


def test_a_log_longer_than_the_message(tmp_path):
    lines = "".join(f"  y[{i}] = no_such_thing_{i};\n" for i in range(500))
    plan = tiny_plan("__kernel void k(__global float* y) {\n" + lines + "}")
    plan.launch("k", [0], (64,))
    message = refused(api.BUILD, "no_such_thing_0", call=create(tmp_path, plan))
    assert len(message) < 8192


def test_a_kernel_that_is_not_there(tmp_path):
    plan = tiny_plan()
    plan.launch("other", [0], (64,))
    refused(api.DEVICE, "'other'", "CL_INVALID_KERNEL_NAME", call=create(tmp_path, plan))


def test_arguments_that_are_not_the_kernels(tmp_path):
    plan = tiny_plan()
    plan.launch("k", [0, np.float32(1)], (64,))
    refused(api.DEVICE, "argument 1 of kernel 'k'", call=create(tmp_path, plan))


def test_work_groups_over_the_limits(tmp_path):
    plan = tiny_plan()
    plan.launch("k", [0], (1 << 20,), (1 << 20,))
    refused(api.UNSUPPORTED, "'k'", "work-groups of 1048576x1x1", call=create(tmp_path, plan))


def test_images_over_the_limits(tmp_path):
    plan = tiny_plan()
    plan.image(1 << 20, 1)
    plan.launch("k", [0], (64,))
    refused(api.UNSUPPORTED, "image of 1048576x1x1", "Remedy", call=create(tmp_path, plan))


@pytest.mark.parametrize("bytes", [1 << 44, 1 << 45])
def test_allocations_over_the_limits(tmp_path, bytes):
    plan = tiny_plan()
    plan.buffer(bytes)
    plan.launch("k", [0], (64,))
    refused(api.UNSUPPORTED, f"{bytes} bytes", "Remedy", call=create(tmp_path, plan))


def test_more_than_the_device_has(tmp_path):
    plan = tiny_plan()
    for _ in range(100):
        plan.buffer(1 << 30)
    plan.launch("k", [0], (64,))
    refused(api.MEMORY, "Remedy", call=create(tmp_path, plan))


def test_an_extension_that_the_device_lacks(tmp_path):
    plan = tiny_plan()
    # The beginning of an extension's name that drivers have.
    plan.rows[Section.EXTENSIONS].append("cl_khr_byte_addressable")
    plan.launch("k", [0], (64,))
    message = refused(api.UNSUPPORTED, "Remedy", call=create(tmp_path, plan))
    assert "cl_khr_byte_addressable," in message
