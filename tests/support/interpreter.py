"""Interpreter of plans that uses only OpenCL: a reference for the C runtime.

Unwritten memory is filled with NaN, so that reads of it are noticed.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from support.cl_calls import Device
from tvmflow.ir.tensors import dtype_from_name
from tvmflow.module.standalone.format import DTYPES, ArgumentKind, Kind, Section
from tvmflow.module.standalone.read import EncodedPlan, read_plan

_NAMES = {code: name for name, code in DTYPES.items()}
#: Bytes per channel by OpenCL's codes.
_CHANNEL_BYTES = {0x10DE: 4, 0x10DD: 2}


class Interpreter:
    """A plan on a device."""

    def __init__(self, content: bytes, weights: Path):
        plan = read_plan(content)
        assert plan is not None
        self.plan: EncodedPlan = plan
        self.device = Device()
        self.allocations = plan[Section.ALLOCATIONS]
        self.memory = [self._allocate(a) for a in self.allocations]
        for number in range(len(self.memory)):
            size = int(self.allocations[number]["bytes"])
            self._write(number, np.full(size, 0xFF, np.uint8))
        data = np.memmap(weights, np.uint8, "r") if weights.exists() else np.zeros(0, np.uint8)
        assert len(data) == plan.header["weight_bytes"]
        for weight in plan[Section.WEIGHTS]:
            begin, size = int(weight["offset"]), int(weight["bytes"])
            assert begin % 128 == 0
            self._write(int(weight["allocation"]), data[begin : begin + size])
        programs = [self._program(program) for program in plan[Section.PROGRAMS]]
        self.kernels = [self._kernel(programs, launch) for launch in plan[Section.LAUNCHES]]

    def __call__(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Set the inputs, launch everything, and return the outputs."""
        for entry in self.plan[Section.INPUTS]:
            data = np.asarray(inputs[self.plan.text(entry["name"])], order="C")
            assert data.shape == tuple(entry["shape"][: entry["dimensions"]])
            assert data.nbytes == entry["bytes"]
            assert data.dtype.name == _NAMES[int(entry["dtype"])]
            self._set(entry, data.astype(np.float16) if entry["half"] else data)
        for kernel, launch in zip(self.kernels, self.plan[Section.LAUNCHES], strict=True):
            dimensions = int(launch["dimensions"])
            self.device.launch(kernel, dimensions, launch["global"], launch["local"])
        self.device.finish()
        return {self.plan.text(o["name"]): self._get(o) for o in self.plan[Section.OUTPUTS]}

    def _allocate(self, allocation: np.void):
        if allocation["kind"] == Kind.BUFFER:
            return self.device.buffer(int(allocation["bytes"]))
        texels = int(np.prod(allocation["image_size"].astype(np.int64)))
        channel = _CHANNEL_BYTES[int(allocation["channel_type"])]
        assert allocation["bytes"] == texels * 4 * channel
        return self.device.image(allocation["image_size"], int(allocation["channel_type"]))

    def _write(self, number: int, data: np.ndarray) -> None:
        allocation = self.allocations[number]
        assert data.nbytes <= allocation["bytes"]
        if not data.nbytes:
            return
        if allocation["kind"] == Kind.BUFFER:
            self.device.write(self.memory[number], data)
            return
        assert data.nbytes == allocation["bytes"]
        size = allocation["image_size"]
        place = np.ascontiguousarray(data)
        self.device.move_texels("clEnqueueWriteImage", self.memory[number], place, (0, 0, 0), size)

    def _program(self, program: np.void):
        begin, size = int(program["offset"]), int(program["bytes"])
        source = self.plan.source.encode()[begin : begin + size].decode()
        options = (self.plan.text(program["options"]), os.environ.get("TVMFLOW_OPENCL_OPTIONS", ""))
        return self.device.program(source, " ".join(options))

    def _kernel(self, programs: list, launch: np.void):
        kernel = self.device.kernel(programs[launch["program"]], self.plan.text(launch["kernel"]))
        first, count = int(launch["first_argument"]), int(launch["arguments"])
        for index, argument in enumerate(self.plan[Section.ARGUMENTS][first : first + count]):
            if argument["kind"] == ArgumentKind.MEMORY:
                memory = self.memory[argument["allocation"]]
                self.device.memory_argument(kernel, index, memory)
            else:
                value = argument["value"].tobytes()[: argument["bytes"]]
                self.device.value_argument(kernel, index, value)
        return kernel

    def _regions(self, entry: np.void):
        first, count = int(entry["first_region"]), int(entry["regions"])
        return self.plan[Section.REGIONS][first : first + count]

    def _set(self, entry: np.void, data: np.ndarray) -> None:
        number = int(entry["allocation"])
        if not entry["regions"]:
            self._write(number, data)
            return
        for region, part in self._parts(entry, data):
            origin, size = region["origin"], region["size"]
            self.device.move_texels("clEnqueueWriteImage", self.memory[number], part, origin, size)

    def _parts(self, entry: np.void, data: np.ndarray):
        flat = data.reshape(-1)
        for region in self._regions(entry):
            begin = int(region["element"])
            count = int(np.prod(region["size"].astype(np.int64))) * 4
            yield region, flat[begin : begin + count]

    def _get(self, entry: np.void) -> np.ndarray:
        shape = tuple(int(d) for d in entry["shape"][: entry["dimensions"]])
        dtype = dtype_from_name(_NAMES[int(entry["dtype"])])
        stored = np.dtype(np.float16) if entry["half"] else dtype
        data = np.empty(shape, stored)
        number = int(entry["allocation"])
        if not entry["regions"]:
            if data.nbytes:
                self.device.read(self.memory[number], data)
            return data.astype(dtype)
        for region, part in self._parts(entry, data):
            origin, size = region["origin"], region["size"]
            self.device.move_texels("clEnqueueReadImage", self.memory[number], part, origin, size)
        return data.astype(dtype)
