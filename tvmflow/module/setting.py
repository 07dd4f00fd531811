"""Setting of a measurement: device, driver, threads, and versions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .. import _versions
from ..runtime.devices import DeviceInfo, cuda_devices, host_device, opencl_devices
from ..runtime.threads import thread_count
from .module import Module
from .standalone.loaded import StandaloneModule

#: Backends whose name, as for `tvmflow.load`, differs from the target's.
_BACKENDS = {"llvm": "cpu"}


@dataclass(frozen=True)
class Setting:
    """Device, driver, threads and versions with which a module was measured."""

    target: str  #: ``opencl``, ``cuda`` or ``llvm``.
    #: Backend that ran the kernels: ``opencl``, ``cuda``, or ``cpu`` for the host's processors.
    backend: str
    #: Runtime of the module: ``tvm`` or ``standalone``.
    format: str
    device: str  #: Name of the device, as the driver spells it.
    platform: str  #: OpenCL's platform; empty without OpenCL.
    driver: str
    version: str  #: Version of the API (OpenCL 3.0) or the compiler (LLVM 22).
    #: Threads that share loops on the host's processors; ``None`` if the driver decides.
    threads: int | None
    #: Versions of tvmflow, and of the TVM that runs or compiled the module.
    versions: dict[str, str]

    def facts(self) -> list[tuple[str, str]]:
        """Return names and values of the setting, for display."""
        driver = ", ".join(filter(None, (self.platform, self.driver, self.version)))
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        rows = [
            ("device", self.device),
            ("driver", driver),
            ("threads", "" if self.threads is None else str(self.threads)),
            ("target", f"{self.target} ({self.format})"),
            ("backend", self.backend),
            ("versions", versions),
        ]
        return [(name, value) for name, value in rows if value]


def device_of(module: Module) -> DeviceInfo | None:
    """Return the facts of a module's device; ``None`` if TVM's runtime does not find it."""
    if isinstance(module, StandaloneModule):
        # The library looks for devices by itself, and may number them differently.
        about = module.describe()
        if about["backend"] == "cpu":
            return host_device()
        name, driver = about["device"]["name"], about["device"]["driver"]
        return next((i for i in opencl_devices() if (i.name, i.driver) == (name, driver)), None)
    if module.target == "llvm":
        return host_device()
    devices = opencl_devices() if module.target == "opencl" else cuda_devices()
    return devices[module.device_index]


def setting_of(module: Module) -> Setting:
    """Open a module, and return the setting in which it runs.

    Raises `DeviceError` if there is no device, and `ArtifactError` if it cannot be opened.
    """
    module.open()
    meta = module.metadata
    versions = {"tvmflow": _versions.__version__, "TVM": str(meta.get("tvm", ""))}
    if isinstance(module, StandaloneModule):
        about = module.describe()
        device, backend = about["device"], str(about["backend"])
        is_cpu = backend == "cpu"
        reported = {n: "" if is_cpu else device[n] for n in ("platform", "driver", "version")}
        found = re.match(r"\d+", device["driver"]) if is_cpu else None
        return Setting(
            target="llvm" if is_cpu else "opencl",
            backend=backend,
            format="standalone",
            device=device["name"],
            **reported,
            threads=None if found is None else int(found[0]),
            versions=versions,
        )
    info = device_of(module)
    assert info is not None
    return Setting(
        target=module.target,
        backend=_BACKENDS.get(module.target, module.target),
        format="tvm",
        device=info.name,
        platform=info.platform,
        driver="" if module.target == "llvm" else info.driver,
        version=info.version,
        threads=thread_count() if module.target == "llvm" else None,
        versions=versions,
    )
