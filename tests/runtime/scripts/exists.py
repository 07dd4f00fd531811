"""Prints whether there is an OpenCL device, and whether it has images."""

from __future__ import annotations

import json

from tvmflow.runtime.devices import opencl_devices

devices = opencl_devices()
print(json.dumps({"exists": bool(devices), "images": bool(devices) and devices[0].images}))
