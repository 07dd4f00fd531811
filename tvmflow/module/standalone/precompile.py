"""Precompilation: have a device's driver build the binaries of a library's programs.

The binaries are taken from the library's cache folder, so that they are complete even if the driver
compiles at the first launch.  Each start runs in a separate process, here or on a phone: the
driver's state in memory cannot shorten the second one, and a driver that crashes or hangs does not
affect this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ...errors import ArtifactError, DeviceError, TvmflowError
from ...ir.tensors import dtype_from_name
from ...runtime.json_types import JsonObject
from ...runtime.process import Worker, WorkerLostError
from ..artifact import SIDECAR_SUFFIX
from ..files import place_copy, require_space, staging
from ..module import Module
from .loaded import StandaloneModule
from .programs import OWNER, SOURCE, Program, from_folder, read, sidecar_path, update
from .read import EncodedPlan, find_plan, find_weights, is_standalone

#: Time after which a driver counts as hanging; on a phone, compiling a network may take minutes.
START_LIMIT_S = 900.0
#: Free space required for a driver's binaries and caches; a network's binaries take megabytes.
ROOM_BYTES = 16 << 20
#: Variables with the folders of drivers' own caches, which must be empty for a first start.
_DRIVER_CACHES = (
    "POCL_CACHE_DIR",
    "NEO_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "MESA_SHADER_CACHE_DIR",
    "XDG_CACHE_HOME",
)

#: A way to start a library and run it once.  It takes the library, an empty folder for the driver's
#: files, and whether binaries are wanted, which are then in ``standalone`` in that folder; it
#: returns the time in ms and the library's description, or raises `DeviceError` or `AgentError`.
Start: TypeAlias = Callable[[Path, Path, bool], tuple[float, JsonObject]]


@dataclass(frozen=True)
class Precompiled:
    """The binaries of a library's programs for a device."""

    device: str
    platform: str
    driver: str
    #: Times from opening the library to the first outputs, without binaries and with these.
    without_ms: float
    with_ms: float
    programs: tuple[Program, ...]

    @property
    def binary_bytes(self) -> int:
        """Return the total size of the binaries."""
        return sum(len(program.binary) for program in self.programs)


@dataclass(frozen=True)
class Source:
    """A library to which binaries can be added."""

    library: Path
    plan: EncodedPlan
    weights_file: Path | None  #: The sidecar with the weights, if they are not embedded.

    @classmethod
    def open(cls, library: Path) -> Source:
        """Read a library, and check that its file of binaries can be written.

        Raises `ArtifactError` if it is no intact standalone library, or the file of binaries is of
        another kind or cannot be written.
        """
        # This comes first, because its errors say why a file cannot be read.
        plan = find_plan(library)
        if plan is None or not is_standalone(library):
            raise ArtifactError(
                f"Precompiling {library} failed: a standalone library was expected, but it is none "
                "that this tvmflow reads.",
                remedy="Compile the model with `format=standalone`; other modules are not compiled "
                "by the device's driver ahead of time.",
            )
        if plan.metadata.get("target") != "opencl":
            raise ArtifactError(
                f"Precompiling {library} failed: kernels for OpenCL were expected, but it has the "
                "CPU's only, which are compiled already.",
                remedy="Ship the library as it is.",
            )
        weights = find_weights(library, plan).path
        with staging(sidecar_path(library)) as stage:
            # On a full disk, drivers report wrong kernels.
            require_space(stage, ROOM_BYTES)
            if sidecar_path(library).exists():
                read(sidecar_path(library))
        return cls(library, plan, None if weights == library else weights)


def precompile(source: Source, start: Start) -> Precompiled:
    """Start a library twice, without binaries and with those of the first start.

    Raises `DeviceError` if there is no device, or its driver fails, returns no binaries or refuses
    them, and what ``start`` raises.
    """
    library = source.library
    with staging(sidecar_path(library)) as stage:
        # Copy the library, because it would use an existing file of binaries next to it.
        copy = stage / library.name
        place_copy(library.resolve(), copy)
        if source.weights_file is not None:
            copy.with_name(copy.name + SIDECAR_SUFFIX).symlink_to(source.weights_file.resolve())
        folders = stage / "first", stage / "second"
        for folder in folders:
            folder.mkdir()
        without_ms, about = _of(library, start, copy, folders[0], keeps=True)
        device = about["device"]
        description = {
            "device": device["name"],
            "driver": device["driver"],
            "platform": f"{device['platform']} {device['version']}",
            SOURCE: source.plan.source_digest,
        }
        programs = tuple(from_folder(folders[0] / "standalone", description))
        if not programs:
            raise DeviceError(
                f"Precompiling {library} on {device['name']} failed: binaries were expected, but "
                f"its driver gave none{': ' + about['cache'] if about['cache'] else ''}.",
                remedy="Update the driver; without binaries each start compiles the kernels.",
            )
        update(sidecar_path(copy), programs)
        with_ms, again = _of(library, start, copy, folders[1], keeps=False)
    if again["programs_shipped"] != len(programs):
        raise DeviceError(
            f"Precompiling {library} on {device['name']} failed: its driver took "
            f"{again['programs_shipped']} of the {len(programs)} binaries that it had built.",
            remedy="Update the driver; with this one each start compiles the kernels.",
        )
    owner = {name: description[name] for name in OWNER}
    return Precompiled(**owner, without_ms=without_ms, with_ms=with_ms, programs=programs)


def _of(
    library: Path, start: Start, copy: Path, folder: Path, *, keeps: bool
) -> tuple[float, JsonObject]:
    """Start a copy of a library; errors name the library."""
    try:
        return start(copy, folder, keeps)
    except TvmflowError as error:
        # The copy is removed before the user reads the message.
        error.message = error.message.replace(str(copy), str(library))
        raise


def start_here(device_index: int) -> Start:
    """Return a start on an OpenCL device of this machine, in a process of its own."""

    def start(library: Path, folder: Path, keeps: bool) -> tuple[float, JsonObject]:
        environment = {**dict.fromkeys(_DRIVER_CACHES, str(folder)), "TVMFLOW_CACHE": "0"}
        if keeps:
            environment |= {"TVMFLOW_CACHE": "1", "TVMFLOW_CACHE_DIR": str(folder)}
        with closing(Worker(environment)) as worker:
            try:
                result = worker.call(run_once, library, device_index, timeout_s=START_LIMIT_S)
            except (WorkerLostError, RuntimeError) as error:
                raise DeviceError(
                    f"Starting {library.name} failed: {error}.",
                    remedy="Update the device's driver, or choose another device.",
                ) from error
        if isinstance(result, TvmflowError):
            raise result
        ms, about = result
        return ms, about

    return start


def zeros(module: Module) -> list[np.ndarray]:
    """Return inputs of a module for a run that only starts it."""
    return [
        np.zeros(info.logical_shape or info.shape, dtype_from_name(info.dtype))
        for info in module.inputs
    ]


def run_once(library: Path, device_index: int) -> tuple[float, JsonObject] | TvmflowError:
    """Open a library and run it once, in a worker; return the time in ms and its description.

    Errors are returned, as a worker raises only their text.
    """
    began = time.perf_counter()
    try:
        # With another backend, the library could choose the CPU, store that choice next to the
        # binaries, and not report the device's fault.
        with StandaloneModule(library, device_index=device_index, backend="opencl") as module:
            module.run(zeros(module))
            return (time.perf_counter() - began) * 1e3, module.describe()
    except TvmflowError as error:
        return error
