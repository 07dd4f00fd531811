"""Profiles launches; prints the profiles and what TVM's time evaluator measured."""

from __future__ import annotations

import json
import sys

import numpy as np
import tvm
import tvm_ffi
from modules import first_device, scale_module

begin = tvm_ffi.get_global_func("tvmflow.opencl.profile_begin")
end = tvm_ffi.get_global_func("tvmflow.opencl.profile_end")
device = first_device()
module = scale_module()
x = tvm.runtime.tensor(np.ones(64, "float32"), device)
y = tvm.runtime.tensor(np.zeros(64, "float32"), device)


def run(number: int, groups: int = 8) -> None:
    module[f"scale{number}"](x, y, groups, 64 // groups)


run(1)
begin(0)
run(2)
begin(0)
run(3, 4)
inner = json.loads(end(0))
run(1)
outer = json.loads(end(0))
run(2)
begin(0)
empty = json.loads(end(0))
try:
    end(0)
    unbalanced = ""
except ValueError as error:
    unbalanced = str(error)

# The evaluator is a session of its own within this one.
begin(0)
evaluator = module.time_evaluator("scale2", device, number=5, repeat=2)
times = [1e6 * seconds for seconds in evaluator(x, y, 8, 8).results]
during = json.loads(end(0))
json.dump(
    {
        "inner": inner,
        "outer": outer,
        "empty": empty,
        "unbalanced": unbalanced,
        "evaluator_us": times,
        "during": [launch["kernel"] for launch in during],
    },
    sys.stdout,
)
