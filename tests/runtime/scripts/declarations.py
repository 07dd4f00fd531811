"""Runs kernels that call functions of OpenCL C; prints what each computed, or that it failed."""

from __future__ import annotations

import json

import numpy as np
import tvm
from modules import first_device, kernel_module

from tvmflow.errors import KernelBuildError

BODIES = {
    # Functions that generated kernels call, from every group of declarations.
    "declared": """
  int i = convert_int(get_group_id(0)) + convert_int(get_local_id(0));
  float8 a = vload8(0, x + i * 8);
  float8 b = select(max(a, fmin(a * 2, 1.5f * a)), mad(a, a, -a), convert_int8(a) > 1);
  vstore8(convert_float8(min(convert_int8(b * 8), 30)) + exp(floor(-fabs(b))), 0, y + i * 8);
""",
    "undeclared": "  y[get_global_id(0)] = hypot(x[get_global_id(0)], 3.0f);\n",
}
#: An OpenCL C function with another result type, which contradicts its declaration.
OWN = "int hypot(float a, float b) { return (int)(a * b); }\n"


def run(body: str, before: str = "") -> list[float] | str:
    text = f"{before}__kernel void k(__global const float* x, __global float* y) {{\n{body}}}"
    x = tvm.runtime.tensor(np.linspace(-3, 4, 32, dtype="float32"), first_device())
    y = tvm.runtime.tensor(np.zeros(32, "float32"), first_device())
    try:
        items = 4 if "vload8" in body else 32
        kernel_module({"k": text})["k"](x, y, items, 1)
    except KernelBuildError:
        return "failed"
    return [float(value) for value in y.numpy()]


results = {name: run(body) for name, body in BODIES.items()}
results["own"] = run("  y[get_global_id(0)] = hypot(x[get_global_id(0)], 4.0f);\n", OWN)
results["wrong"] = run("  y[get_global_id(0)] = no_such_function(x[0]);\n")
print(json.dumps(results))
