"""Perform an action that fails, chosen by the arguments, and print the exception."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import tvm
import tvm_ffi
from modules import first_device, kernel_module, scale_kernel, scale_module


def allocate() -> None:
    tvm.runtime.empty((1024,), "float32", first_device())


def launch(groups: str, items: str) -> None:
    device = first_device()
    x = tvm.runtime.tensor(np.zeros(256, "float32"), device)
    scale_module()["scale2"](x, x, int(groups), int(items))
    device.sync()


def time_launches() -> None:
    """Time launches with TVM's timer, which uses the driver's times."""
    device = first_device()
    x = tvm.runtime.tensor(np.ones(64, "float32"), device)
    evaluator = scale_module().time_evaluator("scale2", device, number=5, repeat=2)
    assert min(evaluator(x, x, 8, 8).results) > 0


def measure() -> None:
    begin, end = (tvm_ffi.get_global_func(f"tvmflow.opencl.profile_{w}") for w in ("begin", "end"))
    begin(0)
    try:
        launch("8", "8")
    finally:
        end(0)


def profile_network(model: str) -> None:
    import tvmflow

    with tvmflow.compile(model, target="opencl") as module:
        tvmflow.profile(module, runs=2)


def other_device() -> None:
    x = tvm.runtime.tensor(np.zeros(8, "float32"), tvm.opencl(1))
    scale_module()["scale1"](x, x, 1, 8)


def host_tensor() -> None:
    x = tvm.runtime.tensor(np.zeros(8, "float32"))
    scale_module()["scale1"](x, x, 1, 8)


def too_few_arguments() -> None:
    scale_module()["scale1"](1, 8)


def broken(name: str) -> None:
    text = scale_kernel(name, 2).replace("return", "")
    broken_text = text.replace("y[get", "BROKEN\n  undeclared_name = 3;\n  y[get")
    good = scale_kernel("good", 3)
    module = kernel_module({"good": good, name: broken_text})
    x = tvm.runtime.tensor(np.ones(8, "float32"), first_device())
    y = tvm.runtime.tensor(np.zeros(8, "float32"), first_device())
    module["good"](x, y, 1, 8)
    print("good:", y.numpy().sum(), flush=True)
    module[name](x, y, 1, 8)


def forked() -> None:
    allocate()
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    allocate()


try:
    globals()[sys.argv[1]](*sys.argv[2:])
    print("null")
except Exception as error:  # noqa: BLE001 (the test looks at what it is)
    message = getattr(error, "message", str(error))
    print(
        json.dumps(
            {
                "type": next(
                    kind.__name__
                    for kind in type(error).__mro__
                    if not kind.__name__.startswith("Native")
                ),
                "message": message,
                "remedy": getattr(error, "remedy", None),
                "details": getattr(error, "details", None),
            }
        )
    )
