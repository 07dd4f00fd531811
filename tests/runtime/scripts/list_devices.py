"""Prints the devices, and what TVM's device object says about the first."""

from __future__ import annotations

import dataclasses
import json

from modules import first_device

from tvmflow.runtime.devices import opencl_devices, why_no_opencl

device = first_device()
attributes = {}
if device.exist:
    names = (
        "max_threads_per_block warp_size max_shared_memory_per_block compute_version device_name "
        "max_clock_rate multi_processor_count max_thread_dimensions api_version driver_version "
        "l2_cache_size_bytes total_global_memory available_global_memory"
    )
    for name in names.split():
        value = getattr(device, name)
        attributes[name] = list(value) if name == "max_thread_dimensions" else value
devices = [dataclasses.asdict(item) for item in opencl_devices()]
print(json.dumps({"devices": devices, "why_none": why_no_opencl(), "attributes": attributes}))
