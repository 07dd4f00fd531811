"""Loads, runs and unloads a module many times; prints how the process grew, in bytes."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from modules import first_device
from tvm import relax


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not tell the process's size")


def cycle(path: str, x: np.ndarray, expected: np.ndarray) -> None:
    device = first_device()
    # TVM's own load_module keeps every module for the life of the process.
    module = tvm_ffi.load_module(path, keep_module_alive=False)
    machine = relax.VirtualMachine(module, device)
    result = machine["main"](tvm.runtime.tensor(x, device)).numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-5)


path, cycles = sys.argv[1], int(sys.argv[2])
x = np.arange(64, dtype="float32").reshape(8, 8)
expected = np.maximum(x * 2 - 20, 0)
# The driver and the allocators fill their own pools first.
warm_up = max(20, cycles // 10)
for _ in range(warm_up):
    cycle(path, x, expected)
gc.collect()
before = resident_bytes()
for _ in range(cycles):
    cycle(path, x, expected)
gc.collect()
print(json.dumps(resident_bytes() - before))
