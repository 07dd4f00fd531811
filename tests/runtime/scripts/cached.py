"""Runs every kernel of small modules; prints the results and the cache's statistics.

The argument is an object of settings, with the number of kernels, or a list of them
for a module each, the number of runs, and whether to build before.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import tvm
from modules import cache_statistics, first_device, prebuild, scale_module

from tvmflow.runtime.plugin import configure

settings = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
counts = settings.pop("kernels", 3)
runs = settings.pop("runs", 1)
built = settings.pop("prebuild", False)
if settings:
    configure(**settings)
x = tvm.runtime.tensor(np.ones(8, "float32"), first_device())
y = tvm.runtime.tensor(np.zeros(8, "float32"), first_device())
results = []
for count in counts if isinstance(counts, list) else [counts]:
    module = scale_module(count)
    if built:
        assert prebuild(module) == 1
    for _ in range(runs):
        for number in range(1, count + 1):
            module[f"scale{number}"](x, y, 1, 8)
        results.append(float(y.numpy().sum()))
print(json.dumps({"results": results, **cache_statistics()._asdict()}))
