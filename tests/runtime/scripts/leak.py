"""Loads, runs and unloads a module many times; prints how the process grew, in bytes.

Several times, each printed: what leaks grows in each of them, what the driver's threads keep
only in some.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from modules import first_device
from tvm import relax

import tvmflow


def resident_bytes() -> int:
    # Free memory that the allocator holds is no leak: return it to the system first.
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
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


def network_cycle(path: str) -> None:
    with tvmflow.load(path) as module:
        outputs = module(**{i.name: np.ones(i.shape, i.dtype) for i in module.inputs})
    assert all(np.isfinite(output).all() for output in outputs.values())


path, cycles, limit_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if "network" in sys.argv[4:]:
    once = partial(network_cycle, path)
else:
    x = np.arange(64, dtype="float32").reshape(8, 8)
    once = partial(cycle, path, x, np.maximum(x * 2 - 20, 0))
# The driver and the allocators fill their own pools first.
for _ in range(max(20, cycles // 10)):
    once()
growth = []
for _ in range(3):
    gc.collect()
    before = resident_bytes()
    for _ in range(cycles):
        once()
    gc.collect()
    growth.append(resident_bytes() - before)
    if growth[-1] < limit_bytes:
        break
print(json.dumps(growth))
