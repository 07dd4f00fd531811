"""Starts of a library on a device behind an agent, for `tvmflow.module.standalone.precompile`."""

from __future__ import annotations

from pathlib import Path

from ..module.standalone.precompile import Start, zeros
from ..runtime.json_types import JsonObject
from .device import RemoteDevice
from .library import NEW_CACHE, NO_CACHE
from .module import AgentModule


def start_on(device: RemoteDevice, device_index: int) -> Start:
    """Return a start in a new session there.

    The driver's own cache on the device, if it has one, is not emptied before.
    """

    def start(library: Path, folder: Path, keeps: bool) -> tuple[float, JsonObject]:
        device.reset()
        module = AgentModule(
            library,
            device,
            device_index=device_index,
            backend="opencl",
            cache=NEW_CACHE if keeps else NO_CACHE,
        )
        with module:
            module.run(zeros(module))
            about, ms = module.describe(), module.first_run_ms
            if keeps:
                binaries = folder / "standalone"
                binaries.mkdir()
                for name, content in module.binaries().items():
                    (binaries / name).write_bytes(content)
        return ms, about

    return start
