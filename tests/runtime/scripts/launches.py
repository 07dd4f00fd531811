"""Launches kernels in all the ways that host code does; prints what went wrong."""

from __future__ import annotations

import json
import sys
import threading

import numpy as np
import tvm
from modules import first_device, kernel_module, load, module_bytes, scale_module

DEVICE = first_device()
WRONG: list[str] = []


def check(what: str, got: object, expected: object) -> None:
    if not np.array_equal(np.asarray(got), np.asarray(expected)):
        WRONG.append(f"{what}: got {got}, expected {expected}")


def on_device(values: object, dtype: str = "float32") -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(np.asarray(values, dtype), DEVICE)


def scalars() -> None:
    """Every dtype that an argument may have arrives with its value."""
    values = {"int16": -7, "int32": -70_000, "int64": -(2**40), "uint8": 200, "float32": 0.5}
    types = {"int16": "short", "int32": "int", "int64": "long", "uint8": "uchar"}
    types["float32"] = "float"
    parameters = ", ".join(f"{types[name]} {name}_value" for name in values)
    body = " ".join(f"y[{i}] = (double){name}_value;" for i, name in enumerate(values))
    body = body.replace("double", "float").replace(
        "(float)int64_value", "(float)(int64_value >> 20)"
    )
    text = f"__kernel void k(__global float* y, {parameters}) {{ {body} }}"
    module = kernel_module({"k": text}, ("handle", *values))
    y = on_device(np.zeros(len(values)))
    module["k"](y, *values.values(), 1, 1)
    check("scalars", y.numpy(), [-7, -70_000, -(2**20), 200, 0.5])
    # Host code may hold a whole number where the kernel wants a float.
    module["k"](y, -7, -70_000, -(2**40), 200, 3, 1, 1)
    check("integer for a float", y.numpy()[4], 3)


def many_arguments() -> None:
    count = 40
    parameters = ", ".join(f"int a{i}" for i in range(count))
    total = " + ".join(f"a{i}" for i in range(count))
    text = f"__kernel void k(__global int* y, {parameters}) {{ y[0] = {total}; }}"
    module = kernel_module({"k": text}, ("handle", *["int32"] * count))
    y = on_device([0], "int32")
    module["k"](y, *range(count), 1, 1)
    check("many arguments", y.numpy(), [sum(range(count))])


def three_dimensions() -> None:
    text = (
        "__kernel void k(__global int* y) {\n"
        "  int i = (get_global_id(2) * get_global_size(1) + get_global_id(1))"
        " * get_global_size(0) + get_global_id(0);\n"
        "  y[i] = 100 * get_group_id(2) + 10 * get_local_id(1) + get_local_size(0);\n"
        "}"
    )
    tags = ("blockIdx.x", "blockIdx.z", "threadIdx.x", "threadIdx.y", "blockIdx.y")
    data = module_bytes(f"// Function: k\n{text}\n", {"k": (("handle",), tags)})
    y = on_device(np.zeros((5, 6, 8)), "int32")
    load(data)["k"](y, 2, 5, 4, 3, 2)
    z, row, _ = np.indices((5, 6, 8))
    check("three dimensions", y.numpy(), 100 * z + 10 * (row % 3) + 4)


def nothing_to_do() -> None:
    """A launch without work-items leaves everything as it is."""
    x, y = on_device(np.ones(4)), on_device(np.zeros(4))
    scale_module()["scale1"](x, y, 0, 4)
    check("no work-groups", y.numpy(), np.zeros(4))


def changing_arguments() -> None:
    """The runtime skips arguments that did not change, and only those."""
    scale = scale_module()["scale2"]
    a, b, c = on_device(np.full(4, 1)), on_device(np.full(4, 10)), on_device(np.zeros(4))
    for x, expected in ((a, 2), (b, 20), (a, 2)):
        scale(x, c, 1, 4)
        check("changed input", c.numpy(), np.full(4, expected))
    for value in range(20):
        # Released memory comes back at the same address with other contents.
        x = on_device(np.full(4, value))
        scale(x, c, 1, 4)
        check("new memory", c.numpy(), np.full(4, 2 * value))


def threads() -> None:
    """Threads that share kernels do not mix up their arguments."""
    module = scale_module()
    failures = []

    def work(number: int) -> None:
        for turn in range(30):
            factor = 1 + (number + turn) % 3
            x = on_device(np.full(64, number + turn))
            y = on_device(np.zeros(64))
            module[f"scale{factor}"](x, y, 8, 8)
            if not (y.numpy() == factor * (number + turn)).all():
                failures.append((number, turn))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    check("threads", len(failures), 0)


def same_helper_twice() -> None:
    """Kernels that cannot be built together are built one by one."""
    kernels = {}
    for i in (1, 2):
        helper = f"int helper(int x) {{ return {i} * x; }}\n"
        kernels[f"k{i}"] = f"{helper}__kernel void k{i}(__global int* y) {{ y[0] = helper(7); }}"
    module = kernel_module(kernels, ("handle",))
    y = on_device([0], "int32")
    for i in (1, 2):
        module[f"k{i}"](y, 1, 1)
        check(f"helper {i}", y.numpy(), [7 * i])


def images() -> None:
    """A kernel reads one image array and writes another."""
    text = (
        "__constant sampler_t s = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE"
        " | CLK_FILTER_NEAREST;\n"
        "__kernel void k(read_only image2d_array_t x, write_only image2d_array_t y) {\n"
        "  int4 at = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);\n"
        "  write_imagef(y, at, read_imagef(x, s, at) * 2.0f + (float4)(0, 1, 2, 3));\n"
        "}"
    )
    tags = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
    data = module_bytes(f"// Function: k\n{text}\n", {"k": (("handle", "handle"), tags)})
    shape = (3, 5, 7, 4)
    values = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    x = tvm.runtime.empty(shape, "float32", DEVICE, mem_scope="global.texture")
    y = tvm.runtime.empty(shape, "float32", DEVICE, mem_scope="global.texture")
    x.copyfrom(values)
    load(data)["k"](x, y, 7, 5, 3)
    check("images", y.numpy(), 2 * values + np.arange(4, dtype="float32"))


scalars()
many_arguments()
three_dimensions()
nothing_to_do()
changing_arguments()
if "--threads" in sys.argv:
    threads()
same_helper_twice()
if "--images" in sys.argv:
    images()
print(json.dumps(WRONG))
