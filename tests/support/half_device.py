"""A device with half precision, which may need another OpenCL library.

A process has one OpenCL library, so modules run in a separate process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tvmflow

#: Environments to search: this one, and that of Intel's CPU runtime from pip.
ENVIRONMENTS = (
    {},
    {
        "TVMFLOW_OPENCL_LIBRARY": f"{sys.prefix}/lib/libintelocl.so",
        "TVMFLOW_OPENCL_DEVICE": "",
    },
)

LIST = """
import json
from tvmflow.runtime.devices import opencl_devices
print(json.dumps([device.index for device in opencl_devices() if device.fp16]))
"""

RUN = """
import sys
import numpy as np
import tvmflow
with tvmflow.load(sys.argv[1], device=int(sys.argv[4])) as module:
    outputs = module(dict(np.load(sys.argv[2])))
    np.savez(sys.argv[3], **{info.name: outputs[info.name] for info in module.outputs})
"""


@dataclass(frozen=True)
class HalfDevice:
    """A device with ``cl_khr_fp16``: its number, and the variables that select it."""

    index: int
    environment: Mapping[str, str]

    def run(
        self, module: tvmflow.Module, feeds: Mapping[str, np.ndarray], folder: Path
    ) -> dict[str, np.ndarray]:
        """Return the outputs of a compiled network on this device."""
        file, inputs, outputs = folder / "half.so", folder / "in.npz", folder / "out.npz"
        module.save(file)
        np.savez(inputs, **feeds)
        _python(self.environment, RUN, str(file), str(inputs), str(outputs), str(self.index))
        with np.load(outputs) as arrays:
            return dict(arrays)


@cache
def _find() -> HalfDevice | None:
    for environment in ENVIRONMENTS:
        found = json.loads(_python(environment, LIST).splitlines()[-1])
        if found:
            return HalfDevice(found[0], environment)
    return None


def half_device() -> HalfDevice:
    """Return the device, or skip the test."""
    device = _find()
    if device is None:
        pytest.skip("no OpenCL device has cl_khr_fp16, neither the default one nor Intel's")
    return device


def _python(environment: Mapping[str, str], *arguments: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
