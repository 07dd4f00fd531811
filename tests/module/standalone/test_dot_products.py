"""Functions for dot products of bytes: each form is right, and Qualcomm's is used if it is."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import standalone_api as api
from support.fake_opencl import Fake, checked
from support.small_plans import ADD, Plan, values
from support.standalone_api import Model

from tvmflow.codegen.dot_products import OPENCL
from tvmflow.ir.dot_products import FUNCTION
from tvmflow.module.standalone.encode import DOT_FUNCTION, HAS_DOTS

#: Functions of phones' compilers in plain OpenCL C, by the options that select them.
EXTENSIONS = {
    "": "",
    "-DTVMFLOW_NO_DOT_PRODUCTS -D__opencl_c_integer_dot_product_input_4x8bit_packed": "",
    "-D__opencl_c_integer_dot_product_input_4x8bit_packed": """
static int own(uint x, uint w, int s) {
  for (int i = 0; i < 32; i += 8) s += (int)(x >> i & 255) * (int)(char)(w >> i);
  return s;
}
#define dot_acc_sat_4x8packed_us_int own
""",
    "-DTVMFLOW_QCOM_DOT8": """
static int qcom_dot8_acc(uint w, uint x, int s) {
  for (int i = 0; i < 32; i += 8) s += (int)(x >> i & 255) * (int)(char)(w >> i);
  return s;
}
""",
    "-Dcl_arm_integer_dot_product_accumulate_int8": """
static int own(char4 a, char4 b, int s) {
  return s + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
#define arm_dot_acc own
""",
}
KERNEL = """
__kernel void dots(__global const int* x, __global const int* w, __global int* y) {
  const int i = get_global_id(0);
  y[i] = tvmflow_dot4_1(i, x[i], w[i]);
  y[64 + i] = tvmflow_dot4_4((int4)(i), (int4)(x[i]), (int4)(0, 1, 2, w[i])).w;
}
"""


def test_programs_with_dot_products_are_recognised():
    assert DOT_FUNCTION == FUNCTION
    assert HAS_DOTS in (Path(__file__).parents[3] / "native/standalone/dot_products.h").read_text()


@pytest.mark.opencl
@pytest.mark.parametrize("options", EXTENSIONS)
@pytest.mark.parametrize("extreme", [False, True])
def test_all_forms_are_right(link, options, extreme):
    """The functions of extensions are defined in OpenCL C, so that any driver computes them."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (64, 4)).astype(np.uint8)
    w = rng.integers(-128, 128, (64, 4)).astype(np.int8)
    if extreme:
        x, w = rng.choice([0, 127, 128, 255], x.shape), rng.choice([-128, -1, 0, 127], w.shape)
        x, w = x.astype(np.uint8), w.astype(np.int8)
    plan = Plan(EXTENSIONS[options] + OPENCL + KERNEL, options)
    buffers = plan.buffer(256), plan.buffer(256), plan.buffer(512)
    plan.launch("dots", list(buffers), (64,))
    plan.input("x", (64,), buffers[0], dtype="int32")
    plan.input("w", (64,), buffers[1], dtype="int32")
    plan.output("y", (128,), buffers[2], dtype="int32")
    with Model(link(plan)) as model:
        (got,) = model(x.view("<i4")[:, 0], w.view("<i4")[:, 0])
    want = np.arange(64) + (x.astype(np.int64) * w).sum(1)
    np.testing.assert_array_equal(got, np.concatenate([want, want]))


# -- Qualcomm's function, whose signs differ between drivers --------------------------------------

W, X = values(64), values(64)


@pytest.fixture(scope="module")
def library(link) -> Path:
    plan = Plan(ADD, f"-cl-mad-enable {HAS_DOTS}")
    x, w, y = (plan.buffer(256) for _ in range(3))
    plan.weight(w, W)
    plan.launch("add", [x, w, y, np.float32(2)], (64,), (16,))
    plan.input("x", (64,), x)
    plan.output("y", (64,), y)
    return link(plan)


@pytest.fixture
def fake(driver) -> Iterator[Fake]:
    with checked(driver) as fake:
        # A program that is built without the option computes wrong.
        fake.set("WRONG", "-DTVMFLOW_QCOM_DOT8")
        yield fake


def uses_instruction(library: Path, driver: Path, **options: object) -> bool:
    whole = {"opencl_library": driver, "backend": api.OPENCL, **options}
    with Model(library, **whole) as model:
        return bool(np.allclose(model(X)[0], 2 * X + W, rtol=1e-5))


@pytest.mark.parametrize(
    ("extension", "signs", "used"),
    [
        ("cl_qcom_dot_product8", "signed", True),
        ("cl_qcom_dot_product8", "unsigned", False),
        ("cl_khr_fp16", "signed", False),
    ],
)
def test_the_instruction_is_used_where_it_is_right(
    library, driver, fake, extension, signs, used, tmp_path
):
    fake.set("EXTENSIONS", extension)
    fake.set("DOT8", signs)
    built = []
    for _ in range(2):
        fake.fake_reset()
        assert uses_instruction(library, driver, cache_folder=tmp_path) == used
        built.append(fake.fake_count(b"source"))
    # The answer is remembered like the program.
    assert built == [2 if extension == "cl_qcom_dot_product8" else 1, 0]
    # The answer holds for one driver: another one gives its own.
    fake.set("DRIVER", "another")
    fake.set("DOT8", "signed")
    assert uses_instruction(library, driver, cache_folder=tmp_path) == (
        extension == "cl_qcom_dot_product8"
    )


def test_known_faults_avoid_it(library, driver, fake):
    fake.set("EXTENSIONS", "cl_qcom_dot_product8")
    table = [{"id": "own", "fault": "none", "device": "Fake GPU",
              "actions": {"avoid": ["dot_products"]}}]  # fmt: skip
    assert not uses_instruction(library, driver, drivers=json.dumps(table))
    fake.set("WRONG", "-DTVMFLOW_NO_DOT_PRODUCTS")
    assert uses_instruction(library, driver, drivers=json.dumps(table))


def test_a_driver_that_fails_in_the_middle(library, driver, fake):
    """Every call of the comparison may fail: the instruction is then not used."""
    fake.set("EXTENSIONS", "cl_qcom_dot_product8")
    for call in (b"clCreateKernel", b"clEnqueueNDRangeKernel", b"clSetKernelArg"):
        fake.fake_reset()
        fake.fake_fail(call, ctypes.c_uint64(1), -5, False)
        assert not uses_instruction(library, driver)
