"""Faults: every OpenCL call, allocation and file operation fails once, and from then on."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support import runtime_build
from support.commands import output
from support.fake_opencl import SOURCES, build_fake, compile_c
from support.small_plans import ADD, ADD_IMAGES, Plan, cpu_plan, uniform

from tvmflow.module.standalone.format import Section

pytestmark = pytest.mark.slow

WRAPPED = (
    *("malloc", "calloc", "realloc", "posix_memalign", "pthread_create"),
    *("read", "write", "open", "rename", "mkdir", "stat", "fstat", "mmap"),
)
#: A leak check takes a few milliseconds for each failure.
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g")
COUNT, SCALE = 48, 1.5

HALVES = """
__kernel void add_h(__global const half* x, __global const half* w, __global half* y, float k) {
  int i = get_global_id(0);
  vstore_half(k * vload_half(i, x) + vload_half(i, w), i, y);
}
"""
PICTURE = """
__kernel void picture(__global float* x, __constant int* g, __global const uchar* p) {}
__kernel void picture_image(__global float* x, __constant int* g, __read_only image2d_t p) {}
"""
COPY = """
__kernel void copy(__global const float* x, __global float* y) {
  y[get_global_id(0)] = x[get_global_id(0)];
}
"""


def buffers(w: np.ndarray) -> Plan:
    """Return a plan of two programs: ``y = k * x + w``, and a copy of that."""
    plan = Plan(ADD)
    x, weight, sum_, y = (plan.buffer(4 * COUNT) for _ in range(4))
    plan.weight(weight, w)
    plan.launch("add", [x, weight, sum_, np.float32(SCALE)], (COUNT,), (16,))
    plan.launch("copy", [sum_, y], (COUNT,), program=plan.program(COPY))
    plan.input("x", (COUNT,), x)
    plan.output("y", (COUNT,), y)
    return plan


def halves(w: np.ndarray) -> Plan:
    """Return the same plan in half precision, with the host's data in single precision."""
    plan = Plan(HALVES)
    x, weight, y = (plan.buffer(2 * COUNT) for _ in range(3))
    plan.weight(weight, w.astype(np.float16))
    plan.launch("add_h", [x, weight, y, np.float32(SCALE)], (COUNT,))
    plan.input("x", (COUNT,), x, half=True)
    plan.output("y", (COUNT,), y, half=True)
    return plan


