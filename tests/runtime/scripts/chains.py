"""Launches that are noted and run as one kernel on a CPU; prints what went wrong.

Each kernel reads what the one before wrote, in other work-groups: results differ wherever a step
begins before all of the last one is done.
"""

from __future__ import annotations

import json
import threading

import numpy as np
import tvm
import tvm_ffi
from modules import first_device, load, module_bytes

DEVICE = first_device()
WRONG: list[str] = []
GROUPS = 1000

_HEAD = "__attribute__((reqd_work_group_size(1, 1, 1)))\n__kernel void "
KERNELS = {
    # The last group is late, and the next step's first one reads what it writes.
    "turned": (
        f"{_HEAD}turned(__global float* restrict y_ptr, __global float* restrict x_ptr, int n,"
        " float factor) {\n"
        "  int g = convert_int(get_group_id(0));\n"
        "  float late = 0;\n"
        "  for (int i = 0; i < (g == n - 1 ? 10000 : 0); ++i) late = late * 0.5f + x_ptr[i % n];\n"
        "  y_ptr[g] = x_ptr[n - 1 - g] * factor + x_ptr[(g * 7) % n] + late * 0;\n}\n"
    ),
    # Work-groups of several items are launched by themselves.
    "shifted": (
        "__kernel void shifted(__global float* restrict y_ptr, __global float* restrict x_ptr,"
        " int n, float factor) {\n"
        "  __local float last; if (get_local_id(0) == 0) last = x_ptr[n - 1];\n"
        "  barrier(CLK_LOCAL_MEM_FENCE);\n"
        "  int g = get_global_id(0); y_ptr[g] = last + factor * x_ptr[(g + 1) % n];\n}\n"
    ),
}
MODULE = load(
    module_bytes(
        "".join(f"// Function: {name}\n{text}" for name, text in KERNELS.items()),
        dict.fromkeys(
            KERNELS, (("handle", "handle", "int32", "float32"), ("blockIdx.x", "threadIdx.x"))
        ),
    )
)


def check(what: str, got: np.ndarray, expected: np.ndarray) -> None:
    if not np.allclose(got, expected, rtol=1e-4):
        WRONG.append(f"{what}: {int((~np.isclose(got, expected, rtol=1e-4)).sum())} differ")


def on_device(values: np.ndarray) -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(values, DEVICE)


def turned(x: np.ndarray, factor: float) -> np.ndarray:
    return x[::-1] * np.float32(factor) + x[(np.arange(len(x)) * 7) % len(x)]


def shifted(x: np.ndarray, factor: float) -> np.ndarray:
    return x[-1] + np.float32(factor) * np.roll(x, -1)


def run(what: str, steps: list[tuple[str, float]], groups: int = GROUPS) -> None:
    """Run kernels one after the other, from one of two tensors to the other."""
    values = np.random.default_rng(0).random(groups, dtype=np.float32)
    tensors = [on_device(values), on_device(np.zeros_like(values))]
    for name, factor in steps:
        items = 1 if name == "turned" else 4
        MODULE[name](tensors[1], tensors[0], groups, factor, groups // items, items)
        tensors.reverse()
        values = {"turned": turned, "shifted": shifted}[name](values, factor)
    check(what, tensors[0].numpy(), values)


def dropped_tensors() -> None:
    """Memory may go back, and be used again, before a launch that reads it was begun."""
    values = np.random.default_rng(1).random(GROUPS, dtype=np.float32)
    x = on_device(values)
    for _ in range(20):
        y = on_device(np.zeros_like(values))
        MODULE["turned"](y, x, GROUPS, 0.5, GROUPS, 1)
        x, values = y, turned(values, 0.5)
        del y
    check("dropped tensors", x.numpy(), values)


def copies() -> None:
    """Copies, to the device and on it, wait for what was launched before, and are waited for."""
    first, second = np.full(GROUPS, 1, "float32"), np.arange(GROUPS, dtype="float32")
    x, y, z = (on_device(first) for _ in range(3))
    MODULE["turned"](y, x, GROUPS, 0.5, GROUPS, 1)
    x.copyfrom(second)
    MODULE["turned"](z, x, GROUPS, 0.5, GROUPS, 1)
    z.copyto(x)
    MODULE["turned"](z, y, GROUPS, 2.0, GROUPS, 1)
    check("before a copy", y.numpy(), turned(first, 0.5))
    check("copied on the device", x.numpy(), turned(second, 0.5))
    check("after a copy", z.numpy(), turned(turned(first, 0.5), 2.0))


def threads() -> None:
    """Each may launch what another one has noted, and waits for its own."""
    steps = [("turned", 0.5), ("turned", 0.25)] * 20

    def many(number: int) -> None:
        for _ in range(20):
            run(f"thread {number}", steps, groups=100)

    workers = [threading.Thread(target=many, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


run("one", [("turned", 0.5)])
run("a chain", [("turned", 0.5), ("turned", 0.25)] * 10)
run("with others between", [("turned", 0.5), ("shifted", 0.5), ("turned", 0.25)] * 5)
run("few groups", [("turned", 0.5)] * 6, groups=1)
run("many launches", [("turned", 0.001)] * 1300, groups=12)
dropped_tensors()
copies()
for _ in range(20):
    run("again", [("turned", 0.5)] * 30, groups=64)
threads()
before = on_device(np.zeros(GROUPS, "float32"))
MODULE["turned"](before, before, GROUPS, 0.5, GROUPS, 1)
tvm_ffi.get_global_func("tvmflow.opencl.profile_begin")(0)
run("while kernels are measured", [("turned", 0.5)] * 3)
launched = json.loads(tvm_ffi.get_global_func("tvmflow.opencl.profile_end")(0))
if [launch["kernel"] for launch in launched] != ["turned"] * 3:
    WRONG.append(f"measured: {launched}")
print(json.dumps(WRONG))
