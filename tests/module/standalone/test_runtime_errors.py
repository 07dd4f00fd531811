"""Limits of devices and mistakes of applications: each gives a code and a sentence."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import standalone_api as api
from support.drivers import for_programs
from support.small_plans import Plan, add_plan

from tvmflow.module.standalone.format import Section

pytestmark = pytest.mark.opencl


@pytest.fixture(scope="module")
def library(link):
    return link(add_plan()[0])


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


def entry_points(library):
    """Load the library, with the types of what returns text."""
    functions = ctypes.CDLL(str(library))
    functions.tvmflow_message.restype = functions.tvmflow_describe.restype = ctypes.c_char_p
    return functions


#: Calls with an instance, and their other arguments.
CALLS = [
    *((name,) for name in ("run", "start", "wait")),
    *((name, 0, 0, DATA, ctypes.c_size_t(256)) for name in ("set_input", "get_output")),
    *((name, 0, None) for name in ("use_input", "use_output", "input", "output")),
    ("profile", None, None),
    ("self_test", None),
    ("choose_shape", 0),
    ("set_shape", 0, None, 0),
]


def test_without_an_instance(library):
    functions = entry_points(library)
    for name, *arguments in CALLS:
        assert getattr(functions, f"tvmflow_{name}")(None, *arguments) == api.ARGUMENT, name
    for name in ("input_count", "output_count", "shape_count", "shape"):
        assert getattr(functions, f"tvmflow_{name}")(None) == 0, name
    assert functions.tvmflow_create(None, None) == api.ARGUMENT
    assert b"no instance" in functions.tvmflow_message(None).lower()
    assert functions.tvmflow_describe(None) == b"{}"
    assert functions.tvmflow_api_version() == 1
    functions.tvmflow_destroy(None)


def test_an_instance_that_failed_tells_why_whatever_is_called(library):
    functions = entry_points(library)
    options = api.Options(ctypes.sizeof(api.Options), 0, 0, b"/none/libOpenCL.so")
    handle = ctypes.c_void_p()
    create = functions.tvmflow_create
    assert create(ctypes.byref(options), ctypes.byref(handle)) == api.NO_OPENCL
    message = functions.tvmflow_message(handle)
    assert b"/none/libOpenCL.so: " in message
    assert b"uses-native-library" in message
    for name, *arguments in CALLS:
        assert getattr(functions, f"tvmflow_{name}")(handle, *arguments) == api.NO_OPENCL, name
    assert functions.tvmflow_input_count(handle) == 0
    assert functions.tvmflow_describe(handle) == b"{}"
    assert functions.tvmflow_message(handle) == message
    functions.tvmflow_destroy(handle)


def test_a_library_that_is_not_opencl(library):
    message = refused(api.NO_OPENCL, call=lambda: api.Model(library, opencl_library="libm.so.6"))
    assert "libm.so.6: it is not an OpenCL library" in message


def test_environment_variables_choose_where_no_option_does(library):
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]; from support import standalone_api as api\n"
        "try:\n"
        "    with api.Model(sys.argv[1]) as m: print(m.describe()['device']['platform'])\n"
        "except api.CallError as error: print(error.status, error.message)\n"
    )
    root = Path(api.__file__).parents[2]

    def chosen(**variables):
        environment = {"PATH": "", "PYTHONPATH": str(root)}
        environment |= {**for_programs(), **variables}
        command = [sys.executable, "-c", code, library, root / "tests"]
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


KERNEL = "__kernel void k(__global float* y) { y[get_global_id(0)] = 1; }"


def tiny_plan(source=KERNEL, kernel="k", arguments=(0,), size=64, groups=None):
    """Return a plan of one kernel, which writes the output."""
    plan = Plan(source)
    plan.output("y", (64,), plan.buffer(4 * 64))
    plan.launch(kernel, list(arguments), (size,), groups)
    return plan


def with_buffers(count, size):
    plan = tiny_plan()
    for _ in range(count):
        plan.buffer(size)
    return plan


def with_image():
    plan = tiny_plan()
    plan.image(1 << 20, 1)
    return plan


def with_extension():
    plan = tiny_plan()
    # The beginning of an extension's name that drivers have.
    plan.rows[Section.EXTENSIONS].append("cl_khr_byte_addressable")
    return plan


UNKNOWN = "__kernel void k(__global float* y) {\n y[0] = no_such_thing; }"
#: A log longer than the message.
MANY_UNKNOWN = (
    "__kernel void k(__global float* y) {\n"
    + "".join(f"  y[{i}] = no_such_thing_{i};\n" for i in range(500))
    + "}"
)


@pytest.mark.parametrize(
    ("plan", "status", "text"),
    [
        (tiny_plan(UNKNOWN), api.BUILD, "Remedy: update(?s:.*)Build log:(?s:.*)no_such_thing"),
        (tiny_plan(MANY_UNKNOWN), api.BUILD, "no_such_thing_0"),
        (tiny_plan(kernel="other"), api.DEVICE, "'other'(?s:.*)CL_INVALID_KERNEL_NAME"),
        (tiny_plan(arguments=(0, np.float32(1))), api.DEVICE, "argument 1 of kernel 'k'"),
        (
            tiny_plan(size=1 << 20, groups=(1 << 20,)),
            api.UNSUPPORTED,
            "'k'(?s:.*)work-groups of 1048576x1x1",
        ),
        (with_image(), api.UNSUPPORTED, "image of 1048576x1x1(?s:.*)Remedy"),
        (with_buffers(1, 1 << 44), api.UNSUPPORTED, f"{1 << 44} bytes(?s:.*)Remedy"),
        (with_buffers(1, 1 << 45), api.UNSUPPORTED, f"{1 << 45} bytes(?s:.*)Remedy"),
        (with_buffers(100, 1 << 30), api.MEMORY, "Remedy"),
        (with_extension(), api.UNSUPPORTED, "cl_khr_byte_addressable,(?s:.*)Remedy"),
    ],
    ids=[
        "syntax", "long-log", "kernel", "arguments", "work-groups", "image", "buffer",
        "larger-buffer", "memory", "extension",
    ],
)  # fmt: skip
def test_plans_that_cannot_run(link, plan, status, text):
    library = link(plan)
    message = refused(status, call=lambda: api.Model(library))
    assert re.search(text, message)
    assert len(message) < 8192