def images(w: np.ndarray, dtype: str = "float32") -> Plan:
    """Return it in images of 3 columns, 2 rows and 2 layers, which the host has in two parts."""
    plan = Plan(ADD_IMAGES)
    x, weight, y = (plan.image(3, 2, 2, dtype) for _ in range(3))
    plan.weight(weight, w.astype(dtype))
    plan.launch("add_i", [x, weight, y, np.float32(SCALE)], (3, 2, 2))
    layers = [(0, (0, 0, 0), (3, 2, 1)), (COUNT // 2, (0, 0, 1), (3, 2, 1))]
    shape = (1, 2, 2, 3, 4)
    plan.input("x", shape, x, half=dtype == "float16", regions=layers)
    plan.output("y", shape, y, half=dtype == "float16", regions=layers)
    return plan


def half_images(w: np.ndarray) -> Plan:
    """Return a plan of images in half precision."""
    return images(w, "float16")


def cpu(w: np.ndarray) -> Plan:
    """Return a plan for the CPU."""
    return cpu_plan(w=w, size=COUNT)


def picture(w: np.ndarray) -> Plan:
    """Return a plan of the same whose input is a picture."""
    plan = Plan(ADD + PICTURE)
    x, weight, y = (plan.buffer(4 * COUNT) for _ in range(3))
    plan.weight(weight, w)
    plan.launch("add", [x, weight, y, np.float32(SCALE)], (COUNT,), (16,))
    plan.input("x", (1, 3, 4, 4), x)
    plan.output("y", (COUNT,), y)
    plan.picture("picture", "picture_image")
    return plan


def cpu_picture(w: np.ndarray) -> Plan:
    """Return a plan of a picture and a CPU function."""
    plan = cpu(w)
    plan.rows[Section.INPUTS].clear()
    plan.input("x", (1, 3, 4, 4), 0)
    plan.picture("tvmflow_picture")
    return plan


PLANS = {
    plan.__name__: plan
    for plan in (buffers, halves, images, half_images, cpu, picture, cpu_picture)
}


@pytest.fixture(scope="module")
def fake(tmp_path_factory) -> Path:
    """Return the driver, with the sanitizers."""
    return build_fake(tmp_path_factory.mktemp("driver"), *SANITIZERS)


def prepare(folder: Path, name: str, beside: bool = False) -> list[str]:
    """Write a plan's input, output and weights; return the options to link a program with it."""
    rng = np.random.default_rng(7)
    w = rng.normal(size=COUNT).astype(np.float16).astype(np.float32)
    plan = PLANS[name](w)
    x = rng.normal(size=COUNT).astype(np.float16).astype(np.float32)
    if "picture" in name:
        x = rng.integers(0, 256, COUNT).astype(np.float32)
    on_cpu = name.startswith("cpu")
    tested, scale = uniform(3, COUNT).astype(np.float32), np.float32(2 if on_cpu else SCALE)
    plan.test([(3, -1.0, 1.0)], {0: scale * tested + w}, rtol=2e-3, atol=2e-3)
    x.tofile(folder / "input.bin")
    (scale * x + w).tofile(folder / "expected.bin")
    (folder / "weights.bin").write_bytes(plan.weights())
    weights = b"" if beside else plan.weights()
    contents = {"tvmflow_plan": plan.encode(), "tvmflow_weights": weights}
    if on_cpu:
        contents |= {"tvmflow_plan": b"", "tvmflow_cpu_plan": plan.encode()}
    bindings = runtime_build.BINDINGS
    headers = [f"-I{path}" for path in (SOURCES, bindings, bindings.with_name("core"))]
    data = runtime_build.data_object(
        folder / "data.o", contents, functions=["add"] if on_cpu else []
    )
    if on_cpu:
        headers += ["-DON_CPU", str(Path(__file__).with_name("cpu_kernels.c"))]
    headers += ["-DPICTURE"] if "picture" in name else []
    return ["-D_GNU_SOURCE", *headers, data, "-ldl", "-lm", "-pthread"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Return the program ``faults`` with a plan, and its input and output next to it."""
    made: dict[tuple[str, bool], Path] = {}

    def make(name: str, beside: bool) -> Path:
        if (name, beside) not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name, beside] = compile_c(
                folder / "faults",
                *SANITIZERS,
                Path(__file__).with_name("faults.c"),
                *runtime_build.objects(*SANITIZERS),
                *(f"-Wl,--wrap={function}" for function in WRAPPED),
                *prepare(folder, name, beside),
            )
        return made[name, beside]

    return make


@pytest.mark.parametrize("often", ["once", "always"])
@pytest.mark.parametrize(
    ("plan", "what"),
    [
        ("buffers", "opencl"),
        ("buffers", "opencl cache"),
        ("buffers", "opencl recording"),
        ("images", "opencl cache recording"),
        ("halves", "opencl"),
        ("half_images", "opencl"),
        ("buffers", "memory cache recording"),
        ("half_images", "memory"),
        ("cpu", "memory"),
        ("picture", "opencl"),
        ("picture", "memory"),
        ("cpu_picture", "memory"),
        ("buffers", "files cache"),
        ("buffers", "files beside"),
    ],
)
def test_nothing_is_left_and_nothing_crashes(fake, programs, plan, what, often):
    program = programs(plan, "beside" in what)
    text = output(program, fake, program.parent, *what.split(), often)
    failures, errors = (int(word) for word in text.split() if word.isdigit())
    # The numbers show that the runtime was reached, and that failures were noticed.
    if "files" not in what:
        assert failures > (60 if "opencl" in what else 20)
        assert errors > failures // 4
    elif "cache" in what:  # the library works without a cache
        assert (failures > 10, errors) == (True, 0)
    else:
        assert failures >= errors > 0


def run_under_the_thread_sanitizer(source, plan, folder):
    """Return the output of a program with a plan."""
    sanitizer = ("-fsanitize=thread", "-g")
    program = compile_c(
        folder / "program",
        *sanitizer,
        Path(__file__).with_name(source),
        *runtime_build.objects(*sanitizer),
        *prepare(folder, plan),
    )
    return output(program, "" if plan == "cpu" else build_fake(folder, *sanitizer), folder)


def test_instances_in_several_threads_do_not_race(tmp_path):
    run_under_the_thread_sanitizer("threads.c", "buffers", tmp_path)


@pytest.mark.parametrize("plan", ["buffers", "cpu"])
def test_calls_of_one_model_do_not_race(tmp_path, plan):
    text = run_under_the_thread_sanitizer("race.c", plan, tmp_path)
    refused, cancelled, _ = map(int, re.findall(r"\d+", text))
    assert refused > 100
    assert cancelled > 0
